"""The workloads of `cometmq bench`, and the bodies of their messages. Pure."""

import secrets
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from ...client.filters import Filter, sql
from ...client.producer import Extras

#: Message groups of the workload `fifo`; message number n belongs to group n modulo this.
MESSAGE_GROUPS = 64
# Id of the run, number of the message, time at which its send was due (ns of the monotonic clock).
_HEADER = struct.Struct(">8sQq")
SIZE_MIN = _HEADER.size


class Measured(Enum):
    """What the latencies of a workload are."""

    #: From the time at which a send is due to its receipt.
    SEND = auto()
    #: One receive with the acknowledgement of its messages.
    RECEIVE = auto()
    #: From the time at which a send is due to the reception of the message.
    DELIVERY = auto()
    #: From the delivery time of a delayed message to its reception.
    LATENESS = auto()


def _no_extras(_number: int) -> Extras:
    return Extras()


def _message_group(number: int) -> Extras:
    return Extras(group=f"group-{number % MESSAGE_GROUPS}")


def _parity(number: int) -> Extras:
    return Extras(properties={"parity": "odd" if number % 2 else "even"})


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload. `rate` and `messages` are defaults; None: a closed loop, a run by time."""

    title: str
    measured: Measured
    topic_type: str = "normal"
    rate: int | None = None
    messages: int | None = None
    extras: Callable[[int], Extras] = _no_extras
    #: Messages that the filter passes are those whose number is a multiple of `step`.
    step: int = 1
    subscription: Filter = field(default_factory=Filter)

    @property
    def is_ordered(self) -> bool:
        """Whether the messages belong to message groups."""
        return self.topic_type == "fifo"


WORKLOADS: Mapping[str, Workload] = {
    "send": Workload("send", Measured.SEND),
    "receive": Workload("receive and acknowledge", Measured.RECEIVE, messages=50_000),
    "end-to-end": Workload("send to reception", Measured.DELIVERY, rate=1_000),
    "fifo": Workload(
        f"send to reception, {MESSAGE_GROUPS} message groups",
        Measured.DELIVERY,
        "fifo",
        rate=500,
        extras=_message_group,
    ),
    "delay": Workload(
        "burst of delayed messages, lateness", Measured.LATENESS, "delay", messages=5_000
    ),
    "transaction": Workload("half message and commit", Measured.SEND, "transaction"),
    "sql": Workload(
        "send to reception, a filter passes half",
        Measured.DELIVERY,
        rate=1_000,
        extras=_parity,
        step=2,
        subscription=sql("parity = 'even'"),
    ),
}


class Bodies:
    """Makes and reads the bodies of one run."""

    def __init__(self, size_bytes: int) -> None:
        """`size_bytes` is at least SIZE_MIN."""
        self._run = secrets.token_bytes(8)
        self._padding = secrets.token_bytes(size_bytes - SIZE_MIN)  # does not compress

    def make(self, number: int, due_ns: int) -> bytes:
        """Return the body of a message."""
        return _HEADER.pack(self._run, number, due_ns) + self._padding

    def read(self, body: bytes) -> tuple[int, int] | None:
        """Return the number and the due time of a message; None for one of another run."""
        if len(body) != SIZE_MIN + len(self._padding) or not body.startswith(self._run):
            return None
        _, number, due_ns = _HEADER.unpack_from(body)
        return number, due_ns
