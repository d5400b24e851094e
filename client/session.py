"""Session of a client: connections, routes, settings, heartbeats.

A topic's route is requested on first use and refreshed every 30 s, or immediately when a server
refuses because it is not the leader. Every endpoint of a route gets a connection with a telemetry
stream, and a heartbeat every 10 s. A failed endpoint is avoided for a few seconds. `close` notifies
the brokers and leaves no task behind. A session belongs to one event loop and one process: after a
fork it raises Forked (docs/formats/grpc-api.md, sections 8 and 9).
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import platform
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

from ..proto import paths, v2
from ..proto.errors import is_retriable
from .clock import local_date_time, steady_s
from .errors import (
    Closed,
    CometError,
    ConnectionFailed,
    Forked,
    NotFound,
    RequestRefused,
    refused,
)
from .identity import client_id
from .retrying import RetryableError, call_error, until_done, wrong_server
from .routes import Isolation, Route, read_route
from .transport.addresses import Target, parse_endpoints
from .transport.calls import CallFailed, Metadata
from .transport.connection import Connection
from .transport.credentials import Caller, Credentials
from .transport.outages import Outages
from .transport.stack_trace import stack_trace
from .transport.tls import Tls

logger = logging.getLogger(__name__)

REFRESH_S = 30.0
HEARTBEAT_S = 10.0
RESYNC_S = 300.0
TERMINATION_S = 2.0
#: Added to the request timeout: how long a start waits for the server's settings.
SETTLE_MARGIN_S = 3.0
A = TypeVar("A", bound=Any)
R = TypeVar("R")

#: The process that uses gRPC, at most one: gRPC's threads do not exist in a forked child.
_grpc_pids: list[int] = []


def check_process() -> None:
    """Raise Forked in a child of a process that has used gRPC: calls would hang there."""
    if not _grpc_pids:
        _grpc_pids.append(os.getpid())
    if _grpc_pids[0] != os.getpid():
        raise Forked(
            "the parent process used clients before the fork, and gRPC does not work in a forked "
            "child: fork before the first client is created, or start processes with 'spawn'"
        )


class Options(TypedDict, total=False):
    """Keyword arguments of every client."""

    credentials: Credentials
    #: Use TLS, verified against `tls_roots` or the system's certificate authorities.
    tls: bool
    #: Certificate authorities in PEM form.
    tls_roots: bytes
    #: Name that the server's certificate must have; default: the host name of the endpoint.
    tls_server_name: str
    #: Certificate of the client and its key in PEM form, for ports that require one.
    tls_certificate: bytes
    tls_key: bytes
    #: Seconds for one attempt of a request.
    request_timeout: float
    #: Seconds for a request with all its attempts.
    timeout: float
    namespace: str


@dataclass(slots=True)
class Statistics:
    """Counters since the client was created."""

    sent: int = 0
    send_requests: int = 0
    send_retries: int = 0
    send_failures: int = 0
    received: int = 0
    acknowledged: int = 0
    refused_acks: int = 0
    handler_failures: int = 0
    route_refreshes: int = 0


@dataclass(slots=True)
class Attempts:
    """Outcome of the earlier attempts of a call."""

    #: An attempt before the last one ended without a response: it may have been executed.
    maybe_done: bool = False


class Session:
    """Connections, routes and settings of one client."""

    def __init__(
        self,
        endpoints: str,
        client_type: v2.ClientType.ValueType,
        fill_settings: Callable[[v2.Settings], None],
        options: Options,
        group: str = "",
    ) -> None:
        """`fill_settings` fills in the settings of the client's type. Raises ValueError."""
        self.access_point = parse_endpoints(endpoints)
        self.client_id = client_id()
        self.client_type = client_type
        self.group = group
        self.request_timeout_s = options.get("request_timeout", 3.0)
        self.timeout_s = options.get("timeout", 15.0)
        self.namespace = options.get("namespace", "")
        self.server_settings: v2.Settings | None = None
        self.statistics = Statistics()
        self.isolation = Isolation()
        self.on_settings: Callable[[v2.Settings], None] | None = None
        self.on_orphan: Callable[[Connection, v2.RecoverOrphanedTransactionCommand], Any] | None = (
            None
        )
        #: Called at the end of a start and of each refresh: subscriptions to lite topics.
        self.on_refresh: Callable[[], Awaitable[None]] | None = None
        #: Called with a lite topic that another client has now.
        self.on_lite_lost: Callable[[str], None] | None = None
        self._fill_settings = fill_settings
        self._caller = Caller(
            self.client_id, options.get("credentials"), self.namespace, local_date_time
        )
        self._tls = _tls(options)
        self._connections: dict[Target, Connection] = {}
        self._routes: dict[str, Route] = {}
        self._route_requests: dict[str, asyncio.Task[Route]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._pid = os.getpid()
        self._open = False
        self._outages = Outages()
        #: Fails when a server refuses this client; None outside of `start`.
        self._refusal: asyncio.Future[None] | None = None
        #: The last reason for which a telemetry stream ended.
        self._stream_end = ""

    # Start and close.

    async def start(self, topics: list[str], *, settle: bool) -> None:
        """Request the topics' routes; with `settle`, wait for the server's settings.

        Raises ConnectionFailed, RequestRefused (unknown topic), RuntimeError (second start).
        """
        if self._open:
            raise RuntimeError("the client is already started")
        self._open = True
        refusal = self._refusal = asyncio.get_running_loop().create_future()
        steps = asyncio.create_task(self._prepare(topics, settle=settle))
        try:
            await asyncio.wait((steps, refusal), return_when=asyncio.FIRST_COMPLETED)
            if not steps.done():
                await refusal
            await steps
        except BaseException:
            steps.cancel()
            await asyncio.gather(steps, return_exceptions=True)
            await self.close()
            raise
        finally:
            self._refusal = None
            refusal.cancel()
        self._tasks = [
            asyncio.create_task(self._every(HEARTBEAT_S, self._heartbeat)),
            asyncio.create_task(self._every(REFRESH_S, self._refresh_all)),
            asyncio.create_task(self._every(RESYNC_S, self._resync)),
        ]

    async def _prepare(self, topics: list[str], *, settle: bool) -> None:
        """Request the routes and wait for the settings. Raises ConnectionFailed, RequestRefused."""
        connection = self._connect(self.access_point)
        for topic in topics:
            await self.route(topic)
        if not settle:
            return
        try:
            async with asyncio.timeout(self.request_timeout_s + SETTLE_MARGIN_S):
                await connection.settled.wait()
        except TimeoutError:
            text = f"{self.access_point} did not confirm the client's settings in time"
            reason = f": {self._stream_end}" if self._stream_end else ""
            raise ConnectionFailed(text + reason) from None
        if self.on_refresh is not None:
            await self.on_refresh()

    def _refuse(self, error: CometError) -> None:
        """End a start that waits; otherwise log."""
        if self._refusal is not None and not self._refusal.done():
            self._refusal.set_exception(error)
        elif self._refusal is None:
            self._outages.refused(str(error), steady_s())

    def _on_telemetry_end(self, connection: Connection, failure: CallFailed) -> None:
        """Use the reason: servers refuse settings by ending the stream."""
        if failure.code == "UNIMPLEMENTED":
            error: RetryableError | CometError = wrong_server(f"{connection.target}: {failure}")
        else:
            error = call_error(connection.target, failure.code, str(failure))
        if isinstance(error, RetryableError):
            self._stream_end = str(error)
        else:
            self._refuse(error)

    async def close(self) -> None:
        """Notify the brokers and close every connection. A second call does nothing."""
        if not self._open or self._pid != os.getpid():
            return
        self._open = False
        tasks = [*self._tasks, *self._route_requests.values()]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._notify_termination()
        finally:
            connections, self._connections = list(self._connections.values()), {}
            await asyncio.gather(*(each.close() for each in connections))

    async def _notify_termination(self) -> None:
        request = v2.NotifyClientTerminationRequest(group=self.resource(self.group))
        await asyncio.gather(
            *(
                connection.unary(
                    paths.NOTIFY_CLIENT_TERMINATION,
                    request,
                    v2.NotifyClientTerminationResponse,
                    TERMINATION_S,
                )
                for connection in list(self._connections.values())
                if connection.settled.is_set()
            ),
            return_exceptions=True,  # best effort
        )

    def check(self) -> None:
        """Raise Closed or Forked when this client cannot be used."""
        if self._pid != os.getpid():
            raise Forked("the client was created before the fork: create one in this process")
        if not self._open:
            raise Closed("the client is not open: use it within `async with`")

    # Calls.

    def resource(self, name: str) -> v2.Resource:
        """Return a topic or group as a protobuf message."""
        return v2.Resource(resource_namespace=self.namespace, name=name)

    async def call(
        self, target: Target, path: str, request: Any, answer: type[A], left_s: float = math.inf
    ) -> A:
        """Make one attempt of a unary call; a failed endpoint is avoided afterwards.

        The request may be encoded. Raises RetryableError, RequestRefused, ConnectionFailed.
        """
        timeout_s = min(self.request_timeout_s, left_s)
        try:
            response = await self._connect(target).unary(path, request, answer, timeout_s)
        except CallFailed as failure:
            raise self._call_failed(target, failure) from None
        self._outages.answered(target, steady_s())
        return response

    async def stream(
        self,
        target: Target,
        path: str,
        request: Any,
        read: Callable[[list[bytes]], R],
        timeout_s: float,
        *,
        metadata: Metadata = (),
    ) -> R:
        """Make one attempt of a call with many responses and more metadata.

        Return what `read` makes of the responses; DecodeError means that they are invalid. Raises
        as `call` does.
        """
        try:
            responses = await self._connect(target).stream(
                path, request, read, timeout_s, metadata=metadata
            )
        except CallFailed as failure:
            raise self._call_failed(target, failure) from None
        self._outages.answered(target, steady_s())
        return responses

    def _call_failed(self, target: Target, failure: CallFailed) -> RetryableError | CometError:
        error = call_error(target, failure.code, str(failure))
        if isinstance(error, RetryableError):
            self.isolation.fail(target, steady_s())
            self._outages.failed(target, str(error), steady_s())
        return error

    async def call_until_done(
        self,
        target: Target | None,
        path: str,
        request: Any,
        answer: type[A],
        accepted: tuple[int, ...] = (),
        *,
        attempts: Attempts | None = None,
        read_only: bool = False,
    ) -> A:
        """Make an idempotent call with retries, first to `target`, then to the access point.

        The response is returned for OK and the `accepted` codes. The outcome of a `read_only` call
        is never unknown. Raises ConnectionFailed, OutcomeUnknown, RequestRefused.
        """
        self.check()
        endpoint = target or self.access_point

        async def once(left_s: float) -> A:
            nonlocal endpoint
            try:
                response = await self.call(endpoint, path, request, answer, left_s)
            except RetryableError as error:
                endpoint = self.access_point
                if attempts is not None and error.maybe_done:
                    attempts.maybe_done = True
                raise
            status = response.status
            if status.code != v2.OK and status.code not in accepted:
                refusal = refused(status.code, status.message)
                if is_retriable(status.code):
                    raise RetryableError(refusal, maybe_done=False)
                raise refusal
            return response

        return await until_done(once, self.timeout_s, read_only=read_only)

    # Routes.

    async def route(self, topic: str) -> Route:
        """Return the topic's route; request a new one. Raises ConnectionFailed, RequestRefused."""
        known = self._routes.get(topic)
        return known if known is not None else await self.refresh(topic)

    async def refresh(self, topic: str) -> Route:
        """Request the route now. Concurrent callers share one request."""
        self.check()
        task = self._route_requests.get(topic)
        if task is None:
            task = self._route_requests[topic] = asyncio.create_task(self._query_route(topic))
            task.add_done_callback(lambda done: self._route_done(topic, done))
        return await asyncio.shield(task)

    def _route_done(self, topic: str, task: asyncio.Task[Route]) -> None:
        if self._route_requests.get(topic) is task:
            del self._route_requests[topic]
        if not task.cancelled():
            task.exception()  # retrieve it: every caller may have been cancelled

    async def _query_route(self, topic: str) -> Route:
        request = v2.QueryRouteRequest(
            topic=self.resource(topic), endpoints=self.access_point.proto()
        )
        requested_s = steady_s()
        try:
            answer = await self.call_until_done(
                None, paths.QUERY_ROUTE, request, v2.QueryRouteResponse, read_only=True
            )
        except RequestRefused as error:
            if error.code != v2.NOT_IMPLEMENTED:
                raise
            raise wrong_server(error.message) from None
        known = self._routes.get(topic)
        turn = known.turn if known is not None else int.from_bytes(os.urandom(2), "big")
        route = read_route(topic, answer.message_queues, turn)
        if not route.readable and not route.writable:
            raise refused(v2.TOPIC_NOT_FOUND, f"topic {topic} has no queues")
        route.requested_s = requested_s
        self._routes[topic] = route
        self.statistics.route_refreshes += 1
        for target in route.targets():
            self._connect(target)
        return route

    @property
    def topics(self) -> list[str]:
        """The topics with a known route."""
        return list(self._routes)

    # Settings, heartbeats, connections.

    def settings(self) -> v2.Settings:
        """Return the client's settings."""
        message = v2.Settings(client_type=self.client_type, access_point=self.access_point.proto())
        message.request_timeout.FromMilliseconds(int(self.request_timeout_s * 1000))
        message.user_agent.language = v2.PYTHON
        message.user_agent.version = "cometmq"
        message.user_agent.platform = platform.platform()
        message.user_agent.hostname = socket.gethostname()
        self._fill_settings(message)
        return message

    async def resync(self) -> None:
        """Send the client's settings on every connection."""
        command = v2.TelemetryCommand(settings=self.settings())
        for connection in list(self._connections.values()):
            await connection.write(command)

    def _connect(self, target: Target) -> Connection:
        self.check()
        connection = self._connections.get(target)
        if connection is None:
            check_process()
            connection = self._connections[target] = Connection(
                target,
                self._caller,
                self.settings,
                self._on_command,
                on_telemetry_end=self._on_telemetry_end,
                tls=self._tls,
            )
        return connection

    async def _on_command(self, connection: Connection, command: v2.TelemetryCommand) -> None:
        kind = command.WhichOneof("command")
        if kind == "settings" and command.status.code in (v2.OK, v2.CODE_UNSPECIFIED):
            self.server_settings = command.settings
            connection.settled.set()
            if self.on_settings is not None:
                self.on_settings(command.settings)
        elif kind == "recover_orphaned_transaction_command" and self.on_orphan is not None:
            await self.on_orphan(connection, command.recover_orphaned_transaction_command)
        elif kind == "notify_unsubscribe_lite_command" and self.on_lite_lost is not None:
            self.on_lite_lost(command.notify_unsubscribe_lite_command.lite_topic)
        elif kind == "reconnect_endpoints_command":
            connection.reopen()
        elif kind == "print_thread_stack_trace_command":
            nonce = command.print_thread_stack_trace_command.nonce
            trace = v2.ThreadStackTrace(nonce=nonce, thread_stack_trace=stack_trace())
            status = v2.Status(code=v2.OK, message="OK")
            await connection.write(v2.TelemetryCommand(status=status, thread_stack_trace=trace))
        elif kind == "verify_message_command":
            refusal = v2.Status(code=v2.NOT_IMPLEMENTED, message="not supported by this client")
            await connection.write(v2.TelemetryCommand(status=refusal))
        elif command.status.code not in (v2.OK, v2.CODE_UNSPECIFIED):
            error = refused(command.status.code, command.status.message)
            if is_retriable(command.status.code):  # the next stream may be accepted
                self._stream_end = str(error)
            else:
                self._refuse(error)

    async def _every(self, period_s: float, job: Callable[[], Any]) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                await job()
            except CometError as error:
                logger.warning("client.%s_failed error=%s", job.__name__.strip("_"), error)
            except Exception:  # a defect: keep the loop running
                logger.exception("client.%s_failed", job.__name__.strip("_"))

    async def _heartbeat(self) -> None:
        request = v2.HeartbeatRequest(client_type=self.client_type)
        if self.group:
            request.group.CopyFrom(self.resource(self.group))

        async def one(connection: Connection) -> None:
            try:
                await connection.unary(
                    paths.HEARTBEAT, request, v2.HeartbeatResponse, self.request_timeout_s
                )
            except CallFailed as failure:
                logger.info(
                    "client.heartbeat_failed target=%s error=%s: %s",
                    connection.target,
                    failure.code,
                    failure,
                )
            else:
                self.isolation.recover(connection.target)

        await asyncio.gather(*(one(each) for each in list(self._connections.values())))

    async def _refresh_all(self) -> None:
        for topic in self.topics:
            try:
                await self.refresh(topic)
            except NotFound:
                self._routes.pop(topic, None)  # deleted: the next use raises NotFound
            except CometError as error:
                # Keep the known route until the next refresh.
                logger.info("client.route_not_refreshed topic=%s error=%s", topic, error)
        await self._drop_unused()
        if self.on_refresh is not None:
            await self.on_refresh()

    async def _drop_unused(self) -> None:
        used = {self.access_point}.union(*(route.targets() for route in self._routes.values()))
        for target in [target for target in self._connections if target not in used]:
            await self._connections[target].close()  # removed afterwards, so that `close` finds it
            self._connections.pop(target, None)
            self.isolation.recover(target)
            self._outages.forget(target)

    async def _resync(self) -> None:
        await self.resync()


def _tls(options: Options) -> Tls | None:
    if not options.get("tls"):
        return None
    return Tls(
        options.get("tls_roots", b""),
        options.get("tls_certificate", b""),
        options.get("tls_key", b""),
        options.get("tls_server_name", ""),
    )
