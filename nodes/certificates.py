"""Certificate files of a node: read at the start and again when they change; names in certificates.

A replacement that cannot be used (a missing file, a key of another certificate) is logged once and
noted, and the former certificate stays in use. Open connections keep the certificate that they
began with. `cryptography` is imported where it is used: that takes 30 to 50 ms, which a node
without certificates saves at its start.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct

from .tls_config import Identity

if TYPE_CHECKING:
    from cryptography import x509

logger = logging.getLogger(__name__)

#: No user has a longer name.
_USER_NAME_MAX = 64
_CRL_BEGIN = b"-----BEGIN X509 CRL-----"


@dataclass(frozen=True, slots=True)
class Certificates:
    """The content of the files, as PEM."""

    chain: bytes
    key: bytes = field(repr=False)
    #: Certificate authorities of the other side; empty if there is no file.
    authorities: bytes
    #: Their revocation lists; empty if there is no file.
    crl: bytes
    #: What the lists name: the issuer (DER) and the serial number of each certificate.
    revoked: frozenset[tuple[bytes, int]] = field(repr=False)


class CertificateFiles:
    """The files of a certificate, its key and, optionally, certificate authorities and their
    revocation lists."""

    def __init__(
        self,
        certificate: str,
        key: str,
        authorities: str = "",
        crl: str = "",
        *,
        setting: str = "tlsCertificate",
        kept: dict[str, str] | None = None,
    ) -> None:
        """While replaced files cannot be used, `kept` has the reason under `setting`. Raises
        ValueError with a sentence if the files cannot be used now."""
        self._paths = certificate, key, authorities, crl
        self._setting = setting
        self._kept = {} if kept is None else kept
        try:
            self._seen = self._stamps()
            self._current = self._read()
        except (OSError, ValueError) as error:
            raise ValueError(f"Cannot load the certificate {certificate}: {error}.") from error

    @property
    def last(self) -> Certificates:
        """What `current` returned last, without a look at the files."""
        return self._current

    def current(self) -> Certificates:
        """Return the certificates; the same object until the files change."""
        try:
            stamps = self._stamps()
        except OSError:  # a file is missing
            stamps = ()
        if stamps == self._seen:
            return self._current
        self._seen = stamps
        try:
            self._current = self._read()
        except (OSError, ValueError) as error:
            logger.warning("certificate.kept file=%s error=%s", self._paths[0], error)
            self.keep(str(error))
        else:
            self._kept.pop(self._setting, None)
            logger.info("certificate.replaced file=%s", self._paths[0])
        return self._current

    def keep(self, reason: str) -> None:
        """Note that the former certificate stays in use, and why."""
        self._kept[self._setting] = reason

    def _stamps(self) -> Sequence[tuple[int, int, int]]:
        """Return what changes when a file is written or replaced."""
        stats = [os.stat(path) for path in self._paths if path]
        return [(each.st_mtime_ns, each.st_ino, each.st_size) for each in stats]

    def _read(self) -> Certificates:
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        chain, key, authorities, crl = (_content(path) for path in self._paths)
        leaf = x509.load_pem_x509_certificate(chain)
        try:
            private = load_pem_private_key(key, None)
        except (TypeError, UnsupportedAlgorithm) as error:  # an encrypted key is a TypeError
            raise ValueError(f"the key {self._paths[1]} cannot be used: {error}") from error
        if private.public_key() != leaf.public_key():
            raise ValueError("the key belongs to another certificate")
        known = x509.load_pem_x509_certificates(authorities) if self._paths[2] else []
        if self._paths[2] and not known:
            raise ValueError(f"{self._paths[2]} has no certificate")
        try:
            revoked = _revoked(crl, known) if self._paths[3] else frozenset()
            return Certificates(chain, key, authorities, crl, revoked)
        except ValueError as error:
            text = f"the revocation lists {self._paths[3]} cannot be used: {error}"
            raise ValueError(text) from error


def _revoked(crl: bytes, authorities: "Sequence[x509.Certificate]") -> frozenset[tuple[bytes, int]]:
    """Return what revocation lists (PEM) name, each by its issuer and serial number. Raises
    ValueError for a list that no authority has signed."""
    from cryptography import x509

    revoked: set[tuple[bytes, int]] = set()
    for part in crl.split(_CRL_BEGIN)[1:]:
        made = x509.load_pem_x509_crl(_CRL_BEGIN + part)
        name = made.issuer.rfc4514_string()
        signers = [each for each in authorities if each.subject == made.issuer]
        if not any(made.is_signature_valid(each.public_key()) for each in signers):  # type: ignore[arg-type]
            raise ValueError(f"no authority has signed the list of {name}")
        issuer = made.issuer.public_bytes()
        revoked.update((issuer, each.serial_number) for each in made)
    if _CRL_BEGIN not in crl:
        raise ValueError("there is no list (PEM)")
    return frozenset(revoked)


def _content(path: str) -> bytes:
    if not path:
        return b""
    with open(path, "rb") as file:
        return file.read()


class Names(Struct, frozen=True):
    """The issuer and the number of a certificate, and the names of its owner."""

    #: Name of its issuer (DER), and its number there.
    issuer: bytes
    serial: int
    common_names: tuple[str, ...]
    dns_names: tuple[str, ...]
    emails: tuple[str, ...]

    def user(self, identity: Identity) -> str:
        """Return the only name of this kind, which is that of a user; empty if there is none, or
        several, or no header can carry it from a proxy to a broker."""
        if identity == "none":
            return ""
        names = self.common_names if identity == "CN" else (*self.dns_names, *self.emails)
        usable = len(names) == 1 and len(names[0]) <= _USER_NAME_MAX
        return names[0] if usable and names[0].isascii() and names[0].isprintable() else ""


@lru_cache(maxsize=1_024)
def names_of(certificate: bytes) -> Names | None:
    """Return the names in a verified certificate (PEM or DER); None if it cannot be read."""
    from cryptography import x509

    pem = certificate.startswith(b"-----BEGIN")
    load = x509.load_pem_x509_certificate if pem else x509.load_der_x509_certificate
    try:
        parsed = load(certificate)
        common = parsed.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        issuer, serial = parsed.issuer.public_bytes(), parsed.serial_number
        texts = tuple(str(each.value) for each in common)
        try:
            extension = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except x509.ExtensionNotFound:
            return Names(issuer, serial, texts, (), ())
        others = extension.value
        dns_names = tuple(others.get_values_for_type(x509.DNSName))
        emails = tuple(others.get_values_for_type(x509.RFC822Name))
    except ValueError:
        return None
    return Names(issuer, serial, texts, dns_names, emails)
