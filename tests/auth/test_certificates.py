"""Users by client certificate, on both ports, through a follower and a proxy; revocation."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from cometmq.broker.proxy.base.config import ProxyConfig
from cometmq.broker.proxy.server import ProxyServer
from cometmq.front.config import DoorConfig
from cometmq.front.door import choose_door
from cometmq.front.errors import CertificateError, DoorMissingError
from cometmq.front.native import door
from cometmq.nodes.certificates import names_of
from cometmq.nodes.node_links import TOKEN_KEY, NodeLinks
from cometmq.nodes.tls_config import Identity, TlsConfig
from cometmq.proto import paths, v1, v2
from cometmq.remoting.codes import Reply, Request
from cometmq.tests.auth.test_through_nodes import (
    OPTIONS,
    TOKEN,
    codes,
    prepare,
    settings_for,
    signed,
    telemetry_status,
)
from cometmq.tests.broker.desk import message
from cometmq.tests.broker.live import Live, follower_of, nameserver, running, settings, until
from cometmq.tests.conftest import NATIVE_DOOR
from cometmq.tests.harness.ports import free_ports
from cometmq.tests.harness.wire import Wire
from cometmq.tests.remoting.client import RemotingClient

NODE = "node.cometmq.internal"
native = pytest.mark.skipif(not NATIVE_DOOR, reason="only the native door requests certificates")
SEND = {"a": "orders", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 0, "h": 0, "i": "", "j": 0}


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority and its files."""

    folder: Path
    ca: trustme.CA

    @classmethod
    def made(cls, folder: Path) -> Authority:
        """Make an authority, and the certificate of a node."""
        folder.mkdir()
        own = cls(folder, trustme.CA())
        own.ca.cert_pem.write_to_path(folder / "ca.pem")
        own.revoke()
        node = own.client("admin", NODE, "localhost", "127.0.0.1")
        (folder / "node.key").write_bytes(node.private_key_pem.bytes())
        (folder / "node.pem").write_bytes(node.cert_chain_pems[0].bytes())
        return own

    def client(self, common_name: str, *names: str) -> trustme.LeafCert:
        """Return a certificate."""
        return self.ca.issue_cert(*(names or ("client.example",)), common_name=common_name)

    def revoke(self, *revoked: trustme.LeafCert) -> None:
        """Write the revocation list."""
        now = datetime.now(UTC)
        authority = x509.load_pem_x509_certificate(self.ca.cert_pem.bytes())
        key = load_pem_private_key(self.ca.private_key_pem.bytes(), None)
        made = x509.CertificateRevocationListBuilder().issuer_name(authority.subject)
        made = made.last_update(now).next_update(now + timedelta(days=1))
        for each in revoked:
            number = x509.load_pem_x509_certificate(each.cert_chain_pems[0].bytes()).serial_number
            entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now)
            made = made.add_revoked_certificate(entry.build())
        own = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        of = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)
        made = made.add_extension(of, critical=False)
        made = made.add_extension(x509.CRLNumber(len(revoked) + 1), critical=False)
        text = made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)  # type: ignore[arg-type]
        (self.folder / "crl.pem").write_bytes(text)

    def tls(self, identity: Identity = "CN") -> TlsConfig:
        """Return the settings of a node."""
        files = {name: str(self.folder / name) for name in ("node.pem", "node.key", "ca.pem")}
        return TlsConfig(
            tls_certificate=files["node.pem"],
            tls_key=files["node.key"],
            tls_ca=files["ca.pem"],
            tls_client_identity=identity,
            tls_crl=str(self.folder / "crl.pem"),
        )

    def wire(self, address: str, client: trustme.LeafCert | None) -> Wire:
        """Return a gRPC connection over TLS."""
        key = client.private_key_pem.bytes() if client else None
        chain = client.cert_chain_pems[0].bytes() if client else None
        used = grpc.ssl_channel_credentials(self.ca.cert_pem.bytes(), key, chain)
        return Wire(address, f"client-{id(client)}@{address}", credentials=used)

    def context(self, client: trustme.LeafCert | None) -> ssl.SSLContext:
        """Return the context of a remoting connection."""
        made = ssl.create_default_context(cadata=self.ca.cert_pem.bytes().decode())
        if client:
            client.configure_cert(made)
        return made


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.made(tmp_path / "tls")


