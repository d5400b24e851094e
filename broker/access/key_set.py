"""The key set (JWKS) of an OpenID Connect provider, from a file or a URL, read again while a node
runs.

A file is read every 5 seconds, a URL every 5 minutes, and when a token names a key that is not in
the set, at most every 30 seconds. A set that cannot be read leaves the former one in use; without
any, no token is accepted; a metric and `cometmq doctor security` show it. Reading is done in
threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ...auth.bearer import JWKS_BYTES_MAX, read_keys
from ...nodes.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable

    from joserfc.jwk import KeySet

logger = logging.getLogger(__name__)

_FILE_S, _URL_S, _SOONEST_S = 5.0, 300.0, 30.0
#: A whole answer, however slowly it comes: the end of a node waits for a fetch. Each address of the
#: host has as long to accept the connection.
_FETCH_S = 5.0
#: Clients that come at once find the keys of a provider that answers as usual.
_START_S = 2.0
#: Why a set is not read; the former one stays in use.
_FAILURES = (OSError, ValueError, HTTPException)


def check_place(place: str) -> None:
    """Raise ValueError for a URL that everyone on the way could answer."""
    parts = urlsplit(place)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ValueError(f"oidcJwks={place} is not protected by TLS: use https, or a file")
    if "://" in place and parts.scheme not in ("http", "https"):
        raise ValueError(f"oidcJwks={place}: use a file, or a URL with https")


def read(place: str) -> bytes:
    """Return the document of a file or a URL. Raises OSError, HTTPException."""
    if "://" not in place:
        with Path(place).open("rb") as file:
            return file.read(JWKS_BYTES_MAX + 1)
    return _fetch(place)


def _fetch(url: str) -> bytes:
    """Return the body of an answer, without redirects and proxies."""
    parts, late = urlsplit(url), threading.Event()
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_FETCH_S)
    links: list[socket.socket] = []

    def give_up() -> None:
        late.set()
        for link in links:
            with contextlib.suppress(OSError):  # it has ended
                link.shutdown(socket.SHUT_RDWR)

    # The time limit of a socket is that of one read: a byte now and then never exceeds it.
    timer = threading.Timer(_FETCH_S, give_up)
    timer.start()
    try:
        with contextlib.closing(connection):
            connection.connect()
            links.append(connection.sock)
            found = b"" if late.is_set() else _body(connection, parts.path, parts.query)
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError(f"the answer is not complete within {_FETCH_S:g} s")
    return found


def _body(connection: HTTPConnection, path: str, query: str) -> bytes:
    connection.request("GET", f"{path or '/'}?{query}" if query else path or "/")
    with connection.getresponse() as answer:
        if answer.status != 200:
            raise OSError(f"the answer is {answer.status} {answer.reason[:100]}")
        return answer.read(JWKS_BYTES_MAX + 1)


class KeySetReader:
    """Keeps a key set current, from `start` to `close`."""

    def __init__(self, place: str, use: Callable[[KeySet], None], kept: dict[str, str]) -> None:
        """`use` gets each set; `kept` has the reason while it cannot be read. Raises ValueError for
        an unsuitable place."""
        check_place(place)
        self._place = place
        self._use = use
        self._kept = kept
        self._is_file = "://" not in place
        self._last = b""
        self._wanted = asyncio.Event()
        #: The first attempt has ended.
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the set, and follow it. Raises ValueError for a file that is no key set, OSError for
        one that cannot be read; a URL may answer later, and holds the start for a moment only."""
        if self._is_file:
            await self._read()
        self._task = asyncio.ensure_future(self._follow())
        if not self._is_file:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._tried.wait(), _START_S)

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def want(self) -> None:
        """Read the set soon: a token names a key that is not in it."""
        self._wanted.set()

    async def _read(self) -> None:
        text = await asyncio.to_thread(read, self._place)
        if text != self._last:
            self._use(await asyncio.to_thread(read_keys, text))
            self._last = text
        self._kept.pop("oidcJwks", None)

    async def _follow(self) -> None:
        while True:
            try:
                await self._read()
            except _FAILURES as error:
                reason = str(error) or type(error).__name__
                if self._kept.get("oidcJwks") != reason:
                    logger.warning("oidc.keys_kept place=%s error=%s", self._place, reason)
                self._kept["oidcJwks"] = reason
            self._tried.set()
            if self._is_file or not self._last:
                await asyncio.sleep(_FILE_S)
            else:
                await asyncio.sleep(_SOONEST_S)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), _URL_S)
            self._wanted.clear()
