"""Hosts as network namespaces: a bridge, one link for each host, and faults on these links.

The lab has namespaces of its own for the network, mounts and processes (`enter`), so it changes
nothing outside, and the kernel ends its processes when the drill ends. Each host is a network
namespace with one veth pair to the bridge. Faults: link down (as a pulled cable), one-way drop and
loss (nftables in the host's namespace), delay
(`relay.py`: not every kernel has netem).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cometmq.drills.process import DrillError

NET, PREFIX = "10.0.0", 24
DRILL_ADDRESS = f"{NET}.254"  # of the drill itself, on the bridge
INSIDE = "COMETMQ_DRILL_LAB"
COMMANDS = ("ip", "nft", "unshare", "mount")
TABLE = "inet drill"
RELAY_S = 5.0
_RELAY = Path(__file__).with_name("relay.py")
_UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_START = """
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
ip link set lo up
exec "$@"
"""


def missing() -> str:
    """Return why this machine cannot run the lab; empty if it can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces need Linux"
    absent = [command for command in COMMANDS if not shutil.which(command)]
    if absent:
        return f"{', '.join(absent)} not installed (scripts/system_packages installs them)"
    tried = subprocess.run(
        [*_UNSHARE, "sh", "-ec", "ip link add name b0 type bridge && nft add table inet drill"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if tried.returncode == 0 else f"no namespaces: {tried.stderr.strip()}"


def enter(command: Sequence[str]) -> int:
    """Run a command in new namespaces with an empty network; return its exit code."""
    environment = {**os.environ, INSIDE: "1"}
    whole = [*_UNSHARE, "sh", "-ec", _START, "lab", *command]
    return subprocess.run(whole, env=environment, check=False).returncode


def inside() -> bool:
    """Return whether this process runs in the namespaces of `enter`."""
    return INSIDE in os.environ


def run(*command: str) -> str:
    """Run a command; return its output. Raises DrillError."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DrillError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


class Lab:
    """A bridge and the hosts on it. Fault methods take effect before they return."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._addresses: dict[str, str] = {}
        self._filters: dict[str, list[str]] = {}
        self._relays: dict[str, subprocess.Popen[bytes]] = {}
        run("ip", "link", "add", "lab", "type", "bridge")
        run("ip", "addr", "add", f"{DRILL_ADDRESS}/{PREFIX}", "dev", "lab")
        run("ip", "link", "set", "lab", "up")

    def add(self, host: str, last: int) -> str:
        """Add a host with an address that ends in `last`; return the address."""
        address = self._addresses[host] = f"{NET}.{last}"
        run("ip", "netns", "add", host)
        run("ip", "link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", host)
        run("ip", "link", "set", host, "master", "lab")
        run("ip", "link", "set", host, "up")
        inner = ("ip", "-n", host)
        run(*inner, "addr", "add", f"{address}/{PREFIX}", "dev", "eth0")
        run(*inner, "link", "set", "lo", "up")
        run(*inner, "link", "set", "eth0", "up")
        return address

    def command(self, host: str) -> list[str]:
        """Return the words to put before a command that runs on a host."""
        return ["ip", "netns", "exec", host]

    def pids(self, host: str) -> list[int]:
        """Return the processes that run on a host."""
        return [int(word) for word in run("ip", "netns", "pids", host).split()]

    def kill_all(self, host: str) -> None:
        """Send SIGKILL to every process of a host; return when none is left."""
        for pid in self.pids(host):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # Faults.

    def link(self, host: str, *, up: bool) -> None:
        """Plug or pull a host's cable."""
        run("ip", "link", "set", host, "up" if up else "down")

    def drop_received(self, host: str) -> None:
        """Drop what a host receives; what it sends still arrives."""
        self._filter(host, "received", ['iifname "eth0" drop'])

    def cut_port(self, host: str, others: Sequence[str], port: int) -> None:
        """Drop the packets of a TCP port between a host and others, in both directions."""
        peers = "{ " + ", ".join(self._addresses[other] for other in others) + " }"
        for chain, side in (("received", "saddr"), ("sent", "daddr")):
            rules = [f"ip {side} {peers} tcp {end} {port} drop" for end in ("dport", "sport")]
            self._filter(host, chain, rules)

    def lose(self, host: str, percent: int) -> None:
        """Drop a share of the packets that a host receives and sends."""
        rule = [f"numgen random mod 100 < {percent} drop"]
        self._filter(host, "received", rule)
        self._filter(host, "sent", rule)

    def _filter(self, host: str, chain: str, rules: Sequence[str]) -> None:
        hook = {"received": "input", "sent": "output"}[chain]
        text = f"add table {TABLE}\n"
        text += f"add chain {TABLE} {chain} {{ type filter hook {hook} priority 0; }}\n"
        text += "".join(f"add rule {TABLE} {chain} {rule}\n" for rule in rules)
        done = subprocess.run(
            [*self.command(host), "nft", "-f", "-"],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise DrillError(f"nft on {host}: {done.stderr.strip()}\n{text}")
        self._filters.setdefault(host, []).extend(rules)

    def heal(self) -> None:
        """Remove all faults."""
        for host in list(self._filters):
            run(*self.command(host), "nft", "delete", "table", *TABLE.split())
            del self._filters[host]
        for host in list(self._relays):
            self._undelay(host)
        for host in self._addresses:
            self.link(host, up=True)

    def delay(self, host: str, delay_ms: int) -> None:
        """Delay each packet that a host sends or receives."""
        relay, outer, inner = str(_RELAY), f"{host}-o", f"{host}-i"
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner)
        run(sys.executable, "-P", relay, outer)
        run(*self.command(host), sys.executable, "-P", relay, "eth0")
        for name in (outer, inner):
            run("ip", "link", "set", name, "up")
        with (self._folder / f"relay-{host}.txt").open("ab") as log:
            self._relays[host] = subprocess.Popen(
                [sys.executable, "-P", relay, host, inner, str(delay_ms)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        stdout = self._relays[host].stdout
        assert stdout is not None
        if stdout.readline() != b"ready\n":
            raise DrillError(f"the relay of {host} did not start")
        run("ip", "link", "set", host, "nomaster")
        run("ip", "link", "set", outer, "master", "lab")

    def _undelay(self, host: str) -> None:
        relay = self._relays.pop(host)
        run("ip", "link", "del", f"{host}-o")
        run("ip", "link", "set", host, "master", "lab")
        relay.kill()
        relay.wait(RELAY_S)
