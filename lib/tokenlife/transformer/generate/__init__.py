"""Text from a model: sampling, prefill and decode, batching, speculative decoding."""

from tokenlife.transformer.generate.sampling import Sampler, SamplingError, draw

__all__ = ["Sampler", "SamplingError", "draw"]
