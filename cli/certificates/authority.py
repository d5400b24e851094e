"""The certificates of `cometmq auth dev-ca`, apart from the command: help needs no cryptography."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

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

from ...operations import private_file
from ...operations.errors import CliError

# Before the present time, because clocks of nodes differ.
_MARGIN = timedelta(minutes=5)


class Authority:
    """A certificate authority in a directory."""

    def __init__(
        self,
        file: Path,
        certificate: x509.Certificate,
        key: ec.EllipticCurvePrivateKey,
        is_new: bool,
    ) -> None:
        self.file = file
        self.is_new = is_new
        self._certificate = certificate
        self._key = key

    @classmethod
    def of(cls, directory: Path, days: int) -> Authority:
        """Read the authority of a directory, or make it. Raises CliError, OSError."""
        file = directory / "ca.pem"
        if file.exists():
            try:
                key = load_pem_private_key((directory / "ca.key").read_bytes(), None)
                if isinstance(key, ec.EllipticCurvePrivateKey):
                    return cls(file, x509.load_pem_x509_certificate(file.read_bytes()), key, False)
            except ValueError as error:
                raise CliError(f"{file} cannot be used: {error}.") from None
            raise CliError(f"{directory / 'ca.key'} was not made by this command.")
        key = ec.generate_private_key(ec.SECP256R1())
        name = _subject("CometMQ development CA")
        made = (
            _builder(name, name, key.public_key(), timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write(directory / "ca", made, key)
        return cls(file, made, key, True)

    def issue(self, name: str, names: Iterable[str], days: int) -> Path:
        """Write the certificate of a node, for both ends of a connection; return its file."""
        own = ec.generate_private_key(ec.SECP256R1())
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        alternatives = x509.SubjectAlternativeName(list(map(_general, dict.fromkeys(names))))
        subject = _subject("CometMQ node")
        validity = timedelta(days=days)
        made = (
            _builder(self._certificate.subject, subject, own.public_key(), validity)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(identifier, critical=False)
            .add_extension(alternatives, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path = self.file.with_name(name)
        _write(path, made, own)
        return path.with_name(f"{name}.pem")


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
