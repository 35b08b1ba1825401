"""Messages between sites that may be cut off, killed or slow: who took part is decided once.

If each site listened to each other for itself, a cut could leave two sites with different sets of
messages, and so with different weights for ever. So one site, the hub, decides. Each round every
site sends the hub its message; the hub waits for those that are there, at most ``patience_s``, and
sends to each that took part what the others sent. That is what each would have had from each other,
as many bytes in all. Who missed a round is away. It trains on, says so when it is next due, and the
hub hands it the state of all, and says in which round it was last heard: what was used of the way
that it went is not offered again (:meth:`~tokenlife.wan.local_sgd.Site.adopt`).

A message is 13 bytes of head (kind, round or number of the site, length) and its body, on TCP: what
TCP holds back during a cut arrives late, and a late message counts as a sign of life only.

Who was killed may start anew, ``again``, and comes back like one that was away.

Left out: a hub that dies (start again from a checkpoint), sites that come as new, anything secret.
"""

import math
import selectors
import socket
import struct
import time
from collections.abc import Mapping

import numpy as np

from tokenlife.errors import TokenlifeError
from tokenlife.wan.local_sgd import LocalError, Site

HEAD = struct.Struct("<cIQ")
HELLO, OFFER, OTHERS, LOST, STATE = b"h", b"o", b"a", b"l", b"s"
CONNECT_S = 30.0


class ExchangeError(TokenlifeError, ConnectionError):
    """A site that is gone, where none may be missing."""


class Line:
    """One TCP connection that carries whole messages; counts what it carries.

    Attributes
    ----------
    sent, received
        Bytes, heads included.
    alive
        False once the other end has closed.
    """

    def __init__(self, connected: socket.socket):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setblocking(False)
        self.socket, self.alive = connected, True
        self.sent = self.received = 0
        self._in, self._out = bytearray(), bytearray()

    def put(self, kind: bytes, number: int, body: bytes = b"") -> None:
        """Queue a message; :func:`turn` sends it."""
        self._out += HEAD.pack(kind, number, len(body)) + body

    def pump(self) -> None:
        """Send and receive what can be without waiting."""
        try:
            while self._out:
                gone = self.socket.send(self._out)
                self.sent += gone
                del self._out[:gone]
        except BlockingIOError:
            pass
        except OSError:
            self.alive = False
        try:
            while self.alive and (data := self.socket.recv(1 << 18)):
                self.received += len(data)
                self._in += data
            self.alive = False  # an empty read is the end
        except BlockingIOError:
            pass
        except OSError:
            self.alive = False

    @property
    def waiting(self) -> bool:
        """Whether something is still to be sent."""
        return bool(self._out) and self.alive

    def messages(self):
        """Yield (kind, number, body) of the messages that are here whole."""
        while len(self._in) >= HEAD.size:
            kind, number, length = HEAD.unpack_from(self._in)
            end = HEAD.size + length
            if len(self._in) < end:
                return
            body = bytes(self._in[HEAD.size : end])
            del self._in[:end]
            yield kind, number, body


def turn(lines: list[Line], wait_s: float) -> None:
    """Wait until a line can do something, at most so long, and let all do what they can."""
    with selectors.DefaultSelector() as selector:
        for line in lines:
            if line.alive:
                events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.waiting else 0)
                selector.register(line.socket, events)
        if selector.get_map():
            selector.select(max(0.0, min(wait_s, 0.2)))
        else:
            return
    for line in lines:
        if line.alive:
            line.pump()


