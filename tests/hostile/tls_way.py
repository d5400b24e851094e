"""A way into TLS ports: `python -m cometmq.tests.hostile.tls_way CA NAME=PORT...`.

Listens in plaintext for each port, and passes what comes on over TLS, so that attacks on plain
sockets reach what is behind the handshake. Runs until its input ends; prints a line of JSON: the
port to use for each name. Strangers have no certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
import sys
from pathlib import Path

_READ = 1 << 16
NODE_NAME = "node.cometmq.internal"


class TlsWay:
    """The process, from outside."""

    def __init__(self, ca: Path, ports: dict[str, int]) -> None:
        words = [f"{name}={port}" for name, port in ports.items()]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "cometmq.tests.hostile.tls_way", str(ca), *words],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.ports: dict[str, int] = json.loads(self._process.stdout.readline())

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


async def _listen(ca: str, name: str, port: int) -> int:
    context = ssl.create_default_context(cafile=ca)
    if name != "remoting":
        context.set_alpn_protocols(["h2"])

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner = await asyncio.open_connection(
                "127.0.0.1", port, ssl=context, server_hostname=NODE_NAME
            )
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(_copy(reader, inner[1]), _copy(inner[0], writer))

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0, backlog=1_000)
    found: int = server.sockets[0].getsockname()[1]
    return found


async def main() -> None:
    """Run the process."""
    ca, *named = sys.argv[1:]
    pairs = [word.split("=") for word in named]
    ports = {name: await _listen(ca, name, int(port)) for name, port in pairs}
    print(json.dumps(ports), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
