"""gRPC connections of an operator's program: typed calls, failures as sentences with exit codes.

A command connects to any node of the cluster (`--endpoint`); nodes forward requests that they do
not own. Channels (`links.py`) ignore HTTP proxies of the environment and do not retry. gRPC is
imported with the first call: help needs none.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .. import __version__
from ..proto import v2
from ..proto.errors import code_name
from .credentials import Credentials
from .errors import CliError, Exit, ForbiddenError, NotServedError
from .links import Links
from .nearest import with_names

if TYPE_CHECKING:
    import grpc

Metadata = tuple[tuple[str, str], ...]
CLIENT_ID = "x-mq-client-id"
#: Longest wait for an answer.
TIMEOUT_S = 10.0
_HINT_OF_KEYS = (
    ". A call is signed with the keys of --data DIR, of the context, or of COMETMQ_ACCESS_KEY and"
    " COMETMQ_SECRET_KEY."
)
#: The guard's answer to a call that no policy allows. Its groups: user, resource, actions.
_DENIED = re.compile(
    r"User:(\S+) has no permission to access (\S+) from \S+, no matched policies\."
    r" Needed: ([\w ]+)\."
)
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


class Caller:
    """The identity of this program: client id, cluster token, and the user that signs its calls."""

    def __init__(
        self,
        endpoint: str,
        links: Links,
        user: Credentials | None = None,
        *,
        has_token: bool = True,
    ) -> None:
        """Raise CliError for unreadable credentials, OSError for an unreadable token file."""
        client_id = f"cometmq-cli@{os.getpid()}@{secrets.token_hex(4)}"
        #: The metadata of every call.
        self.fixed: Metadata = (
            (CLIENT_ID, client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-client-version", __version__),
            ("x-mq-protocol", "v2"),
            *(links.token_metadata(endpoint) if has_token else ()),
        )
        self._credentials = user or links.credentials(endpoint)
        self._second = ""
        self._signed = self.fixed

    def metadata(self) -> Metadata:
        """Return the metadata of the next call; a signature is made once a second."""
        if self._credentials is not None:
            second = self.second()
            if second != self._second:
                self._second = second
                self._signed = (*self.fixed, *self._credentials.sign(second))
        return self._signed

    @property
    def user(self) -> str:
        """The name of the user; "" without one."""
        return self._credentials.access_key if self._credentials is not None else ""

    @staticmethod
    def second() -> str:
        """Return the present time, as signatures have it."""
        return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


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
    if "has no permission to access" in message:
        denied = _DENIED.fullmatch(message)
        return ForbiddenError(message + (_how_to_allow(*denied.groups()) if denied else ""))
    hint = _HINT_OF_KEYS if code == v2.UNAUTHORIZED else ""
    return CliError(f"{message or 'refused'} ({code_name(code)}){hint}", exit_code)


def _how_to_allow(user: str, resource: str, needed: str) -> str:
    """Return the command that gives a user a right."""
    words = ("--user", user, "--resource", resource, "--actions", needed.partition(" or ")[0])
    return f" An administrator allows it with: {shlex.join(['cometmq', 'acl', 'create', *words])}"


def failure(
    error: grpc.RpcError, endpoint: str, links: Links, *, instead: str = "node with --endpoint"
) -> CliError:
    """Convert a failed call to a CliError; `instead` is what the operator can name instead."""
    import grpc

    code = error.code()
    if code is grpc.StatusCode.UNAVAILABLE:
        with_tls = " with TLS" if links.uses_tls(endpoint) else ""
        return CliError(
            f"Cannot connect to {endpoint}{with_tls}. Start a cluster with `cometmq up`, or name a"
            f" running {instead}."
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return CliError(f"{endpoint} did not answer in time; the outcome is unknown.")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return NotServedError(
            f"{endpoint} does not support this call: it is another kind of port (brokers 8081,"
            " nameservers 9876 by default), or of an earlier version."
        )
    text = f"{endpoint} refused the call: {error.details()} ({code.name})."
    if code is grpc.StatusCode.PERMISSION_DENIED and links.cluster_token(endpoint):
        withheld = links.refusal_of_token(endpoint)
        text += f" Note: {withheld}." if withheld else ""
    return CliError(text)


class Connection:
    """A blocking connection to one endpoint; a context manager."""

    def __init__(
        self,
        endpoint: str,
        links: Links,
        user: Credentials | None = None,
        *,
        at: str = "",
        caller: Caller | None = None,
    ) -> None:
        """`user` signs the calls; None: the user of `links`. `caller` is another identity for them.

        `at` is an address from a route of the endpoint. It is called with the endpoint's TLS and
        user, as clients do, and without the cluster token: it may belong to another cluster.
        """
        self.endpoint = at or endpoint
        self.links = links
        self._caller = caller or Caller(endpoint, links, user, has_token=not at)
        self.channel = links.channel(endpoint, at)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    @property
    def metadata(self) -> Metadata:
        """The metadata of the next call."""
        return self._caller.metadata()

    @property
    def user(self) -> str:
        """The user that signs the calls; "" if they are not signed."""
        return self._caller.user

    def failure(self, error: grpc.RpcError) -> CliError:
        """Convert a failed call to a CliError; one to a wrong kind of port names the kind."""
        import grpc

        from .ports import CLIENT_PORT, kind_of_port

        wrong = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED)
        if error.code() in wrong:
            kind = kind_of_port(self.endpoint, self.links)
            if kind and kind != CLIENT_PORT:
                not_served = error.code() is grpc.StatusCode.UNIMPLEMENTED
                return (NotServedError if not_served else CliError)(
                    f"{self.endpoint} is {kind}. Name the client port of a broker with --endpoint"
                    " (8081 by default; `cometmq up` prints it)."
                )
        return failure(error, self.endpoint, self.links)

    def method(self, path: str, answer: type[R]) -> Callable[..., Any]:
        """Return the gRPC callable of one unary method."""
        return self.channel.unary_unary(  # type: ignore[no-any-return]
            path,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=answer.FromString,  # type: ignore[attr-defined]
        )

    def stream(
        self, path: str, request: Any, answer: type[R], timeout_s: float = TIMEOUT_S
    ) -> Iterator[R]:
        """Yield the answers of a streaming method; check the status of each. Raises CliError."""
        import grpc

        method: Callable[..., Any] = self.channel.unary_stream(
            path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,  # type: ignore[attr-defined]
        )
        try:
            for response in method(request, timeout=timeout_s, metadata=self.metadata):
                yield checked(response)
        except grpc.RpcError as error:
            raise self.failure(error) from None

    def pages(
        self,
        path: str,
        request: Any,
        answer: type[R],
        items: str,
        timeout_s: float = TIMEOUT_S,
    ) -> Iterator[R]:
        """Yield the pages of a list by name; `items` is the field of its entries. Raises
        CliError."""
        while True:
            page: Any = self.call(path, request, answer, timeout_s)
            yield page
            entries = getattr(page, items)
            if not (page.more and entries):
                return
            request.after = entries[-1].name

    def start(
        self, path: str, request: object, answer: type[R], timeout_s: float = TIMEOUT_S
    ) -> Callable[[], R]:
        """Start a call; the result waits for the answer, checks its status and returns it.

        It raises CliError.
        """
        import grpc

        pending = self.method(path, answer).future(  # type: ignore[attr-defined]
            request, timeout=timeout_s, metadata=self.metadata
        )

        def result() -> R:
            try:
                response: R = pending.result()
            except grpc.RpcError as error:
                raise self.failure(error) from None
            try:
                return checked(response)
            except CliError as error:
                raise with_names(error, request, self) from None

        return result

    def call(self, path: str, request: object, answer: type[R], timeout_s: float = TIMEOUT_S) -> R:
        """Call a method and check the status. Raises CliError."""
        return self.start(path, request, answer, timeout_s)()
