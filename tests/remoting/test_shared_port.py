"""One port for gRPC, the remoting protocol and TLS, with both doors and both event loops."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop

from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.front.door import Door, choose_door
from cometmq.front.service import Kind, Method
from cometmq.front.shared.handover import Handover
from cometmq.nodes.node_links import NodeLinks
from cometmq.nodes.tls_config import TlsConfig
from cometmq.proto.native import is_available
from cometmq.remoting.command import Command, reply
from cometmq.remoting.connection import Connection
from cometmq.remoting.server import RemotingServer
from cometmq.tests.front.conftest import DOORS
from cometmq.tests.front.raw_http2 import RawConnection, message
from cometmq.tests.harness.tls_cluster import credentials, dev_ca
from cometmq.tests.remoting.client import WAIT_S, RemotingClient

ECHO = 1
CALL = "/test.Shared/Echo"
#: More than the buffers of a connection.
LARGE = 3 << 20
#: Data of one HTTP/2 frame.
CHUNK = 16_384

doors = pytest.mark.parametrize("door_name", DOORS)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    dev_ca(folder, "b0")
    return folder


class Shared:
    """A door and a remoting server on one port; both echo, and note their peers."""

    def __init__(self, door: Door, remoting: RemotingServer, port: int, peers: list[str]) -> None:
        self.door = door
        self.remoting = remoting
        self.port = port
        self.peers = peers

    async def call(self, body: bytes, tls: grpc.ChannelCredentials | None = None) -> bytes:
        """Call over gRPC."""
        at = f"localhost:{self.port}"
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        channel = (
            grpc.aio.secure_channel(at, tls, options)
            if tls
            else grpc.aio.insecure_channel(at, options)
        )
        async with channel:
            answer: bytes = await channel.unary_unary(CALL)(body, timeout=WAIT_S)
        return answer

    def client(self, tls: ssl.SSLContext | None = None) -> RemotingClient:
        return RemotingClient(self.port, tls=tls)


@asynccontextmanager
async def sharing(
    door_name: str, mode: str = "permissive", folder: Path | None = None, **limits: Any
) -> AsyncIterator[Shared]:
    """`folder`: certificates."""
    peers: list[str] = []

    def echo(raw: bytes, ctx: Any) -> bytes:
        peers.append(ctx.peer)
        return raw

    def answer(command: Command, connection: Connection) -> Command:
        peers.append(connection.peer)
        return reply(0, body=command.body)

    files = {"tls_certificate": "b0.pem", "tls_key": "b0.key", "tls_ca": "ca.pem"}
    named = {} if folder is None else {key: str(folder / name) for key, name in files.items()}
    links = NodeLinks("token", TlsConfig(tls_mode=mode, **named))  # type: ignore[arg-type]
    config = DoorConfig(front_door=door_name, **limits)
    handover = Handover()
    make = choose_door(config.accepting(2 * LARGE), links, handover)
    table = {CALL: Method(CALL, Kind.UNARY, bytes, echo, lambda error: error.message.encode())}
    door = make(table, Clock())
    remoting = RemotingServer({ECHO: answer}, config, Clock(), links)
    port = await door.start("127.0.0.1", 0)
    remoting.share(handover)
    try:
        yield Shared(door, remoting, port, peers)
    finally:
        await asyncio.gather(door.drain(1), remoting.drain(0))


def trusting(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.check_hostname = False
    return context


async def closed(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(WAIT_S):
        try:
            while await reader.read(65_536):
                pass
        except ConnectionResetError:
            pass


def on_both_loops(work: Coroutine[Any, Any, None], loop: str) -> None:
    """Server processes run on uvloop where it is installed, on asyncio's loop elsewhere."""
    factory = uvloop.new_event_loop if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work)


loops = pytest.mark.parametrize("loop", ["asyncio", "uvloop"])


@doors
@loops
def test_both_protocols_are_served_in_plaintext(door_name: str, loop: str) -> None:
    async def work() -> None:
        async with sharing(door_name) as shared, shared.client() as client:
            assert await shared.call(b"grpc") == b"grpc"
            (peer,) = shared.peers
            for body in (b"a", b"b" * LARGE):
                assert (await client.call(ECHO, body)).body == body
            host, number = client.writer.get_extra_info("sockname")
            assert shared.peers[1:] == [f"{host}:{number}"] * 2
            # The address of the client, not of a connection within the server.
            assert peer.startswith("127.0.0.1:") and not peer.endswith(f":{number}")
            assert await shared.call(b"c" * LARGE) == b"c" * LARGE
            assert shared.remoting.connections == 1

    on_both_loops(work(), loop)


