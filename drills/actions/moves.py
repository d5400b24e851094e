"""Actions and checks that several drills share: operator commands, power loss, archives, tails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ...proto import v1
from .. import power_loss as emulator
from .. import verdict
from ..process import DrillError
from ..settings import LEASE_MS
from ..stage import TOPIC, Stage

HA_S = 60.0
#: Longest wait for the messages of a tail.
TAIL_S = 30.0
#: Limits are for a quiet machine; tests share theirs.
SLACK = float(os.environ.get("COMETMQ_DRILL_SLACK", "8"))


def ha(stage: Stage, *arguments: str, codes: tuple[int, ...] = (0,)) -> Any:
    """Run `cometmq ha ...` with JSON output. Raises DrillError on an unexpected exit code."""
    command = [sys.executable, "-P", "-m", "cometmq.cli.main", "ha", *arguments]
    servers = [stage.plant.namesrv_address(name) for name in stage.plant.nameservers]
    done = subprocess.run(
        [*command, "--namesrv", ";".join(servers), "-o", "json"],
        capture_output=True,
        text=True,
        timeout=HA_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode not in codes:
        raise DrillError(
            f"ha {' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}\n"
            + stage.plant.places()
        )
    return json.loads(done.stdout) if done.stdout.strip() else {}


def switchover(stage: Stage, to: str) -> Any:
    """Change the leader with `cometmq ha switchover`."""
    stage.plant.note("switchover", to)
    answer = ha(stage, "switchover", "--to", str(stage.plant.nodes[to].number))
    stage.plant.wait("the new leader leads", lambda: stage.plant.leader() == to)
    return answer


def archives(stage: Stage) -> list[Path]:
    """Return every archived tail of every broker."""
    found: list[Path] = []
    for name in stage.plant.brokers:
        found += sorted((stage.plant.store(name) / "ha" / "diverged").glob("*.log"))
    return found


def expect_no_cut(stage: Stage) -> None:
    """Expect that no replica truncated its log."""
    found = archives(stage)
    stage.check("no replica cut its log", not found, found)


def expect_limit(stage: Stage, what: str, found_ms: float, limit_ms: float) -> None:
    """Expect a time within its limit, multiplied by the machine's tolerance."""
    text = f"{found_ms:.0f} ms of {limit_ms:.0f}"
    stage.check(f"{what} within the limit", found_ms <= limit_ms * SLACK, text)


def epoch(stage: Stage, name: str) -> int:
    """Return the newest epoch of a broker's history."""
    answer = stage.plant.status(name)
    return int(answer.beat.last_epoch) if answer is not None else 0


def is_suspect(stage: Stage, name: str) -> bool | None:
    """Return the suspect mark; None without an answer."""
    answer = stage.plant.status(name)
    return None if answer is None else bool(answer.beat.suspect)


def quiet(stage: Stage, seconds: float, leases: float = 0.0) -> None:
    """Wait for seconds, or a number of leases."""
    time.sleep(max(seconds, leases * LEASE_MS / 1000))


def hold_tail(stage: Stage, leader: str, count: int = 20) -> None:
    """Let an asynchronous leader acknowledge messages that no follower receives, and kill it."""
    plant = stage.plant
    for other in plant.brokers:
        if other != leader:
            plant.cut(leader, other)
    before = len(_ok_ids(stage))
    # The drill's lag limit is longer: no replica leaves the in-sync set.
    plant.wait("a tail", lambda: len(_ok_ids(stage)) >= before + count, TAIL_S)
    plant.kill(leader)
    for other in plant.brokers:
        plant.network.reset(leader, other)
    plant.heal()


def _ok_ids(stage: Stage) -> list[str]:
    return verdict.Promises.read(stage.histories).acknowledged


def replay(stage: Stage) -> int:
    """End the load and replay every archived tail; return the number of replayed messages.

    The load ends first: a further change of the leader on a busy machine would create another tail.
    """
    stage.unload()
    stage.settle()
    answer = ha(stage, "replay-tail")
    stage.plant.note("replay", str(answer.get("messages")))
    return int(answer.get("messages", 0))


def expect_replayed(stage: Stage) -> None:
    """Expect, after the comparison, every acknowledged archived message in the log."""
    result = stage.verdict
    best = stage.plant.store(stage.plant.brokers[0])
    there = {record.identity for record in verdict.records(best, TOPIC)}
    missing = [identity for identity in result.archived if identity not in there]
    stage.check("the archived tail was replayed", not missing, missing[:5])


def power_loss(stage: Stage, *names: str, seed: int = 1) -> None:
    """Kill all processes together and discard part of what was not flushed."""
    plant = stage.plant
    plant.note("power-loss", ",".join(names))
    for name in names:
        plant.kill(name, report=False)
    for name in names:
        emulator.lose(plant.store(name), seed)


def force_elect(stage: Stage, name: str) -> Any:
    """Run `cometmq ha force-elect`."""
    stage.plant.note("force-elect", name)
    number = str(stage.plant.nodes[name].number)
    return ha(stage, "force-elect", "--to", number, "--accept-loss", "--reason", "drill")


def phase(stage: Stage) -> str:
    """Return the controller's phase of the group."""
    report = stage.plant.report()
    return "" if report is None else str(report.phase)


def hold_reason(stage: Stage) -> str:
    """Return why the group is held; empty if it is not."""
    report = stage.plant.report()
    return "" if report is None else str(report.state.hold_reason)


def disk_fault(stage: Stage, name: str, target: str, code: int) -> None:
    """Let a disk call fail on a broker."""
    from .. import ask

    stage.plant.note("fault", f"{name} {target}")
    address = stage.plant.client_address(name, direct=True)
    ask.fault(address, target, kind=v1.DISK, target=target, action=v1.FAIL, code=code, rate=1.0)


def exit_of(stage: Stage, name: str, seconds: float = 30.0) -> int:
    """Wait until a process ends without a signal of ours; return its exit code."""
    popen = stage.plant.nodes[name].popen
    assert popen is not None
    stage.plant.wait(f"{name} ends", lambda: popen.poll() is not None, seconds)
    stage.plant.network.down(name)
    return int(popen.returncode)
