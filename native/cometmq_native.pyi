"""The native half of the front door, bytes and streams over HTTP/2 in its own thread; and
conversions of stored records."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__version__: str

class Call:
    """One call. All methods return at once; the network thread carries out the orders."""

    @property
    def id(self) -> int:
        """The id of the call in events."""

    def reply(self, message: bytes) -> bool:
        """Send one message and the end. Returns False if the client has left."""

    def send(self, message: bytes) -> int:
        """Send one message; more may follow. Returns the unwritten bytes, 0 if the client left."""

    def finish(self, code: int, message: str) -> bool:
        """End the stream with a gRPC status after the sent messages."""

    def queued(self) -> int:
        """Return the number of bytes that wait to be written."""

    def want_drained(self) -> bool:
        """Request an event when nothing waits to be written; returns False if nothing waits now."""

    def watch(self) -> None:
        """Request an event when the next answer was passed to the connection."""

    def consumed(self) -> None:
        """Record that a message of the client was processed: the next one may be read."""

class Requests:
    """Encoded requests of calls that are taken together; no slices, no negative positions."""

    def __init__(self, requests: Sequence[bytes]) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, at: int) -> bytes: ...

class Server:
    """An HTTP/2 server for gRPC whose calls are answered by Python."""

    def __init__(
        self,
        routes: Sequence[tuple[str, bool]],
        names: Sequence[str],
        prepare: Callable[[str, bool, bytes | None, tuple[str | None, ...]], Any],
        options: Mapping[str, int | Mapping[str, int] | Sequence[str]],
        bounds_ms: Sequence[int] = (),
    ) -> None:
        """`routes`: (path, bidirectional) of every method; `names`: the headers to pick;
        `prepare(address, tls, certificate, values)` converts them for an opened call; `options`:
        the limits, by the names in `options.rs`; `bounds_ms`: the buckets of `durations`."""

    def descriptor(self) -> int:
        """Return the descriptor that is readable while events wait for `take`."""

    def listen(self, address: str, port: int) -> int:
        """Listen and serve in a thread; returns the port. Raises OSError with its errno."""

    def reply_many(self, calls: list[Any], messages: list[bytes | list[bytes]]) -> list[int]:
        """Send one message and the end on each of these calls, as `Call.reply`, with one wake-up of
        the network thread. Or a list of messages, joined; an event reports their delivery. Returns
        the positions of the calls whose client has left. Other objects in the place of a call are
        skipped."""

    def refused_address(self) -> str | None:
        """Return the address that was refused last because it has as many connections as it may,
        once."""

    def durations(self) -> list[tuple[list[int], int]]:
        """Return the calls that `reply_many` has answered with one message: for each route the
        calls by bucket and their nanoseconds, from `take` to the answer."""

    def take(self, max: int) -> list[tuple[Any, ...]]:
        """Take up to `max` events: (0, call, method, request or None, prepared, timeout ns or -1),
        (1, id, message), (2, id) half-closed, (3, id) gone, (4, id) delivered, (5, id) drained,
        (6, id, code, text) broken, (7,) closed, (8, descriptor, peer) a connection of the remoting
        protocol. Calls in a row of a method of `options["together"]` are one event: (9, method,
        calls, `Requests`, list of (prepared, number of calls in a row), timeouts)."""

    def stop(self, grace_ms: int) -> None:
        """Stop accepting, let calls end, close; the last event reports the end."""

    def counters(self) -> dict[str, int]:
        """Return all counters, by name."""

    def set_tls(
        self,
        chain: bytes,
        key: bytes,
        client_ca: bytes | None = None,
        client_optional: bool = False,
        crl: bytes | None = None,
    ) -> None:
        """Enable TLS with this certificate chain and key (PEM). With `client_ca` (PEM) clients need
        a certificate signed by it; with `client_optional` they may also have none. One that the
        revocation lists `crl` (PEM) name is refused. Raises ValueError."""

    def refuse_plaintext(self) -> None:
        """Close connections in plaintext from now on."""

class QueueRecords:
    """Reading of the records of a consume queue's units, for the common case."""

    def __init__(self, record_class: Callable[[int, int, bytes, int], Any]) -> None:
        """`record_class(queue_offset, physical_offset, data, tags_code)` makes a record."""

    def read(
        self,
        units: bytes,
        at: int,
        number: int,
        segment: tuple[Any, int, int],
        queue: tuple[int, bytes],
        tags: frozenset[int] | None,
        room: tuple[int, int, int],
    ) -> tuple[int, list[Any], bool, int]:
        """Examine units from byte `at` on, where the unit with this `number` is: examined units,
        records, whether the batch is full, log offset of the last unit (-1: none). `segment`: a map
        and the log offsets of its begin and end; `queue`: id and encoded topic; `room`: the records
        found before, the maximum of records, the bytes left. Ends in front of a unit that does not
        fit the room, and in front of one of another form."""

class WireMessages:
    """Conversion of stored records to the messages of an answer."""

    def __init__(self, hidden: Sequence[bytes], delay_levels_ms: Sequence[int]) -> None:
        """`hidden`: properties that clients do not receive."""

    def run(
        self,
        topic: bytes,
        records: list[Any],
        begin: int,
        count: int,
        room: int,
        tags: frozenset[bytes] | None,
        receipt: tuple[str, int, int, int] | None,
        attempts: Sequence[int] | None,
    ) -> tuple[list[bytes], list[int], int, int]:
        """Convert records from index `begin` on: messages, their queue offsets, their bytes, the
        index of the next record. The run ends after `count` messages, with the message that fills
        `room` bytes, and before a record of an unusual form. `receipt`: the middle of the handles,
        their start offset (-1: that of the first message), the invisible time, the attempts after
        which a message is not delivered. `attempts`: the number of each record's delivery."""

