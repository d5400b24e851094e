"""The released Apache RocketMQ 5.5.0 (nameserver, broker, proxy in one JVM), for measurements.

Maven fetches the published jars once into `.cache/reference-5.5.0` (git ignores it). Ports are the
system's choice; everything lives in a temporary folder and is stopped by its process ids. Settings
are those of docs/formats/front-door.md: page cache or SYNC_FLUSH, one master, a heap of 2
GiB.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cometmq.tests.harness.ports import free_ports
from cometmq.tests.interop.programs import keep

HERE = Path(__file__).parent
CACHE = Path(__file__).resolve().parents[3] / ".cache"
JARS = CACHE / "reference-5.5.0"
EXAMPLES = CACHE / "reference-examples-5.5.0"
COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
COPY_ONE_GOAL = COPY_GOAL.replace("copy-dependencies", "copy")
FETCH_S, START_S, COMMAND_S = 300.0, 90.0, 60.0
JAVA = (
    *("java", "-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=2g"),
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
)
SMALL_JAVA = ("java", "-Xmx256m")


class ReferenceMissing(Exception):
    """The machine has no Maven or no JDK, or the jars cannot be had; the text says which."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A running reference."""

    endpoint: str
    #: HOST:PORT for classic clients.
    nameserver: str
    pid: int


def jars() -> Path:
    """The folder of the jars; fetched if it is not there yet. Raises ReferenceMissing."""
    return _fetched(JARS, COPY_GOAL, "-DincludeScope=runtime")


def examples() -> Path:
    """The folder with the jar of the reference's own benchmark. Raises ReferenceMissing."""
    return _fetched(
        EXAMPLES, COPY_ONE_GOAL, "-Dartifact=org.apache.rocketmq:rocketmq-example:5.5.0"
    )


def _fetched(folder: Path, goal: str, option: str) -> Path:
    if folder.is_dir():
        return folder
    if not (shutil.which("mvn") and shutil.which("java")):
        raise ReferenceMissing("Maven and a JDK are needed to start the reference")
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    done = subprocess.run(
        [
            *("mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), goal),
            *(option, f"-DoutputDirectory={partial}"),
        ],
        capture_output=True,
        text=True,
        timeout=FETCH_S,
        check=False,
    )
    if done.returncode != 0:
        raise ReferenceMissing(f"the reference's jars cannot be fetched: {done.stdout[-500:]}")
    keep(partial, folder)
    return folder


@contextmanager
def running(topic: str, group: str, *, flush: str = "ASYNC_FLUSH") -> Iterator[Reference]:
    """Nameserver and broker with proxy, with this topic and group; stopped at the end."""
    folder = jars()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cometmq-reference-")))
        (home / "conf").mkdir()
        names, remoting, grpc, listen = free_ports(4)
        naming = f"127.0.0.1:{names}"
        ports = {"names": names, "remoting": remoting, "grpc": grpc, "listen": listen}
        write_configuration(home, ports, flush)
        start = _Starter(folder, home, stack)
        start(SMALL_JAVA, "namesrv.NamesrvStartup", "-c", str(home / "conf" / "namesrv.conf"))
        _wait(names)
        process = start(
            JAVA,
            "proxy.ProxyStartup",
            *("-pm", "local", "-n", naming),
            *("-pc", str(home / "conf" / "proxy.json"), "-bc", str(home / "conf" / "broker.conf")),
        )
        _wait(grpc)
        start.command("updateTopic", "-n", naming, "-c", "DefaultCluster", "-t", topic)
        start.command("updateSubGroup", "-n", naming, "-c", "DefaultCluster", "-g", group)
        yield Reference(f"127.0.0.1:{grpc}", naming, process.pid)


def write_configuration(home: Path, ports: dict[str, int], flush: str) -> None:
    """The files of both processes."""
    conf = home / "conf"
    names, grpc = ports["names"], ports["grpc"]
    (conf / "namesrv.conf").write_text(f"listenPort={names}\n")
    (conf / "broker.conf").write_text(
        f"brokerClusterName=DefaultCluster\nbrokerName=broker-a\nbrokerId=0\nbrokerIP1=127.0.0.1\n"
        f"listenPort={ports['listen']}\nstorePathRootDir={home}/store\nbrokerRole=ASYNC_MASTER\n"
        f"flushDiskType={flush}\nautoCreateTopicEnable=false\nnamesrvAddr=127.0.0.1:{names}\n"
    )
    proxy = {
        "rocketMQClusterName": "DefaultCluster",
        "grpcServerPort": grpc,
        "remotingListenPort": ports["remoting"],
        "namesrvAddr": f"127.0.0.1:{names}",
    }
    (conf / "proxy.json").write_text(json.dumps(proxy))
    (conf / "rmq-proxy.json").write_text(json.dumps(proxy))


class _Starter:
    """Java processes of one run."""

    def __init__(self, jars_folder: Path, home: Path, stack: ExitStack) -> None:
        self._classes = f"{jars_folder}/*"
        self._home = home
        self._stack = stack
        self._environment = {**os.environ, "ROCKETMQ_HOME": str(home), "HOME": str(home)}

    def __call__(self, java: tuple[str, ...], main: str, *options: str) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._home / f"{main}.log").open("wb"))
        process = subprocess.Popen(
            [*java, f"-Duser.home={self._home}", *self._class(main), *options],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=self._environment,
        )
        self._stack.callback(_end, process)
        return process

    def command(self, *words: str) -> None:
        """One administrative command, tried until the broker has registered."""
        until = time.monotonic() + COMMAND_S
        while True:
            done = subprocess.run(
                [
                    *SMALL_JAVA,
                    f"-Duser.home={self._home}",
                    *self._class("tools.command.MQAdminStartup"),
                    *words,
                ],
                capture_output=True,
                text=True,
                timeout=COMMAND_S,
                env=self._environment,
                check=False,
            )
            if "success" in done.stdout:
                return
            if time.monotonic() > until:
                raise ReferenceMissing(f"{words[0]}: {(done.stdout + done.stderr)[-800:]}")
            time.sleep(0.5)

    def _class(self, main: str) -> tuple[str, ...]:
        return ("-cp", self._classes, f"org.apache.rocketmq.{main}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(20)


def _wait(port: int) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise ReferenceMissing(f"nothing listens on {port} after {START_S:.0f} s")
