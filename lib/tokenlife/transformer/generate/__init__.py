"""Text from a model: sampling, prefill and decode, batching, speculative decoding."""

from tokenlife.transformer.generate.batch import Batch, Request, RequestError, prefill
from tokenlife.transformer.generate.drafts import LookupDraft, ModelDraft
from tokenlife.transformer.generate.sampling import Sampler, SamplingError, draw
from tokenlife.transformer.generate.serving import Completion, Pass, serve
from tokenlife.transformer.generate.speculative import (
    Speculation,
    expected_speedup,
    expected_tokens,
    judge,
    speculate,
)
from tokenlife.transformer.generate.text import generate, stream

__all__ = [
    "Batch",
    "Completion",
    "LookupDraft",
    "ModelDraft",
    "Pass",
    "Request",
    "RequestError",
    "Sampler",
    "SamplingError",
    "Speculation",
    "draw",
    "expected_speedup",
    "expected_tokens",
    "generate",
    "judge",
    "prefill",
    "serve",
    "speculate",
    "stream",
]
