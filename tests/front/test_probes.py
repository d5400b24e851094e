"""Probes: every check with its state, and since when."""

from __future__ import annotations

import json
from typing import Any

from cometmq.front.clock import Clock
from cometmq.front.metrics.probes import OK, Check, Probe


class HeldClock(Clock):
    """A wall clock that the test moves."""

    now_ms = 1_000

    def wall_ms(self) -> int:
        return self.now_ms


def answer(probe: Probe) -> tuple[bool, dict[str, Any]]:
    passed, text = probe.answer()
    content = json.loads(text)
    assert content["status"] == ("ok" if passed else "failed")
    return passed, content["checks"]


def test_a_state_has_the_time_of_its_last_change() -> None:
    clock = HeldClock()
    checks = {"store": OK, "disk": OK}
    probe = Probe(lambda: checks, clock)
    epoch = "1970-01-01T00:00:0"
    assert answer(probe) == (
        True,
        {name: {"state": "ok", "since": f"{epoch}1.000+00:00"} for name in checks},
    )
    clock.now_ms = 5_000
    checks["disk"] = Check("degraded", "90 %")
    passed, rows = answer(probe)
    assert passed, "a degraded process gets traffic"
    assert rows["disk"] == {
        "state": "degraded",
        "since": f"{epoch}5.000+00:00",
        "reason": "90 %",
    }
    assert rows["store"]["since"] == f"{epoch}1.000+00:00"
    clock.now_ms = 6_000
    checks["disk"] = Check("degraded", "91 %")
    _, rows = answer(probe)
    assert (rows["disk"]["since"], rows["disk"]["reason"]) == (f"{epoch}5.000+00:00", "91 %")
    checks["store"] = Check.of("read-only")
    passed, rows = answer(probe)
    assert not passed
    assert rows["store"]["since"] == f"{epoch}6.000+00:00"
