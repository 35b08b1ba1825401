"""Words → tokens: byte-level BPE, trained, loaded, applied and measured.

``bpe`` trains, ``tokenizer`` encodes and decodes, ``vocabularies`` loads the named ones,
``entropy`` says how many bits a token carries, ``codes`` writes ids down. ``naive`` is the readable
version of the first two.
"""

from tokenlife.tokenizer import codes, entropy, errors, naive, vocabularies
from tokenlife.tokenizer.bpe import train
from tokenlife.tokenizer.encoding import Encoding
from tokenlife.tokenizer.pretokenize import Pretokenizer, pretokenizer
from tokenlife.tokenizer.tokenizer import Tokenizer

__all__ = [
    "Encoding",
    "Pretokenizer",
    "Tokenizer",
    "codes",
    "entropy",
    "errors",
    "naive",
    "pretokenizer",
    "train",
    "vocabularies",
]