@asynccontextmanager
async def proxying(namesrv: str, tls: TlsConfig) -> AsyncIterator[str]:
    config = ProxyConfig(
        grpc_server_port=0,
        metrics_prom_exporter_port=0,
        bind_address="127.0.0.1",
        namesrv_addr=namesrv,
        cluster_token=TOKEN,
        proxy_poll_interval=100,
        authentication_enabled=True,
    )
    server = ProxyServer(config, DoorConfig(front_door="native"), links=NodeLinks(TOKEN, tls))
    bound = await server.start()
    try:
        yield bound.client
    finally:
        await server.stop(0.5)


@asynccontextmanager
async def cluster(tmp_path: Path, tls: TlsConfig) -> AsyncIterator[tuple[Live, Live, str]]:
    """Run a leader, a follower and a proxy with TLS beside plaintext, and the user `orders`."""
    native_door, options = DoorConfig(front_door="native"), {**OPTIONS, "remoting_listen_port": -1}
    async with nameserver(TOKEN) as namesrv:
        base = settings(tmp_path / "a", namesrv_addr=namesrv, **options)
        leading = replace(base, ha=replace(base.ha, cluster_token=TOKEN))
        async with running(leading, door=native_door, tls=tls) as leader:
            base = follower_of(leader.bound, tmp_path / "b", namesrv_addr=namesrv, **options)
            following = replace(base, ha=replace(base.ha, cluster_token=TOKEN))
            async with (
                running(following, door=native_door, tls=tls) as follower,
                proxying(namesrv, tls) as proxy,
            ):
                await prepare(leader)
                await until(lambda: "orders" in follower.node.metadata.users)
                await until(lambda: follower.node.metadata.users["orders"].policies[1:])
                await until(follower.node.leadership.leader_client)
                await until(follower.node.leadership.leader_remoting)
                yield leader, follower, proxy


async def disable(leader: Live) -> None:
    """Disable the user `orders`."""
    async with signed(leader.client("tool@2"), "admin", "admin-secret") as tool:
        request = v1.PutUserRequest(name="orders", enabled=False)
        answer = await tool.call(paths.PUT_USER, request, v1.UserResponse)
        assert answer.code == v2.OK, answer.message


async def sent(address: str, topic: str, context: ssl.SSLContext) -> int:
    """Send a message over the remoting protocol; return the code of the answer."""
    port = int(address.rpartition(":")[2])
    async with RemotingClient(port, "localhost", context) as client:
        return (await client.call(Request.SEND_MESSAGE_V2, b"x", b=topic, **SEND)).code


@native
async def test_a_certificate_is_its_user_on_every_node_and_both_ports(
    authority: Authority, tmp_path: Path
) -> None:
    own, unknown = authority.client("orders"), authority.client("nobody")
    async with cluster(tmp_path, authority.tls()) as (leader, follower, proxy):
        for address in (leader.bound.client, follower.bound.client, proxy):
            async with authority.wire(address, own) as wire:
                assert set((await codes(wire)).values()) == {v2.OK}, address
                assert await telemetry_status(wire, "orders") == (v2.OK, False)
                assert await telemetry_status(wire, "other") == (v2.UNAUTHORIZED, True)
                refused = await wire.send([message(topic="other")])
                assert refused.status.message.startswith("User:orders has no permission")
            for other in (unknown, None):
                async with authority.wire(address, other) as wire:
                    assert set((await codes(wire)).values()) == {v2.UNAUTHORIZED}, address
        for node in (leader, follower):
            assert await sent(node.bound.remoting, "orders", authority.context(own)) == 0
            for topic, client in (("other", own), ("orders", unknown), ("orders", None)):
                code = await sent(node.bound.remoting, topic, authority.context(client))
                assert code == Reply.NO_PERMISSION
        await disable(leader)
        await until(lambda: not follower.node.metadata.users["orders"].enabled)
        for address in (leader.bound.client, follower.bound.client, proxy):
            async with authority.wire(address, own) as wire:
                assert set((await codes(wire)).values()) == {v2.UNAUTHORIZED}, address
        for node in (leader, follower):
            context = authority.context(own)
            assert await sent(node.bound.remoting, "orders", context) == Reply.NO_PERMISSION


