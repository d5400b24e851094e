"""The context of a call for its service: client, peer address, deadline, metadata.

A door creates one `RequestContext` for each call. Only the metadata names below are picked
(docs/formats/grpc-api.md, section 2.1); all others are ignored. `metadata` keeps the picked pairs
unchanged, so that the access point can forward them to the owner; the mark of a forwarded request
and the cluster token belong to one hop and are left out.
"""

from collections.abc import Callable

from msgspec import Struct

from ..nodes.node_links import TOKEN_KEY
from ..proto.short_polls import SHORT_POLL

CLIENT_ID = "x-mq-client-id"
LANGUAGE = "x-mq-language"
CLIENT_VERSION = "x-mq-client-version"
NAMESPACE = "x-mq-namespace"
TOKEN = TOKEN_KEY
FORWARDED = "x-cometmq-forwarded"
USER = "x-cometmq-user"

#: Names that are picked: identity, version, the fields of a signature, and the mark of a poll that
#: is shorter than the protocol has it.
PICKED = frozenset(
    (
        CLIENT_ID,
        LANGUAGE,
        CLIENT_VERSION,
        NAMESPACE,
        TOKEN,
        FORWARDED,
        USER,
        "authorization",
        "x-mq-date-time",
        "x-mq-protocol",
        "x-mq-protocol-version",
        "x-mq-session-token",
        SHORT_POLL,
    )
)

#: Names that a node sets for one hop; the others are forwarded unchanged.
ONE_HOP = frozenset((FORWARDED, TOKEN, USER))

_NS_PER_MS = 1_000_000
# Clients that try the addresses of one endpoint in turn (docs/formats/grpc-api.md, section 9.1).
_SEVERAL_ADDRESSES = frozenset(("JAVA", "GO", "GOLANG", "CPP", "PYTHON", "RUST"))
# Other clients join all addresses into the TLS server name, which is invalid or does not match the
# certificate.
_SEVERAL_OVER_TLS = frozenset(("JAVA",))


def takes_several_addresses(language: str, tls: bool) -> bool:
    """Return True if clients of this language can use several addresses of one endpoint."""
    name = language.upper()
    return name in (_SEVERAL_OVER_TLS if tls else _SEVERAL_ADDRESSES)


class RequestContext(Struct):
    """One call. Plain slots, because one is created for every request."""

    client_id: str = ""
    language: str = ""
    client_version: str = ""
    namespace: str = ""
    #: "host:port" of the client; "" if it is unknown: a remote client with the least rights.
    peer: str = ""
    #: On the steady clock; None when the client set no deadline.
    deadline_ns: int | None = None
    #: The request is marked as forwarded by another node and must not be forwarded again. True only
    #: for nodes of the cluster behind an access point (`admission.py`).
    forwarded: bool = False
    token: str = ""
    metadata: tuple[tuple[str, str], ...] = ()
    #: Encoded size of the request; 0 for a stream of requests.
    request_bytes: int = 0
    #: Set by a handler whose answer has an effect (a pop): called on the loop, at most once, if an
    #: answer existed and could not be delivered. A wait that ends without an answer cancels the
    #: handler's future instead.
    on_undelivered: Callable[[], None] | None = None
    #: The client is connected with TLS.
    tls: bool = False
    #: The client's verified certificate (DER), if it has one and the door requests certificates.
    peer_certificate: bytes = b""
    #: "host:port" of the client of a forwarded request, as the forwarding node sent it. An access
    #: point replaces `peer` by it once it has admitted the node.
    forwarded_for: str = ""
    #: User that the certificate of the client of a forwarded request names, as the forwarding node
    #: sent it.
    forwarded_user: str = ""
    #: Arrival on the steady clock.
    begin_ns: int = 0
    #: User that the client's certificate names (`tlsClientIdentity`); empty: none. Set with the
    #: admission.
    user: str = ""
    #: Of another protocol, whose polls are held as long as they ask: as the metadata `SHORT_POLL`.
    short_poll: bool = False

    def has(self, name: str) -> bool:
        """Return True if the call has metadata of this name."""
        return any(key == name for key, _ in self.metadata)

    def remaining_ms(self, now_ns: int) -> int | None:
        """Return milliseconds until the deadline, 0 if it has passed, None without a deadline."""
        if self.deadline_ns is None:
            return None
        return max(0, (self.deadline_ns - now_ns) // _NS_PER_MS)
