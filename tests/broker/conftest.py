"""In these tests, turns of the event loop have no limit of time, so that a busy machine cannot end
one before its work is done. Tests of the limits set them."""

from __future__ import annotations

import pytest

_LIMITS = (
    "cometmq.broker.lite.service._SLICE_NS",
    "cometmq.broker.pop.turn._FOUND_TURN_NS",
    "cometmq.broker.pop.turn._ONLY_TURN_NS",
    "cometmq.broker.pop.turn._TURN_NS",
    "cometmq.broker.pull.service._READ_NS",
    "cometmq.broker.pull.service._SLICE_NS",
)
_UNLIMITED_NS = 3_600_000_000_000


@pytest.fixture(autouse=True)
def unlimited_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lift the limits of time of one turn."""
    for limit in _LIMITS:
        monkeypatch.setattr(limit, _UNLIMITED_NS)
