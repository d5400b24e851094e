"""Serves the console with uvicorn: one socket, the ready file, an orderly end."""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

import uvicorn

from ..front.clock import Clock
from ..front.process import connections_max, descriptor_limit
from ..operations.connection import Connection
from ..operations.errors import CliError
from ..operations.private_file import replace
from .app import Login, make_app
from .archives import Archives
from .body_types import BodyTypes
from .descriptors import Descriptors
from .live import VIEWERS_MAX, Watch
from .protocol import TimedProtocol
from .sessions import SessionCaller
from .targets import Target
from .views import templates

# Connections: those of the open overviews, and as many for pages; fewer if descriptors are scarce.
_CONNECTIONS_MAX = 2 * VIEWERS_MAX
_BACKLOG = 64
# The pipe of the server that started this console; its content has no meaning.
_STDIN, _LIFELINE_CHUNK = 0, 4_096
_STOP_S = 2
_KEEP_ALIVE_S = 15


def serve(
    targets: Sequence[Target],
    *,
    host: str,
    port: int,
    hosts: Sequence[str],
    allow_changes: bool,
    login: bool,
    trace_url: str,
    archives: Sequence[Path],
    descriptors: Descriptors,
    lag_alert: int,
    supervised: bool,
    ready_file: Path | None,
) -> None:
    """Serve until a signal. Raises CliError if the port or the ready file cannot be used."""
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # a bad form has an answer
    token = secrets.token_urlsafe(32)
    clock = Clock()
    app, watches = make_app(
        targets,
        templates(
            token,
            allow_changes=allow_changes or login,
            trace_url=trace_url,
            has_archives=bool(archives),
        ),
        clock.wall_ms,
        hosts=hosts,
        archives=Archives(archives),
        body_types=BodyTypes(descriptors, clock.steady_ns),
        lag_alert=lag_alert,
        login=_login(targets[0], clock) if login else None,
    )
    with _listener(host, port) as listener:
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            ws="none",
            http=TimedProtocol,
            limit_concurrency=connections_max(_CONNECTIONS_MAX, 0, descriptor_limit()),
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_STOP_S,
        )
        server = _Server(config, watches, ready_file, supervised=supervised)
        asyncio.run(server.serve(sockets=[listener]))
    if server.failure is not None:
        raise server.failure


def _login(target: Target, clock: Clock) -> Login:
    own = target.connection
    caller = SessionCaller(own.endpoint, own.links)
    return Login(Connection(own.endpoint, own.links, caller=caller), clock.steady_ns)


class _Server(uvicorn.Server):
    """uvicorn's server; it writes the ready file, and ends the streams before it waits for them."""

    def __init__(
        self,
        config: uvicorn.Config,
        watches: Sequence[Watch],
        ready_file: Path | None,
        *,
        supervised: bool,
    ) -> None:
        """`supervised`: the end of the standard input ends the server."""
        super().__init__(config)
        self._supervised = supervised
        self._watches = watches
        self._ready_file = ready_file
        self.failure: CliError | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started or not sockets:
            return
        host, port = sockets[0].getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        if self._ready_file is not None:
            try:
                _write_ready(self._ready_file, f"{name}:{port}", port)
            except OSError as error:
                text = f"Cannot write the ready file {self._ready_file}: {error.strerror}."
                self.failure = CliError(text)
                self.should_exit = True
                return
        print(f"The console is at http://{name}:{port}/", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for watch in self._watches:
            watch.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """End on SIGINT and SIGTERM with exit code 0, as every server of CometMQ does."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        if self._supervised:
            loop.add_reader(_STDIN, self._read_lifeline)
        yield

    def _read_lifeline(self) -> None:
        if not os.read(_STDIN, _LIFELINE_CHUNK):
            asyncio.get_running_loop().remove_reader(_STDIN)
            self.handle_exit(signal.SIGTERM, None)


def _listener(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises CliError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        text = f"Cannot listen on {host}:{port}: {error.strerror}. Choose another --port."
        raise CliError(text) from None


def _write_ready(file: Path, address: str, port: int) -> None:
    """Replace the file atomically; its form is that of `cometmq up`."""
    one = {
        "name": "console",
        "role": "console",
        "pid": os.getpid(),
        "ports": {"http": port},
        "data": "",
        "command": [sys.executable, "-P", "-m", "cometmq.cli.main", *sys.argv[1:]],
    }
    document = {"endpoints": address, "processes": [one]}
    replace(file, json.dumps(document, indent=2) + "\n")
