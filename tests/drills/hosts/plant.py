"""Processes of a drill on hosts: a nameserver and a broker on each, and a host for clients."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cometmq.drills.ask import TOKEN, forget
from cometmq.drills.network import Network
from cometmq.drills.plant import STOP_S, Plant
from cometmq.drills.process import Process
from cometmq.drills.settings import Setup

from .lab import NET, Lab

CLIENTS = "c0"
_FIRST, _CLIENTS_LAST = 11, 100  # last bytes of the addresses


class HostPlant(Plant):
    """`ns0` and `b0` run on the host `h0`, and so on; clients run on `c0`."""

    def __init__(self, folder: Path, setup: Setup, lab: Lab) -> None:
        self.lab = lab
        self.hosts = [f"h{number}" for number in range(setup.brokers)]
        super().__init__(folder, setup)
        # Of the drill's commands.
        os.environ["COMETMQ_CLUSTER_TOKEN"] = TOKEN
        os.environ["COMETMQ_NAMESRV_ADDR"] = self.namesrv
        os.environ["COMETMQ_TRUSTED_NETWORK"] = "true"
        for number, host in enumerate(self.hosts):
            lab.add(host, _FIRST + number)
        lab.add(CLIENTS, _CLIENTS_LAST)
        self.client_command = lab.command(CLIENTS)
        self.first = self.brokers[0]  #: the broker whose address clients get first

    def _connect(self) -> Network:
        return Network(self._pids)  # without a proxy: the links of the hosts have the faults

    def _addresses(self, at: int, name: str) -> tuple[str, str]:
        address = f"{NET}.{_FIRST + int(name[-1])}"
        return address, address

    def _command(self, node: Process, file: Path) -> list[str]:
        role = "broker" if node.is_broker else "namesrv"
        command = [sys.executable, "-P", "-m", "cometmq.cli.main", role, "-c", str(file)]
        return [*self.lab.command(self.host(node.name)), *command]

    def conf(self, name: str) -> dict[str, str]:
        open_network = {"allowAnonymous": "true", "trustedNetwork": "true"}
        return {**super().conf(name), "clusterToken": TOKEN, **open_network}

    def host(self, name: str) -> str:
        """Return the host of a process."""
        return self.hosts[self.nodes[name].number]

    def on(self, host: str) -> list[str]:
        """Return the processes of a host."""
        return [name for name in self.nodes if self.host(name) == host]

    @property
    def endpoints(self) -> str:
        names = sorted(self.brokers, key=lambda name: name != self.first)
        return ";".join(self.client_address(name) for name in names)

    def kill_host(self, host: str) -> None:
        """Send SIGKILL to all processes of a host."""
        self.note("kill", host)
        self.lab.kill_all(host)
        for name in self.on(host):
            popen = self.nodes[name].popen
            if popen is not None:
                popen.wait(STOP_S)

    def heal(self) -> None:
        self.note("heal", "")
        self.lab.heal()

    def close(self) -> None:
        super().close()
        forget(f"{NET}.")
