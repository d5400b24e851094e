"""One attack on a target, measured: answer, the neighbour's calls, memory, faults in the log."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from cometmq.tests.hostile.attacker import Attack, Attacker
from cometmq.tests.hostile.neighbour import CALL_S, Figures
from cometmq.tests.hostile.target import Target

ATTACK_S = 60.0
SETTLE_S = 20.0
#: Time of the neighbour without an attack, before and after each: the speed of the machine changes.
USUAL_S = 1.0
#: Memory that may stay: arenas of the allocator, caches with a bound.
STAYS_MIB = 64.0


@dataclass(frozen=True, slots=True)
class Trial:
    """The figures of one attack."""

    attack: Attack
    answer: str
    seconds: float
    neighbour: Figures
    #: The neighbour's cycles a second before and after the attack.
    usual_rate: float
    #: Processor time of the longest turn of the event loop; 0 without the probe.
    turn_ms: float
    #: Largest growth of the process during the attack.
    peak_mib: float
    #: Growth of its own memory afterwards, when it has settled.
    stays_mib: float
    tracebacks: int
    internal_errors: int
    #: By which the epoch of the group has grown: the leader lost its lease.
    elections: int

    @property
    def share(self) -> float:
        """The neighbour's rate during the attack, as a part of its usual one."""
        return self.neighbour.rate / self.usual_rate


async def run(attack: Attack, target: Target) -> Trial:
    """Run one attack, for `ATTACK_S` at most."""
    faults, memory_mib = target.faults(), target.memory.own_mib()
    epoch = target.epoch()
    before = await _usual(target)
    target.memory.reset_peak()
    resident_mib = target.memory.peak_mib()
    target.turns()
    target.figures()
    began_s = time.monotonic()
    one = Attacker(target)
    try:
        answer = await asyncio.wait_for(attack.run(one), ATTACK_S)
    except TimeoutError:
        answer = "unfinished"
    except (RuntimeError, LookupError, AssertionError, ConnectionError):
        if not target.secured:
            raise
        answer = "refused"  # the attack expects an answer that strangers do not get
    finally:
        await one.close()
    seconds = time.monotonic() - began_s
    neighbour = await _figures(target)
    turn_ms = max((turn["cpu_ms"] for turn in target.turns()), default=0.0)
    peak_mib = target.memory.peak_mib() - resident_mib
    stays_mib = await _settled_mib(target, memory_mib)
    usual = before.joined(await _usual(target)).rate
    after = target.faults()
    return Trial(
        attack,
        answer,
        seconds,
        neighbour,
        usual,
        turn_ms,
        peak_mib,
        stays_mib,
        after["tracebacks"] - faults["tracebacks"],
        after["internal"] - faults["internal"],
        round(target.epoch() - epoch),
    )


async def _usual(target: Target) -> Figures:
    """Return the neighbour's figures without an attack."""
    target.figures()
    await asyncio.sleep(USUAL_S)
    return target.figures()


async def _figures(target: Target) -> Figures:
    """Return the neighbour's figures up to the first cycle that began after the attack."""
    found = target.figures()
    end_s = time.monotonic() + CALL_S
    later = 0
    while later < 2 and time.monotonic() < end_s:
        await asyncio.sleep(0.05)
        more = target.figures()
        later += more.cycles
        found = found.joined(more)
    return found


async def _settled_mib(target: Target, before_mib: float) -> float:
    """Return the growth of the memory when it is within the budget, or after `SETTLE_S`."""
    end_s = time.monotonic() + SETTLE_S
    while (grown_mib := target.memory.own_mib() - before_mib) > STAYS_MIB:
        if time.monotonic() > end_s:
            break
        await asyncio.sleep(0.1)
    return grown_mib
