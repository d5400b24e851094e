"""The native half of the front door: bytes and streams over HTTP/2, in a thread of its own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

class Call:
    """One call. All methods return at once; what they order is done on the network thread."""

    @property
    def id(self) -> int:
        """The number by which events name this call."""

    def reply(self, message: bytes) -> bool:
        """One message and the end. False: the client has left already."""

    def reply_all(self, messages: list[bytes]) -> bool:
        """Some messages, joined, and the end. An event says whether they were delivered; False: the
        client has left already, and no event comes."""

    def send(self, message: bytes) -> int:
        """One message; more may follow. The bytes that wait to be written; 0: the client has left."""

    def finish(self, code: int, message: str) -> bool:
        """End the stream with a gRPC status after what was sent."""

    def queued(self) -> int:
        """Bytes that wait to be written."""

    def want_drained(self) -> bool:
        """Have an event sent once nothing waits to be written. False: nothing waits now."""

    def watch(self) -> None:
        """Have an event sent when the answer that comes now was handed over."""

    def consumed(self) -> None:
        """A message of the client was dealt with: the next one may come."""

class Server:
    """An HTTP/2 server for gRPC whose calls are answered by Python."""

    def __init__(
        self,
        routes: Sequence[tuple[str, bool]],
        names: Sequence[str],
        prepare: Callable[[str, bool, bytes | None, tuple[str | None, ...]], Any],
        options: Mapping[str, int],
    ) -> None:
        """`routes`: (path, bidirectional) of every method; `names`: the headers that services want;
        `prepare(address, tls, certificate, values)` makes of them what an opened call carries."""

    def descriptor(self) -> int:
        """The descriptor that is readable while `take` has something."""

    def listen(self, address: str, port: int) -> int:
        """Listen and serve in a thread; returns the port. Raises OSError with its errno."""

    def take(self, max: int) -> list[tuple[Any, ...]]:
        """Up to `max` events: (0, call, method, request or None, prepared, timeout ns or -1),
        (1, id, message), (2, id) half-closed, (3, id) gone, (4, id) delivered, (5, id) drained,
        (6, id, code, text) broken, (7,) closed."""

    def stop(self, grace_ms: int) -> None:
        """Accept no more, let calls end, close; the last event says that it is done."""

    def counters(self) -> dict[str, int]:
        """All counters, by name."""

    def set_tls(self, chain: bytes, key: bytes, client_ca: bytes | None = None) -> None:
        """Speak TLS as well, with this certificate chain and key (PEM). Raises ValueError."""

def self_signed(names: Sequence[str]) -> tuple[str, str]:
    """A certificate and key (PEM) for development, valid for these names."""

class Client:
    """The other direction: calls to servers, made in a thread of their own, for one event loop."""

    def __init__(self) -> None: ...
    def descriptor(self) -> int:
        """The descriptor that is readable while `take` has something."""

    def connect(self, addresses: Sequence[str]) -> int:
        """A channel to `host:port` alternatives; dialled when it is used. Returns its number."""

    def disconnect(self, channel: int) -> None:
        """Forget a channel; calls under way go on."""

    def call(
        self,
        channel: int,
        path: str,
        message: bytes,
        metadata: Sequence[tuple[str, str]],
        timeout_ms: int,
    ) -> int:
        """Begin a call; returns its number, which `take` names once. Raises ValueError for a channel or
        a header that cannot be."""

    def cancel(self, call: int) -> None:
        """Give a call up; `take` does not name it any more unless it had ended before."""

    def take(self, max: int) -> list[tuple[int, int, str, list[bytes]]]:
        """Up to `max` ended calls: (number, gRPC code, sentence, messages)."""

    def stop(self) -> None:
        """Drop all connections and end the thread."""
