"""A streamed answer on the wire: server-sent events in chunks of HTTP/1.1, layer by layer.

A server that writes an answer token by token sends each as an event: a line ``data: …`` and an
empty one (WHATWG HTML, section 9.2), whose data is most often a JSON object. HTTP/1.1 puts each
write into a chunk, its length in hexadecimal before it (RFC 9112, section 7.1). TLS 1.3 would put a
record around that: 5 bytes of header, 1 of type and a tag of 16 (RFC 8446, section 5.2). Then come
TCP, IP and Ethernet (:mod:`tokenlife.wire.stack`).

Envelopes: ``text`` (the text alone, no event: a plain chunked body), ``short`` (an object with one
key), ``chat`` (the object that chat services have made a custom of). A token's share is its text in
UTF-8; what JSON escapes add is JSON's.

Assumed: each event is one write and starts a segment of its own. Left out: the request, the
answer's head and its last chunk, TLS's handshake, HTTP/2 and QUIC.
"""

import json
from collections.abc import Sequence

from tokenlife.wire.framing import FramingError
from tokenlife.wire.stack import Stack

ENVELOPES = ("text", "short", "chat")
TLS_RECORD = 5 + 1 + 16
LAST_CHUNK = b"0\r\n\r\n"


def body(text: str, envelope: str = "chat", model: str = "model", moment: int = 0) -> bytes:
    """Return what an event's data, or a plain body, says of some text.

    Parameters
    ----------
    text
        Of one token, or of several.
    envelope
        One of ``ENVELOPES``.
    model, moment
        What a chat object names: the model, and the second at which the answer was begun.

    Raises
    ------
    FramingError
        If there is no such envelope.

    Examples
    --------
    >>> body(" light", "text"), body(" light", "short")
    (b' light', b'{"t":" light"}')
    """
    if envelope not in ENVELOPES:
        raise FramingError(f"no envelope {envelope!r}; there are {', '.join(ENVELOPES)}")
    if envelope == "text":
        return text.encode()
    holder = {"t": text}
    if envelope == "chat":
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        holder = {
            "id": f"chatcmpl-{moment:024d}",
            "object": "chat.completion.chunk",
            "created": moment,
            "model": model,
            "choices": [choice],
        }
    return json.dumps(holder, ensure_ascii=False, separators=(",", ":")).encode()


def event(text: str, envelope: str = "chat", **named) -> bytes:
    r"""Return the event that carries some text; of the plain envelope the text alone.

    Examples
    --------
    >>> event(" light", "short")
    b'data: {"t":" light"}\n\n'
    """
    inner = body(text, envelope, **named)
    return inner if envelope == "text" else b"data: " + inner + b"\n\n"


def chunk(content: bytes) -> bytes:
    r"""Return a chunk of HTTP/1.1.

    Examples
    --------
    >>> chunk(b"words, words")
    b'c\r\nwords, words\r\n'
    """
    return b"%x\r\n%b\r\n" % (len(content), content)


def group(pieces: Sequence[str], size: int) -> list[str]:
    """Join every ``size`` pieces into one.

    Examples
    --------
    >>> group(["a", "b", "c"], 2)
    ['ab', 'c']
    """
    if size < 1:
        raise FramingError(f"an event carries one token at least, not {size}")
    return ["".join(pieces[i : i + size]) for i in range(0, len(pieces), size)]


def bill(
    texts: Sequence[str], stack: Stack, envelope: str = "chat", tls: bool = False, **named
) -> dict[str, int]:
    """Count the bytes of a streamed text by layer, from its own to the gap between frames.

    Parameters
    ----------
    texts
        Of the events, in order.
    stack
        TCP, with what stands around it.
    envelope, named
        As :func:`body` takes them.
    tls
        Whether each write is a record of TLS 1.3.

    Returns
    -------
    dict
        ``text``, ``json``, ``event``, ``chunk``, ``tls record``; then the stack's layers,
        ``padding``, ``preamble and gap``; last ``acknowledgements``, which go the other way, as
        many as the stack says, with all that is around them.

    Examples
    --------
    >>> found = bill([" light"], Stack("tcp", 1500), "short")
    >>> found["text"], found["json"], found["event"], found["chunk"], sum(found.values())
    (6, 8, 8, 6, 208)
    """
    names = ("text", "json", "event", "chunk", "tls record")
    found = dict.fromkeys(names, 0)
    for text in texts:
        sizes = [len(text.encode()), len(body(text, envelope, **named))]
        sizes += [len(event(text, envelope, **named))]
        sizes += [len(chunk(event(text, envelope, **named)))]
        sizes += [sizes[-1] + tls * TLS_RECORD]
        for name, size, inner in zip(names, sizes, [0, *sizes], strict=False):
            found[name] += size - inner
        framed = stack.frame(sizes[-1])
        back = framed.acknowledgement_bytes + framed.acknowledgement_silent_bytes
        outer = framed.header_bytes | {
            "padding": framed.padding_bytes,
            "preamble and gap": framed.silent_bytes,
            "acknowledgements": back,
        }
        for name, size in outer.items():
            found[name] = found.get(name, 0) + size
    return found
