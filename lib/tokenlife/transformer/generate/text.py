"""Generate: prompts in, token ids out, all at once or one by one as they come."""

from collections.abc import Iterator, Sequence

from tokenlife.transformer.generate.batch import Batch, Request, RequestError
from tokenlife.transformer.generate.sampling import GREEDY, Sampler
from tokenlife.transformer.model import Decoder


def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int = 64,
    sampler: Sampler | Sequence[Sampler] = GREEDY,
    stop_ids: Sequence[int] = (),
) -> list[list[int]]:
    """Continue a batch of prompts of any lengths.

    Parameters
    ----------
    model
        Any decoder.
    prompts
        Token ids of each prompt.
    max_new_tokens
        Ids to generate for each at most.
    sampler
        One for all, each prompt with random numbers of its own from the same seed, or one for each
        prompt (equal prompts under equal seeds give equal text).
    stop_ids
        Ids that end a text; the one that did is the last id returned.

    Returns
    -------
    list of list of int
        The new ids of each prompt, the same as if it were generated alone (up to rounding).

    Raises
    ------
    RequestError
        If a prompt is empty, or longer with its new tokens than the model's positions.

    Examples
    --------
    >>> from tokenlife.transformer import ModelConfig
    >>> model = Decoder(ModelConfig.load("running-gpt"))
    >>> together = generate(model, [[1, 2, 3], [4]], max_new_tokens=5)
    >>> together == generate(model, [[1, 2, 3]], 5) + generate(model, [[4]], 5)
    True
    """
    requests = _requests(prompts, max_new_tokens, sampler, stop_ids)
    texts: list[list[int]] = [[] for _ in requests]
    for step in _steps(model, requests):
        for key, id_ in step.items():
            texts[key].append(id_)
    return texts


def stream(
    model: Decoder,
    prompt: Sequence[int],
    max_new_tokens: int = 64,
    sampler: Sampler = GREEDY,
    stop_ids: Sequence[int] = (),
) -> Iterator[int]:
    """Yield the ids of :func:`generate` for one prompt, each as soon as it is known.

    Bad input is refused at the call, before the first id is asked for.
    """
    (request,) = _requests([prompt], max_new_tokens, sampler, stop_ids)
    request.check(model, request.slots)
    return (step[0] for step in _steps(model, [request]))


def _requests(prompts, max_new_tokens, sampler, stop_ids) -> list[Request]:
    if not prompts:
        raise RequestError("no prompt; give a list of prompts, each a list of token ids")
    samplers = [sampler] * len(prompts) if isinstance(sampler, Sampler) else list(sampler)
    if len(samplers) != len(prompts):
        raise RequestError(f"{len(samplers)} samplers for {len(prompts)} prompts")
    return [
        Request(prompt, max_new_tokens, one, frozenset(stop_ids))
        for prompt, one in zip(prompts, samplers, strict=True)
    ]


def _steps(model: Decoder, requests: Sequence[Request]) -> Iterator[dict[int, int]]:
    batch = Batch(model, len(requests), max(request.slots for request in requests))
    yield batch.join(dict(enumerate(requests)))
    while batch.rows:
        yield batch.step()
