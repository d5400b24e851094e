"""Metrics of a server process: memory, descriptors, CPU, event-loop lag, garbage collection."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ... import __version__
from ..process import descriptor_limit
from .families import Buckets

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from .families import Families

#: Interval at which the lag is measured: ten readings a second cost less than 0.1 % of a core.
_PERIOD_S: Final = 0.1
_NS_PER_S: Final = 1_000_000_000
_BOUNDS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class LoopWatch:
    """Measures how late the event loop runs, and how long garbage collections stop the process."""

    def __init__(self, steady_ns: Callable[[], int]) -> None:
        self._steady_ns = steady_ns
        self.lag = Buckets(_BOUNDS_S)
        #: By generation.
        self.pauses = {generation: Buckets(_BOUNDS_S) for generation in range(3)}
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0
        self._collection_ns = 0

    def start(self) -> None:
        """Start on the running loop."""
        gc.callbacks.append(self._collected)
        self._arm()

    def stop(self) -> None:
        """Stop; does nothing before `start`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            gc.callbacks.remove(self._collected)

    def _arm(self) -> None:
        self._due_ns = self._steady_ns() + int(_PERIOD_S * _NS_PER_S)
        self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self._measure)

    def _measure(self) -> None:
        self.lag.add(max(0, self._steady_ns() - self._due_ns) / _NS_PER_S)
        self._arm()

    def _collected(self, phase: str, info: Mapping[str, Any]) -> None:
        now_ns = self._steady_ns()
        if phase == "start":
            self._collection_ns = now_ns
        elif self._collection_ns:
            self.pauses[info["generation"]].add((now_ns - self._collection_ns) / _NS_PER_S)

    def families(self, families: Families) -> list[Metric]:
        """Return the metrics of the process; reads them from the operating system."""
        return [
            families.histogram(
                "cometmq_event_loop_lag_seconds",
                "Delay of a timer of the event loop, measured ten times a second.",
                [((), self.lag)],
            ),
            families.histogram(
                "cometmq_gc_pause_seconds",
                "Duration of garbage collections; they stop the event loop.",
                [((str(generation),), pauses) for generation, pauses in self.pauses.items()],
                ("generation",),
            ),
            *_usage(families),
        ]


def kept_family(families: Families, kept: Mapping[str, str]) -> Metric:
    """Return the metric of files that were replaced and cannot be used; `kept`: the reasons."""
    return families.gauge(
        "cometmq_replacement_unusable",
        "1 while certificate files or a key set were replaced by what cannot be used (the former "
        "ones stay in use), or a key set cannot be read; by their setting.",
        [((setting,), 1) for setting in sorted(kept)],
        ("setting",),
    )


def _usage(families: Families) -> list[Metric]:
    import psutil

    process = psutil.Process()
    with process.oneshot():
        times = process.cpu_times()
        resident = process.memory_info().rss
        descriptors = process.num_fds()
        started_s = process.create_time()
    python = ".".join(map(str, sys.version_info[:3]))
    return [
        families.one("process_resident_memory_bytes", "Resident memory.", resident),
        families.one("process_open_fds", "Open descriptors.", descriptors),
        families.one("process_max_fds", "Limit of open descriptors.", descriptor_limit()),
        families.one("process_start_time_seconds", "Start of the process, Unix time.", started_s),
        families.counter(
            "process_cpu_seconds", "Processor time.", [((), times.user + times.system)]
        ),
        families.gauge(
            "cometmq_build_info",
            "1; the labels are the versions.",
            [((__version__, python), 1)],
            ("version", "python"),
        ),
    ]
