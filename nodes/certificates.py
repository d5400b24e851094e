"""Certificate files of a node: read at the start and again when they change; names in certificates.

A replacement that cannot be used (a missing file, a key of another certificate) is logged once and
the former certificate stays in use. Open connections keep the certificate that they began with.
`cryptography` is imported where it is used: that takes 30 to 50 ms, which a node without
certificates saves at its start.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Certificates:
    """The content of the files, as PEM."""

    chain: bytes
    key: bytes = field(repr=False)
    #: Certificate authorities of the other side; empty if there is no file.
    authorities: bytes


class CertificateFiles:
    """The files of a certificate, its key and, optionally, certificate authorities."""

    def __init__(self, certificate: str, key: str, authorities: str = "") -> None:
        """Raises ValueError with a sentence if the files cannot be used."""
        self._paths = certificate, key, authorities
        try:
            self._seen = self._stamps()
            self._current = self._read()
        except (OSError, ValueError) as error:
            raise ValueError(f"Cannot load the certificate {certificate}: {error}.") from error

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
        else:
            logger.info("certificate.replaced file=%s", self._paths[0])
        return self._current

    def _stamps(self) -> Sequence[tuple[int, int, int]]:
        """Return what changes when a file is written or replaced."""
        found = [os.stat(path) for path in self._paths if path]
        return [(each.st_mtime_ns, each.st_ino, each.st_size) for each in found]

    def _read(self) -> Certificates:
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        chain, key, authorities = (_content(path) for path in self._paths)
        leaf = x509.load_pem_x509_certificate(chain)
        try:
            private = load_pem_private_key(key, None)
        except (TypeError, UnsupportedAlgorithm) as error:  # an encrypted key is a TypeError
            raise ValueError(f"the key {self._paths[1]} cannot be used: {error}") from error
        if private.public_key() != leaf.public_key():
            raise ValueError("the key belongs to another certificate")
        if self._paths[2] and not x509.load_pem_x509_certificates(authorities):
            raise ValueError(f"{self._paths[2]} has no certificate")
        return Certificates(chain, key, authorities)


def _content(path: str) -> bytes:
    if not path:
        return b""
    with open(path, "rb") as file:
        return file.read()


@lru_cache(maxsize=1_024)
def has_dns_name(certificate: bytes, name: str) -> bool:
    """Return whether a verified certificate (PEM or DER) has a DNS name."""
    from cryptography import x509

    pem = certificate.startswith(b"-----BEGIN")
    try:
        parsed = (x509.load_pem_x509_certificate if pem else x509.load_der_x509_certificate)(
            certificate
        )
        names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return name in names.get_values_for_type(x509.DNSName)
    except (ValueError, x509.ExtensionNotFound):
        return False
