"""How slow the machine of this test run is: a factor for the timers of test clusters.

A lease that is long enough on a quiet machine ends while a process waits for a busy core, and a
test of something else fails. So drills and tests multiply leases, heartbeats and deadlines by
`PACE`: 1 on a quiet machine of usual speed, more beside other work. A run measures it once; workers
get it by the variable TEST_PACE, which also sets it by hand. `scripts/test` measures it before its
own work begins, for the processes that it then runs on each core:

    python drills/pace.py [PROCESSES]     print the factor
"""

from __future__ import annotations

import os
import sys
import time

_VARIABLE = "TEST_PACE"
# A loop that takes 50 ms of CPU time on the machine for which the timers were chosen.
_ROUNDS, _USUAL_S, _SAMPLES = 1_000_000, 0.05, 5
_SLOWEST = 8.0
#: Below it the timers stay as they are.
_NOTICEABLE = 1.5


def _measured() -> float:
    began = time.perf_counter()
    for _ in range(_SAMPLES):
        count = 0
        for number in range(_ROUNDS):
            count += number & 7
    return (time.perf_counter() - began) / (_SAMPLES * _USUAL_S)


def _beside() -> float:
    """Return the number of processes that will share a core: the argument of the command."""
    return float(sys.argv[1]) if __name__ == "__main__" and len(sys.argv) > 1 else 1.0


def _pace() -> float:
    given = os.environ.get(_VARIABLE)
    if given is None:
        slow = _measured() * _beside()
        given = os.environ[_VARIABLE] = f"{min(slow, _SLOWEST) if slow >= _NOTICEABLE else 1.0:.1f}"
    return float(given)


#: At least 1.
PACE = _pace()


def paced_ms(usual_ms: int) -> int:
    """Return a duration in ms for this machine."""
    return round(usual_ms * PACE)


if __name__ == "__main__":
    print(PACE)
