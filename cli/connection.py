"""gRPC connections of the command line: typed calls, failures as sentences with exit codes.

A command connects to any node of the cluster (`--endpoint`); nodes forward requests that they do
not own. Channels ignore HTTP proxies of the environment and do not retry.
"""

import os
import secrets
import types
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import grpc

from .. import __version__
from ..proto import v2
from ..proto.errors import code_name
from .errors import CliError, Exit

CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
_TIMEOUT_S = 10.0
_NOT_FOUND = frozenset(
    (
        v2.NOT_FOUND,
        v2.TOPIC_NOT_FOUND,
        v2.CONSUMER_GROUP_NOT_FOUND,
        v2.MESSAGE_NOT_FOUND,
        v2.OFFSET_NOT_FOUND,
    )
)


class Answer(Protocol):
    """A response class of the generated modules."""

    @classmethod
    def FromString(cls, data: bytes) -> Any:
        """Parse."""


R = TypeVar("R")


def target(endpoint: str) -> str:
    """Return the gRPC target of HOST:PORT or of alternatives. Raises CliError."""
    addresses = [part.strip() for part in endpoint.split(";") if part.strip()]
    for address in addresses:
        host, colon, port = address.rpartition(":")
        if not host or not colon or not port.isdigit() or not 0 < int(port) <= 65_535:
            raise CliError(f"--endpoint must be HOST:PORT, but is '{endpoint}'.", Exit.USAGE)
    if not addresses:
        raise CliError("--endpoint must be HOST:PORT, but is empty.", Exit.USAGE)
    if len(addresses) == 1:
        return addresses[0]
    scheme = "ipv6" if addresses[0].startswith("[") else "ipv4"
    return f"{scheme}:{','.join(addresses)}"


def metadata() -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call: client id, language, version and the cluster token."""
    client_id = f"cometmq-cli@{os.getpid()}@{secrets.token_hex(4)}"
    pairs = (
        ("x-mq-client-id", client_id),
        ("x-mq-language", "PYTHON"),
        ("x-mq-client-version", __version__),
        ("x-mq-protocol", "v2"),
    )
    token = os.environ.get("COMETMQ_CLUSTER_TOKEN", "")
    return (*pairs, ("x-cometmq-token", token)) if token else pairs


def checked(response: R) -> R:
    """Return the response if its status is OK; raise CliError with the node's message if not."""
    status: Any = response
    if not hasattr(response, "code"):
        status = status.status
    if status.code != v2.OK:
        raise refusal(status.code, status.message)
    return response


def refusal(code: int, message: str) -> CliError:
    """Convert a status code and message to a CliError."""
    exit_code = Exit.NOT_FOUND if code in _NOT_FOUND else Exit.FAILED
    return CliError(f"{message or 'refused'} ({code_name(code)})", exit_code)


def failure(error: grpc.RpcError, endpoint: str) -> CliError:
    """Convert a failed call to a CliError."""
    code = error.code()
    if code is grpc.StatusCode.UNAVAILABLE:
        return CliError(
            f"Cannot connect to {endpoint}. Start a cluster with `cometmq up`, or name a running"
            " node with --endpoint."
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return CliError(f"{endpoint} did not answer in time; the outcome is unknown.")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return CliError(f"{endpoint} does not support this call. Is it a broker's client port?")
    return CliError(f"{endpoint} refused the call: {error.details()} ({code.name}).")


class Connection:
    """A blocking connection to one endpoint; a context manager."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.metadata = metadata()
        self.channel = grpc.insecure_channel(target(endpoint), options=CHANNEL_OPTIONS)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.channel.close()

    def method(self, path: str, answer: type[R]) -> Callable[..., Any]:
        """Return the gRPC callable of one unary method."""
        return self.channel.unary_unary(  # type: ignore[no-any-return]
            path,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=answer.FromString,  # type: ignore[attr-defined]
        )

    def call(self, path: str, request: object, answer: type[R], timeout_s: float = _TIMEOUT_S) -> R:
        """Call a method and check the status. Raises CliError."""
        try:
            response = self.method(path, answer)(request, timeout=timeout_s, metadata=self.metadata)
        except grpc.RpcError as error:
            raise failure(error, self.endpoint) from None
        result: R = checked(response)
        return result
