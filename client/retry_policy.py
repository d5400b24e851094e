"""Backoff of a push consumer's retries. Pure.

The server's settings define it as a list of pauses or an exponential policy. The default is the
reference's list: 1 s, 5 s, 10 s, 30 s, then minutes (docs/formats/grpc-api.md, section 7.6).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..proto import v2

_MINUTE_S = 60.0
_DEFAULT_S: tuple[float, ...] = (
    *(1.0, 5.0, 10.0, 30.0),
    *(minute * _MINUTE_S for minute in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)
_DEFAULT_ATTEMPTS = 17
_STEPS_MAX = 32


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Pause after each attempt, and the number of attempts."""

    pauses_s: tuple[float, ...] = _DEFAULT_S
    attempts_max: int = _DEFAULT_ATTEMPTS

    def pause_s(self, attempt: int) -> float:
        """Return the pause after the failure of delivery `attempt` (1 is the first)."""
        return self.pauses_s[min(max(attempt, 1), len(self.pauses_s)) - 1]


def read_policy(sent: v2.RetryPolicy) -> RetryPolicy:
    """Return the policy of the server's settings."""
    attempts = sent.max_attempts or _DEFAULT_ATTEMPTS
    kind = sent.WhichOneof("strategy")
    if kind == "customized_backoff" and sent.customized_backoff.next:
        pauses = tuple(each.ToMilliseconds() / 1000 for each in sent.customized_backoff.next)
        return RetryPolicy(pauses, attempts)
    if kind == "exponential_backoff":
        policy = sent.exponential_backoff
        initial_s = policy.initial.ToMilliseconds() / 1000
        longest_s = policy.max.ToMilliseconds() / 1000
        factor = max(policy.multiplier, 1.0)
        return RetryPolicy(
            tuple(min(longest_s, initial_s * factor**step) for step in range(_STEPS_MAX)), attempts
        )
    return RetryPolicy(attempts_max=attempts)
