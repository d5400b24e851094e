"""Settings of TLS on the ports of a node and between nodes; the same for broker, nameserver and
proxy.

`permissive` without certificates is the default: the client port and the nameserver accept
plaintext and, on the native door, TLS with a certificate made at the start; nodes call each other
in plaintext.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

TlsMode = Literal["disabled", "permissive", "enforcing"]
#: Which name of a client's certificate is that of its user.
Identity = Literal["none", "CN", "SAN"]


def _setting(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS of one node."""

    tls_mode: TlsMode = field(
        default="permissive",
        metadata={
            "help": "what the ports of clients, nameserver and replication accept: disabled "
            "(plaintext), permissive (plaintext and TLS; replication only with tlsCertificate), "
            "enforcing (TLS)"
        },
    )
    tls_certificate: str = _setting(
        "",
        "file of this node's certificate chain (PEM) for all ports and for calls to other nodes, "
        "read again when it changes",
    )
    tls_key: str = _setting("", "file of the key of tlsCertificate (PEM)")
    tls_ca: str = _setting(
        "", "file of the certificate authorities (PEM) that sign the certificates of nodes"
    )
    tls_node_name: str = _setting(
        "node.cometmq.internal",
        "DNS name in the certificate of every node: a certificate of tlsCa with this name has the "
        "rights of a node",
    )
    tls_client_identity: Identity = field(
        default="none",
        metadata={
            "help": "user of a client that signs nothing and has a certificate of tlsCa: the one "
            "with its only common name (CN), or its only DNS name or e-mail address (SAN). A "
            "certificate with tlsNodeName names no user. none: clients sign"
        },
    )
    tls_crl: str = _setting(
        "",
        "file of the revocation lists (PEM) of the authorities of tlsCa or frontTlsClientCa, read "
        "again when it changes: a certificate in one is refused, also on open connections",
    )
    tls_node_calls: bool = _setting(
        False,
        "with tlsMode=permissive: call other nodes with TLS (set it when all nodes are permissive, "
        "and before one is enforcing)",
    )
    trusted_network: bool = _setting(
        False,
        "the network between the nodes is private: send clusterToken in plaintext to nodes on "
        "other machines if calls have no TLS",
    )

    def __post_init__(self) -> None:
        """Raise ValueError for contradictory settings."""
        if self.tls_mode not in ("disabled", "permissive", "enforcing"):
            raise ValueError(
                f"tlsMode must be disabled, permissive or enforcing, not {self.tls_mode!r}."
            )
        files = self.tls_certificate, self.tls_key, self.tls_ca
        if any(files) and not all(files):
            raise ValueError("Set tlsCertificate, tlsKey and tlsCa together, or none of them.")
        if self.tls_mode == "enforcing" and not all(files):
            raise ValueError("tlsMode=enforcing requires tlsCertificate, tlsKey and tlsCa.")
        if self.tls_node_calls and not self.has_certificates:
            raise ValueError(
                "tlsNodeCalls=true requires tlsCertificate, tlsKey and tlsCa, and another tlsMode "
                "than disabled."
            )
        if self.tls_client_identity not in ("none", "CN", "SAN"):
            raise ValueError(
                f"tlsClientIdentity must be none, CN or SAN, not {self.tls_client_identity!r}."
            )
        if not self.tls_node_name:
            raise ValueError("tlsNodeName must not be empty.")

    @property
    def has_certificates(self) -> bool:
        """True if the ports use `tls_certificate`."""
        return bool(self.tls_certificate) and self.tls_mode != "disabled"

    @property
    def calls_with_tls(self) -> bool:
        """True if this node calls other nodes with TLS."""
        return self.tls_mode == "enforcing" or self.tls_node_calls
