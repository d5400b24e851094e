"""The run-time figures of a broker under RocketMQ's names, all of them text. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .... import __version__
from ....remoting.command import SERVER_VERSION

if TYPE_CHECKING:
    from ....store.stats import StoreStats

_POOLS = ("send", "pull", "litePull", "query", "ack")
_MS_PER_S = 1_000
#: RocketMQ's classes of the time that storing a message takes, and their upper bounds.
_CLASSES_MS = (
    *(("<=0ms", 1), ("0~10ms", 10), ("10~50ms", 50), ("50~100ms", 100), ("100~200ms", 200)),
    *(("200~500ms", 500), ("500ms~1s", 1_000), ("1~2s", 2_000), ("2~3s", 3_000)),
    *(("3~4s", 4_000), ("4~5s", 5_000), ("5~10s", 10_000), ("10s~", math.inf)),
)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_PARTS_S = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))


def runtime_figures(
    stats: StoreStats,
    *,
    started_ms: int,
    now_ms: int,
    first_ms: int,
    disk_bytes: int,
    free_bytes: int,
) -> dict[str, str]:
    """Return the table; `first_ms` is the store time of the first record, `disk_bytes` the size of
    the disk of the log."""
    disk = f"{max(stats.disk_use, 0) / 100}"
    put = [str(rates.put_messages) for rates in stats.rates]
    got = [str(rates.get_messages) for rates in stats.rates]
    figures = {
        "EndTransactionQueueSize": "0",
        "bootTimestamp": str(started_ms),
        "brokerActive": "true",
        # Tools parse them; the version of this software is in `cometmqVersion`.
        "brokerVersion": str(SERVER_VERSION),
        "brokerVersionDesc": "V5_5_0",
        "cometmqVersion": __version__,
        "commitLogDirCapacity": f"Total : {_size(disk_bytes)}, Free : {_size(free_bytes)}.",
        "commitLogDiskRatio": disk,
        "commitLogMaxOffset": str(stats.log_end),
        "commitLogMinOffset": str(stats.log_start),
        "consumeQueueDiskRatio": disk,
        "dispatchBehindBytes": str(stats.dispatch_behind),
        "dispatchMaxBuffer": "0",
        "earliestMessageTimeStamp": str(first_ms),
        "getFoundTps": " ".join(got),
        "getMessageEntireTimeMax": "0",
        "getMissTps": "0.0 0.0 0.0",
        "getTotalTps": " ".join(got),
        "getTransferredTps": " ".join(got),
        # Since the start: this broker keeps no totals of days.
        "msgGetTotalTodayMorning": "0",
        "msgGetTotalTodayNow": str(stats.get_messages),
        "msgGetTotalYesterdayMorning": "0",
        "msgPutTotalTodayMorning": "0",
        "msgPutTotalTodayNow": str(stats.put_messages),
        "msgPutTotalYesterdayMorning": "0",
        "pageCacheLockTimeMills": "0",
        "putMessageAverageSize": str(stats.average_put_size),
        "putLatency99": _latency_ms(stats, 0.99),
        "putLatency999": _latency_ms(stats, 0.999),
        "putMessageDistributeTime": _distribution(stats.put_latency),
        "putMessageFailedTimes": str(stats.put_refused),
        "putMessageSizeTotal": str(stats.put_bytes),
        "putMessageTimesTotal": str(stats.put_messages),
        "putMessageEntireTimeMax": str(stats.put_longest_us // _MS_PER_S),
        "putTps": " ".join(put),
        "remainHowManyDataToFlush": f"{stats.flush_behind} B",
        # No buffers outside of the page cache.
        "remainTransientStoreBufferNumbs": "0",
        "runtime": _duration((now_ms - started_ms) // _MS_PER_S),
        "startAcceptSendRequestTimeStamp": "0",
        **dict.fromkeys(("timerCongestNum", "timerOffsetBehind", "timerReadBehind"), "0"),
        **dict.fromkeys(("timerDequeueTps", "timerEnqueueTps"), "0.0"),
    }
    figures["EndTransactionThreadPoolQueueCapacity"] = "0"
    for pool in _POOLS:
        figures[f"{pool}ThreadPoolQueueSize"] = "0"
        figures[f"{pool}ThreadPoolQueueCapacity"] = "0"
        figures[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    return figures


def _latency_ms(stats: StoreStats, share: float) -> str:
    bound_us = stats.put_percentile_us(share)
    return f"{(stats.put_longest_us if bound_us is None else bound_us) / _MS_PER_S:.2f}"


def _size(count: float) -> str:
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            break
        count /= 1024
    return f"{count:.1f} {unit}"


def _duration(seconds: int) -> str:
    parts = []
    for name, size in _PARTS_S:
        parts.append(f"{seconds // size} {name}")
        seconds %= size
    return f"[ {', '.join(parts)} ]"


def _distribution(buckets: tuple[tuple[int | None, int], ...]) -> str:
    """Return the number of messages of each class; a bucket counts by its upper bound."""
    counts = dict.fromkeys((name for name, _ in _CLASSES_MS), 0)
    for bound_us, count in buckets:
        bound_ms = math.inf if bound_us is None else bound_us / _MS_PER_S
        counts[next(name for name, limit in _CLASSES_MS if bound_ms <= limit)] += count
    return " ".join(f"[{name}]:{count}" for name, count in counts.items())
