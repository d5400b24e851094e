"""Messages of users a second: what people see as the rate of a broker.

The store counts every record, also those of the broker itself (journal, timers, metadata), and
every read. This counts what clients sent to topics that are not the system's, and what consumers
were given of them, redeliveries included. It reads the counters once a second, so that sends and
receives cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto import v2
from ...store.stats import WINDOWS_S, Samples
from ..metadata.tables import is_system_topic

if TYPE_CHECKING:
    from ...front.clock import Clock
    from ..base.counters import Counters

_NS = 1_000_000_000


class TrafficRates:
    """Rates over the last ten seconds."""

    def __init__(self, *, clock: Clock, counters: Counters) -> None:
        self._clock = clock
        self._counters = counters
        self._samples = Samples()
        # Messages sent, by the keys of the counters: readings that are at least one and two windows
        # old. Not added up by topic: that would hold the event loop with 80,000 topics.
        self._older: tuple[int, dict[tuple[str, int], int]] = (clock.steady_ns(), {})
        self._newer = self._older

    def sample(self) -> None:
        """Keep a reading; called once a second."""
        now_ns = self._clock.steady_ns()
        self._samples.add(now_ns, *self._totals())
        if now_ns - self._newer[0] >= WINDOWS_S[0] * _NS:
            sent = {key: total.messages for key, total in self._counters.sent.items()}
            self._older, self._newer = self._newer, (now_ns, sent)

    def sent_per_s(self, topic: str) -> float:
        """Return messages sent to a topic a second, over the last one or two windows."""
        at_ns, before = self._older
        sent = 0
        for kind in v2.MessageType.values():
            total = self._counters.sent.get((topic, kind))
            if total is not None:
                sent += total.messages - before.get((topic, kind), 0)
        passed_ns = self._clock.steady_ns() - at_ns
        return sent * _NS / passed_ns if passed_ns > 0 else 0.0

    def rates(self) -> tuple[float, float]:
        """Return messages sent and delivered a second."""
        totals = self._totals()
        sent, delivered = self._samples.rates(WINDOWS_S[0], self._clock.steady_ns(), *totals)
        return sent, delivered

    def _totals(self) -> tuple[int, int]:
        counters = self._counters
        return (
            sum(one.messages for key, one in counters.sent.items() if not is_system_topic(key[0])),
            sum(
                one.messages
                for key, one in counters.received.items()
                if not is_system_topic(key[0])
            ),
        )
