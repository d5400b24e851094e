"""Calls of a task or planner to a cluster: blocking, over one gRPC channel, with the caller's keys.

Answers are protobuf messages; every failure is a sentence. A call that did not arrive is tried again within the
silence that `wireTimeoutMs` allows: all questions here may be asked twice.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import grpc

from ...client.clock import local_date_time, steady_s
from ...client.transport.addresses import Target, parse_endpoints
from ...client.transport.credentials import Caller, Credentials
from ...proto import v2
from ..errors import DataLossError, OptionError, PipelineError, UnreachableError
from .options import Access

A = TypeVar("A", bound=Any)
_OPTIONS: Final = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),
    # A stream of raw frames: fewer, larger windows.
    ("grpc.http2.bdp_probe", 1),
)
_AGAIN: Final = (grpc.StatusCode.UNAVAILABLE,)
_PAUSE_S: Final = 0.2
#: A broker that restarts or hands over its lead answers so for a moment.
_BUSY: Final = frozenset((v2.HA_NOT_AVAILABLE, v2.TOO_MANY_REQUESTS, v2.PROXY_TIMEOUT))


class NotServedError(PipelineError):
    """The other side does not know this call."""


class NoTopicError(PipelineError):
    """There is no such topic."""


class Channel:
    """One channel to one access point."""

    def __init__(self, access: Access, target: Target | None = None) -> None:
        try:
            self.target = target or parse_endpoints(access.endpoints)
        except ValueError as error:
            raise OptionError(f"endpoints: {error}") from None
        self._access = access
        keys = None
        if access.access_key:
            keys = Credentials(access.access_key, access.secret_key, access.security_token)
        self._caller = Caller(f"spark@{os.getpid()}", keys, "", local_date_time)
        name = self.target.name()
        self._channel = (
            grpc.secure_channel(name, grpc.ssl_channel_credentials(), _OPTIONS)
            if access.tls
            else grpc.insecure_channel(name, _OPTIONS)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def call(self, path: str, request: Any, answer: type[A]) -> A:
        """One question. Raises NotServedError, DataLossError, UnreachableError, PipelineError."""
        call = self._channel.unary_unary(path)
        stop = steady_s() + self._access.timeout_ms / 1000
        while True:
            try:
                raw = call(
                    request.SerializeToString(),
                    timeout=max(stop - steady_s(), 0.1),
                    metadata=self._caller.metadata(),
                    wait_for_ready=True,
                )
                found: A = self._checked(path, answer.FromString(raw))
                return found
            except grpc.RpcError as error:
                if error.code() not in _AGAIN or steady_s() >= stop:
                    raise self._failure(path, error) from None
            except _BusyError as error:
                if steady_s() >= stop:
                    raise UnreachableError(str(error)) from None
            pause()

    def stream(self, path: str, request: Any, answer: type[A]) -> Iterator[A]:
        """Many answers, as they come; what breaks, or lasts longer than `wireTimeoutMs`, is for the caller to
        begin again."""
        call = self._channel.unary_stream(path)(
            request.SerializeToString(),
            metadata=self._caller.metadata(),
            wait_for_ready=True,
            timeout=self._access.timeout_ms / 1000,
        )
        try:
            for raw in call:
                yield self._checked(path, answer.FromString(raw))
        except grpc.RpcError as error:
            raise self._failure(path, error) from None
        finally:
            call.cancel()

    def _checked(self, path: str, answer: A) -> A:
        """The answer, if it says OK (or says nothing of it)."""
        code, text = _status(answer)
        if code in (0, v2.OK, v2.MESSAGE_NOT_FOUND):
            return answer
        said = f"{self.target} answered {path.rsplit('/', 1)[1]}: {text}"
        if code == v2.ILLEGAL_OFFSET:
            raise DataLossError(f"{said} Set failOnDataLoss=false to go on with what is there.")
        if code in (v2.UNSUPPORTED, v2.NOT_IMPLEMENTED):
            raise NotServedError(said)
        if code == v2.TOPIC_NOT_FOUND:
            raise NoTopicError(said)
        if code in _BUSY:
            raise _BusyError(said)
        raise PipelineError(said)

    def _failure(self, path: str, error: grpc.RpcError) -> PipelineError:
        """A failed call as a sentence."""
        name, code = path.rsplit("/", 1)[1], error.code()
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return NotServedError(f"{self.target} does not serve {name}.")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return UnreachableError(
                f"{self.target} does not answer {name}: {error.details() or code.name}."
            )
        return PipelineError(f"{self.target} refused {name}: {error.details() or code.name}.")


class _BusyError(UnreachableError):
    """Not now; later."""


def _status(answer: Any) -> tuple[int, str]:
    if answer.DESCRIPTOR.fields_by_name.get("status") is not None:
        fields = answer.DESCRIPTOR.oneofs_by_name.get("content")
        if fields is not None and answer.WhichOneof("content") != "status":
            return 0, ""
        return int(answer.status.code), str(answer.status.message)
    return int(answer.code), str(answer.message)


def pause() -> None:
    """Before the next try."""
    threading.Event().wait(_PAUSE_S)
