"""The run-time figures of a broker under RocketMQ's names, all of them text. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import __version__

if TYPE_CHECKING:
    from ....store.stats import StoreStats

_POOLS = ("send", "pull", "litePull", "query", "ack")
_MS_PER_S = 1_000
_PARTS_S = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))


def runtime_figures(
    stats: StoreStats, started_ms: int, now_ms: int, first_ms: int
) -> dict[str, str]:
    """Return the table; `first_ms` is the store time of the first record."""
    disk = f"{max(stats.disk_use, 0) / 100}"
    put = [str(rates.put_messages) for rates in stats.rates]
    got = [str(rates.get_messages) for rates in stats.rates]
    figures = {
        "EndTransactionQueueSize": "0",
        "bootTimestamp": str(started_ms),
        "brokerActive": "true",
        # Tools parse it; the version of this software is in `cometmqVersion`.
        "brokerVersionDesc": "V5_5_0",
        "cometmqVersion": __version__,
        "commitLogDiskRatio": disk,
        "commitLogMaxOffset": str(stats.log_end),
        "commitLogMinOffset": str(stats.log_start),
        "consumeQueueDiskRatio": disk,
        "dispatchBehindBytes": str(stats.dispatch_behind),
        "earliestMessageTimeStamp": str(first_ms),
        "getFoundTps": " ".join(got),
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
        "putMessageFailedTimes": str(stats.put_refused),
        "putMessageSizeTotal": str(stats.put_bytes),
        "putMessageTimesTotal": str(stats.put_messages),
        "putMessageEntireTimeMax": str(stats.put_longest_us // _MS_PER_S),
        "putTps": " ".join(put),
        "remainHowManyDataToFlush": f"{stats.flush_behind} B",
        "runtime": _duration((now_ms - started_ms) // _MS_PER_S),
        "startAcceptSendRequestTimeStamp": "0",
        **dict.fromkeys(("timerCongestNum", "timerOffsetBehind", "timerReadBehind"), "0"),
        **dict.fromkeys(("timerDequeueTps", "timerEnqueueTps"), "0.0"),
    }
    for pool in _POOLS:
        figures[f"{pool}ThreadPoolQueueSize"] = "0"
        figures[f"{pool}ThreadPoolQueueCapacity"] = "0"
        figures[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    return figures


def _duration(seconds: int) -> str:
    parts = []
    for name, size in _PARTS_S:
        parts.append(f"{seconds // size} {name}")
        seconds %= size
    return f"[ {', '.join(parts)} ]"
