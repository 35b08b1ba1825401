"""Documents become training batches: read, cleaned of copies, shuffled, packed, dealt to ranks.

Nothing here knows a model. What leaves this room is a batch of token ids with labels, loss mask,
positions and document boundaries, the same on every machine for the same seed.
"""

from tokenlife.corpus.declaration import udhr
from tokenlife.corpus.documents import Document, shakespeare, standard_library

__all__ = ["Document", "shakespeare", "standard_library", "udhr"]
