"""The three hosts of docs/production.md: its files and commands word for word, one namespace for
each host.

`python -m cometmq.tests.drills.hosts.guide FOLDER PROGRAMS` starts them, carries out the upgrade
under load of the official Python client and of PROGRAMS (JSON: commands by name), kills a host and
sends again. Prints `passed` at the end; a failure is a traceback. `/etc/cometmq` and `/opt/cometmq`
are folders in FOLDER. `systemctl`, `ssh`, `sudo` and the `pip` of a host are stand-ins.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from cometmq.drills import history
from cometmq.drills.ask import TOKEN
from cometmq.drills.stage import OFFICIAL_LOAD
from cometmq.proto import v2

from ...harness.pace import PACE, paced_ms
from ...harness.wire import Wire, normal_message
from .lab import Lab, run

ROOT = Path(__file__).resolve().parents[3]
_PLACEHOLDER = "replace-this-secret"
GUIDE = ROOT / "docs" / "production.md"
UNITS = ROOT / "deploy" / "systemd"
STATE = Path("/var/lib/cometmq")
PREFIX = "/opt/cometmq/bin/cometmq"
START_S = 90.0
LOADED = "loaded"
PAUSE_MS = 20
#: A slow machine cannot keep the leases of the guide, which are the defaults.
TIMERS = {
    "COMETMQ_CONTROLLER_LEASE_MS": str(paced_ms(2_500)),
    "COMETMQ_CONTROLLER_BEAT_INTERVAL_MS": str(paced_ms(250)),
}
LOOK_S = 0.02
#: A tenth of the 3 s that official clients give a send, which needs tens of turns of processes.
BUSY_S = 0.3


def printed_files() -> dict[tuple[str, str], str]:
    """Return the configuration files of the guide by path and host.

    A token of the test replaces the guide's placeholder, which servers refuse.
    """
    pattern = r"`(/etc/cometmq/\S+)` on ([\d.]+):\n\n```\n(.*?)```"
    found = re.findall(pattern, GUIDE.read_text(), re.DOTALL)
    return {(path, host): text.replace(_PLACEHOLDER, TOKEN) for path, host, text in found}


def printed_commands() -> list[str]:
    """Return the commands of the guide, block by block, in their order."""
    blocks = re.findall(r"^```\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    return [block for block in blocks if re.match(r"cometmq|systemctl", block)]


def start_command(unit: str) -> list[str]:
    """Return ExecStart of a unit."""
    (line,) = re.findall(r"^ExecStart=(.+)$", (UNITS / f"{unit}.service").read_text(), re.MULTILINE)
    return str(line).split()


class Hosts:
    """The processes of the guide; commands of an operator on a fourth host."""

    def __init__(self, folder: Path) -> None:
        self.files = printed_files()
        self.addresses = sorted({host for _, host in self.files})
        self.lab = Lab(folder)
        self._folder = folder
        self.bin = folder / "bin"  #: of the operator, with the stand-ins
        self.installed: list[str] = []
        self._running: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
        for number, address in enumerate(self.addresses):
            added = self.lab.add(f"h{number}", int(address.rpartition(".")[2]))
            assert added == address
        (token,) = {
            line.partition("=")[2]
            for text in self.files.values()
            for line in text.splitlines()
            if line.startswith("clusterToken=")
        }
        namesrv = ";".join(f"{address}:9876" for address in self.addresses)
        (folder / "etc").mkdir()
        (folder / "etc" / "token").write_text(f"{token}\n")
        (folder / "etc" / "token").chmod(0o600)
        path = f"{self.bin}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._outside = {**os.environ, "PATH": path}
        self._operator = {
            **self._outside,
            "COMETMQ_CLUSTER_TOKEN": token,
            "COMETMQ_NAMESRV_ADDR": namesrv,
            "COMETMQ_ENDPOINT": self.endpoints,
            "COMETMQ_TRUSTED_NETWORK": "true",
        }

    @property
    def endpoints(self) -> str:
        return ";".join(f"{address}:8081" for address in self.addresses)

    def start(self, address: str, unit: str) -> None:
        """Start a unit on a host: its ExecStart with the printed file and its own /var/lib."""
        host = self._folder / address
        state = host / "state"
        state.mkdir(parents=True, exist_ok=True)
        words = start_command(unit)
        assert words[0] == PREFIX
        path = words[words.index("-c") + 1]
        file = host / Path(path).name
        file.write_text(self.files[path, address])
        words[words.index("-c") + 1] = str(file)
        command = [sys.executable, "-P", "-m", "cometmq.cli.main", *words[1:]]
        mount = f'mount --bind {state} {STATE} && exec "$@"'
        name = f"h{self.addresses.index(address)}"
        with (host / f"{unit}.log").open("ab") as log:
            self._running[address, unit] = subprocess.Popen(
                [*self.lab.command(name), "unshare", "--mount", "sh", "-ec", mount, "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(TIMERS if PACE > 1 else {})},
            )

    def restart(self, address: str, unit: str) -> None:
        """Do what `systemctl restart` does."""
        process = self._running[address, unit]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60.0) == 0, self.logs()
        self.start(address, unit)

    def kill(self, address: str) -> None:
        """End all processes of a host."""
        self.lab.kill_all(f"h{self.addresses.index(address)}")

    def printed(self, block: str, *, host: str = "", variables: bool = False) -> str:
        """Run commands as the guide prints them, as root of a host or as an operator elsewhere;
        return their output. `variables` replace the options of the cluster."""
        text = block.replace("/etc/cometmq", str(self._folder / "etc"))
        text = text.replace("/opt/cometmq", str(self._folder / "opt"))
        at = self.lab.command(f"h{self.addresses.index(host)}") if host else []
        done = subprocess.run(
            [*at, "sh", "-ec", text],
            env={**(self._operator if variables else self._outside), "GUIDE_HOST": host},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{block}{done.stdout}{done.stderr}{self.logs()}"
        return done.stdout + done.stderr

    def cometmq(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command of the operator; return its output."""
        done = subprocess.run(
            [sys.executable, "-P", "-m", "cometmq.cli.main", *arguments],
            env=self._operator,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode in codes, f"{arguments}: {done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def status(self, *arguments: str) -> Any:
        """Return the healthy group. One look waits for fractions of a second for an answer, which
        a busy machine may not give."""
        wait = ("--wait", str(START_S), "-o", "json")
        (found,) = json.loads(self.cometmq("ha", "status", *wait, *arguments))
        return found

    def wait_degraded(self) -> None:
        """Wait until the status names a host that does not answer, while the leader serves."""
        end_s = time.monotonic() + START_S
        while True:
            text = self.cometmq("ha", "status", "-o", "json", codes=(0, 3))
            (found,) = json.loads(text)
            if found["health"] == "degraded":
                return
            assert time.monotonic() < end_s, text

    def logs(self) -> str:
        files = sorted(self._folder.glob("*/*.log"))
        return "".join(f"\n--- {path}\n{path.read_text()[-1500:]}" for path in files)


class StandIns:
    """Stand-ins of `systemctl`, `ssh`, `sudo` and the `pip` of a host, and what they were told."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self._hosts = hosts
        #: The units that were restarted, each as "UNIT HOST".
        self.restarted: list[str] = []
        self._wanted, self._done = folder / "wanted", folder / "done"
        os.mkfifo(self._wanted)
        os.mkfifo(self._done)
        tell = f'echo "$GUIDE_HOST" "$@" > {self._wanted}; read -r answer < {self._done}'
        tell += '; test "$answer" = done'
        cases = " ".join(
            f"{address}) space=h{number};;" for number, address in enumerate(hosts.addresses)
        )
        remote = f'shift; export GUIDE_HOST="$1"; shift; case "$GUIDE_HOST" in {cases} esac'
        for path, text in (
            (hosts.bin / "systemctl", tell),
            (hosts.bin / "ssh", f'{remote}; exec ip netns exec "$space" sh -ec "$*"'),
            (hosts.bin / "sudo", 'exec "$@"'),
            (folder / "opt" / "bin" / "pip", f'set -- pip "$@"; {tell}'),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#!/bin/sh -e\n{text}\n")
            path.chmod(0o755)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            address, verb, *words = self._wanted.read_text().split()
            try:
                self._do(address, verb, words)
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                self._done.write_text(f"{type(error).__name__} {str(error)[:200]}\n")
            else:
                self._done.write_text("done\n")

    def _do(self, address: str, verb: str, words: Sequence[str]) -> None:
        if verb == "enable":
            assert words[0] == "--now"
            for unit in words[1:]:
                self._hosts.start(address, unit)
        elif verb == "restart":
            (unit,) = words
            self._hosts.restart(address, unit)
            self.restarted.append(f"{unit} {address}")
        elif verb == "pip":
            self._hosts.installed.append(address)
        else:
            assert verb == "daemon-reload", verb


class Lateness(threading.Thread):
    """How late the machine lets a thread run."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest_s = 0.0

    def run(self) -> None:
        while True:
            before_s = time.monotonic()
            time.sleep(LOOK_S)
            self.longest_s = max(self.longest_s, time.monotonic() - before_s - LOOK_S)


class Loads:
    """Official clients that send until `stop`, and record each outcome."""

    def __init__(self, hosts: Hosts, folder: Path, programs: Mapping[str, Sequence[str]]) -> None:
        self._hosts, self._folder = hosts, folder
        self._lateness = Lateness()
        self._lateness.start()
        python = [sys.executable, "-P", "-m", OFFICIAL_LOAD, "--pause", str(PAUSE_MS / 1000)]
        hosts.cometmq("topic", "create", LOADED, "--type", "fifo")
        self._histories = {name: folder / f"history-{name}.jsonl" for name in ("python", *programs)}
        words = ("--endpoints", hosts.endpoints, "--topic", LOADED, "--history")
        self._processes = [self._start("python", [*python, *words, str(self._histories["python"])])]
        for name, command in programs.items():
            record = f"history:{self._histories[name]}:a:{PAUSE_MS}"
            self._processes.append(self._start(name, [*command, hosts.endpoints, LOADED, record]))

    def _start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        home = self._folder / f"home-{name}"
        home.mkdir()
        environment = {
            **os.environ,
            "HOME": str(home),
            "JAVA_TOOL_OPTIONS": f"-Duser.home={home}",
            # The Go client accepts several addresses only without TLS.
            "rocketmq.client.enableSsl": "false",
            "GRPC_VERBOSITY": "NONE",
        }
        with (home / "client.log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=home
            )

    def wait_served(self) -> None:
        """Wait until every client has an OK from now on."""
        since_s = time.monotonic()
        for name, path in self._histories.items():
            answered = history.Counter("ok")
            while answered.last_event().get("t", 0.0) <= since_s:
                assert time.monotonic() < since_s + START_S, f"{name}: {self._hosts.logs()}"
                time.sleep(0.1)
                answered.poll([path])

    def stop(self) -> dict[str, list[str]]:
        """Stop the clients; return what failed, by client. What was not answered in time counts
        unless the machine was too busy for that."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            process.wait(60.0)
        failed = ("fail",) if self._lateness.longest_s > BUSY_S else ("fail", "unknown")
        found = {
            name: [event["why"] for event in history.read(path) if event["e"] in failed]
            for name, path in self._histories.items()
        }
        return {name: why for name, why in found.items() if why}


async def send(endpoints: str, topic: str, first: int, count: int) -> None:
    """Send messages until each is acknowledged."""
    async with Wire(endpoints, "guide@1") as wire:
        for number in range(first, first + count):
            message = normal_message(topic, f"01{0:020X}{number:010X}", f"{number}".encode())
            end_s = time.monotonic() + START_S
            while not await _is_sent(wire, message):
                assert time.monotonic() < end_s, f"message {number} of {topic}"
                await asyncio.sleep(0.05)


async def _is_sent(wire: Wire, message: v2.Message) -> bool:
    try:
        answer = await wire.send([message], 10.0)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status.code == v2.OK)


def follow(folder: Path, programs: Mapping[str, Sequence[str]]) -> None:
    """Follow the guide."""
    hosts = Hosts(folder)
    stand_ins = StandIns(hosts, folder)
    start, wait_healthy, plan, upgrade = printed_commands()
    for address in hosts.addresses:
        hosts.printed(start, host=address)
    hosts.status("--replicas", "3")  # the printed command waits for 60 s: not for a busy machine
    assert "healthy" in hosts.printed(wait_healthy)
    found = hosts.status()
    assert found["in_sync"] == [0, 1, 2]
    assert found["decided_by"].partition(":")[0] in hosts.addresses
    assert "at least 2 in sync" in found["policy"]
    check_plan(hosts, plan)
    hosts.cometmq("topic", "create", "orders")
    asyncio.run(send(hosts.endpoints, "orders", 0, 50))
    upgrade_under_load(hosts, stand_ins, upgrade, Loads(hosts, folder, programs))
    asyncio.run(send(hosts.endpoints, "orders", 50, 50))
    leader = hosts.addresses[int(hosts.status()["leader"])]
    hosts.kill(leader)
    asyncio.run(send(hosts.endpoints, "orders", 100, 50))
    hosts.wait_degraded()
    hosts.printed(start, host=leader)
    hosts.status("--replicas", "3")
    assert "healthy" in hosts.printed(wait_healthy)


def check_plan(hosts: Hosts, plan: str) -> None:
    """Print the script of a rolling restart: the leader restarts last of the brokers, the deciding
    nameserver last of all."""
    while True:
        before, script, after = hosts.status(), hosts.printed(plan), hosts.status()
        same = ("leader", "epoch", "decided_by")
        if all(before[name] == after[name] for name in same):
            break  # otherwise another one was elected meanwhile, on a busy machine
    restarts = re.findall(r"^ssh -- (\S+) sudo systemctl restart (\S+)$", script, re.MULTILINE)
    names = ["cometmq-broker"] * 3 + ["cometmq-namesrv"] * 3
    assert [unit for _, unit in restarts] == names, script
    assert restarts[2][0] == hosts.addresses[int(before["leader"])]
    assert restarts[-1][0] == before["decided_by"].partition(":")[0]
    assert script.count("cometmq ha status --wait") == 8, script
    assert "COMETMQ_CLUSTER_TOKEN_FILE" in script, "the file of the token, not the token"
    assert TOKEN not in script
    assert hosts.cometmq("ha", "rolling-restart", "--plan").count("ssh -- ") == 6, "by variables"


def upgrade_under_load(hosts: Hosts, stand_ins: StandIns, upgrade: str, loads: Loads) -> None:
    """Upgrade all brokers and restart the nameservers, without an error of an official client."""
    loads.wait_served()
    trace = hosts.printed(upgrade, variables=True)
    units = [line.split()[0] for line in stand_ins.restarted]
    assert units == ["cometmq-broker"] * 3 + ["cometmq-namesrv"] * 3, stand_ins.restarted
    assert len(set(stand_ins.restarted)) == 6, stand_ins.restarted
    assert sorted(hosts.installed) == hosts.addresses, "each host installs before it restarts"
    before_switchover = trace.partition("cometmq ha switchover")[0]
    assert before_switchover.count("systemctl restart cometmq-broker") == 2, trace
    loads.wait_served()
    errors = loads.stop()
    assert not errors, errors


def main() -> None:
    """Follow the guide in a lab."""
    run("mount", "-t", "tmpfs", "tmpfs", "/var/lib")
    STATE.mkdir()
    follow(Path(sys.argv[1]), json.loads(sys.argv[2]))
    print("passed")


if __name__ == "__main__":
    main()
