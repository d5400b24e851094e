"""The native door's own: TLS and plaintext on one port, certificates that change, clients that
need one."""

import asyncio
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme

from cometmq.front.clock import Clock
from cometmq.front.config import DoorConfig
from cometmq.front.door import check_certificates, choose_door
from cometmq.front.errors import CertificateError, DoorMissingError
from cometmq.nodes.node_links import NodeLinks
from cometmq.nodes.tls_config import TlsConfig
from cometmq.proto.native import is_available

ECHO = "/test.Conformance/Echo"
native = pytest.mark.skipif(
    not is_available(),
    reason="the native door is not installed (scripts/native_door builds it where Rust is)",
)


@pytest.fixture
def door_name() -> str:
    return "native"


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Options that name a certificate of the authority."""
    options = {"front_tls_certificate": tmp_path / "chain.pem", "front_tls_key": tmp_path / "key"}
    write(authority, options)
    yield {name: str(path) for name, path in options.items()}


def write(authority: trustme.CA, options: dict[str, Any]) -> None:
    made = authority.issue_cert("localhost")
    made.cert_chain_pems[0].write_to_path(options["front_tls_certificate"])
    made.private_key_pem.write_to_path(options["front_tls_key"])


def spoil(path: str, content: bytes | None) -> None:
    """Put something else into a file, or take it away."""
    if content is None:
        Path(path).unlink()
    else:
        Path(path).write_bytes(content)


async def echo(port: int, roots: bytes, *, client: Any = None) -> bytes:
    """One call over TLS."""
    key, chain = (
        (client.private_key_pem.bytes(), client.cert_chain_pems[0].bytes())
        if client
        else (None, None)
    )
    credentials = grpc.ssl_channel_credentials(roots, key, chain)
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials) as channel:
        answer: bytes = await channel.unary_unary(ECHO)(b"secret", timeout=10)
        return answer


async def certificate(port: int) -> str:
    return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port), timeout=10)


@pytest.mark.pitfall(1, 2, 32)
@native
async def test_tls_and_plaintext_share_one_port(bench: Any) -> None:
    async with await bench() as b:
        made_up = (await certificate(b.port)).encode()
        assert await echo(b.port, made_up) == b"secret"
        assert await b.client.unary("Echo", b"plain") == b"plain"
        assert b.door.counters()["tls"] >= 1


@native
async def test_a_big_message_and_a_stream_over_tls(bench: Any) -> None:
    async with await bench() as b:
        credentials = grpc.ssl_channel_credentials((await certificate(b.port)).encode())
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        async with grpc.aio.secure_channel(
            f"localhost:{b.port}", credentials, options=options
        ) as channel:
            said = os.urandom(1 << 20) * 8
            assert await channel.unary_unary(ECHO)(said, timeout=30) == said
            call = channel.unary_stream("/test.Conformance/Items")(b"32 1024", timeout=30)
            assert len([item async for item in call]) == 32
            talk = channel.stream_stream("/test.Conformance/Talk")(timeout=30)
            await talk.write(b"hello")
            assert await talk.read() == b"hello"
            talk.cancel()


@native
async def test_a_configured_certificate_is_used_and_reloaded(
    bench: Any, authority: trustme.CA, files: dict[str, Any]
) -> None:
    roots = authority.cert_pem.bytes()
    async with await bench(**files) as b:
        assert await echo(b.port, roots) == b"secret"
        first = await certificate(b.port)
        write(authority, files)
        os.utime(files["front_tls_certificate"], ns=(1, 1))
        b.door.refresh_certificate()
        assert await certificate(b.port) != first
        assert await echo(b.port, roots) == b"secret"


@native
async def test_an_invalid_replacement_is_not_loaded(
    bench: Any, authority: trustme.CA, files: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with await bench(**files) as b:
        spoil(files["front_tls_key"], b"no key")
        b.door.refresh_certificate()
        assert "certificate.kept" in caplog.text
        assert await echo(b.port, authority.cert_pem.bytes()) == b"secret"


@native
async def test_clients_need_a_certificate_if_a_client_ca_is_set(
    bench: Any, authority: trustme.CA, files: dict[str, Any], tmp_path: Path
) -> None:
    clients = trustme.CA()
    clients.cert_pem.write_to_path(str(tmp_path / "clients.pem"))
    roots = authority.cert_pem.bytes()
    async with await bench(**files, front_tls_client_ca=str(tmp_path / "clients.pem")) as b:
        known = clients.issue_cert("client.example")
        assert await echo(b.port, roots, client=known) == b"secret"
        shown = ssl.DER_cert_to_PEM_cert(b.services.contexts[0].peer_certificate)
        assert shown.strip() == known.cert_chain_pems[0].bytes().decode().strip()
        for stranger in (None, trustme.CA().issue_cert("client.example")):
            with pytest.raises(grpc.RpcError) as refused:
                await echo(b.port, roots, client=stranger)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert len(b.services.contexts) == 1


@native
@pytest.mark.parametrize("broken", ["missing", "nonsense", "another key"])
async def test_an_unusable_certificate_is_refused_with_a_sentence(
    authority: trustme.CA, files: dict[str, Any], broken: str
) -> None:
    other = authority.issue_cert("other").private_key_pem.bytes()
    spoil(files["front_tls_key"], {"missing": None, "nonsense": b"nonsense"}.get(broken, other))
    door = choose_door(DoorConfig(front_door="native", **files))({}, Clock())
    with pytest.raises(CertificateError, match="Cannot load"):
        await door.start("127.0.0.1", 0)


def test_certificate_and_key_must_both_be_set() -> None:
    with pytest.raises(ValueError, match="Set both"):
        DoorConfig(front_tls_certificate="chain.pem")
    with pytest.raises(ValueError, match="frontTlsClientCa requires"):
        DoorConfig(front_tls_client_ca="ca.pem")


def test_the_grpcio_door_refuses_a_certificate() -> None:
    config = DoorConfig(front_door="grpcio", front_tls_certificate="a", front_tls_key="b")
    with pytest.raises(DoorMissingError, match="plaintext only"):
        choose_door(config)


def node(files: dict[str, Any], mode: Any, token: str = "") -> NodeLinks:
    """A node whose certificate is its own authority."""
    chain = files["front_tls_certificate"]
    certificates = {"tls_certificate": chain, "tls_key": files["front_tls_key"], "tls_ca": chain}
    return NodeLinks(token, TlsConfig(tls_mode=mode, **certificates))


def test_the_grpcio_door_refuses_what_it_cannot_serve(files: dict[str, Any]) -> None:
    config = DoorConfig(front_door="grpcio")
    with pytest.raises(DoorMissingError, match="either plaintext or TLS"):
        choose_door(config, node(files, "permissive", "secret"))
    with pytest.raises(DoorMissingError, match="cannot request certificates"):
        choose_door(config, node(files, "enforcing"))
    choose_door(config, node(files, "enforcing", "secret"))


def test_certificates_that_no_port_or_no_node_would_use_are_refused(files: dict[str, Any]) -> None:
    config = DoorConfig(**files)
    with pytest.raises(CertificateError, match="tlsMode=disabled"):
        choose_door(config, NodeLinks("", TlsConfig(tls_mode="disabled")))
    with pytest.raises(ValueError, match="set tlsCertificate alone"):
        check_certificates(config, node(files, "enforcing"))
    check_certificates(config, NodeLinks())


@native
async def test_disabled_refuses_tls(files: dict[str, Any], authority: trustme.CA) -> None:
    links = NodeLinks("", TlsConfig(tls_mode="disabled"))
    door = choose_door(DoorConfig(front_door="native"), links)({}, Clock())
    port = await door.start("127.0.0.1", 0)
    with pytest.raises(grpc.RpcError) as refused:
        await echo(port, authority.cert_pem.bytes())
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    await door.drain(0)
