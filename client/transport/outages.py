"""Log of endpoints that do not answer or refuse: at the first failed call, then once a minute.

A client repeats its calls many times a second while a broker is away; one line for each would hide
the others.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from .addresses import Target

logger = logging.getLogger(__name__)

REPEAT_S = 60.0


@dataclass(slots=True)
class _Outage:
    began_s: float
    logged_s: float
    calls: int = 1


class Outages:
    """The endpoints whose last call failed."""

    def __init__(self) -> None:
        self._outages: dict[Target, _Outage] = {}
        self._refusal = ""
        self._refused_s = 0.0

    def failed(self, target: Target, error: str, now_s: float) -> None:
        """Note a failed call."""
        outage = self._outages.get(target)
        if outage is None:
            self._outages[target] = _Outage(now_s, now_s)
            logger.warning("client.broker_away target=%s error=%s", target, error)
            return
        outage.calls += 1
        if now_s - outage.logged_s >= REPEAT_S:
            outage.logged_s = now_s
            logger.warning(
                "client.broker_away target=%s for_s=%d failed_calls=%d error=%s",
                target,
                now_s - outage.began_s,
                outage.calls,
                error,
            )

    def answered(self, target: Target, now_s: float) -> None:
        """Note an answer: the endpoint is back."""
        if self._outages and (outage := self._outages.pop(target, None)) is not None:
            logger.warning(
                "client.broker_back target=%s after_s=%.1f", target, now_s - outage.began_s
            )

    def refused(self, error: str, now_s: float) -> None:
        """Note a server that refuses this client; a stream is refused again with every attempt."""
        if error == self._refusal and now_s - self._refused_s < REPEAT_S:
            return
        self._refusal, self._refused_s = error, now_s
        logger.warning("client.refused_by_server error=%s", error)

    def forget(self, target: Target) -> None:
        """Drop an endpoint that the client does not use any more."""
        self._outages.pop(target, None)
