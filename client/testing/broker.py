"""Test broker: a real broker in a subprocess, with a virtual clock and fault injection.

    with TestBroker() as broker:
        broker.create_topic("orders")
        producer = cometmq.sync.Producer(broker.endpoints)
        broker.clock.advance("2h")
        with broker.inject(code="TOO_MANY_REQUESTS", rate=0.1, rpc="SendMessage"): ...

The broker is `cometmq up --single` with the service `cometmq.v1.Test`. It binds the loopback
address only. Leaving the context stops it and removes its files. It works with every official
client. `pytest_plugin.py` provides it as fixtures.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import grpc

from ...proto import paths, v1, v2
from .. import clock
from ..clock import steady_s
from ..errors import CometError, refused

if TYPE_CHECKING:
    from psutil import Process

START_S = 60.0
STOP_S = 30.0
_CALL_S = 15.0
_READY_POLL_S = 0.02
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_ANY_RPC = "*"
#: An address on which nothing listens: a privileged port without a service.
UNREACHABLE = "127.0.0.1:1"
#: Port in the ready file -> environment variable.
_PORT_VARIABLES = {
    "client": "COMETMQ_GRPC_SERVER_PORT",
    "ha": "COMETMQ_HA_LISTEN_PORT",
    "metrics": "COMETMQ_METRICS_PROM_EXPORTER_PORT",
    "namesrv": "COMETMQ_LISTEN_PORT",
    "namesrv_metrics": "COMETMQ_NAMESRV_METRICS_PORT",
}
# Small segments: the broker preallocates three of them, and a test writes little.
_SETTINGS = {"mappedFileSizeCommitLog": str(16 << 20)}


class BrokerFailed(CometError):
    """The broker did not start, or is not running. The message includes the end of its log."""


def duration_ms(text: str | float | timedelta) -> int:
    """Convert `"2h"`, `"1h30m"`, seconds or a timedelta to milliseconds. Raises ValueError."""
    if isinstance(text, timedelta):
        return int(text.total_seconds() * 1000)
    if isinstance(text, (int, float)):
        return int(text * 1000)
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        raise ValueError(f"invalid duration {text!r}: write 500ms, 10s, 5m, 2h, 1d or 1h30m")
    return int(sum(float(number) * _UNITS_MS[unit] for number, unit in parts))


class VirtualClock:
    """The broker's wall clock. Delays, retries, invisible times and transaction checks use it.

    Push consumers of this process, which retry the messages of FIFO groups by themselves, follow
    it when it moves forward.
    """

    def __init__(self, broker: TestBroker) -> None:
        self._broker = broker

    def now(self) -> datetime:
        """Return the broker's time."""
        return self._moment(self._broker.call(paths.GET_CLOCK, v1.GetClockRequest()))

    def advance(self, by: str | float | timedelta) -> datetime:
        """Advance the clock; due events happen immediately. Return the new time."""
        request = v1.AdvanceClockRequest(ms=duration_ms(by))
        now = self._moment(self._broker.call(paths.ADVANCE_CLOCK, request))
        clock.skip(request.ms / 1_000)
        return now

    def set(self, to: datetime) -> datetime:
        """Set the clock. Return the new time."""
        before = self.now()
        request = v1.SetClockRequest(wall_ms=int(to.timestamp() * 1000))
        now = self._moment(self._broker.call(paths.SET_CLOCK, request))
        clock.skip(max(0.0, (now - before).total_seconds()))
        return now

    @staticmethod
    def _moment(raw: bytes) -> datetime:
        answer = v1.ClockResponse.FromString(raw)
        return datetime.fromtimestamp(answer.wall_ms / 1000, UTC)