@native
async def test_only_the_certificate_of_a_client_names_its_user(
    authority: Authority, tmp_path: Path
) -> None:
    own, node = authority.client("orders"), authority.client("admin", NODE)
    chosen = settings(tmp_path / "a", **OPTIONS)
    async with running(
        replace(chosen, ha=replace(chosen.ha, cluster_token=TOKEN)),
        door=DoorConfig(front_door="native"),
        tls=authority.tls(),
    ) as leader:
        await prepare(leader)
        address = leader.bound.client
        # A node acts for others: its certificate is no user, whatever its common name is.
        async with authority.wire(address, node) as wire:
            assert (await wire.send([message(topic="orders")])).status.code == v2.UNAUTHORIZED
        # A signature decides, also a wrong one.
        async with signed(authority.wire(address, own), "orders", "wrong") as wire:
            assert (await wire.send([message(topic="orders")])).status.code == v2.UNAUTHORIZED
        async with signed(authority.wire(address, own), "admin", "admin-secret") as wire:
            assert (await wire.send([message(topic="other")])).status.code == v2.OK
        # Only nodes tell whose client they forward for, by their token or their certificate.
        forged = (("x-cometmq-user", "admin"), ("x-cometmq-forwarded", "10.0.0.1:1"))
        for metadata, code in (
            (forged[:1], v2.UNAUTHORIZED),
            ((*forged, (TOKEN_KEY, TOKEN)), v2.OK),
        ):
            async with leader.client() as wire:
                wire.metadata = (*wire.metadata, *metadata)
                assert (await wire.send([message(topic="other")])).status.code == code
        async with authority.wire(address, own) as wire:
            wire.metadata = (*wire.metadata, *forged)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await wire.send([message(topic="other")])
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


@native
async def test_without_a_token_a_process_of_the_machine_names_no_user(
    authority: Authority, tmp_path: Path
) -> None:
    tls = replace(authority.tls(), tls_mode="enforcing")
    chosen = settings(tmp_path / "a", **OPTIONS)
    async with running(chosen, door=DoorConfig(front_door="native"), tls=tls) as leader:
        await until(lambda: "admin" in leader.node.metadata.users)
        async with authority.wire(leader.bound.client, None) as wire:
            forged = (("x-cometmq-user", "admin"), ("x-cometmq-forwarded", "10.0.0.1:1"))
            wire.metadata = (*wire.metadata, *forged)
            assert (await wire.send([message(topic="t")])).status.code == v2.UNAUTHORIZED