class Exchange:
    """One site's place among the others; a context manager.

    Parameters
    ----------
    site, sites
        This one's number, and how many there are. Site 0 is the hub.
    address
        Of the hub: host and port. A port of 0 is chosen, and stands in ``address`` then.
    patience_s
        That a round waits for a site; ``math.inf`` where none may be missing.
    again
        Whether this site was there before and lost everything.

    Raises
    ------
    ExchangeError
        If the hub is not there, or, without end of patience, a site is gone.
    """

    def __init__(
        self, site: int, sites: int, address, patience_s: float = math.inf, again: bool = False
    ):
        self.site, self.sites, self.patience_s = site, sites, patience_s
        self.round, self.away, self._lines = 0, set(), {}
        self._listener, self._back, self._heard = None, set(), {}  # the hub's
        self._offered, self._owed, self._state = (0, None), None, None  # the others'
        if again:
            self.away = {site}
        self.address = tuple(address)
        if site == 0:
            self._listener = socket.create_server(self.address)
            self.address = self._listener.getsockname()[:2]

    def __enter__(self):
        deadline = time.monotonic() + CONNECT_S
        if self.site:
            while True:
                try:
                    line = Line(socket.create_connection(self.address, timeout=1))
                    break
                except OSError as error:
                    if time.monotonic() > deadline:
                        raise ExchangeError(f"no hub at {self.address}: {error}") from error
                    time.sleep(0.05)
            line.put(HELLO, self.site)
            self._lines[0] = line
            while line.waiting:
                turn([line], 0.1)
            return self
        while len(self._lines) < self.sites - 1:
            self._welcome(max(0.1, deadline - time.monotonic()))
        return self

    def _welcome(self, wait_s: float) -> int | None:
        """Let in who knocks; return its number."""
        self._listener.settimeout(wait_s)
        try:
            line = Line(self._listener.accept()[0])
        except (BlockingIOError, TimeoutError):
            return None
        while not (hello := next(line.messages(), None)):
            turn([line], 0.2)
        self._lines[hello[1]] = line
        return hello[1]

    def __exit__(self, *_):
        end = time.monotonic() + 2
        while any(line.waiting for line in self._lines.values()) and time.monotonic() < end:
            turn(list(self._lines.values()), 0.1)
        for line in self._lines.values():
            line.socket.close()
        if self._listener:
            self._listener.close()

    @property
    def sent(self) -> int:
        """Bytes that this site has sent so far, heads included."""
        return sum(line.sent for line in self._lines.values())

    def swap(self, data: bytes) -> Mapping[int, bytes]:
        """Offer a message; return those of all who took part, or nothing if this site is away."""
        self.round += 1
        return self._gather(data) if self.site == 0 else self._ask(data)

    def _lost(self, site: int) -> None:
        if math.isinf(self.patience_s):
            raise ExchangeError(f"site {site} is gone in round {self.round}")

    def _gather(self, data: bytes) -> dict[int, bytes]:
        offers, back = {0: data}, set()
        deadline = time.monotonic() + self.patience_s
        while True:
            if (knocked := self._welcome(0.0)) is not None:
                self.away.add(knocked)
                self._heard.pop(knocked, None)
                back.add(knocked)
            for site, line in self._lines.items():
                for kind, number, body in line.messages():
                    if kind == OFFER and number == self.round and site not in self.away:
                        offers[site] = body
                    elif site in self.away:
                        back.add(site)
            missing = [s for s in self._lines if s not in offers and s not in self.away]
            for site in [s for s in missing if not self._lines[s].alive]:
                self._lost(site)
                self.away.add(site)
                missing.remove(site)
            if not missing or time.monotonic() >= deadline:
                break
            turn(list(self._lines.values()), deadline - time.monotonic())
        self.away |= set(missing)
        self._back = back
        self._heard |= dict.fromkeys(offers, self.round)
        for site in offers.keys() - {0}:
            for other in sorted(offers.keys() - {site}):
                self._lines[site].put(OTHERS, other, offers[other])
            self._lines[site].put(OTHERS, self.sites, struct.pack("<I", self.round))
        turn(list(self._lines.values()), 0.0)
        return offers

    def _ask(self, data: bytes) -> dict[int, bytes]:
        line, offers = self._lines[0], {self.site: data}
        line.put(OFFER, self.round, data)
        # The hub waits as long for others; and answers must cross.
        deadline = time.monotonic() + 2 * self.patience_s
        while time.monotonic() < deadline and not self._state:
            for kind, number, body in line.messages():
                if kind == OTHERS and number < self.sites:
                    offers[number] = body
                elif kind == OTHERS and struct.unpack("<I", body)[0] == self.round:
                    return offers
                elif kind == STATE:
                    self._state = number, body
            if not line.alive:
                raise ExchangeError("the hub is gone: start again from a checkpoint")
            turn([line], deadline - time.monotonic())
        self.away = {self.site}
        return {}

    def meet(self, site: Site, weights: np.ndarray) -> np.ndarray:
        """Go through one round of a method of one fragment; return this site's new weights."""
        if site.method.fragments != 1 or site.method.behind:
            raise LocalError("over lines that may be cut the weights go at once, and are awaited")
        if self.site and self.away:
            self._lines[0].put(LOST, self.round)
        else:
            owed = site.codes[0].owed
            data, self._offered = site.offer(weights, 0), (self.round + 1, weights.copy())
            if offers := self.swap(data):
                weights = site.merge(weights, 0, offers)
            else:
                self._owed = owed
        return self._hand_over(site, weights) if self.site == 0 else self._come_back(site, weights)

    def _hand_over(self, site: Site, weights: np.ndarray) -> np.ndarray:
        for back in self._back:
            heard = struct.pack("<I", self._heard.get(back, 0))
            state = site.agreed.tobytes() + site.velocity.tobytes()
            self._lines[back].put(STATE, self.round, heard + state)
            self.away.discard(back)
        turn(list(self._lines.values()), 0.0)
        return weights

    def _come_back(self, site: Site, weights: np.ndarray) -> np.ndarray:
        """Take the state, if this site is away and it has come."""
        line = self._lines[0]
        turn([line], 0.0)
        if not self.away:
            return weights
        for kind, number, body in line.messages():
            if kind == STATE:
                self._state = number, body
        if self._state:
            (number, body), self._state = self._state, None
            used = struct.unpack_from("<I", body)[0] == self._offered[0]
            if not used:  # as if it had never been offered
                site.codes[0].owed = self._owed
            agreed, velocity = np.frombuffer(body, np.float32, offset=4).reshape(2, -1)
            since = self._offered[1] if used else None
            weights = site.adopt(weights, agreed, velocity, since)
            self.away, self.round = set(), number
        return weights
