"""A live broker process under attack: its ports, memory, log, and a well-behaved neighbour."""

from __future__ import annotations

import contextlib
import json
import os
import re
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from cometmq.operations.credentials import read_file
from cometmq.proto import v2
from cometmq.tests.harness.cluster import Cluster, Node, wait_until
from cometmq.tests.harness.tls_cluster import dev_ca
from cometmq.tests.hostile.memory import Memory
from cometmq.tests.hostile.neighbour import Figures, Neighbour
from cometmq.tests.hostile.tls_way import TlsWay

TOPIC, GROUP = "neighbour", "neighbour"
_MIB = 1 << 20
# A stall shows in the length of the neighbour's calls, not as a refusal of its sends.
SETTINGS = {
    "COMETMQ_WAIT_TIME_MILLS_IN_SEND_QUEUE": "30000",
    "COMETMQ_OS_PAGE_CACHE_BUSY_TIME_OUT_MILLS": "30000",
    # Half of the time that the attack by a trickling body waits.
    "COMETMQ_FRONT_REQUEST_TIMEOUT": "10000",
    # Classic clients and tools, at the broker and at the nameserver.
    "COMETMQ_REMOTING_LISTEN_PORT": "-1",
}
_PAGES = 5
#: Nice value of an autogroup.
_FIRST = "-15"
_PROBE = Path(__file__).parent / "probe"
_FAULTS = {"tracebacks": "Traceback (most recent call last)", "internal": "door.internal_error"}


class Target:
    """A nameserver and a broker in one process (`cometmq up --single`), behind a chosen door."""

    def __init__(
        self,
        data: Path,
        door: str,
        *,
        nofile: int | None = None,
        env: Mapping[str, str] | None = None,
        probe: bool = False,
        secured: bool = False,
    ) -> None:
        """With `probe` the broker's event loop is asyncio's own, and `turns` is available.
        `secured`: with users, rights and TLS on every port; attackers come over TLS, unsigned, and
        the neighbour signs."""
        settings = {"COMETMQ_FRONT_DOOR": door, **SETTINGS, **(env or {})}
        self._turns = data.with_name(f"{data.name}.turns")
        if probe:
            settings |= {"PYTHONPATH": str(_PROBE), "COMETMQ_TURNS": str(self._turns)}
        self._certificates = data.with_name(f"{data.name}.tls")
        options = ["--single"]
        if secured:
            options.append("--auth")
            dev_ca(self._certificates, "n")
            place = self._certificates
            settings |= {
                "COMETMQ_TLS_MODE": "enforcing",
                "COMETMQ_TLS_CERTIFICATE": str(place / "n.pem"),
                "COMETMQ_TLS_KEY": str(place / "n.key"),
                "COMETMQ_TLS_CA": str(place / "ca.pem"),
            }
            os.environ["COMETMQ_TLS_CA"] = settings["COMETMQ_TLS_CA"]  # of commands
        self.secured = secured
        self._ways: list[TlsWay] = []
        self._cluster = Cluster(data, *options, env=settings, nofile=nofile)
        self._neighbour: Neighbour | None = None
        self.door = door
        self.data = data
        self.node: Node

    def start(self) -> Self:
        """Start the broker and the neighbour; return when the neighbour's calls succeed."""
        self._cluster.start()
        self.node = self._cluster.node("master")
        self._cluster.create_topic(TOPIC, queues=1)
        for name, kind in (("attacked", "normal"), ("delays", "delay")):
            self._cluster.create_topic(name, kind=kind, queues=4)
        keys: tuple[str, ...] = ()
        if self.secured:
            ca, ports = self._certificates / "ca.pem", dict(self.node.ports)
            users = TlsWay(ca, {"client": ports["client"]})
            strangers = TlsWay(ca, {n: p for n, p in ports.items() if n != "metrics"})
            self._ways = [users, strangers]
            admin = read_file(self.data / "admin-credentials")
            keys = (admin.access_key, admin.secret_key)
            self.node.ports.update(strangers.ports)
        way = self._ways[0].ports["client"] if self._ways else self.port
        self._neighbour = Neighbour(f"127.0.0.1:{way}", TOPIC, GROUP, *keys)
        wait_until("the neighbour works", lambda: self.figures().cycles)
        return self

    def go_first(self) -> None:
        """Give the broker and the neighbour precedence over other work of the machine (sched(7),
        autogroups; as root), and over the attacker: his own machine is another one."""
        assert self._neighbour is not None
        ways = [way.pid for way in self._ways]
        for pid in (self.node.pid, self._neighbour.pid, *ways):
            Path(f"/proc/{pid}/autogroup").write_text(_FIRST)

    def stop(self) -> None:
        """Stop both."""
        if self._neighbour is not None:
            self._neighbour.__exit__()
        for way in self._ways:
            way.close()
        self._cluster.stop()

    @property
    def address(self) -> str:
        """HOST:PORT of the client port."""
        return f"127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        """The client port."""
        return self.node.ports["client"]

    def figures(self) -> Figures:
        """Return the neighbour's figures since the call before."""
        assert self._neighbour is not None
        return self._neighbour.figures()

    def get(self, path: str) -> bytes:
        """Fetch a page of the metrics port."""
        url = f"http://127.0.0.1:{self.node.ports['metrics']}{path}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found: bytes = answer.read()
            return found

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples."""
        found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", self.get("/metrics").decode(), re.M)
        return sum(map(float, found))

    def epoch(self) -> float:
        """Return the epoch of the group; a page that an attack makes late is asked for again."""
        for _ in range(_PAGES):
            with contextlib.suppress(OSError):
                return self.metric("cometmq_epoch")
        raise AssertionError("the page of metrics does not come")

    def turns(self) -> list[dict[str, Any]]:
        """Return the long turns of the event loop since the call before; see the probe."""
        if not self._turns.exists():
            return []
        lines = self._turns.read_text().splitlines()
        self._turns.write_text("")
        return [json.loads(line) for line in lines]

    @property
    def memory(self) -> Memory:
        """The memory of the process."""
        return Memory(self.node.pid)

    # -- log ----------------------------------------------------------------------------------

    def faults(self) -> dict[str, int]:
        """Count tracebacks and internal errors in the log."""
        text = self.log()
        return {name: text.count(mark) for name, mark in _FAULTS.items()}

    def log(self) -> str:
        """Return all output of the process."""
        files = [self._cluster.log_file, *sorted(self.data.glob("*/log/*"))]
        return "\n".join(f.read_text(errors="replace") for f in files if f.is_file())


def code_name(code: int) -> str:
    """Return the name of a code of the protocol."""
    known: Any = v2.Code.DESCRIPTOR.values_by_number.get(code)
    return known.name if known else str(code)