@native
async def test_a_revoked_certificate_is_refused_also_on_an_open_connection(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "_CERTIFICATE_S", 0.1)
    own = authority.client("orders")
    (port,) = free_ports(1)  # one port of both protocols
    ports = {"grpc_server_port": port, "remoting_listen_port": port}
    chosen = settings(tmp_path / "a", **ports, **OPTIONS)
    async with running(
        replace(chosen, ha=replace(chosen.ha, cluster_token=TOKEN)),
        door=DoorConfig(front_door="native"),
        tls=authority.tls(),
    ) as leader:
        await prepare(leader)
        context = authority.context(own)
        async with (
            authority.wire(leader.bound.client, own) as wire,
            RemotingClient(port, "localhost", context) as classic,
        ):
            assert (await wire.send([message(topic="orders")])).status.code == v2.OK
            assert (await classic.call(Request.SEND_MESSAGE_V2, b"x", b="orders", **SEND)).code == 0
            stream = wire.channel.stream_stream(paths.TELEMETRY)(metadata=wire.metadata)
            await stream.write(settings_for("orders").SerializeToString())
            await stream.read()
            authority.revoke(authority.client("another"), own)
            with pytest.raises(grpc.aio.AioRpcError, match="has lost a right"):
                while await stream.read() is not grpc.aio.EOF:
                    pass
            assert (await wire.send([message(topic="orders")])).status.code == v2.UNAUTHORIZED
            refused = await classic.call(Request.SEND_MESSAGE_V2, b"x", b="orders", **SEND)
            assert refused.code == Reply.NO_PERMISSION
        async with authority.wire(leader.bound.client, own) as wire:
            with pytest.raises(grpc.aio.AioRpcError):
                await wire.send([message(topic="orders")], 5.0)


def test_a_certificate_with_several_names_names_no_user(authority: Authority) -> None:
    def user(identity: Identity, *names: str, common_name: str = "") -> str:
        made = authority.ca.issue_cert(*names, common_name=common_name or None)
        return NodeLinks(TOKEN, authority.tls(identity)).user_of(made.cert_chain_pems[0].bytes())

    assert user("CN", "a.example", common_name="orders") == "orders"
    assert user("CN", "a.example") == ""
    assert user("SAN", "orders@example.org", common_name="admin") == "orders@example.org"
    assert user("SAN", "orders.example") == "orders.example"
    assert user("SAN", "a.example", "b.example") == ""
    assert user("SAN", NODE) == ""
    assert user("none", "a.example", common_name="orders") == ""
    # A proxy sends the name to its brokers in a header.
    for name in ("órders", "orders\0", "orders\r\nx: y"):
        assert user("CN", "a.example", common_name=name) == "", name
    assert user("SAN", f"{'o' * 63}.example") == ""
    assert names_of(b"no certificate") is None


def test_a_revoked_node_is_no_node_although_it_has_the_token(authority: Authority) -> None:
    node, other = authority.client("n", NODE), authority.client("m", NODE)
    authority.revoke(node)
    links = NodeLinks(TOKEN, authority.tls())
    shown = [each.cert_chain_pems[0].bytes() for each in (node, other)]
    assert [links.admits("", each, local=True) for each in shown] == [False, True]
    assert not links.admits(TOKEN, shown[0], local=True)


def test_lists_that_cannot_be_used_are_refused_or_kept(authority: Authority) -> None:
    own = authority.client("orders").cert_chain_pems[0].bytes()
    links = NodeLinks(TOKEN, authority.tls())
    file = authority.folder / "crl.pem"
    foreign = Authority.made(authority.folder / "foreign")
    for content in (b"", b"no list", (foreign.folder / "crl.pem").read_bytes()):
        file.write_bytes(content)
        assert links.files is not None
        links.files.current()
        assert links.user_of(own) == "orders"
        with pytest.raises(ValueError, match="revocation lists"):
            NodeLinks(TOKEN, authority.tls())


def test_settings_without_certificates_of_clients_are_refused(authority: Authority) -> None:
    alone = NodeLinks("", TlsConfig(tls_client_identity="CN"))
    with pytest.raises(CertificateError, match="tlsClientIdentity"):
        choose_door(DoorConfig(), alone)
    with pytest.raises(DoorMissingError, match="tlsClientIdentity"):
        tls = replace(authority.tls(), tls_mode="enforcing")
        choose_door(DoorConfig(front_door="grpcio"), NodeLinks(TOKEN, tls))
