"""What a service may know about the call it answers: who asks, from where, and for how long.

A door fills one `RequestContext` a call. Of the metadata only the names below are picked (gRPC API
note, section 2.1); everything else a client sends is ignored. `metadata` keeps the picked pairs as
they came, so that the access point can pass them on to the owner.
"""

from collections.abc import Callable
from dataclasses import dataclass

CLIENT_ID = "x-mq-client-id"
LANGUAGE = "x-mq-language"
CLIENT_VERSION = "x-mq-client-version"
NAMESPACE = "x-mq-namespace"
TOKEN = "x-cometmq-token"
FORWARDED = "x-cometmq-forwarded"

#: Names that are picked and passed on as they are: identity, version and what a signature covers.
PICKED = frozenset(
    (
        CLIENT_ID,
        LANGUAGE,
        CLIENT_VERSION,
        NAMESPACE,
        TOKEN,
        FORWARDED,
        "authorization",
        "x-mq-date-time",
        "x-mq-protocol",
        "x-mq-protocol-version",
        "x-mq-session-token",
    )
)

_NS_PER_MS = 1_000_000
# Clients that try the addresses of one endpoint in turn (gRPC API note, section 9.1).
_SEVERAL_ADDRESSES = frozenset(("JAVA", "GO", "GOLANG", "CPP", "PYTHON", "RUST"))
# The others make all addresses together the server's name in TLS: refused as a name, or not the one of
# the certificate.
_SEVERAL_OVER_TLS = frozenset(("JAVA",))


def takes_several_addresses(language: str, tls: bool) -> bool:
    """Whether a client of this language can use several addresses of one endpoint."""
    name = language.upper()
    return name in (_SEVERAL_OVER_TLS if tls else _SEVERAL_ADDRESSES)


@dataclass(slots=True)
class RequestContext:
    """One call, as the services see it. Plain slots: one is made for every request."""

    client_id: str = ""
    language: str = ""
    client_version: str = ""
    namespace: str = ""
    #: "host:port" of the other end; "" where it has none (unix sockets).
    peer: str = ""
    #: On the steady clock; None when the client set no deadline.
    deadline_ns: int | None = None
    #: The request came through another node's access point and must not make a second hop.
    forwarded: bool = False
    token: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    #: Size of the request as it came; 0 for a stream of requests.
    request_bytes: int = 0
    #: Set by a handler whose answer takes something away (a pop): called on the loop, at most once,
    #: when there was an answer and it could not be given to the client. A wait that ends without an
    #: answer is a cancelled future instead.
    on_undelivered: Callable[[], None] | None = None
    #: The client speaks TLS with this node.
    tls: bool = False
    #: What the client proved to hold (DER), where the door asks clients for certificates.
    peer_certificate: bytes = b""

    def remaining_ms(self, now_ns: int) -> int | None:
        """Whole milliseconds until the deadline, 0 when it has passed, None without one."""
        if self.deadline_ns is None:
            return None
        return max(0, (self.deadline_ns - now_ns) // _NS_PER_MS)
