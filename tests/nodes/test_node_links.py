"""Links between nodes: where the token is sent, which callers are nodes, files that change."""

from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from cometmq.nodes.certificates import CertificateFiles
from cometmq.nodes.node_links import TOKEN_KEY, NodeLinks
from cometmq.nodes.tls_config import TlsConfig

NEAR = ("127.0.0.1:9876", "127.8.0.1:1", "[::1]:9876", "localhost:9876", "0.0.0.0:9876")
FAR = ("10.0.0.1:9876", "[2001:db8::1]:9876", "ns0:9876", "127.0.0.1.example:9876", "12.70.0.1:1")
NAME = "node.cometmq.internal"
SHOWN = ((TOKEN_KEY, "secret"),)


def write(authority: trustme.CA, folder: Path, *names: str) -> dict[str, Any]:
    """Write a certificate and its authority; return the settings that name them."""
    made = authority.issue_cert(*(names or (NAME,)))
    files = {name: str(folder / f"{name}.pem") for name in ("chain", "key", "ca")}
    made.cert_chain_pems[0].write_to_path(files["chain"])
    made.private_key_pem.write_to_path(files["key"])
    authority.cert_pem.write_to_path(files["ca"])
    return {"tls_certificate": files["chain"], "tls_key": files["key"], "tls_ca": files["ca"]}


def pem(authority: trustme.CA, *names: str) -> bytes:
    return authority.issue_cert(*names).cert_chain_pems[0].bytes()


@pytest.mark.parametrize("address", NEAR)
def test_the_token_is_sent_to_this_machine(address: str) -> None:
    assert NodeLinks("secret").metadata(address) == SHOWN
    assert NodeLinks().metadata(address) == ()


@pytest.mark.parametrize("address", FAR)
@pytest.mark.parametrize("mode", ["disabled", "permissive"])
def test_the_token_is_not_sent_in_plaintext_to_another_machine(
    address: str, mode: Any, tmp_path: Path
) -> None:
    files = write(trustme.CA(), tmp_path)
    for links in (
        NodeLinks("secret", TlsConfig(tls_mode=mode)),
        NodeLinks("secret", TlsConfig(tls_mode=mode, **files)),
    ):
        assert links.credentials() is None
        assert links.metadata(address) == ()
        with pytest.raises(ValueError, match="trustedNetwork"):
            links.check_addresses(["127.0.0.1:1", address])


@pytest.mark.parametrize("address", FAR)
def test_the_token_is_sent_over_tls_or_a_trusted_network(address: str, tmp_path: Path) -> None:
    files = write(trustme.CA(), tmp_path)
    enforcing = NodeLinks("secret", TlsConfig(tls_mode="enforcing", **files))
    calling = NodeLinks("secret", TlsConfig(tls_node_calls=True, **files))
    for links in (enforcing, calling):
        assert links.credentials() is not None
        assert links.metadata(address) == SHOWN
        links.check_addresses([address])
    trusted = NodeLinks("secret", TlsConfig(trusted_network=True))
    assert trusted.credentials() is None
    assert trusted.metadata(address) == SHOWN


def test_a_withheld_token_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    links = NodeLinks("secret")
    for _ in range(3):
        assert links.metadata("10.0.0.1:9876") == ()
    assert caplog.text.count("token.withheld") == 1
    assert "secret" not in caplog.text


def test_a_certificate_with_the_name_of_nodes_admits(tmp_path: Path) -> None:
    authority = trustme.CA()
    config = TlsConfig(tls_mode="enforcing", **write(authority, tmp_path))
    links = NodeLinks("secret", config)
    assert links.admits("", pem(authority, NAME), local=False)
    assert links.admits("", pem(authority, "a.example", NAME), local=False)
    for other in (b"", b"nonsense", pem(authority, "a.example"), pem(authority, f"x.{NAME}")):
        assert not links.admits("", other, local=True)
        assert links.admits("secret", other, local=False)


def test_a_certificate_means_nothing_without_certificates_of_nodes() -> None:
    shown = pem(trustme.CA(), NAME)
    assert not NodeLinks("secret").admits("", shown, local=True)
    assert not NodeLinks().admits("", shown, local=False)


def test_changed_files_are_used_by_the_next_channel(tmp_path: Path) -> None:
    authority = trustme.CA()
    links = NodeLinks("", TlsConfig(tls_mode="enforcing", **write(authority, tmp_path)))
    first = links.credentials()
    assert links.credentials() is first
    write(authority, tmp_path)
    second = links.credentials()
    assert second is not first
    assert links.credentials() is second


def test_files_that_cannot_be_used_are_not_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = trustme.CA()
    settings = write(authority, tmp_path)
    links = NodeLinks("", TlsConfig(tls_mode="enforcing", **settings))
    files = links.files
    assert files is not None
    first = files.current()
    for name in settings.values():
        content = Path(name).read_bytes()
        for spoiled in (b"nonsense", b"", None):
            Path(name).unlink()
            if spoiled is not None:
                Path(name).write_bytes(spoiled)
            assert files.current() == first
            assert links.kept.keys() == {"tlsCertificate"}
        Path(name).write_bytes(content)
        assert files.current() == first
        assert not links.kept
    other = authority.issue_cert("other").private_key_pem.bytes()
    Path(settings["tls_key"]).write_bytes(other)
    assert files.current() == first
    assert "the key belongs to another certificate" in caplog.text
    write(authority, tmp_path)
    assert files.current() != first


def test_an_encrypted_key_is_not_loaded_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = write(trustme.CA(), tmp_path)
    files = CertificateFiles(settings["tls_certificate"], settings["tls_key"], settings["tls_ca"])
    first = files.current()
    private = load_pem_private_key(first.key, None)
    encryption = BestAvailableEncryption(b"password")
    sealed = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    Path(settings["tls_key"]).write_bytes(sealed)
    for _ in range(3):
        assert files.current() is first
    assert caplog.text.count("cannot be used") == 1
    with pytest.raises(ValueError, match="cannot be used"):
        CertificateFiles(settings["tls_certificate"], settings["tls_key"])


def test_files_that_cannot_be_used_are_refused_at_the_start(tmp_path: Path) -> None:
    settings = write(trustme.CA(), tmp_path)
    Path(settings["tls_key"]).unlink()
    with pytest.raises(ValueError, match="Cannot load the certificate"):
        NodeLinks("", TlsConfig(tls_mode="enforcing", **settings))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tls_mode": "on"}, "tlsMode must be"),
        ({"tls_mode": "enforcing"}, "tlsMode=enforcing requires"),
        ({"tls_certificate": "a", "tls_key": "b"}, "together"),
        ({"tls_node_calls": True}, "tlsNodeCalls=true requires"),
        ({"tls_node_name": ""}, "tlsNodeName must not be empty"),
    ],
)
def test_contradictory_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        TlsConfig(**settings)


def test_plaintext_beside_certificates_requires_a_token(tmp_path: Path) -> None:
    config = TlsConfig(tls_mode="permissive", **write(trustme.CA(), tmp_path))
    with pytest.raises(ValueError, match="requires clusterToken"):
        NodeLinks("", config)
