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
#: Topics of each program.
TOPICS = {"Classic": ("normal", "ordered"), "More": ("transactions", "requests")}


def java(version: str) -> list[str]:
    """Fetch a version of the client and build the programs; return the command without a class."""
    require("mvn", "java", "javac")
    jars, classes = CACHE / f"classic-jars-{version}", CACHE / f"classic-classes-{version}"
    if not jars.is_dir():
        partial = jars.with_name(f"{jars.name}.{os.getpid()}")
        goal = [COPY_GOAL, "-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
        build(["mvn", "-q", "-B", f"-Dclient.version={version}", *goal], HERE)
        partial.rename(jars)
    programs = [f"{name}.java" for name in TOPICS]
    build(["javac", "-cp", f"{jars}/*", "-d", str(classes), *programs], HERE)
    return ["java", "-Xmx256m", "-cp", f"{classes}:{jars}/*"]


async def output_of(command: list[str], home: Path) -> str:
    """Run a program; return what it prints."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "HOME": str(home), "JAVA_TOOL_OPTIONS": f"-Duser.home={home}"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), RUN_S)
    return output.decode()


@pytest.mark.timeout(700)  # the first run fetches the client
@pytest.mark.parametrize("program", TOPICS)
@pytest.mark.parametrize("version", ["5.5.0", "4.9.8"])
async def test_the_client_works_unmodified(version: str, program: str, tmp_path: Path) -> None:
    command = await asyncio.to_thread(java, version)
    nameserver = NameserverServer(
        NameserverConfig(bind_address="127.0.0.1", listen_port=0, remoting_listen_port=-1)
    )
    address = await nameserver.start()
    chosen = settings(
        tmp_path / "store",
        remoting_listen_port=-1,
        namesrv_addr=address,
        transaction_check_interval=1_000,
        transaction_time_out=1_000,
        recall_message_enable=True,
    )
    home = tmp_path / "home"
    home.mkdir()
    try:
        async with running(chosen) as live:
            async with live.client() as wire:
                for kind in TOPICS[program]:
                    await create_topic(wire, f"java-{kind}", queues=4)
            remoting = f"127.0.0.1:{nameserver.remoting_port}"
            output = await output_of([*command, program, remoting, "java"], home)
            assert output.splitlines()[-1] == "OK", output[-3_000:]
    finally:
        await nameserver.stop(0.5)
