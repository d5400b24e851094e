"""Tls: how a client's connections use TLS; a value that can be sent to other processes."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc


@dataclass(frozen=True, slots=True)
class Tls:
    """Files' contents in PEM form."""

    roots: bytes = b""  #: certificate authorities; empty: the system's
    certificate: bytes = b""  #: the client's own, with `key`
    key: bytes = field(default=b"", repr=False)
    name: str = ""  #: host name that the server's certificate must have; empty: the address's

    def __post_init__(self) -> None:
        """Raise ValueError for a certificate without its key, or a key alone."""
        if bool(self.certificate) != bool(self.key):
            raise ValueError("TLS needs both a certificate and its key, or neither")

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials of a channel."""
        return grpc.ssl_channel_credentials(
            self.roots or None, self.key or None, self.certificate or None
        )

    def options(self) -> tuple[tuple[str, str], ...]:
        """Return further options of a channel."""
        return (("grpc.ssl_target_name_override", self.name),) if self.name else ()
