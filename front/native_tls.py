"""The certificate of the native door: read from files, or generated for development.

The official Java, Go, C# and C++ clients use TLS by default and do not check the certificate, so
the door always has one. Configured files are read again when they change; open connections keep the
old certificate.
"""

import logging
import os
import socket
from typing import Any

from cometmq_native import self_signed

from .config import DoorConfig
from .errors import CertificateError

logger = logging.getLogger(__name__)


class DoorCertificate:
    """Loads the certificate and passes it to `Server.set_tls`."""

    def __init__(self, config: DoorConfig, server: Any) -> None:
        self._files = (config.front_tls_certificate, config.front_tls_key)
        self._ca = config.front_tls_client_ca
        self._server = server
        self._seen: tuple[int, ...] = ()

    def install(self) -> None:
        """Load the certificate before the door listens. Raises CertificateError."""
        if not self._files[0]:
            names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
            chain, key = self_signed(names)
            self._server.set_tls(chain.encode(), key.encode())
            return
        try:
            self._seen = self._changed_at()
            self._read()
        except (OSError, ValueError) as error:
            raise CertificateError(f"Cannot load the front door's certificate: {error}.") from error

    def refresh(self) -> None:
        """Load the files again if they have changed; invalid files are not loaded."""
        if not self._files[0]:
            return
        try:
            changed_at = self._changed_at()
            if changed_at != self._seen:
                self._seen = changed_at
                self._read()
                logger.info("door.certificate_replaced file=%s", self._files[0])
        except (OSError, ValueError) as error:
            logger.warning("door.certificate_kept file=%s error=%s", self._files[0], error)

    def _changed_at(self) -> tuple[int, ...]:
        return tuple(os.stat(file).st_mtime_ns for file in (*self._files, self._ca) if file)

    def _read(self) -> None:
        chain, key = (_bytes(file) for file in self._files)
        self._server.set_tls(chain, key, _bytes(self._ca) if self._ca else None)


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
