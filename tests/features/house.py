"""House: a broker for the tests of one module."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.tests.broker.live import Live


@dataclass(frozen=True, slots=True)
class House:
    """The running broker of a module; its tests share the broker's event loop."""

    live: Live
