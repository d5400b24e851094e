"""The certificate of the native door: read from files, or generated for development.

The official Java, Go, C# and C++ clients use TLS by default and do not check the certificate, so
the door always has one, unless `tlsMode=disabled`. Configured files are read again when they
change; open connections keep the old certificate.
"""

import logging
import socket
from typing import TYPE_CHECKING

from ...nodes.certificates import CertificateFiles, Certificates
from ...nodes.node_links import NodeLinks
from ...proto.native import Native
from ..config import DoorConfig
from ..errors import CertificateError

if TYPE_CHECKING:
    from cometmq_native import Server

logger = logging.getLogger(__name__)


class DoorCertificate:
    """Loads the certificate and passes it to `Server.set_tls`."""

    def __init__(
        self,
        config: DoorConfig,
        links: NodeLinks,
        server: "Server",
        native: Native,
        *,
        nodes: bool = False,
    ) -> None:
        """`nodes`: a caller needs the certificate of a node; without files there is no TLS."""
        self._nodes = nodes
        self._config = config
        self._links = links
        self._server = server
        self._self_signed = native.self_signed
        self._files: CertificateFiles | None = None
        self._used: Certificates | None = None

    def install(self) -> None:
        """Load the certificate before the door listens. Raises CertificateError."""
        mode = self._links.tls.tls_mode
        if mode == "disabled" or (self._nodes and self._links.files is None):
            return
        if mode == "enforcing":
            self._server.refuse_plaintext()
        config = self._config
        if not config.front_tls_certificate and self._links.files is None:
            names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
            chain, key = self._self_signed(names)
            self._server.set_tls(chain.encode(), key.encode())
            return
        try:
            files = self._links.files
            if files is None or config.front_tls_certificate:
                files = CertificateFiles(
                    config.front_tls_certificate,
                    config.front_tls_key,
                    config.front_tls_client_ca,
                    self._links.tls.tls_crl if config.front_tls_client_ca else "",
                    setting="frontTlsCertificate",
                    kept=self._links.kept,
                )
            self._files = files
            self._use(files.current())
        except ValueError as error:
            raise CertificateError(str(error)) from error

    def refresh(self) -> None:
        """Load the files again if they have changed; invalid files are not loaded."""
        if self._files is None:
            return
        current = self._files.current()
        if current is not self._used:
            try:
                self._use(current)
            except ValueError as error:
                logger.warning("door.certificate_kept error=%s", error)
                self._files.keep(str(error))

    def _use(self, current: Certificates) -> None:
        """Pass certificates to the server. Raises ValueError."""
        self._used = current
        if self._config.front_tls_certificate:
            # Authorities of clients: each needs a certificate.
            self._server.set_tls(
                current.chain, current.key, current.authorities or None, crl=current.crl
            )
        else:
            # Authorities of nodes: clients have no certificate.
            optional = not self._nodes
            self._server.set_tls(
                current.chain, current.key, current.authorities, optional, current.crl
            )
