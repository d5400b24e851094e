"""Between protobuf frames and what the cores understand (HA note, section 6.6).

Chunks and acknowledgements are built field by field: assigning a sub-message would copy the data once
more. A payload of consumer offsets may be larger than a frame, so it travels in pieces that the
receiver joins.
"""

from collections.abc import Iterator

from ..proto import v1
from .core import hello

#: All offsets of a broker with 80,000 queues are about 5 MB; more than this is no honest payload.
META_BYTES_MAX = 64 << 20

_REJECT_CODES = {code: v1.RejectCode.Value(code.value) for code in hello.RejectCode}


def chunk(
    *,
    epoch: int,
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
    body.offset = offset
    body.data = data
    body.crc32 = crc
    body.confirm = confirm
    body.leader_flushed = flushed
    body.ts = ts
    body.ends_on_boundary = ends_on_boundary
    return frame.SerializeToString()


def beat(*, epoch: int, leader_end: int, confirm: int, ts: int, in_sync: bool) -> bytes:
    frame = v1.LeaderFrame()
    body = frame.beat
    body.epoch = epoch
    body.leader_end = leader_end
    body.confirm = confirm
    body.ts = ts
    body.in_sync = in_sync
    return frame.SerializeToString()


def bye_shutdown() -> bytes:
    return v1.LeaderFrame(bye=v1.Bye(reason=v1.SHUTDOWN)).SerializeToString()


def ack(epoch: int, written_end: int, flushed_end: int, received_end: int, echo_ts: int) -> bytes:
    frame = v1.FollowerFrame()
    body = frame.ack
    body.epoch = epoch
    body.written_end = written_end
    body.flushed_end = flushed_end
    body.received_end = received_end
    body.echo_ts = echo_ts
    return frame.SerializeToString()


def nack(epoch: int, code: str, offset: int, detail: str) -> bytes:
    body = v1.Nack(epoch=epoch, code=v1.NackCode.Value(code), offset=offset, detail=detail)
    return v1.FollowerFrame(nack=body).SerializeToString()


def reject(epoch: int, leader_id: int, leader_uuid: str, verdict: hello.Reject) -> bytes:
    reply = v1.HelloReply(
        epoch=epoch,
        leader_id=leader_id,
        leader_uuid=leader_uuid,
        accept=False,
        reject_code=_REJECT_CODES[verdict.code],
        detail=verdict.sentence,
    )
    return v1.LeaderFrame(hello_reply=reply).SerializeToString()


def follower_facts(frame: v1.Hello) -> hello.FollowerFacts:
    return hello.FollowerFacts(
        cluster=frame.cluster_id,
        group=frame.group,
        broker_id=frame.broker_id,
        replica_uuid=frame.replica_uuid,
        incarnation=frame.incarnation,
        promised_epoch=frame.promised_epoch,
        last_epoch=max((entry.epoch for entry in frame.epochs), default=0),
        segment_size=frame.segment_size,
        log_start=frame.log_start,
        log_end=frame.log_end,
    )


def meta_pieces(epoch: int, version: int, payload: bytes, piece_bytes: int) -> Iterator[v1.Meta]:
    """The frames of one full set of consumer offsets."""
    for start in range(0, max(1, len(payload)), piece_bytes):
        end = start + piece_bytes
        yield v1.Meta(
            epoch=epoch,
            kind=v1.OFFSETS,
            version=version,
            full=True,
            payload=payload[start:end],
            more=end < len(payload),
        )


class MetaJoiner:
    """Joins the pieces of one payload; pieces of an older version are given up."""

    def __init__(self) -> None:
        self._version = 0
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, meta: v1.Meta) -> bytes | None:
        """The whole payload after its last piece. Raises ValueError when it grows without end."""
        if meta.version != self._version:
            self._version = meta.version
            self._clear()
        self._pieces.append(meta.payload)
        self._size += len(meta.payload)
        if self._size > META_BYTES_MAX:
            self._clear()
            raise ValueError(f"consumer offsets of more than {META_BYTES_MAX} bytes")
        if meta.more:
            return None
        payload = b"".join(self._pieces)
        self._clear()
        return payload

    def _clear(self) -> None:
        self._pieces.clear()
        self._size = 0
