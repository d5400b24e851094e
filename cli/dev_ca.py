"""`cometmq auth dev-ca`: a certificate authority for development, and certificates of nodes.

The directory gets `ca.pem` and `ca.key`, and for each node NAME.pem and NAME.key, all with mode
0600. An existing authority is used again, so that the command also renews certificates; running
nodes take replaced files over.
"""

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..proto.tls_config import TlsConfig
from . import private_file
from .errors import CliError, Exit

_LOCAL = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_DAYS = 3_650
# Before the present time, because clocks of nodes differ.
_MARGIN = timedelta(minutes=5)


@click.command("dev-ca")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE[=HOST,HOST...]...")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("tls"),
    show_default=True,
    help="Directory of the files; it is created with mode 0700.",
)
@click.option(
    "--node-name",
    default=TlsConfig().tls_node_name,
    show_default=True,
    help="DNS name that gives a certificate the rights of a node (tlsNodeName).",
)
@click.option(
    "--days",
    type=click.IntRange(1, _AUTHORITY_DAYS),
    default=365,
    show_default=True,
    help="Validity of the certificates of nodes.",
)
def dev_ca(*, nodes: tuple[str, ...], directory: Path, node_name: str, days: int) -> None:
    """Make certificates of nodes for development, and their authority at the first use.

    NODE names the files. HOSTs are the names and addresses that clients use for the node, beside
    localhost. Every certificate has the rights of a node: a command of an operator can use one.

    \b
    cometmq auth dev-ca a=10.0.0.11,a.example b=10.0.0.12
    """
    named = [_parse(node) for node in nodes]
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority, key = _authority(directory)
        for name, hosts in named:
            own = ec.generate_private_key(ec.SECP256R1())
            made = _node(authority, key, own, [node_name, *hosts, *_LOCAL], timedelta(days=days))
            _write(directory / name, made, own)
            click.echo(f"{directory / name}.pem")
    except OSError as error:
        raise CliError(f"Cannot write {error.filename}: {error.strerror}.") from None


def _parse(node: str) -> tuple[str, list[str]]:
    name, _, hosts = node.partition("=")
    if not name or name == "ca" or "/" in name or name.startswith("."):
        raise CliError(f"'{node}' is not NODE=HOST,..., with a file name.", Exit.USAGE)
    return name, [host.strip() for host in hosts.split(",") if host.strip()]


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Read the authority, or make it. Raises CliError, OSError."""
    file = directory / "ca.pem"
    if file.exists():
        try:
            key = load_pem_private_key((directory / "ca.key").read_bytes(), None)
            if isinstance(key, ec.EllipticCurvePrivateKey):
                return x509.load_pem_x509_certificate(file.read_bytes()), key
        except ValueError as error:
            raise CliError(f"{file} cannot be used: {error}.") from None
        raise CliError(f"{directory / 'ca.key'} was not made by this command.")
    key = ec.generate_private_key(ec.SECP256R1())
    name = _subject("CometMQ development CA")
    made = (
        _builder(name, name, key.public_key(), timedelta(days=_AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(directory / "ca", made, key)
    click.echo(str(file))
    return made, key


def _node(
    authority: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    own: ec.EllipticCurvePrivateKey,
    names: Iterable[str],
    validity: timedelta,
) -> x509.Certificate:
    """Return a certificate for both ends of a connection."""
    both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    alternatives = x509.SubjectAlternativeName(list(map(_general, dict.fromkeys(names))))
    subject = _subject("CometMQ node")
    return (
        _builder(authority.subject, subject, own.public_key(), validity)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(alternatives, critical=False)
        .sign(key, hashes.SHA256())
    )


def _builder(
    issuer: x509.Name,
    subject: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    validity: timedelta,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _MARGIN)
        .not_valid_after(now + validity)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _write(path: Path, made: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """Write PATH.key and PATH.pem, each atomically."""
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    private_file.replace(path.with_name(f"{path.name}.key"), secret.decode())
    private_file.replace(
        path.with_name(f"{path.name}.pem"), made.public_bytes(Encoding.PEM).decode()
    )
