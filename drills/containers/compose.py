"""`cometmq drill --compose`: faults on the cluster of docker-compose.yml.

Each nameserver and broker in turn is killed, stopped, paused and disconnected through the Docker
SDK, while raw senders and the official client use the published port of the proxy. Directed
disconnections (drills 7-10) are packet filter rules in the network namespaces of the containers.
Disks are filled on a cluster of its own, whose volumes are in memory and small (`full`).
Finally the logs are copied out of the stopped containers and compared by the usual checker. Uses a
running container engine or starts one (`engine.py`).
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .. import report, verdict
from ..options import Options
from ..process import wait_until
from ..stage import READERS, TOPIC
from .containers import BROKERS, GROUPS, NAMESERVERS, SETTLE_S, Containers, build, small_disks
from .engine import Engine, NoEngine, engine

#: Printed of the logs of all containers, and of each client's errors, if a check failed.
LOG_CHARS_MAX, CLIENT_CHARS_MAX = 12_000, 2_000

Fault = tuple[str, Callable[[Containers, str], None], Callable[[Containers, str], None]]
FAULTS: tuple[Fault, ...] = (
    ("kill", Containers.kill, Containers.start),
    ("stop", Containers.stop, Containers.start),
    ("pause", Containers.pause, Containers.unpause),
    ("disconnect", Containers.disconnect, Containers.connect),
)


def in_turn(containers: Containers, faults: Sequence[str], services: Sequence[str]) -> None:
    """Apply every fault to every service, one after another, under load."""
    for name, do, undo in FAULTS:
        if name not in faults:
            continue
        for service in services:
            do(containers, service)
            containers.more_acks(60)
            undo(containers, service)
            wait_until(f"whole after {name} of {service}", containers.whole, SETTLE_S)
            containers.more_acks(40)
            print(f"compose: {name} {service}", flush=True)


def restart(containers: Containers) -> None:
    """Restart all containers at once."""
    containers.compose("restart", "--timeout", "20")


def down(containers: Containers) -> None:
    """Remove the containers and their network, and create them again with the same volumes."""
    containers.compose("down", "--timeout", "20")
    containers.up()


#: The fault of `full`.
FULL = "full"
#: Faults of the whole cluster.
WHOLE = (("restart", restart), ("down", down))


def of_all(containers: Containers, faults: Sequence[str]) -> None:
    """Apply the faults of the whole cluster, one after another, under load."""
    for name, act in WHOLE:
        if name not in faults:
            continue
        containers.events.write("stop", "all")
        act(containers)
        wait_until(f"whole after {name} of all", containers.whole, SETTLE_S)
        containers.events.write("start", "all")
        containers.more_acks(40)
        print(f"compose: {name} of all", flush=True)


def full(containers: Containers) -> None:
    """Fill the disks of broker-a: the leader's, so that it hands over, then the other's, too."""
    leader = containers.leader("broker-a")
    follower = next(name for name in GROUPS["broker-a"] if name != leader)
    containers.fill(leader)
    wait_until(f"{follower} leads", lambda: containers.leader("broker-a") == follower, SETTLE_S)
    containers.more_acks(60)
    containers.fill(follower)
    containers.more_acks(60)  # of broker-b
    for name in (follower, leader):
        containers.empty(name)
    wait_until("whole after full disks", containers.whole, SETTLE_S)
    containers.more_acks(60)
    print("compose: full disks of broker-a", flush=True)


def cuts(containers: Containers) -> None:
    """Run drills 8, 9 and 10 on containers: the leader of broker-a and its follower."""
    for one_way in (True, False):
        leader = containers.leader("broker-a")
        follower = next(name for name in GROUPS["broker-a"] if name != leader)
        containers.drop(leader, follower)
        if not one_way:
            containers.drop(follower, leader)
        time.sleep(8.0)  # the follower leaves the in-sync set
        containers.more_acks(40)
        containers.heal(leader, follower)
        if not one_way:
            containers.heal(follower, leader)
        wait_until("whole again", containers.whole, SETTLE_S)
        print(f"compose: cut {leader} {follower}", flush=True)


def swizzle(containers: Containers, seconds: float, seed: int) -> None:
    """Run drill 38 on containers."""
    chance, end = random.Random(seed), time.monotonic() + seconds
    while time.monotonic() < end:
        victims = chance.sample([*NAMESERVERS, *BROKERS], 2)
        for victim in victims:
            containers.disconnect(victim)
            time.sleep(chance.uniform(0.2, 2.0))
        chance.shuffle(victims)
        for victim in victims:
            containers.connect(victim)
        wait_until("whole again", containers.whole, SETTLE_S)
        containers.more_acks(40)


def perform(
    name: str, folder: Path, docker: Engine, body: Callable[[Containers], None], *files: str
) -> verdict.Verdict:
    """Start the cluster and the load, run `body`, compare."""
    result = verdict.Verdict(name, "containers", "sync")
    started = time.monotonic()
    with Containers(docker, folder, *files) as containers:
        try:
            containers.up()
            containers.cometmq("a0", "topic", "create", TOPIC, "--type", "fifo", "--queues", "4")
            containers.cometmq("a0", "group", "create", READERS)
            containers.load("c")
            body(containers)
            containers.unload()
            containers.compare(result)
        except Exception as error:  # becomes the verdict of the failed drill
            result.error = f"{type(error).__name__}: {error}"
    result.seconds = time.monotonic() - started
    return result


def main(options: Options) -> int:
    """Run the selected drills; return 1 if a check failed, 2 without a container engine."""
    names = [*(name for name, _, _ in FAULTS), *(name for name, _ in WHOLE), FULL]
    faults = options.faults.split(",") if options.faults else names
    services = options.services.split(",") if options.services else [*NAMESERVERS, *BROKERS]

    def body(containers: Containers) -> None:
        in_turn(containers, faults, services)
        of_all(containers, faults)
        if not options.services:
            cuts(containers)
            swizzle(containers, max(20.0, 1800 * options.scale), options.seed or 1)

    with tempfile.TemporaryDirectory(prefix="cometmq-compose-") as folder:
        try:
            with engine(Path(folder) / "engine") as docker:
                if not options.no_build:
                    build(docker)
                found = []
                if set(faults) - {FULL}:
                    found.append(perform("compose", Path(folder) / "compose", docker, body))
                if FULL in faults:
                    files = small_disks(Path(folder))
                    found.append(perform(FULL, Path(folder) / FULL, docker, full, *files))
        except NoEngine as reason:
            print(f"No Docker engine: {reason}. scripts/docker_engine installs and starts one.")
            return 2
        if options.out:
            report.write(options.out, report.as_json(found))
        for one in found:
            _show_logs(Path(folder) / one.drill, one, options.keep)
        report.show(found)  # last, because readers of a long output see its end
    return 0 if all(one.passed for one in found) else 1


def _show_logs(folder: Path, result: verdict.Verdict, keep: Path | None) -> None:
    """Keep the containers' logs, or print the ends of those of a failed drill."""
    logs = (folder / "logs.txt").read_text()
    if keep:
        report.write(keep / f"{result.drill}-logs.txt", logs)
    elif not result.passed:
        print(logs[-LOG_CHARS_MAX:])
        for client in sorted(folder.glob("client-*.txt")):
            print(f"{client.name}:\n{client.read_text()[-CLIENT_CHARS_MAX:]}")
