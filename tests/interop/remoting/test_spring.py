"""A Spring Boot program with the official rocketmq-spring-boot-starter: send and receive."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from cometmq.nameserver.config import NameserverConfig
from cometmq.nameserver.server import NameserverServer
from cometmq.tests.broker.live import create_topic, running, settings
from cometmq.tests.harness.jvm import JAVA
from cometmq.tests.interop.programs import CACHE, compiled, fetched, require

HERE = Path(__file__).parent / "spring"
RUN_S = 300


def java() -> list[str]:
    """Fetch the starter and build the program; return its command."""
    require("mvn", "java", "javac")
    jars = fetched(CACHE / "spring-jars", HERE)
    classes = compiled(CACHE / "spring-classes", jars, HERE, "Shop.java")
    return [*JAVA, "-cp", f"{classes}:{jars}/*", "shop.Shop"]


@pytest.mark.timeout(600)  # the first run fetches the starter
async def test_a_spring_boot_program_sends_and_receives(tmp_path: Path) -> None:
    command = await asyncio.to_thread(java)
    nameserver = NameserverServer(
        NameserverConfig(bind_address="127.0.0.1", listen_port=0, remoting_listen_port=-1)
    )
    address = await nameserver.start()
    chosen = settings(tmp_path / "store", remoting_listen_port=-1, namesrv_addr=address)
    try:
        async with running(chosen) as live:
            async with live.client() as wire:
                await create_topic(wire, "spring-orders", queues=2)
            process = await asyncio.create_subprocess_exec(
                *command,
                f"--rocketmq.name-server=127.0.0.1:{nameserver.remoting_port}",
                "--rocketmq.producer.group=spring-producers",
                env={**os.environ, "JAVA_TOOL_OPTIONS": f"-Duser.home={tmp_path}"},
                cwd=tmp_path,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            output, _ = await asyncio.wait_for(process.communicate(), RUN_S)
            lines = output.decode().splitlines()
            assert "OK" in lines, "\n".join(lines[-60:])
            assert lines.count("SEND_OK") == 3
    finally:
        await nameserver.stop(0.5)
