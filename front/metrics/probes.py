"""State of a server process for /livez and /readyz: named checks, their state and its start time.

Checks are cheap and run on the event loop: once a second, and for each request, so that `since` is
at most a second late.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from ..clock import Clock

_PERIOD_S: Final = 1.0
_MS_PER_S: Final = 1_000

State = Literal["ok", "degraded", "failed"]


class Check(NamedTuple):
    """The result of one check; `reason` is a sentence unless it is ok."""

    state: State
    reason: str = ""

    @classmethod
    def of(cls, reason: str | None, state: State = "failed") -> Check:
        """Return `state` with the reason, or ok without one."""
        return cls(state, reason) if reason else OK


OK = Check("ok")
Checks = Callable[[], Mapping[str, Check]]


class _Seen(Struct):
    check: Check
    since_ms: int


class Probe:
    """The checks of one path; it succeeds while none has failed."""

    def __init__(self, checks: Checks, clock: Clock) -> None:
        self._checks = checks
        self._clock = clock
        self._seen: dict[str, _Seen] = {}
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Observe the checks on the running loop."""
        self._observe()
        self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self.start)

    def stop(self) -> None:
        """Stop observing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def answer(self) -> tuple[bool, bytes]:
        """Return whether no check has failed, and the JSON text with all of them."""
        self._observe()
        passed = all(seen.check.state != "failed" for seen in self._seen.values())
        content = {
            "status": "ok" if passed else "failed",
            "checks": {name: _row(seen) for name, seen in self._seen.items()},
        }
        return passed, json.dumps(content).encode() + b"\n"

    def _observe(self) -> None:
        for name, check in self._checks().items():
            seen = self._seen.get(name)
            if seen is None or seen.check.state != check.state:
                self._seen[name] = _Seen(check, self._clock.wall_ms())
            else:
                seen.check = check


def _row(seen: _Seen) -> dict[str, Any]:
    since = datetime.fromtimestamp(seen.since_ms / _MS_PER_S, UTC)
    row = {"state": seen.check.state, "since": since.isoformat(timespec="milliseconds")}
    return {**row, "reason": seen.check.reason} if seen.check.reason else row