class codec:
    """Byte work of frequent messages."""

    class AckReader:
        """Reads AckMessage requests for one broker."""

        def __init__(self, broker: str, status: bytes, entries_max: int) -> None:
            """`broker`: the name in its handles; `status`: the encoded status OK; `entries_max`:
            the most entries of a request."""

        def read(
            self, raw: bytes
        ) -> tuple[str, str, list[tuple[int, int, list[int], list[int]]], bytes] | None:
            """Return group, topic, the deliveries by queue (kind, queue id, queue offsets, pop
            times), and the answer that acknowledges all; None if the request is not common."""

    class SendTemplate:
        """What all records of a topic share."""

        def __init__(
            self, name: str, message_type: int, queues: int, before: bytes, between: bytes
        ) -> None:
            """`before` and `between`: encoded properties before and after the message id."""

    class SendPlan:
        """The records of accepted requests, and what follows from them."""

        data: bytes
        records: int
        last: int
        answers: list[bytes]
        ends: list[int]
        units: list[tuple[str, int, int, bytes]]
        turns: list[tuple[str, int]]
        counts: list[tuple[str, int, int, int, list[int]]]
        resume: int

    class SendPlanner:
        """Plans appends of SendMessage requests; `broker/sending/crate_planner.py` explains it."""

        def __init__(
            self,
            max_body: int,
            answer_ok: bytes,
            size_bounds: Sequence[int],
            classic: tuple[Sequence[tuple[str, str]], Sequence[str], int, Sequence[bytes]]
            | None = None,
        ) -> None:
            """`classic`: properties that the broker adds to messages of classic clients, names of
            properties that none of them has, bits of their flags that are stored, and the header
            of an answer around its id, queue, position, queue offset and opaque."""

        def classic_target(self, frame: bytes) -> tuple[str, int, int] | None:
            """Return topic, queue and opaque of a classic client's send that a plan may accept."""

        def plan(
            self,
            requests: Sequence[tuple[bytes | None, str, bytes, bool]],
            first: int,
            place: tuple[int, int, int, int, bytes],
            topic_of: Callable[[str], tuple[codec.SendTemplate, int] | None],
            next_offset: Callable[[str, int], int | None],
        ) -> codec.SendPlan:
            """Plan the requests from number `first` on: bytes, host and packed address of the
            client, and whether the bytes are a frame of a classic client. `place`: log offset of
            the first record, log offset that no record may cross, store time, born time of messages
            without one, packed address of this broker."""

        def plan_row(
            self,
            requests: Sequence[bytes],
            peers: Sequence[tuple[str, bytes, int]],
            first: int,
            place: tuple[int, int, int, int, bytes],
            topic_of: Callable[[str], tuple[codec.SendTemplate, int] | None],
            next_offset: Callable[[str, int], int | None],
        ) -> codec.SendPlan:
            """Plan as `plan` does. `requests`: a `Requests`; `peers`: host, packed address, number
            of requests in a row; the requests behind those are left out."""

    class MessageReader:
        """Makes the SDK's messages of the responses of a ReceiveMessage or PullMessage stream."""

        def __init__(self, message_class: Callable[..., Any], type_names: Sequence[str]) -> None:
            """`message_class` makes a message of its fields in order; `type_names`: the names of
            the message types by number, the first for all other numbers."""

        def read(self, responses: Sequence[bytes], broker: str, source: Any) -> list[Any | None]:
            """Return a message for each response, None for responses of another form."""

    @staticmethod
    def send_request(messages: Sequence[Any], queue_id: int) -> bytes:
        """Return the encoded SendMessage request with these `client.outgoing.Outgoing`."""

    @staticmethod
    def count_messages(raw: bytes) -> int:
        """Return the number of messages of an encoded SendMessage request."""

    @staticmethod
    def index_entries(
        data: Any, base: int, range: tuple[int, int], records_max: int, bytes_max: int
    ) -> tuple[list[bytes], int, int]:
        """See `store/index/native_entries.py`."""

    @staticmethod
    def whole_records(data: Any, base: int, range: tuple[int, int]) -> tuple[int, int]:
        """See `WholeRecords` of `store/log/commit_log.py`."""

    @staticmethod
    def queue_units(
        data: Any, base: int, range: tuple[int, int], records_max: int
    ) -> tuple[list[tuple[str, int, int, bytes]], int, bytes, int]:
        """See `NativeUnits` of `store/dispatch.py`."""

def self_signed(names: Sequence[str]) -> tuple[str, str]:
    """Generate a certificate and key (PEM) for development, valid for these names."""

class Client:
    """Outgoing calls to servers, made in a separate thread, for one event loop."""

    def __init__(self) -> None: ...
    def descriptor(self) -> int:
        """Return the descriptor that is readable while events wait for `take`."""

    def connect(self, addresses: Sequence[str]) -> int:
        """Add a channel to `host:port` alternatives, dialled on first use. Returns its number."""

    def disconnect(self, channel: int) -> None:
        """Remove a channel; calls in flight continue."""

    def call(
        self,
        channel: int,
        path: str,
        message: bytes,
        metadata: Sequence[tuple[str, str]],
        timeout_ms: int,
    ) -> int:
        """Start a call; returns its number, which `take` returns once. Raises ValueError for an
        invalid channel or header."""

    def cancel(self, call: int) -> None:
        """Cancel a call; `take` does not return it unless it had already ended."""

    def take(self, max: int) -> list[tuple[int, int, str, list[bytes]]]:
        """Take up to `max` ended calls: (number, gRPC code, error message, messages)."""

    def stop(self) -> None:
        """Close all connections and end the thread."""
