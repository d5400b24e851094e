"""Survey of a diverged tail before the cut: messages, answered messages, affected queues.

Messages are the records that a replay would send (`diverged_messages.py`); the broker's own records
count as records only, because the leader writes its own (docs/formats/ha.md, R6 and R7).
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ...store.format.properties import property_value, whole_number
from ...store.log.commit_log import CommitLog
from ...store.log.segment import Segment
from ...store.scan.properties import groups, value_spans
from ...store.scan.raw import Flags
from ...store.scan.walk import Columns, RawBytes, TopicTable, walk
from ...store.timer.rules import OUT_MS, TIMER_TOPIC, UNIQUE_KEY
from .archive import SAMPLE_MAX, used_end
from .diverged_messages import DEQUEUED, is_message

_UNITLESS: Final = (0x4, 0xC)  # prepared and rolled back records have no unit in a queue
_TRANSACTION_MASK: Final = 0xC


@dataclass(slots=True)
class TailSurvey:
    """Content of the log from `start` on."""

    start: int
    local_ok: int
    end: int = 0  #: end of the last whole record
    used_end: int = 0  #: end of the last whole record or non-zero byte
    records: int = 0
    messages: int = 0
    answered_ok: int = 0
    first_stored_ms: int = 0
    last_stored_ms: int = 0
    #: The earliest time of a timer delivery in the tail; 0: none.
    delivered_from_ms: int = 0
    sample_ids: list[str] = field(default_factory=list)
    #: (topic, queue id) -> the first queue offset that is cut.
    queues: dict[tuple[str, int], int] = field(default_factory=dict)


def survey_tail(log: CommitLog, start: int, local_ok: int) -> TailSurvey:
    """Walk the log from `start`, a record boundary, to its end. Changes nothing."""
    survey = TailSurvey(start, local_ok, end=start, used_end=used_end(log, start))
    topics = TopicTable()
    for segment in log.segments_between(start, survey.used_end):
        _survey_segment(segment, survey, topics)
    survey.used_end = max(survey.used_end, survey.end)  # a record may end in zeros
    return survey


def _survey_segment(segment: Segment, survey: TailSurvey, topics: TopicTable) -> None:
    first = max(survey.start - segment.start, 0)
    stop = min(survey.used_end - segment.start, segment.size)
    with segment.hold() as data:
        # Damage is skipped: records after it are cut as well, so they count.
        records = walk(data, segment.start, first, stop, "skip", check_crc=True, topics=topics)
        try:
            for columns in records:
                if records.raw is not None:
                    _count(survey, columns, topics, records.raw)
        finally:
            records.close()


def _count(survey: TailSurvey, columns: Columns, topics: TopicTable, raw: RawBytes) -> None:
    if not survey.records:
        survey.first_stored_ms = int(columns.store_timestamp[0])
    survey.records += len(columns)
    survey.last_stored_ms = int(columns.store_timestamp[-1])
    ends = columns.physical_offset + columns.size
    survey.end = int(ends[-1])
    theirs = np.array([is_message(topic) for topic in topics.names], np.bool_)[columns.topic_id]
    theirs &= ~_note_deliveries(survey, columns, topics, raw)
    answered = theirs & (ends <= survey.local_ok)
    survey.messages += int(theirs.sum())
    survey.answered_ok += int(answered.sum())
    for at in np.flatnonzero(answered)[: SAMPLE_MAX - len(survey.sample_ids)].tolist():
        data = raw.bytes_at(int(columns.properties_start[at]), int(columns.properties_length[at]))
        key = property_value(data, UNIQUE_KEY.encode()).decode("utf-8", "replace")
        survey.sample_ids.append(key or f"offset {int(columns.physical_offset[at])}")
    _note_queues(survey, columns, topics)


def _note_queues(survey: TailSurvey, columns: Columns, topics: TopicTable) -> None:
    kind = columns.sys_flag & _TRANSACTION_MASK
    placed = np.flatnonzero(~np.isin(kind, _UNITLESS))
    for topic_id, queue_id, which in groups(columns.topic_id[placed], columns.queue_id[placed]):
        key = (topics.names[topic_id], queue_id)
        lowest = int(columns.queue_offset[placed][which].min())
        survey.queues[key] = min(survey.queues.get(key, lowest), lowest)


def _note_deliveries(
    survey: TailSurvey, columns: Columns, topics: TopicTable, raw: RawBytes
) -> Flags:
    """Return the flags of timer copies: the leader delivers those timers again, from the earliest
    on."""
    starts, lengths = columns.properties_start, columns.properties_length
    made: Flags = value_spans(raw, starts, lengths, DEQUEUED)[1] > 0
    for at in np.flatnonzero(made).tolist():
        if topics.names[int(columns.topic_id[at])] == TIMER_TOPIC:
            made[at] = False
            continue
        data = raw.bytes_at(int(starts[at]), int(lengths[at]))
        due_ms = whole_number(property_value(data, OUT_MS.encode()))
        if due_ms is not None:
            survey.delivered_from_ms = min(survey.delivered_from_ms or due_ms, due_ms)
    return made
