"""TLS and plaintext on one remoting port, told apart by the first byte."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.nodes.node_links import NodeLinks
from cometmq.nodes.tls_config import TlsConfig
from cometmq.remoting import handshakes
from cometmq.remoting.command import Command, reply
from cometmq.remoting.server import RemotingServer
from cometmq.tests.harness.tls_cluster import dev_ca
from cometmq.tests.remoting.client import WAIT_S, RemotingClient

ECHO = 1


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    dev_ca(folder, "b0", "b1")
    return {
        "tls_certificate": str(folder / "b0.pem"),
        "tls_key": str(folder / "b0.key"),
        "tls_ca": str(folder / "ca.pem"),
    }


def trusting(files: dict[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files["tls_ca"])
    context.check_hostname = False
    return context


@asynccontextmanager
async def serving(
    mode: Any, files: dict[str, str], **door: Any
) -> AsyncIterator[tuple[RemotingServer, int]]:
    links = NodeLinks("token", TlsConfig(tls_mode=mode, **files))  # type: ignore[arg-type]
    table = {ECHO: lambda command, _: reply(0, body=command.body)}
    server = RemotingServer(table, DoorConfig(**door), Clock(), links)
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.drain(0)


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
async def test_one_port_speaks_tls_and_plaintext_if_that_is_allowed(
    mode: str, certificates: dict[str, str]
) -> None:
    async with (
        serving(mode, certificates) as (server, port),
        RemotingClient(port, tls=trusting(certificates)) as client,
    ):
        for size in (1, 200_000):
            assert (await client.call(ECHO, b"x" * size)).body == b"x" * size
        async with RemotingClient(port) as plain:
            if mode == "permissive":
                assert (await plain.call(ECHO, b"plain")).body == b"plain"
            else:
                plain.post(Command(ECHO))
                await asyncio.wait_for(plain.closed.wait(), WAIT_S)
                assert server.statistics.malformed == 1


async def test_what_is_no_handshake_is_closed_and_neighbours_are_served(
    certificates: dict[str, str],
) -> None:
    async with (
        serving("enforcing", certificates) as (server, port),
        RemotingClient(port, tls=trusting(certificates)) as client,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01\x00\x05hello")
        while await asyncio.wait_for(reader.read(100), WAIT_S):
            pass
        writer.close()
        _, gone = await asyncio.open_connection("127.0.0.1", port)
        gone.close()
        assert (await client.call(ECHO, b"a")).body == b"a"
        assert server.statistics.malformed >= 1


async def test_a_connection_that_sends_nothing_is_closed_in_time(
    certificates: dict[str, str],
) -> None:
    async with serving("enforcing", certificates, front_request_timeout=50) as (server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()
        assert server.statistics.timed_out == 1


async def test_a_replaced_certificate_is_used_by_new_connections(
    certificates: dict[str, str], tmp_path: Path
) -> None:
    folder = Path(certificates["tls_ca"]).parent
    own = {**certificates}
    for name, kind in (("tls_certificate", "pem"), ("tls_key", "key")):
        own[name] = str(tmp_path / f"own.{kind}")
        Path(own[name]).write_bytes((folder / f"b0.{kind}").read_bytes())  # noqa: ASYNC240

    async def served(port: int) -> object:
        async with RemotingClient(port, tls=trusting(own)) as client:
            await client.call(ECHO)
            found = client.writer.get_extra_info("ssl_object").getpeercert()
        return found["serialNumber"]

    async with serving("enforcing", own) as (_, port):
        before = await served(port)
        for name, kind in (("tls_certificate", "pem"), ("tls_key", "key")):
            Path(own[name]).write_bytes((folder / f"b1.{kind}").read_bytes())  # noqa: ASYNC240
        assert await served(port) != before


@pytest.mark.parametrize("mode", ["disabled", "permissive"])
async def test_an_address_has_a_number_of_connections_handshakes_included(
    mode: str, certificates: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "is_loopback", lambda _: False)
    async with serving(mode, certificates, front_max_address_connections=1) as (server, port):
        for first in (b"\x16no handshake", b"\x00\xff\xff\xff\xff\xff\xff\xff", b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(first)
            if not first:  # the place is taken while nothing is sent
                async with RemotingClient(port) as second:
                    await asyncio.wait_for(second.closed.wait(), WAIT_S)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await reader.read()
            async with asyncio.timeout(WAIT_S):
                while server._shared.places._taken:  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.01)
        async with RemotingClient(port) as one:
            assert (await one.call(ECHO, b"x")).body == b"x"
