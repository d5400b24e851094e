"""A console as a process of its own, and a plain HTTP client for it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlencode

from cometmq.tests.harness.cluster import STOP_S, cometmq_command, wait_until

_TOKEN = re.compile(r'name="token" value="([^"]+)"')
_ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the console."""

    status: int
    headers: Mapping[str, str]
    text: str


class Served:
    """The client of one console."""

    def __init__(self, port: int, base: str = "", pid: int = 0) -> None:
        """`base` is the path in front of the pages of the cluster whose forms are used; `pid`: the
        process, 0 if unknown."""
        self.port, self.base, self.pid = port, base, pid
        self.url = f"http://127.0.0.1:{port}"

    def ask(
        self,
        method: str,
        path: str,
        body: str | bytes = "",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Make one request; redirects are not followed."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_S)
        try:
            data = body.encode() if isinstance(body, str) else body
            connection.request(method, path, data, dict(headers or {}))
            found = connection.getresponse()
            text = found.read().decode("utf-8", "replace")
            return Answer(found.status, {k.lower(): v for k, v in found.getheaders()}, text)
        finally:
            connection.close()

    def get(self, path: str) -> str:
        """Return a page that must exist."""
        found = self.ask("GET", path)
        assert found.status == 200, (path, found.status, found.text)
        return found.text

    def token(self) -> str:
        """Return the token of the forms, from a page that has one."""
        found = _TOKEN.search(self.get(self.base + "/topics/new"))
        assert found
        return found[1]

    def act(
        self,
        path: str,
        fields: Mapping[str, str | list[str]],
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a form with the token of the console."""
        body = urlencode({"token": self.token(), **fields}, doseq=True)
        return self.ask("POST", path, body, headers)

    @contextmanager
    def stream(
        self, path: str = "/live", headers: Mapping[str, str] | None = None
    ) -> Iterator[HTTPResponse]:
        """Open the stream of the overview, or of another page."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_ANSWER_S)
        try:
            connection.request("GET", path, headers=dict(headers or {}))
            yield connection.getresponse()
        finally:
            connection.close()


@contextmanager
def serve(folder: Path, endpoint: str, *options: str) -> Iterator[Served]:
    """Run `cometmq console` on a free port for a `with` block."""
    ready, log = folder / "console.json", folder / "console.log"
    ready.unlink(missing_ok=True)
    command = [*cometmq_command(), "console", "--port", "0", "--endpoint", endpoint]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--ready-file", str(ready), *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:

        def serves() -> bool:
            assert process.poll() is None, log.read_text()
            return ready.exists()

        wait_until("the console serves", serves)
        yield Served(
            json.loads(ready.read_text())["processes"][0]["ports"]["http"], pid=process.pid
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def told(text: str) -> str:
    """Return the text of a page without its markup."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", text)))
