"""Links between the nodes of a cluster: channels, the cluster token, and admission of callers.

A node is a caller with the cluster token (metadata `x-cometmq-token`) or with a certificate of
`tlsCa` that has the name `tlsNodeName`. Without a token and a certificate only processes of this
machine are nodes. The token is sent over TLS and to this machine; to another machine in plaintext
only if the settings call the network trusted: a listener would have all rights of a node.
"""

import hmac
import logging
import ssl
from collections.abc import Iterable, Sequence
from typing import Any, Final

import grpc
import grpc.aio

from .addresses import is_local
from .certificates import CertificateFiles, Certificates, Names, names_of
from .tls_config import TlsConfig

logger = logging.getLogger(__name__)

TOKEN_KEY: Final = "x-cometmq-token"
Metadata = tuple[tuple[str, str], ...]


class NodeLinks:
    """How one node calls the others, and recognizes them; used on one event loop."""

    def __init__(self, token: str = "", tls: TlsConfig | None = None) -> None:
        """Read the certificates. Raises ValueError with a sentence."""
        self.token = token
        self.tls = tls or TlsConfig()
        config = self.tls
        #: What was replaced, cannot be used, and is served as before: the reason by the setting.
        self.kept: dict[str, str] = {}
        self.files: CertificateFiles | None = None
        if config.has_certificates:
            files = config.tls_certificate, config.tls_key, config.tls_ca, config.tls_crl
            self.files = CertificateFiles(*files, kept=self.kept)
            if config.tls_mode == "permissive" and not token:
                raise ValueError(
                    "tlsMode=permissive with tlsCertificate requires clusterToken: callers in "
                    "plaintext have no certificate."
                )
        self._carried: Metadata = ((TOKEN_KEY, token),) if token else ()
        self._dial: tuple[Certificates, grpc.ChannelCredentials] | None = None
        self._serve: tuple[Certificates, ssl.SSLContext] | None = None
        self._name = ("grpc.ssl_target_name_override", config.tls_node_name)
        self._withheld: set[str] = set()

    # --- calls ------------------------------------------------------------------------------------

    def channel(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
        """Return a new channel to a node, with the present certificate."""
        credentials = self.credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, credentials, options=[*options, self._name])

    def blocking_channel(self, address: str, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
        """Return a new channel for code without an event loop."""
        credentials = self.credentials()
        if credentials is None:
            return grpc.insecure_channel(address, options=options)
        return grpc.secure_channel(address, credentials, options=[*options, self._name])

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Return the credentials of new channels, None for plaintext; the same object until the
        certificate changes."""
        if self.files is None or not self.tls.calls_with_tls:
            return None
        current = self.files.current()
        if self._dial is None or self._dial[0] is not current:
            made = grpc.ssl_channel_credentials(current.authorities, current.key, current.chain)
            self._dial = current, made
        return self._dial[1]

    def metadata(self, address: str) -> Metadata:
        """Return the token as metadata for a call; empty if it must not be sent there."""
        if not self._carried or self.may_send(address):
            return self._carried
        if address not in self._withheld:
            self._withheld.add(address)
            logger.error(
                "token.withheld address=%s: a call in plaintext to another machine does not carry "
                "clusterToken; use tlsMode=enforcing or trustedNetwork=true",
                address,
            )
        return ()

    def may_send(self, address: str) -> bool:
        """Return whether the token may be sent to HOST:PORT."""
        config = self.tls
        return config.calls_with_tls or config.trusted_network or is_local(address)

    def check_addresses(self, addresses: Iterable[str]) -> None:
        """Raise ValueError if the token must not be sent to one of the configured nodes."""
        for address in addresses if self.token else ():
            if not self.may_send(address):
                raise ValueError(
                    f"clusterToken would be sent in plaintext to {address}: set tlsMode=enforcing "
                    "with certificates (docs/security.md), or trustedNetwork=true if the network "
                    "between the nodes is private."
                )

    def client_context(self) -> ssl.SSLContext | None:
        """Return the context of a connection to a node, None for plaintext."""
        if self.files is None or not self.tls.calls_with_tls:
            return None
        current = self.files.current()
        context = ssl.create_default_context(cadata=current.authorities.decode())
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    # --- callers ----------------------------------------------------------------------------------

    def admits(self, token: str, certificate: bytes, *, local: bool) -> bool:
        """Return whether a caller is a node.

        `certificate` is its verified certificate (PEM or DER), or empty; `local`: it is a process
        of this machine.
        """
        if certificate and self.files is not None:
            names = names_of(certificate)
            if names is not None and self._is_revoked(names):
                return False
            if names is not None and self.tls.tls_node_name in names.dns_names:
                return True
        if not self.token:
            return local
        return hmac.compare_digest(token.encode(), self.token.encode())

    def user_of(self, certificate: bytes) -> str:
        """Return the user that a client's verified certificate (PEM or DER) names; empty if it
        names none, is revoked, or is that of a node, which acts for others."""
        if not certificate or self.tls.tls_client_identity == "none":
            return ""
        names = names_of(certificate)
        if names is None or self._is_revoked(names) or self.tls.tls_node_name in names.dns_names:
            return ""
        return names.user(self.tls.tls_client_identity)

    @property
    def revoked(self) -> frozenset[tuple[bytes, int]]:
        """What the revocation lists name: issuers and serial numbers."""
        return self.files.last.revoked if self.files is not None else frozenset()

    def forwarded_user(self, user: str) -> str:
        """Return the user that another node has found in a client's certificate; empty if this
        node takes no users of certificates."""
        return "" if self.tls.tls_client_identity == "none" else user

    def _is_revoked(self, names: Names) -> bool:
        return (names.issuer, names.serial) in self.revoked

    def server_context(self) -> ssl.SSLContext | None:
        """Return the context of a TLS server that takes a certificate of clients if it names their
        users, None without certificates; the same object until they change."""
        if self.files is None:
            return None
        current = self.files.current()
        if self._serve is None or self._serve[0] is not current:
            try:
                self._serve = current, _context(self.tls)
            except (OSError, ValueError) as error:  # replaced between the two reads
                if self._serve is None:
                    raise
                logger.warning("certificate.kept file=%s error=%s", self.tls.tls_certificate, error)
        return self._serve[1]

    def server_credentials(self, *, require_client: bool) -> grpc.ServerCredentials:
        """Return credentials for a grpcio server; each new connection gets the present certificate.

        `require_client`: refuse clients without a certificate of `tls_ca`.
        """
        files = self.files
        assert files is not None, "a server without certificates serves plaintext"
        used = files.current()

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal used
            current = files.current()
            if current is used:
                return None
            used = current
            return _server_certificate(current)

        return grpc.dynamic_ssl_server_credentials(
            _server_certificate(used), changed, require_client_authentication=require_client
        )


def _context(config: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(config.tls_certificate, config.tls_key)
    if config.tls_client_identity != "none":
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(config.tls_ca)
    return context


def _server_certificate(certificates: Certificates) -> grpc.ServerCertificateConfiguration:
    pairs = [(certificates.key, certificates.chain)]
    return grpc.ssl_server_certificate_configuration(pairs, certificates.authorities or None)