class TestBroker:
    """One broker. Use it with `with`."""

    __test__ = False  # not a test case: keep pytest from collecting it

    def __init__(
        self, *, settings: Mapping[str, str] | None = None, directory: Path | None = None
    ) -> None:
        """`settings`: keys of broker.conf. Without `directory` a temporary one is created."""
        self._own = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="cometmq-test-"))
        self.clock = VirtualClock(self)
        self._settings = {**_SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: grpc.Channel | None = None
        self._endpoints = ""
        #: Environment variables with the ports of the first start.
        self._ports: dict[str, str] = {}

    # Start and stop.

    def start(self) -> Self:
        """Start the broker; a restart keeps the files and the ports. Raises BrokerFailed."""
        self.directory.mkdir(parents=True, exist_ok=True)
        ready = self.directory / "ready.json"
        ready.unlink(missing_ok=True)
        environment = {**os.environ, "COMETMQ_TEST_HOOKS": "true", **self._ports}
        for key, value in self._settings.items():
            environment[f"COMETMQ_{_snake(key)}"] = value
        with (self.directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "cometmq.cli.main", "up", "--single"),
                    *(() if self._ports else ("--port", "0")),
                    *("--no-restart", "--data", str(self.directory / "data")),
                    *("--ready-file", str(ready)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
            )
        end_s = steady_s() + START_S
        pause = threading.Event()
        while not ready.exists():
            if self._process.poll() is not None or steady_s() > end_s:
                self.kill()
                raise BrokerFailed(f"the broker did not start:\n{self.log()}")
            pause.wait(_READY_POLL_S)
        addresses = json.loads(ready.read_text())
        self._endpoints = str(addresses["endpoints"])
        (process,) = addresses["processes"]
        self._ports = {_PORT_VARIABLES[name]: str(port) for name, port in process["ports"].items()}
        self._channel = grpc.insecure_channel(
            self._endpoints, options=(("grpc.enable_retries", 0),)
        )
        return self

    def stop(self) -> None:
        """Stop the broker cleanly. Its files stay until `close`."""
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._disconnect()

    def kill(self) -> None:
        """Kill the broker like a crash: its supervisor and all child processes."""
        if self._process is not None:
            children = _children(self._process.pid)
            for child in children:
                _kill(child)
            self._process.kill()  # before it starts a child again
            self._process.wait()
            for child in children:
                child.wait(STOP_S)
        self._disconnect()

    def restart(self) -> None:
        """Start the broker again after `stop` or `kill`. Clients reconnect."""
        self.start()

    def close(self) -> None:
        """Stop the broker and remove its files."""
        self.stop()
        if self._own:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def endpoints(self) -> str:
        """HOST:PORT for any RocketMQ 5 client."""
        if not self._endpoints:
            raise BrokerFailed("the broker is not started: use it within `with`")
        return self._endpoints

    def log(self, lines: int = 40) -> str:
        """Return the last lines of the broker's output."""
        path = self.directory / "broker.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    # Topics and groups.

    def create_topic(self, name: str, *, type: str = "normal", queues: int = 4) -> str:
        """Create a topic: normal, fifo, delay, transaction, priority, lite. Returns its name."""
        kind = v2.MessageType.Value(type.upper())
        request = v1.CreateTopicRequest(name=name, message_type=kind, queues=queues)
        self.call(paths.CREATE_TOPIC, request)
        return name

    def create_group(
        self, name: str, *, order: bool = False, max_attempts: int = 0, parent: str = ""
    ) -> str:
        """Create a consumer group, with `parent` of that topic's lite topics. Returns its name."""
        request = v1.CreateGroupRequest(name=name, orderly=order, max_attempts=max_attempts)
        if parent:
            request.attributes.append(f"+lite.bind.topic={parent}")
        self.call(paths.CREATE_GROUP, request)
        return name

    # Faults.

    @contextmanager
    def inject(
        self,
        *,
        code: str | int = 0,
        rpc: str = _ANY_RPC,
        rate: float = 1.0,
        times: int = 0,
        delay: str | float | timedelta = 0.0,
        lose_answer: bool = False,
    ) -> Iterator[str]:
        """Inject a fault into calls of an RPC (`SendMessage`, ...) while the context is open.

        `code`: calls fail with it. `delay`: calls are executed later. `lose_answer`: calls are
        executed and never answered. `rate`: the fraction of calls; `times`: the maximum number.
        Raises ValueError without `code`, `delay` and `lose_answer`.
        """
        fault = v1.Fault(
            id=uuid.uuid4().hex,
            kind=v1.RPC,
            target=rpc if rpc == _ANY_RPC or "/" in rpc else paths.MESSAGING + rpc,
            rate=rate,
            remaining=times,
            delay_ms=duration_ms(delay),
        )
        if lose_answer:
            fault.action = v1.DROP
        elif code:
            fault.action = v1.FAIL
            fault.code = v2.Code.Value(code) if isinstance(code, str) else code
        elif fault.delay_ms:
            fault.action = v1.DELAY
        else:
            raise ValueError("no fault is given: pass code, delay or lose_answer")
        self.call(paths.PUT_FAULT, v1.PutFaultRequest(fault=fault))
        try:
            yield fault.id
        finally:
            self.call(paths.CLEAR_FAULTS, v1.ClearFaultsRequest(ids=[fault.id]))

    @contextmanager
    def stale_routes(self, address: str = UNREACHABLE) -> Iterator[None]:
        """Return routes with another address while the context is open, like an outdated route.

        By default nothing listens on the address. Clients keep a route that they have until their
        next refresh.
        """
        self.call(paths.SET_ROUTES, v1.SetRoutesRequest(address=address))
        try:
            yield
        finally:
            self.call(paths.SET_ROUTES, v1.SetRoutesRequest())

    def call(self, path: str, request: Any) -> bytes:
        """Call an RPC of the broker's `cometmq.v1` services. Return the response's bytes.

        Raises RequestRefused, BrokerFailed.
        """
        if self._channel is None:
            raise BrokerFailed("the broker is not running: call start() or restart()")
        raw: bytes = self._channel.unary_unary(path)(
            request.SerializeToString(),
            timeout=_CALL_S,
            wait_for_ready=True,
            metadata=(("x-mq-client-id", "cometmq-testing"),),
        )
        # Every response of these services begins with a code and a message.
        status = v1.PutFaultResponse.FromString(raw)
        if status.code != v2.OK:
            raise refused(status.code, status.message)
        return raw

    def _disconnect(self) -> None:
        self._process = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None


def _snake(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).upper()


def _children(pid: int) -> list[Process]:
    """Return the descendants of a process, deepest first."""
    import psutil

    try:
        return list(reversed(psutil.Process(pid).children(recursive=True)))
    except psutil.NoSuchProcess:
        return []


def _kill(process: Process) -> None:
    import psutil

    with suppress(psutil.NoSuchProcess):
        process.kill()
