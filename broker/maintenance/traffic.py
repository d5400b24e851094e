"""Messages of users a second: what people see as the rate of a broker.

The store counts every record, also those of the broker itself (journal, timers, metadata), and
every read. This counts what clients sent to topics that are not the system's, and what consumers
were given of them, redeliveries included. It reads the counters once a second, so that sends and
receives cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...store.stats import WINDOWS_S, Samples
from ..metadata.tables import is_system_topic

if TYPE_CHECKING:
    from ...front.clock import Clock
    from ..base.counters import Counters


class TrafficRates:
    """Rates over the last ten seconds."""

    def __init__(self, *, clock: Clock, counters: Counters) -> None:
        self._clock = clock
        self._counters = counters
        self._samples = Samples()

    def sample(self) -> None:
        """Keep a reading; called once a second."""
        self._samples.add(self._clock.steady_ns(), *self._totals())

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
