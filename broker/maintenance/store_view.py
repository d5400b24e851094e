"""`cometmq.v1.Admin/DescribeStore`: the segments of the log with the reason why each is kept, the
disks, the results of the scrub, the last recovery, and damaged places. Reads only.

The verdicts are those of the next retention round, by the machine's clock. Numbers of the scrub and
of repairs count from the start of the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...proto import v1, v2
from ...proto.errors import WireError
from ...store.format.disk import Space
from ...store.retention.rules import UNKNOWN, used_percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...front.clock import Clock
    from ...front.context import RequestContext
    from ...ha.engine import Replication
    from ...store.message_store import MessageStore
    from ...store.retention.rules import Verdict

#: Segments of one answer: half a terabyte of the default size, about 100 KB.
SEGMENTS_MAX: Final = 512
#: Damaged messages of one answer, each with a topic name.
_DAMAGED_MAX: Final = 200


class StoreView:
    """The handler."""

    def __init__(self, store: MessageStore, replication: Replication, clock: Clock) -> None:
        self._store = store
        self._replication = replication
        self._clock = clock

    def describe(
        self, request: v1.DescribeStoreRequest, ctx: RequestContext
    ) -> v1.DescribeStoreResponse:
        """Return the state of this broker's store."""
        own = self._replication.identity.broker_id
        if request.HasField("broker_id") and request.broker_id != own:
            text = f"broker {request.broker_id} of this group is not known or cannot be reached"
            raise WireError(v2.NOT_FOUND, f"{text}; this is broker {own}")
        store, stats = self._store, self._store.stats()
        retention = store.retention
        rules = retention.rules
        now_ms = self._clock.machine_ms()
        verdicts = retention.verdicts(now_ms, self._clock.hour_of(now_ms))
        report = store.recovery_report
        gaps = list(store.blocks.gaps)
        return v1.DescribeStoreResponse(
            code=v2.OK,
            message="OK",
            directory=str(store.config.root),
            log_start=stats.log_start,
            log_end=stats.log_end,
            flushed=store.flushed_offset,
            dispatched=store.dispatched_offset,
            segment_size=stats.segment_size,
            segments=[_segment(one) for one in _ends(verdicts)],
            segment_count=len(verdicts),
            disks=self._disks(),
            warning_percent=rules.warning,
            forced_percent=rules.forced,
            expired_percent=rules.max_used,
            reserved_ms=rules.reserved_ms,
            put_bytes_per_s=[rates.put_bytes for rates in stats.rates],
            recovery=[] if report is None else report.lines(),
            stopped_cleanly=report is not None and report.clean,
            scrub=self._scrub(),
            damaged=[
                v1.DamagedMessage(
                    topic=gap.topic, queue_id=gap.queue_id, offset=gap.offset, file=gap.file
                )
                for gap in gaps[:_DAMAGED_MAX]
            ],
            damaged_count=len(gaps),
            queue_units_repaired=stats.queue_units_repaired,
            index_files_damaged=stats.index_files_damaged,
            record_mismatches=stats.record_mismatches,
            archive_gate=rules.archive_gate,
            archive_watermark=stats.archive_watermark,
            pressure=stats.pressure,
            refusal=stats.refusal,
        )

    def _disks(self) -> list[v1.DiskStatus]:
        """Return the disks of the log, then that of the queues if it is another one."""
        disks: dict[Space, v1.DiskStatus] = {}
        paths = [*self._store.log.directories, str(self._store.config.root)]
        for path in dict.fromkeys(paths):
            try:
                space = self._store.disk.space(path)
            except OSError:
                # Unmounted, or not created yet: its use is unknown.
                disks[Space(0, 0, len(disks))] = v1.DiskStatus(path=path, use=UNKNOWN)
                continue
            status = v1.DiskStatus(
                path=path, total=space.total, usable=space.usable, use=used_percent(*space)
            )
            disks.setdefault(space, status)
        return list(disks.values())

    def _scrub(self) -> v1.ScrubStatus:
        counts = self._replication.counters
        return v1.ScrubStatus(
            interval_ms=self._replication.config.ha_scrub_interval_ms,
            rounds=counts.get("scrub_rounds", 0),
            blocks=counts.get("scrub_blocks", 0),
            damaged=counts.get("scrub_rotten", 0),
            repaired=counts.get("scrub_mended", 0),
            lost=counts.get("scrub_lost", 0),
            different=counts.get("scrub_different", 0),
        )


def _ends(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return all verdicts, or those of the oldest and of the newest segments of a long log."""
    if len(verdicts) <= SEGMENTS_MAX:
        return list(verdicts)
    half = SEGMENTS_MAX // 2
    return [*verdicts[:half], *verdicts[-half:]]


def _segment(verdict: Verdict) -> v1.SegmentStatus:
    facts = verdict.segment
    return v1.SegmentStatus(
        start=facts.start,
        end=facts.end,
        modified_ms=facts.modified_ms,
        expires=verdict.delete,
        reason=verdict.reason.value,
        explanation=verdict.sentence,
    )
