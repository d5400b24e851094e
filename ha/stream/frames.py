"""Codec between protobuf frames and the values of the cores (docs/formats/ha.md, section 6.6).

Chunks and acknowledgements are built field by field: assigning a sub-message would copy the data
once more. A payload of consumer offsets may exceed a frame, so it travels in pieces that the
receiver joins.
"""

from collections.abc import Iterable, Iterator

from ...proto import v1
from ..core import hello
from ..core.epochs import EpochHistory, EpochStart
from ..core.group_state import GroupState
from ..state.state_codec import state_from, state_message

#: Limit of a payload: all offsets of a broker with 80,000 queues are about 5 MB.
META_BYTES_MAX = 64 << 20

_KIND_NAMES = {int(number): name for name, number in v1.MetaKind.items()}
_NACK_NAMES = {int(number): name.lower() for name, number in v1.NackCode.items()}
_REJECT_CODES = {code: v1.RejectCode.Value(code.value) for code in hello.RejectCode}


def chunk(
    *,
    epoch: int,
    epoch_start: int,
    offset: int,
    data: bytes,
    crc: int,
    confirm: int,
    flushed: int,
    ts: int,
    ends_on_boundary: bool,
) -> bytes:
    frame = v1.LeaderFrame()
    body = frame.chunk
    body.epoch = epoch
    body.epoch_start = epoch_start
    body.offset = offset
    body.data = data
    body.crc32 = crc
    body.confirm = confirm
    body.leader_flushed = flushed
    body.ts = ts
    body.ends_on_boundary = ends_on_boundary
    return frame.SerializeToString()


def heartbeat(*, epoch: int, leader_end: int, confirm: int, ts: int, in_sync: bool) -> bytes:
    frame = v1.LeaderFrame()
    body = frame.beat
    body.epoch = epoch
    body.leader_end = leader_end
    body.confirm = confirm
    body.ts = ts
    body.in_sync = in_sync
    return frame.SerializeToString()


def bye(reason: "v1.ByeReason.ValueType", hint_leader: str = "") -> bytes:
    return v1.LeaderFrame(bye=v1.Bye(reason=reason, hint_leader=hint_leader)).SerializeToString()


def ack(
    epoch: int,
    written_end: int,
    flushed_end: int,
    received_end: int,
    echo_ts: int,
    *,
    leaving: bool = False,
) -> bytes:
    frame = v1.FollowerFrame()
    body = frame.ack
    body.epoch = epoch
    body.written_end = written_end
    body.flushed_end = flushed_end
    body.received_end = received_end
    body.echo_ts = echo_ts
    body.leaving = leaving
    return frame.SerializeToString()


def nack(epoch: int, code: str, offset: int, detail: str) -> bytes:
    body = v1.Nack(epoch=epoch, code=v1.NackCode.Value(code), offset=offset, detail=detail)
    return v1.FollowerFrame(nack=body).SerializeToString()


def reject(
    epoch: int, leader_id: int, leader_uuid: str, verdict: hello.Reject, state: bytes = b""
) -> bytes:
    reply = v1.HelloReply(
        epoch=epoch,
        leader_id=leader_id,
        leader_uuid=leader_uuid,
        accept=False,
        reject_code=_REJECT_CODES[verdict.code],
        detail=verdict.sentence,
        group_state=state,
    )
    return v1.LeaderFrame(hello_reply=reply).SerializeToString()


def follower_facts(frame: v1.Hello) -> hello.FollowerFacts:
    """Return the content of a hello. Raises ValueError for an invalid epoch history."""
    history = history_from(frame.epochs)
    return hello.FollowerFacts(
        cluster=frame.cluster_id,
        group=frame.group,
        broker_id=frame.broker_id,
        replica_uuid=frame.replica_uuid,
        incarnation=frame.incarnation,
        promised_epoch=frame.promised_epoch,
        last_epoch=history.last_epoch,
        segment_size=frame.segment_size,
        log_start=frame.log_start,
        log_end=frame.log_end,
        confirm=frame.confirm,
        epochs=history if history.entries else None,
        suspect=frame.suspect,
        learner=frame.learner,
        from_last_segment=frame.want_from == v1.LAST_SEGMENT,
    )


def epoch_points(history: EpochHistory) -> list[v1.EpochStartPoint]:
    return [v1.EpochStartPoint(epoch=each.epoch, start=each.start) for each in history.entries]


def history_from(points: Iterable[v1.EpochStartPoint]) -> EpochHistory:
    """Return the epoch history of points. Raises ValueError for an invalid one."""
    return EpochHistory(EpochStart(point.epoch, point.start) for point in points)


def state_bytes(state: GroupState | None) -> bytes:
    return b"" if state is None else state_message(state).SerializeToString()


def state_of(body: bytes) -> GroupState | None:
    """Return the group's state of a frame, or None. Raises DecodeError."""
    return state_from(v1.GroupState.FromString(body)) if body else None


def meta_pieces(
    kind: str, epoch: int, version: int, payload: bytes, piece_bytes: int
) -> Iterator[v1.Meta]:
    """Return the frames of one full payload of a kind, for example all consumer offsets."""
    number = v1.MetaKind.Value(kind)
    for start in range(0, max(1, len(payload)), piece_bytes):
        end = start + piece_bytes
        yield v1.Meta(
            epoch=epoch,
            kind=number,
            version=version,
            full=True,
            payload=payload[start:end],
            more=end < len(payload),
        )


def kind_name(kind: int) -> str:
    """Return the protobuf name of a kind of state; empty: unknown."""
    return _KIND_NAMES.get(kind, "")


def nack_name(code: int) -> str:
    """Return `nack_gap`, ..., also for an unknown code."""
    return _NACK_NAMES.get(code, "nack_unknown")


def reject_name(code: int) -> str:
    """Return the protobuf name of a refusal's code, also for one of a later version."""
    known = v1.RejectCode.DESCRIPTOR.values_by_number.get(code)
    return known.name if known else f"REJECT_CODE_{code}"


class MetaJoiner:
    """Joins the pieces of one payload; pieces of an older version or another kind are dropped."""

    def __init__(self) -> None:
        self._version = (0, 0)
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, meta: v1.Meta) -> bytes | None:
        """Add a piece; returns the payload after its last piece. Raises ValueError above the
        limit."""
        version = (int(meta.kind), meta.version)
        if version != self._version:
            self._version = version
            self._clear()
        self._pieces.append(meta.payload)
        self._size += len(meta.payload)
        if self._size > META_BYTES_MAX:
            self._clear()
            raise ValueError(f"a payload of more than {META_BYTES_MAX} bytes beside the log")
        if meta.more:
            return None
        payload = b"".join(self._pieces)
        self._clear()
        return payload

    def _clear(self) -> None:
        self._pieces.clear()
        self._size = 0
