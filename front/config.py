"""Configuration of the front door and the access point.

The defaults satisfy the official clients (docs/formats/grpc-api.md, section 1.4) and protect
clients from each other. Keys in `broker.conf` are the camelCase form of the field names.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Self

_MIB = 1 << 20
_ZERO_ALLOWED = (
    "front_reserved_descriptors",
    "front_max_connection_rate",
    "front_max_address_connections",
)


def _setting(default: Any, help_text: str, unit: str = "") -> Any:
    metadata = {"help": help_text, "unit": unit} if unit else {"help": help_text}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class DoorConfig:
    """Settings of the front door, and of forwarding to other nodes."""

    front_door: str = _setting(
        "auto",
        "auto | grpcio | native: native costs several times less CPU per call and needs the "
        "package cometmq-native; auto uses it if it is installed",
    )
    front_max_receive_message_size: int = _setting(
        16 * _MIB,
        "largest request; above the body limit, so that clients get the broker's error, not "
        "gRPC's. A broker accepts at least maxMessageSize and 1 MiB, a nameserver 32 MiB",
        "bytes",
    )
    front_max_metadata_size: int = _setting(16 * 1024, "largest metadata of a request", "bytes")
    front_max_concurrent_streams: int = _setting(
        100_000,
        "streams on one connection: a push consumer holds one for each queue; grpcio door: at most "
        "8192",
    )
    front_max_concurrent_calls: int = _setting(
        200_000,
        "concurrent calls, long polls included; further ones are answered RESOURCE_EXHAUSTED",
    )
    front_min_ping_interval: int = _setting(
        10_000, "shortest interval between pings of a client; faster ones are disconnected", "ms"
    )
    front_max_connection_idle: int = _setting(
        120_000, "a connection without calls is closed after this time", "ms"
    )
    front_keepalive_time: int = _setting(
        60_000,
        "interval between pings on a silent connection, to detect vanished clients",
        "ms",
    )
    front_keepalive_timeout: int = _setting(
        20_000, "a connection whose ping is unanswered for this time is closed", "ms"
    )
    front_max_connections: int = _setting(
        50_000,
        "concurrent connections, one descriptor each; further ones are closed. At most the limit "
        "of descriptors less frontReservedDescriptors",
    )
    front_max_connection_rate: int = _setting(
        100,
        "native door: new connections of one address in a second; ten times as many may come at "
        "once, further ones are closed. Of one address five times as many may be open that have "
        "had no answer yet. Behind a load balancer with one address, set it higher; 0: no limit",
    )
    front_max_address_connections: int = _setting(
        0,
        "native door and remoting port: concurrent connections of one address (of IPv6: of one "
        "network of 64 bits); further ones are closed. 0: half of what the port accepts. Addresses "
        "of this machine have no limit. Behind a load balancer or a network with one address, set "
        "it as high as frontMaxConnections",
    )
    front_reserved_descriptors: int = _setting(
        0,
        "descriptors (ulimit -n) kept for the store, replication and metrics; 0: a quarter of the "
        "limit, at least 150 and at most half of it",
    )
    front_max_waiting_calls: int = _setting(
        20_000,
        "native door: requests that may wait for the event loop; further ones are answered "
        "RESOURCE_EXHAUSTED",
    )
    front_max_pending_resets: int = _setting(
        200,
        "streams that a client may open and reset before they are processed; with more within a "
        "second (native door: two and a half) it is disconnected",
    )
    front_handshake_timeout: int = _setting(
        10_000, "time limit for the handshake of a connection", "ms"
    )
    front_request_timeout: int = _setting(
        30_000,
        "time limit for the bytes of one request; on the grpcio door not for messages of a "
        "bidirectional stream",
        "ms",
    )
    front_unfinished_connection_bytes: int = _setting(
        64 * _MIB,
        "native door: bytes of unfinished requests of one connection; further requests are "
        "answered RESOURCE_EXHAUSTED (one request alone may be larger)",
        "bytes",
    )
    front_unfinished_bytes: int = _setting(
        256 * _MIB,
        "native door: bytes of unfinished requests of all connections; from half of it on, "
        "connections with more than their share are refused first. A remoting port has a third",
        "bytes",
    )
    front_unread_connection_bytes: int = _setting(
        128 * _MIB,
        "a client with more bytes of unread answers than this is disconnected (one "
        "answer alone may be larger)",
        "bytes",
    )
    front_unread_bytes: int = _setting(
        512 * _MIB,
        "if all clients together leave more bytes of answers unread, those that do "
        "not read are disconnected",
        "bytes",
    )
    front_write_timeout: int = _setting(
        60_000,
        "a client that reads hardly any of its answers for this time (under 16 KiB; grpcio door: "
        "not the whole message, once more for each MiB) is disconnected",
        "ms",
    )
    front_tls_certificate: str = _setting(
        "",
        "native door: file of the certificate chain (PEM), read again when it changes; empty: "
        "a certificate for development is generated at start",
    )
    front_tls_key: str = _setting("", "native door: file of the certificate's key (PEM)")
    front_tls_client_ca: str = _setting(
        "",
        "native door: file of certificate authorities (PEM); if set, clients need a certificate "
        "signed by one of them",
    )
    front_outbound_messages: int = _setting(
        1_000, "messages queued on a bidirectional stream for a slow client"
    )
    front_outbound_bytes: int = _setting(
        16 * _MIB, "bytes queued on a bidirectional stream", "bytes"
    )
    front_forward_channels: int = _setting(
        64, "connections to other nodes; the least recently used is closed"
    )
    front_forward_hold_margin: int = _setting(
        500, "a held request is answered this much before its deadline", "ms"
    )
    front_forward_hold_max: int = _setting(
        10_000, "longest hold of a request without a deadline", "ms"
    )
    front_forward_hold_bytes: int = _setting(
        64 * _MIB, "total size of held requests; further ones are refused", "bytes"
    )

    def accepting(self, request_bytes: int) -> Self:
        """Return these settings with a limit of at least `request_bytes` for a request."""
        if request_bytes <= self.front_max_receive_message_size:
            return self
        return replace(self, front_max_receive_message_size=request_bytes)

    def __post_init__(self) -> None:
        if self.front_door not in ("auto", "grpcio", "native"):
            raise ValueError(f"frontDoor must be auto, grpcio or native, not {self.front_door!r}")
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            least = 0 if name in _ZERO_ALLOWED else 1
            if isinstance(value, int) and value < least:
                raise ValueError(f"{_key(name)} must be at least {least}, not {value}")
        if bool(self.front_tls_certificate) != bool(self.front_tls_key):
            raise ValueError("Set both frontTlsCertificate and frontTlsKey, or neither.")
        if self.front_tls_client_ca and not self.front_tls_certificate:
            raise ValueError("frontTlsClientCa requires frontTlsCertificate and frontTlsKey.")


def _key(name: str) -> str:
    """Return the key of a field in `broker.conf`."""
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
