"""Rebuild of the epoch history from the log: every epoch begins with an EPOCH_START record.

For a replica whose `epochs` file is missing or damaged (docs/formats/ha.md, section 6.5, rule 3).
It reads the whole log once at scanner speed. Bytes before the first such record belong to the first
epoch.
"""

from typing import Final

from google.protobuf.message import DecodeError

from ...proto import v1
from ...store.format.record import decode
from ...store.format.topic_names import META_TOPIC
from ...store.scan.walk import TopicTable, walk
from ..core.epochs import EpochHistory
from ..core.replicated_log import ReplicatedLog

EPOCH_START_TAG: Final = "EPOCH_START"
_CHUNK_BYTES: Final = 16 << 20
_FIRST_EPOCH: Final = 1


def scan(log: ReplicatedLog) -> EpochHistory | None:
    """Return the history, or None without EPOCH_START records. Raises OSError."""
    history = EpochHistory()
    topics = TopicTable()
    offset = log.log_start
    while offset < log.log_end:
        data = log.read_log(offset, _CHUNK_BYTES)
        if not data:
            break
        records = walk(data, offset, 0, len(data), "skip", topics=topics)
        for columns in records:
            meta = columns.topic_id == topics.number_of(META_TOPIC)
            starts, sizes = columns.position[meta].tolist(), columns.size[meta].tolist()
            for at, size in zip(starts, sizes, strict=True):
                _note(history, data[at : at + size])
        offset += len(data)
    return history if history.entries else None


def _note(history: EpochHistory, data: bytes) -> None:
    record = decode(data, check_crc=False)
    if record.properties_dict.get("TAGS") != EPOCH_START_TAG:
        return
    try:
        found = v1.EpochStart.FromString(record.body)
    except DecodeError:
        return
    start = min(found.start or record.physical_offset, record.physical_offset)
    if found.epoch < 1 or found.epoch <= history.last_epoch:
        return  # a leader that resumed the same epoch writes it again
    if not history.entries and start > 0 and found.epoch > _FIRST_EPOCH:
        history.assign(_FIRST_EPOCH, 0)
    history.assign(found.epoch, start)
