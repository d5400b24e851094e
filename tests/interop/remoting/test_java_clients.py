"""The official 4.x-style Java client, both generations, unmodified: produce, push, retry, order."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.tests.broker.live import create_topic, running, settings
from cometmq.tests.interop.programs import CACHE, COPY_GOAL, build, require

HERE = Path(__file__).parent / "java"
RUN_S = 400


def java(version: str) -> list[str]:
    """Fetch a version of the client and build the program; return its command."""
    require("mvn", "java", "javac")
    jars, classes = CACHE / f"classic-jars-{version}", CACHE / f"classic-classes-{version}"
    if not jars.is_dir():
        partial = jars.with_name(f"{jars.name}.{os.getpid()}")
        goal = [COPY_GOAL, "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
        build(["mvn", "-q", "-B", f"-Dclient.version={version}", *goal], HERE)
        partial.rename(jars)
    build(["javac", "-cp", f"{jars}/*", "-d", str(classes), "Classic.java"], HERE)
    return ["java", "-Xmx256m", "-cp", f"{classes}:{jars}/*", "Classic"]


@pytest.mark.timeout(700)  # the first run fetches the client
@pytest.mark.parametrize("version", ["5.5.0", "4.9.8"])
async def test_the_client_works_unmodified(version: str, tmp_path: Path) -> None:
    command = await asyncio.to_thread(java, version)
    nameserver = NameserverServer(
        NameserverConfig(bind_address="127.0.0.1", listen_port=0, remoting_listen_port=-1)
    )
    address = await nameserver.start()
    chosen = settings(tmp_path / "store", remoting_listen_port=-1, namesrv_addr=address)
    home = tmp_path / "home"
    home.mkdir()
    try:
        async with running(chosen) as live:
            async with live.client() as wire:
                for kind in ("normal", "ordered"):
                    await create_topic(wire, f"java-{kind}", queues=4)
            process = await asyncio.create_subprocess_exec(
                *command,
                f"127.0.0.1:{nameserver.remoting_port}",
                "java",
                env={**os.environ, "HOME": str(home), "JAVA_TOOL_OPTIONS": f"-Duser.home={home}"},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await asyncio.wait_for(process.communicate(), RUN_S)
            assert output.decode().splitlines()[-1] == "OK", output.decode()[-3_000:]
    finally:
        await nameserver.stop(0.5)
