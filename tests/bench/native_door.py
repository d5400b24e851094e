"""Table of the native door: a whole broker, an empty handler as the bound, and the reference.

`python -m cometmq.tests.bench.native_door [--seconds S] [--without-reference]` prints rows: CPU of
the single process of `cometmq up --single --replication async --flush async` for each kind of
load, p50 of one call at a time, SYNC_FLUSH against the disk's own fdatasync, an open loop, TLS,
and a forwarded call. Targets are scaled by the empty native handler of the same run if the machine
is slower than the one of the targets (16 us). The reference is started from its published jars if
Maven is installed, with the same load.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from typing import Any

from ..harness.cluster import temporary
from .reference.run import ReferenceMissing, running
from .rows import Row, show
from .server import ASYNC, CPU, GROUP, TOPIC, empty_server, loadgen, prepared

NATIVE = {"COMETMQ_FRONT_DOOR": "native"}
EMPTY_US = 16.0  # of the machine on which the targets were set
SHAPES = {
    "send, 64 in flight": ("-inflight", "64"),
    "send, one in flight": ("-inflight", "1"),
    "send, 32 a request": ("-inflight", "8", "-batch", "32"),
    "receive and ack, 32 at a time": ("-mode", "recv", "-inflight", "8", "-batch", "32"),
    "receive and ack, one at a time": ("-mode", "recv", "-inflight", "8"),
    "open loop, 4,000/s": ("-rate", "4000"),
    "send, 64 in flight, TLS": ("-inflight", "64", "-tls"),
}
REFERENCE_WARM_S = "15"  # the JVM needs a longer warm-up
Run = dict[str, Any]


def ours(seconds: float) -> tuple[dict[str, Run], dict[str, Run]]:
    """Run every load on the empty handler and on the broker, alternating."""
    empty: dict[str, Run] = {}
    broker: dict[str, Run] = {}
    with (
        empty_server(door="native") as (bound, bound_pid),
        temporary("--single", *ASYNC, env=NATIVE) as cluster,
    ):
        node, address = prepared(cluster).node("master"), cluster.address("master")
        for name, options in SHAPES.items():
            empty[name] = loadgen(bound, bound_pid, "-bare", *options, seconds=seconds)
            broker[name] = loadgen(address, node.pid, *options, seconds=seconds)
    return empty, broker


def reference(seconds: float) -> tuple[dict[str, Run], str]:
    """Run the same loads on the reference, or return why not."""
    found: dict[str, Run] = {}
    try:
        with running(TOPIC, GROUP) as server:
            for name, options in SHAPES.items():
                warm = ("-warm", REFERENCE_WARM_S)
                found[name] = loadgen(server.endpoint, server.pid, *warm, *options, seconds=seconds)
    except ReferenceMissing as missing:
        return found, str(missing)
    return found, ""


def rows_of(empty: dict[str, Run], broker: dict[str, Run], other: dict[str, Run]) -> list[Row]:
    """Compare the measurements with the targets."""
    scale = max(1.0, empty["send, 64 in flight"][CPU] / EMPTY_US)

    def cpu(name: str, limit: float) -> Row:
        value = float(broker[name][CPU])
        return Row(
            name,
            value,
            "us CPU",
            _beside(empty[name], broker[name], other.get(name), CPU, "us"),
            value / limit,
            f"at most {limit:g} us x {scale:.2f}",
            value <= limit * scale,
        )

    def time_of(name: str, figure: str, limit_ms: float) -> Row:
        value = float(broker[name][figure])
        return Row(
            f"{name}: {figure.removesuffix('_ms')}",
            value,
            "ms",
            _beside(empty[name], broker[name], other.get(name), figure, "ms"),
            value / limit_ms,
            f"at most {limit_ms} ms x {scale:.2f}",
            value <= limit_ms * scale,
        )

    unary = "send, 64 in flight"
    rate = broker[unary]["messages_per_s"] / empty[unary]["messages_per_s"]
    tls = broker[f"{unary}, TLS"][CPU] / broker[unary][CPU]
    return [
        cpu(unary, 40),
        Row("the same: rate", rate, "of empty", "", rate, "at least 0.8", rate >= 0.8),
        time_of("send, one in flight", "p50_ms", 0.30),
        cpu("send, 32 a request", 10),
        cpu("receive and ack, 32 at a time", 40),
        cpu("receive and ack, one at a time", 150),
        time_of("open loop, 4,000/s", "p99_ms", 5.0),
        Row("TLS against plaintext", tls, "times", "", tls, "at most 1.3", tls <= 1.3),
    ]


def _beside(empty: Run, run: Run, other: Run | None, figure: str, unit: str) -> str:
    words = f"empty {empty[figure]:.3g} {unit}; {run['messages_per_s']:.0f}/s"
    if other is not None:
        words += f"; the reference {other[figure]:.3g} {unit}, {other['messages_per_s']:.0f}/s"
    return words


def disk_syncs_per_s(seconds: float) -> float:
    """Return the fdatasyncs per second of one writer that appends 64 records each time."""
    with tempfile.NamedTemporaryFile() as file:
        os.posix_fallocate(file.fileno(), 0, 64 << 20)
        count, position, block = 0, 0, bytes(1_200)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            os.pwrite(file.fileno(), block, position % (63 << 20))
            os.fdatasync(file.fileno())
            position += len(block)
            count += 1
        return count / seconds


def sync_flush(seconds: float) -> Row:
    """Run 64 senders in SYNC_FLUSH."""
    disk = disk_syncs_per_s(2)
    options = ("--single", "--replication", "async", "--flush", "sync")
    with temporary(*options, env=NATIVE) as cluster:
        node, address = prepared(cluster).node("master"), cluster.address("master")
        run = loadgen(address, node.pid, "-inflight", "64", seconds=seconds)
    rate = float(run["messages_per_s"])
    limit = min(12_000.0, 1.4 * disk)
    return Row(
        "SYNC_FLUSH, 64 in flight",
        rate,
        "/s",
        f"the disk alone {disk:.0f} fdatasync/s; {run[CPU]} us CPU",
        rate / limit,
        "at least 12,000/s or 1.4 x fdatasync/s",
        rate >= limit,
    )


def forwarded(seconds: float, scale: float) -> Row:
    """Measure the additional cost of a forwarded call, summed over all processes."""
    with temporary(*ASYNC, env=NATIVE) as cluster:
        prepared(cluster)
        everything = cluster.supervisor_pid
        unary = SHAPES["send, 64 in flight"]
        direct, passed_on = (
            loadgen(cluster.address(name), everything, *unary, seconds=seconds)
            for name in ("master", "slave")
        )
    more = float(passed_on[CPU] - direct[CPU])
    return Row(
        "a forwarded call costs more by",
        more,
        "us CPU",
        f"direct {direct[CPU]:.0f}, forwarded {passed_on[CPU]:.0f}",
        more / 250,
        f"at most 250 us x {scale:.2f}",
        more <= 250 * scale,
    )


def measure(seconds: float, with_reference: bool) -> list[Row]:
    """Return every row of this module."""
    empty, broker = ours(seconds)
    other, why_not = reference(seconds) if with_reference else ({}, "not asked for")
    rows = rows_of(empty, broker, other)
    scale = max(1.0, empty["send, 64 in flight"][CPU] / EMPTY_US)
    rows += [sync_flush(seconds), forwarded(seconds, scale)]
    if why_not:
        rows.append(Row("the reference was not measured", 0, "", why_not))
    return rows


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--without-reference", action="store_true")
    options = parser.parse_args()
    show(measure(options.seconds, not options.without_reference))


if __name__ == "__main__":
    main()
