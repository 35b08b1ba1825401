"""Documents become training batches: read, cleaned of copies, shuffled, packed, dealt to ranks.

Nothing here knows a model. What leaves this room is a batch of token ids with labels, loss mask,
positions and document boundaries, the same on every machine for the same seed. The stream for
PyTorch is in :mod:`tokenlife.corpus.loader`, which alone imports torch.
"""

from tokenlife.corpus.batch import IGNORE, PADDING, Batch, make_batch
from tokenlife.corpus.declaration import udhr
from tokenlife.corpus.dedup import deduplicate
from tokenlife.corpus.documents import Document, shakespeare, standard_library
from tokenlife.corpus.order import shuffled, split
from tokenlife.corpus.packing import Packing, best_fit, chop, pad
from tokenlife.corpus.sharding import BatchLayout
from tokenlife.corpus.tokenfile import TokenFile, write_tokens

__all__ = [
    "IGNORE",
    "PADDING",
    "Batch",
    "BatchLayout",
    "Document",
    "Packing",
    "TokenFile",
    "best_fit",
    "chop",
    "deduplicate",
    "make_batch",
    "pad",
    "shakespeare",
    "shuffled",
    "split",
    "standard_library",
    "udhr",
    "write_tokens",
]
