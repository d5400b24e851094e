"""The bearer token of /metrics, of a broker and of a proxy."""

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from cometmq.broker.proxy.base.config import ProxyConfig
from cometmq.broker.proxy.server import ProxyServer
from cometmq.front.config import DoorConfig
from cometmq.tests.broker.live import nameserver, running, settings

TOKEN = "0123456789abcdef"


def token_file(directory: Path, text: str = f"{TOKEN}\n", mode: int = 0o600) -> str:
    file = directory / "metrics-token"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def status(address: str, path: str, header: str | None = None) -> tuple[int, str | None]:
    """Return the status of a request, and the challenge of the answer."""
    headers = {} if header is None else {"authorization": header}
    request = urllib.request.Request(f"http://{address}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers["www-authenticate"]
    except urllib.error.HTTPError as error:
        return error.code, error.headers["www-authenticate"]


def check(address: str) -> None:
    assert status(address, "/metrics") == (401, "Bearer")
    assert status(address, "/metrics", f"Bearer {TOKEN}") == (200, None)
    assert status(address, "/metrics", f"bearer  {TOKEN}")[0] == 200
    for wrong in (TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}0", f"Bearer {TOKEN[:-1]}", "Bearer "):
        assert status(address, "/metrics", wrong)[0] == 401
    assert status(address, "/livez")[0] == 200
    assert status(address, "/readyz")[0] in (200, 503)


async def test_a_scrape_of_a_broker_needs_the_token_and_probes_do_not(tmp_path: Path) -> None:
    chosen = settings(tmp_path / "a", metrics_bearer_token_file=token_file(tmp_path))
    async with running(chosen) as live:
        await asyncio.to_thread(check, live.bound.metrics)


async def test_a_scrape_of_a_proxy_needs_the_token_and_probes_do_not(tmp_path: Path) -> None:
    async with nameserver() as address:
        config = ProxyConfig(
            bind_address="127.0.0.1",
            grpc_server_port=0,
            metrics_prom_exporter_port=0,
            namesrv_addr=address,
            metrics_bearer_token_file=token_file(tmp_path),
        )
        server = ProxyServer(config, DoorConfig(front_door="grpcio"))
        bound = await server.start()
        try:
            await asyncio.to_thread(check, bound.metrics)
        finally:
            await server.stop(0.1)


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [(TOKEN, 0o640, "run chmod 600"), (TOKEN, 0o604, "run chmod 600"), ("x", 0o600, "too short")],
)
async def test_an_unsuitable_token_file_prevents_the_start(
    tmp_path: Path, text: str, mode: int, sentence: str
) -> None:
    file = token_file(tmp_path, text, mode)
    with pytest.raises(ValueError, match=sentence):
        async with running(settings(tmp_path / "a", metrics_bearer_token_file=file)):
            pass


async def test_a_missing_token_file_prevents_the_start(tmp_path: Path) -> None:
    file = str(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        async with running(settings(tmp_path / "a", metrics_bearer_token_file=file)):
            pass
