"""The library behind *The life of a token: from words to bits on the wire*.

Its rooms follow the token: ``tokenizer`` → ``corpus`` → ``transformer`` → ``costs`` → ``parallel``
→ ``collectives`` → ``wire`` → ``network`` → ``jobs``. A room imports only rooms before it.
"""

__version__ = "0.1.0"
