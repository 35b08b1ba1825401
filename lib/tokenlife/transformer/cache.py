"""The key–value cache: what decoding keeps of the tokens it has read.

A token's keys and values do not change when later tokens come, so they are computed once and kept.
All memory is taken at the start: a row for each sequence, a slot for each position. Sequences of
different length stand side by side, each filled up to its own length. Latent attention keeps one
compressed vector a token instead of keys and values (DeepSeek-V2, 2024).

Left out: pages (each row owns its capacity), and windows (a windowed layer keeps all tokens).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tokenlife.errors import TokenlifeError
from tokenlife.transformer.config import ModelConfig


class CacheError(TokenlifeError, ValueError):
    """A cache that is full, or that does not fit the batch."""


class KVCache:
    """Keys and values of every layer, in preallocated slots.

    Parameters
    ----------
    config
        A model of any family.
    batch
        Sequences.
    capacity
        Tokens that each may grow to.
    device, dtype
        Of the model.

    Attributes
    ----------
    keys
        (layers, batch, kv_heads, capacity, head_dim); for latent attention
        (layers, batch, 1, capacity, kv_rank + rope_dim).
    values
        (layers, batch, kv_heads, capacity, value_dim); ``None`` for latent attention.
    lengths
        (batch,) tokens held, on the CPU always, so that reading them waits for no GPU.

    Examples
    --------
    >>> cache = KVCache(ModelConfig.load("gpt2"), batch=1, capacity=1024)
    >>> cache.bytes, cache.bytes_per_token
    (75497472, 73728)
    """

    def __init__(
        self,
        config: ModelConfig,
        batch: int,
        capacity: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        if batch < 1 or capacity < 1:
            raise CacheError(
                f"a cache needs a sequence and a slot at least, not {batch}, {capacity}"
            )
        a = config.attention
        heads, width = (1, a.kv_rank + a.rope_dim) if a.kv_rank else (a.kv_heads, a.head_dim)
        shape = (config.layers, batch, heads, capacity)
        # Zeros, not whatever the memory held: a slot that is masked is still multiplied, by 0.
        self.keys = torch.zeros(*shape, width, device=device, dtype=dtype)
        self.values = None
        if not a.kv_rank:
            self.values = torch.zeros(*shape, a.value_dim, device=device, dtype=dtype)
        self.lengths = torch.zeros(batch, dtype=torch.long)

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.keys.shape[1]

    @property
    def capacity(self) -> int:
        """Slots of each sequence."""
        return self.keys.shape[3]

    @property
    def bytes(self) -> int:
        """Memory taken, full or not."""
        return sum(part.nbytes for part in (self.keys, self.values) if part is not None)

    @property
    def bytes_per_token(self) -> int:
        """Memory of one token in all layers."""
        return self.bytes // (self.batch * self.capacity)

    def rows(self, start: int, stop: int) -> "KVCache":
        """Return the sequences from ``start`` to ``stop`` as a cache that shares this memory."""
        part = object.__new__(KVCache)
        part.keys = self.keys[:, start:stop]
        part.values = None if self.values is None else self.values[:, start:stop]
        part.lengths = self.lengths[start:stop]
        return part

    def set_lengths(self, lengths: Sequence[int] | Tensor) -> None:
        """Forget all tokens beyond these lengths (0: the row is free for another sequence)."""
        self.lengths.copy_(torch.as_tensor(lengths))

    def check(self, batch: int, counts: Tensor) -> None:
        """Refuse new tokens that do not fit.

        Raises
        ------
        CacheError
            If the batch is of another size, or a row would overflow.
        """
        if batch != self.batch:
            raise CacheError(f"a batch of {batch} does not fit a cache of {self.batch} sequences")
        longest = int((self.lengths + counts).max())
        if longest > self.capacity:
            raise CacheError(f"{longest} tokens do not fit the cache's capacity of {self.capacity}")

    def store(self, layer: int, keys: Tensor, values: Tensor | None, place: "Place"):
        """Write new keys and values and return all up to the longest row.

        Parameters
        ----------
        layer
            Which one.
        keys, values
            (B, heads, S, width); values ``None`` for latent attention.
        place
            Of :meth:`place`: where they go.

        Returns
        -------
        tuple
            Keys and values (B, heads, T, width), T the longest row with its new tokens.
        """
        held = []
        for memory, new in ((self.keys, keys), (self.values, values)):
            if memory is None:
                held.append(None)
                continue
            slots = memory[layer]
            if place.rows is None:
                slots[:, :, place.start : place.stop] = new
            else:
                new = new.transpose(1, 2)[place.rows, place.columns]  # (tokens, heads, width)
                slots.transpose(1, 2)[place.rows, place.slots] = new
            held.append(slots[:, :, : place.stop])
        return held

    def place(self, length: int, real: Tensor | None = None) -> "Place":
        """Say where the next ``length`` tokens of each row go.

        Parameters
        ----------
        length
            New tokens in each row.
        real
            (B, length) bool: which of them are tokens, the others being padding on the right.
        """
        start = int(self.lengths.min())
        if real is None and start == int(self.lengths.max()):
            return Place(start, start + length)
        real = torch.ones(self.batch, length, dtype=torch.bool) if real is None else real.cpu()
        rows, columns = real.nonzero(as_tuple=True)
        slots = self.lengths[rows] + columns
        return Place(
            0, int(slots.max()) + 1, *(t.to(self.keys.device) for t in (rows, columns, slots))
        )


class Place:
    """Where new tokens go: one range for all rows, or a slot for each token."""

    def __init__(self, start: int, stop: int, rows=None, columns=None, slots=None):
        self.start, self.stop = start, stop
        self.rows, self.columns, self.slots = rows, columns, slots