@doors
@loops
def test_both_protocols_are_served_over_tls_alone(
    door_name: str, loop: str, certificates: Path
) -> None:
    async def work() -> None:
        async with (
            sharing(door_name, "enforcing", certificates) as shared,
            shared.client(trusting(certificates)) as client,
        ):
            for body in (b"a", b"b" * LARGE):
                assert (await client.call(ECHO, body)).body == body
            host, number = client.writer.get_extra_info("sockname")
            assert set(shared.peers) == {f"{host}:{number}"}
            assert await shared.call(b"grpc", credentials(certificates)) == b"grpc"
            async with shared.client() as plain:
                plain.post(Command(ECHO))
                await asyncio.wait_for(plain.closed.wait(), WAIT_S)

    on_both_loops(work(), loop)


@pytest.mark.skipif(
    not is_available(),
    reason="the native door is not installed (scripts/native_door builds it where Rust is)",
)
async def test_the_native_door_serves_all_four_on_one_port(certificates: Path) -> None:
    async with sharing("native", "permissive", certificates) as shared:
        async with shared.client() as plain, shared.client(trusting(certificates)) as secret:
            assert (await plain.call(ECHO, b"a")).body == b"a"
            assert (await secret.call(ECHO, b"b")).body == b"b"
        assert await shared.call(b"c") == b"c"
        assert await shared.call(b"d", credentials(certificates)) == b"d"


@doors
async def test_a_client_that_sends_nothing_is_closed_and_neighbours_are_served(
    door_name: str,
) -> None:
    async with sharing(door_name, front_handshake_timeout=3_000) as shared:
        reader, writer = await asyncio.open_connection("127.0.0.1", shared.port)
        await closed(reader)
        writer.close()
        async with shared.client() as client:
            assert (await client.call(ECHO, b"a")).body == b"a"
        assert await shared.call(b"b") == b"b"


@doors
async def test_a_frame_that_is_not_complete_in_time_is_closed(door_name: str) -> None:
    async with sharing(door_name, front_request_timeout=100) as shared:
        reader, writer = await asyncio.open_connection("127.0.0.1", shared.port)
        writer.write(b"\0")
        await closed(reader)
        writer.close()
        assert shared.remoting.statistics.timed_out == 1


@doors
async def test_remoting_connections_are_closed_before_and_after_their_server_serves(
    door_name: str,
) -> None:
    async with sharing(door_name) as shared:
        async with shared.client() as client:
            assert (await client.call(ECHO, b"a")).body == b"a"
            await shared.remoting.drain(0)
            await asyncio.wait_for(client.closed.wait(), WAIT_S)
        async with shared.client() as client:
            client.post(Command(ECHO))
            await asyncio.wait_for(client.closed.wait(), WAIT_S)
        assert await shared.call(b"b") == b"b"


@doors
async def test_a_drained_port_closes_the_connections_of_both_protocols(
    door_name: str, certificates: Path
) -> None:
    async with sharing(door_name, "enforcing", certificates) as shared:
        async with shared.client(trusting(certificates)) as client:
            assert (await client.call(ECHO, b"a")).body == b"a"
            await asyncio.gather(shared.door.drain(30), shared.remoting.drain(30))
            await asyncio.wait_for(client.closed.wait(), WAIT_S)
        with pytest.raises(OSError):  # no server listens
            await asyncio.open_connection("127.0.0.1", shared.port)


async def test_a_client_that_does_not_read_is_disconnected_behind_the_listener() -> None:
    """Of the grpcio door: the connection that stalls there is another one."""
    async with sharing("grpcio", front_write_timeout=200) as shared:
        raw = await RawConnection.open(shared.port)
        raw.start(1, CALL)
        data = message(b"x" * LARGE)
        parts = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
        for part in parts:
            raw.data(1, part, end=part is parts[-1])
        async with asyncio.timeout(WAIT_S):
            while not shared.door.statistics().counters["connections_stalled"]:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.02)
            assert await raw.closed()
        raw.abort()
        assert await shared.call(b"unharmed") == b"unharmed"
