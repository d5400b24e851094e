"""Configuration of the front door and the access point.

The defaults are what the official clients need (gRPC API note, section 1.4) and what keeps one bad
client from harming the others. Names follow the file `broker.conf`: camelCase of the field.
"""

from dataclasses import dataclass, field
from typing import Any

_MIB = 1 << 20


def _key(default: Any, help: str, unit: str = "") -> Any:
    metadata = {"help": help, "unit": unit} if unit else {"help": help}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class DoorConfig:
    """How requests come in, and how those for another node are passed on."""

    front_door: str = _key(
        "auto",
        "auto | grpcio | native: native is several times cheaper a call and needs the package "
        "cometmq-native; auto takes it when it is installed",
    )
    front_max_receive_message_size: int = _key(
        130 * _MIB,
        "largest request; clients near the body limit must get the broker's own error, not gRPC's",
        "bytes",
    )
    front_max_metadata_size: int = _key(16 * 1024, "largest metadata of a request", "bytes")
    front_max_concurrent_streams: int = _key(
        100_000,
        "streams on one connection: a push consumer holds one a queue, and none may wait silently",
    )
    front_max_concurrent_calls: int = _key(
        200_000,
        "calls in this process at once, long polls included; more are answered RESOURCE_EXHAUSTED",
    )
    front_min_ping_interval: int = _key(
        10_000, "clients may ping this often without being closed", "ms"
    )
    front_max_connection_idle: int = _key(
        120_000, "a connection without calls is closed after this time", "ms"
    )
    front_keepalive_time: int = _key(
        60_000,
        "a silent connection is pinged this often, so that vanished clients are noticed",
        "ms",
    )
    front_keepalive_timeout: int = _key(
        20_000, "a connection whose ping is not answered for this long is closed", "ms"
    )
    front_max_connections: int = _key(
        50_000, "native door: connections at once, a descriptor each; more are closed at once"
    )
    front_max_waiting_calls: int = _key(
        20_000,
        "native door: requests that may wait for the event loop; more are answered "
        "RESOURCE_EXHAUSTED",
    )
    front_max_pending_resets: int = _key(
        200, "native door: streams that a client may open and reset before it is closed"
    )
    front_handshake_timeout: int = _key(
        10_000, "native door: a client that has not said what it speaks by then is closed", "ms"
    )
    front_write_timeout: int = _key(
        60_000,
        "native door: a client that takes nothing of its answers for so long is closed",
        "ms",
    )
    front_tls_certificate: str = _key(
        "",
        "native door: file of the certificate chain (PEM), read again when it changes; empty: "
        "a certificate for development is made at start",
    )
    front_tls_key: str = _key("", "native door: file of the certificate's key (PEM)")
    front_tls_client_ca: str = _key(
        "", "native door: file of the authorities (PEM) that clients need a certificate of"
    )
    front_outbound_messages: int = _key(
        1_000, "messages that may wait on a bidirectional stream for a client that reads slowly"
    )
    front_outbound_bytes: int = _key(
        16 * _MIB, "bytes that may wait on a bidirectional stream", "bytes"
    )
    front_forward_channels: int = _key(
        64, "connections to other nodes that the access point keeps; the longest unused is closed"
    )
    front_forward_hold_margin: int = _key(
        500, "a held request is answered this long before its deadline", "ms"
    )
    front_forward_hold_max: int = _key(
        10_000, "a request without a deadline is held this long", "ms"
    )
    front_forward_hold_bytes: int = _key(
        64 * _MIB, "requests of this size in all may be held; more are refused at once", "bytes"
    )

    def __post_init__(self) -> None:
        if self.front_door not in ("auto", "grpcio", "native"):
            raise ValueError(f"frontDoor is auto, grpcio or native, not {self.front_door!r}")
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if bool(self.front_tls_certificate) != bool(self.front_tls_key):
            raise ValueError("frontTlsCertificate and frontTlsKey belong together: set both.")
        if self.front_tls_client_ca and not self.front_tls_certificate:
            raise ValueError("frontTlsClientCa needs frontTlsCertificate and frontTlsKey.")
