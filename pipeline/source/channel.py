"""Blocking calls of a task or planner to a cluster, over one gRPC channel.

Failures raise a PipelineError with a sentence. A call without a response is retried within
`wireTimeoutMs`: all calls here are idempotent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
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
    ("grpc.enable_http_proxy", 0),
    # Streams of raw frames need large windows.
    ("grpc.http2.bdp_probe", 1),
)
_RETRYABLE: Final = (grpc.StatusCode.UNAVAILABLE,)
_PAUSE_S: Final = 0.2
#: Codes that a broker returns temporarily during a restart or failover.
_BUSY: Final = frozenset((v2.HA_NOT_AVAILABLE, v2.TOO_MANY_REQUESTS, v2.PROXY_TIMEOUT))


class NotServedError(PipelineError):
    """The broker does not support this call."""


class NoTopicError(PipelineError):
    """The topic does not exist."""


class Channel:
    """A gRPC channel to one access point."""

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
            grpc.insecure_channel(name, _OPTIONS)
            if access.tls is None
            else grpc.secure_channel(
                name, access.tls.credentials(), (*_OPTIONS, *access.tls.options())
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def call(self, path: str, request: Any, answer: type[A]) -> A:
        """Make one call with retries.

        Raises NotServedError, NoTopicError, DataLossError, UnreachableError, PipelineError.
        """
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
                if error.code() not in _RETRYABLE or steady_s() >= stop:
                    raise self._failure(path, error) from None
            except _BusyError as error:
                if steady_s() >= stop:
                    raise UnreachableError(str(error)) from None
            pause()

    def stream(self, path: str, request: Any, answer: type[A]) -> Iterator[A]:
        """Yield the responses of one call. Raises as `call` does, without retries.

        The call ends after `wireTimeoutMs`; the caller continues with another one.
        """
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
        """Return a response with status OK or without status. Raises for other codes."""
        code, text = _status(answer)
        if code in (0, v2.OK, v2.MESSAGE_NOT_FOUND):
            return answer
        sentence = f"{self.target} refused {path.rsplit('/', 1)[1]}: {text}."
        if code == v2.ILLEGAL_OFFSET:
            raise DataLossError(sentence)
        if code in (v2.UNSUPPORTED, v2.NOT_IMPLEMENTED):
            raise NotServedError(sentence)
        if code == v2.TOPIC_NOT_FOUND:
            raise NoTopicError(sentence)
        if code in _BUSY:
            raise _BusyError(sentence)
        raise PipelineError(sentence)

    def _failure(self, path: str, error: grpc.RpcError) -> PipelineError:
        """Translate a failed call."""
        name, code = path.rsplit("/", 1)[1], error.code()
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return NotServedError(f"{self.target} does not support {name}.")
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return UnreachableError(
                f"{self.target} does not answer {name}: {error.details() or code.name}."
            )
        return PipelineError(f"{self.target} refused {name}: {error.details() or code.name}.")


class _BusyError(UnreachableError):
    """The broker is temporarily unavailable."""


def _status(answer: Any) -> tuple[int, str]:
    if answer.DESCRIPTOR.fields_by_name.get("status") is not None:
        fields = answer.DESCRIPTOR.oneofs_by_name.get("content")
        if fields is not None and answer.WhichOneof("content") != "status":
            return 0, ""
        return int(answer.status.code), str(answer.status.message)
    return int(answer.code), str(answer.message)


def pause() -> None:
    """Wait before the next attempt."""
    threading.Event().wait(_PAUSE_S)
