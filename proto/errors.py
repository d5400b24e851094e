"""The two kinds of failure of a call, and the table of status codes.

A business failure is a successful gRPC call whose answer carries `status{code, message}`: handlers
raise `WireError`. A failure of the call itself (unknown method, bad metadata, no permission) is a
gRPC status: they raise `RpcFailure`. Clients retry and isolate endpoints on gRPC statuses, so
handlers use codes wherever one exists.

Source: the client protocol's codes and the reactions of official clients (docs/formats/grpc-api.md,
sections 1.2 and 3.2).
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from . import v2

# The standard numbers of gRPC's status codes, as `RpcFailure.grpc_code` holds them.
CANCELLED: Final = 1
INVALID_ARGUMENT: Final = 3
DEADLINE_EXCEEDED: Final = 4
NOT_FOUND: Final = 5
PERMISSION_DENIED: Final = 7
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14

GRPC_NAMES: Final = {
    CANCELLED: "CANCELLED",
    INVALID_ARGUMENT: "INVALID_ARGUMENT",
    DEADLINE_EXCEEDED: "DEADLINE_EXCEEDED",
    NOT_FOUND: "NOT_FOUND",
    PERMISSION_DENIED: "PERMISSION_DENIED",
    RESOURCE_EXHAUSTED: "RESOURCE_EXHAUSTED",
    UNIMPLEMENTED: "UNIMPLEMENTED",
    INTERNAL: "INTERNAL",
    UNAVAILABLE: "UNAVAILABLE",
}

# The same request, sent again later, may succeed.
_RETRIABLE: Final = frozenset(
    {
        v2.REQUEST_TIMEOUT,
        v2.TOO_MANY_REQUESTS,
        v2.INTERNAL_ERROR,
        v2.INTERNAL_SERVER_ERROR,
        v2.HA_NOT_AVAILABLE,
        v2.PROXY_TIMEOUT,
        v2.MASTER_PERSISTENCE_TIMEOUT,
        v2.SLAVE_PERSISTENCE_TIMEOUT,
    }
)

# The outcome is unknown: the request may have taken effect, and a retry may apply it twice.
_UNKNOWN: Final = frozenset(
    {
        v2.REQUEST_TIMEOUT,
        v2.PROXY_TIMEOUT,
        v2.MASTER_PERSISTENCE_TIMEOUT,
        v2.SLAVE_PERSISTENCE_TIMEOUT,
    }
)


#: An error names this many broker groups.
_NAMES_MAX: Final = 5


class CodeInfo(Struct, frozen=True):
    """Meaning of a code for the client."""

    number: int
    name: str
    retriable: bool
    outcome_unknown: bool


CODES: Final[dict[int, CodeInfo]] = {
    number: CodeInfo(number, name, number in _RETRIABLE, number in _UNKNOWN)
    for name, number in v2.Code.items()
}


def code_name(code: int) -> str:
    """Return the code's name, or its digits for an unknown code."""
    info = CODES.get(code)
    return str(code) if info is None else info.name


def is_retriable(code: int) -> bool:
    """Return True if the same request may succeed later; False for an unknown code."""
    info = CODES.get(code)
    return info is not None and info.retriable


class WireError(Exception):
    """A business failure: `status{code, message}` in a successful answer."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = v2.Code.ValueType(code)
        self.message = message

    def __str__(self) -> str:
        return f"{code_name(self.code)} ({self.code}): {self.message}"

    def status(self) -> v2.Status:
        return v2.Status(code=self.code, message=self.message)


class RpcFailure(Exception):
    """A failure of the call itself: a gRPC status with a standard number."""

    def __init__(self, grpc_code: int, message: str) -> None:
        super().__init__(grpc_code, message)
        self.grpc_code = grpc_code
        self.message = message

    def __str__(self) -> str:
        name = GRPC_NAMES.get(self.grpc_code, "gRPC status")
        return f"{name} ({self.grpc_code}): {self.message}"


def absent_topic(topic: str, groups: Sequence[str]) -> WireError:
    """Return the answer to a request for a topic that none of the groups that are up has."""
    names = ", ".join(groups[:_NAMES_MAX])
    more = f" and {len(groups) - _NAMES_MAX} more" if len(groups) > _NAMES_MAX else ""
    return WireError(
        v2.PROXY_TIMEOUT,
        f"topic {topic} is in no broker group that is up, and may be in one that is not: "
        f"{names}{more}. Start it, or, if it is gone for good, run `cometmq cluster forget GROUP`",
    )


def absent_group(name: str) -> WireError:
    """Return the answer to a request for a broker group that is not up."""
    return WireError(
        v2.PROXY_TIMEOUT,
        f"broker group {name} is not up. Start it, or, if it is gone for good, run "
        f"`cometmq cluster forget {name}`",
    )
