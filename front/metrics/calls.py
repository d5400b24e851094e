"""Durations of calls by method and outcome: `rocketmq_rpc_latency`.

A call counts from its arrival until its answer is handed to the network. An answer costs one
reading of the clock and a few additions. It schedules nothing on the event loop: a callback at the
end of the turn would cost one more iteration of the loop, with its system call. Only the
event loop adds. The native door counts the answers of unary calls itself. Bounded by the methods of
the service table and the status codes.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ...proto.errors import GRPC_NAMES, RpcFailure, WireError, code_name

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from .families import Families

#: RocketMQ's buckets.
BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)
_BOUNDS_NS: Final = tuple(bound * 1_000_000 for bound in BOUNDS_MS)
_NS_PER_MS: Final = 1_000_000
#: The answered calls of one method: its path, the calls by bucket, and their nanoseconds.
Counted = tuple[str, list[int], int]
_SUCCESS: Final = "success"
_WORD_START: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(slots=True)
class _Durations:
    counts: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS_NS) + 1))
    total_ns: int = 0

    def add(self, took_ns: int) -> None:
        """Count one call."""
        self.counts[bisect_left(_BOUNDS_NS, took_ns)] += 1
        self.total_ns += took_ns


class CallTimes:
    """The durations of one door's calls."""

    def __init__(
        self, steady_ns: Callable[[], int], counted: Callable[[], Iterable[Counted]] = tuple
    ) -> None:
        """`counted` returns the answers that the door counts itself."""
        self._steady_ns = steady_ns
        self._counted = counted
        self._answered: defaultdict[str, _Durations] = defaultdict(_Durations)
        #: Answers of long polls that waited, and failures, by path, code and whether it waited.
        self._others: defaultdict[tuple[str, str, bool], _Durations] = defaultdict(_Durations)

    def answered(self, path: str, begin_ns: int) -> None:
        """Count a call that the service has answered."""
        self._answered[path].add(self._steady_ns() - begin_ns)

    def waited(self, path: str, begin_ns: int) -> None:
        """Count a long poll that was answered after it had waited."""
        self._add((path, _SUCCESS, True), begin_ns)

    def failed(self, path: str, begin_ns: int, error: BaseException) -> None:
        """Count a call that ended with an error."""
        self._add((path, _code_of(error), False), begin_ns)

    def _add(self, key: tuple[str, str, bool], begin_ns: int) -> None:
        self._others[key].add(self._steady_ns() - begin_ns)

    def family(self, families: Families) -> Metric:
        """Return the metric."""
        from .families import Buckets

        rows = [
            *(((path, _SUCCESS, False), durations) for path, durations in self._answered.items()),
            *(
                ((path, _SUCCESS, False), _Durations(counts, total_ns))
                for path, counts, total_ns in self._counted()
            ),
            *self._others.items(),
        ]
        return families.histogram(
            "rocketmq_rpc_latency",
            "Time from the arrival of a call to its answer, ms. A refused send is a success here; "
            "cometmq_refused_sends counts it.",
            [
                (
                    (
                        "grpc",
                        request_code(path),
                        code,
                        "true" if waited else "false",
                        _SUCCESS if code == _SUCCESS else "process_request_failed",
                    ),
                    Buckets(BOUNDS_MS, list(durations.counts), durations.total_ns / _NS_PER_MS),
                )
                for (path, code, waited), durations in rows
            ],
            ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
        )


def request_code(path: str) -> str:
    """Return the label of a method: `/apache...MessagingService/AckMessage` is ack_message."""
    return _WORD_START.sub("_", path.rpartition("/")[2]).lower()


def _code_of(error: BaseException) -> str:
    """Return the label of an error: the name of its code."""
    if isinstance(error, WireError):
        return code_name(error.code).lower()
    if isinstance(error, RpcFailure):
        return GRPC_NAMES.get(error.grpc_code, "unknown").lower().replace(" ", "_")
    return "internal"
