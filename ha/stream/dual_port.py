"""Plaintext and TLS on one replication port, while a cluster changes from one to the other.

grpcio serves one of them on a port. This listener reads the first byte of a connection and passes
the bytes to the server's Unix socket for plaintext or for TLS; the cost is a copy in this process.
The server cannot see where such a caller is: `NodeLinks` requires a token in this mode.
"""

import asyncio
import logging
import shutil
import socket
import tempfile
from contextlib import suppress
from typing import Any, Final

from ...proto.node_links import NodeLinks

logger = logging.getLogger(__name__)

#: First byte of a TLS handshake; the HTTP/2 preface starts with another.
_TLS_HANDSHAKE: Final = b"\x16"
_FIRST_BYTE_S: Final = 5.0
#: Limit of connections, as on the server itself; each holds two buffers of this size.
_CONNECTIONS_MAX: Final = 128
_BUFFER_BYTES: Final = 256 << 10
#: Addresses that stand for all of the machine, of IPv4 and IPv6, as on a port of grpcio alone.
#: asyncio would listen on one of both.
_WILDCARDS: Final = ("0.0.0.0", "::", "")


class DualPort:
    """The listener in front of one grpc.aio server. Opened and closed once."""

    def __init__(self, server: Any, links: NodeLinks) -> None:
        """`server` is not started yet."""
        self._server = server
        self._links = links
        self._directory = ""
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int) -> int:
        """Add the server's ports and listen; returns the port. Raises OSError, RuntimeError."""
        self._directory = tempfile.mkdtemp(prefix="cometmq-ha-")  # mode 0700
        try:
            self._server.add_insecure_port(f"unix:{self._directory}/plain")
            credentials = self._links.server_credentials(require_client=True)
            self._server.add_secure_port(f"unix:{self._directory}/tls", credentials)
            self._listener = await self._listen(host, port)
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        listening: socket.socket = self._listener.sockets[0]
        return int(listening.getsockname()[1])

    async def _listen(self, host: str, port: int) -> asyncio.Server:
        if host in _WILDCARDS and socket.has_dualstack_ipv6():
            both = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
            return await asyncio.start_server(self._accepted, sock=both, limit=_BUFFER_BYTES)
        return await asyncio.start_server(
            self._accepted, host, port, limit=_BUFFER_BYTES, reuse_address=True
        )

    def stop_listening(self) -> None:
        """Refuse new connections."""
        if self._listener is not None:
            self._listener.close()

    async def close(self) -> None:
        """Close all connections and delete the sockets."""
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        shutil.rmtree(self._directory, ignore_errors=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= _CONNECTIONS_MAX:
            writer.close()
            return
        self._connections.add(task)
        try:
            await self._connect(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            logger.debug("ha.connection.ended error=%s", error)
        finally:
            self._connections.discard(task)
            writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_FIRST_BYTE_S):
            first = await reader.readexactly(1)
        name = "tls" if first == _TLS_HANDSHAKE else "plain"
        inner_reader, inner_writer = await asyncio.open_unix_connection(
            f"{self._directory}/{name}", limit=_BUFFER_BYTES
        )
        inner_writer.write(first)
        copies = (
            asyncio.ensure_future(_copy(reader, inner_writer)),
            asyncio.ensure_future(_copy(inner_reader, writer)),
        )
        try:
            # HTTP/2 has no half-closed connections: the end of one direction ends both.
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
            inner_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(_BUFFER_BYTES):
            writer.write(data)
            await writer.drain()
