"""What every producer and consumer shares: connections, routes, settings, and being alive.

Promises: a topic's route is asked once and then every 30 s, or at once when a server says that it is
not the one; every endpoint of a route gets a connection with telemetry, and a heartbeat every 10 s;
an endpoint that fails is avoided for a moment; `close` says good-bye and leaves no task behind. A
session belongs to one event loop and one process: after a fork it refuses (gRPC API, sections 8, 9).
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import platform
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar

import grpc

from ..proto import paths, v2
from ..proto.errors import is_retriable
from .clock import steady_s
from .errors import Closed, CometError, ConnectionFailed, Forked, NotFound, refused
from .identity import client_id
from .retrying import RetryableError, until_done
from .routes import Isolation, Route, read_route
from .transport.addresses import Target, parse_endpoints
from .transport.connection import Connection
from .transport.credentials import Caller, Credentials

log = logging.getLogger(__name__)

REFRESH_S = 30.0
HEARTBEAT_S = 10.0
RESYNC_S = 300.0
GOOD_BYE_S = 2.0
SETTLE_MORE_S = 3.0
"""Beyond the request timeout: how long a consumer's start waits for the server's settings."""
A = TypeVar("A", bound=Any)


class Options(TypedDict, total=False):
    """What every client takes besides its own arguments."""

    credentials: Credentials
    tls: bool
    """Dial with TLS, verified against `tls_roots` or the system's authorities."""
    tls_roots: bytes
    """Authorities in PEM form."""
    request_timeout: float
    """Seconds for one try of one request."""
    timeout: float
    """Seconds for a request with all its retries."""
    namespace: str


@dataclass(slots=True)
class Statistics:
    """Counted since the client was made."""

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
class Tries:
    """What a caller may want to know of a repeated call."""

    maybe_done: bool = False
    """A try before the last one ended without an answer: it may have been executed."""


class Session:
    """One client's life on the wire."""

    def __init__(
        self,
        endpoints: str,
        client_type: v2.ClientType.ValueType,
        describe: Callable[[v2.Settings], None],
        options: Options,
        group: str = "",
    ) -> None:
        """`describe` fills in the settings of this kind of client. Raises ValueError."""
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
        self._describe = describe
        self._caller = Caller(self.client_id, options.get("credentials"), self.namespace)
        self._tls = _tls(options)
        self._connections: dict[Target, Connection] = {}
        self._routes: dict[str, Route] = {}
        self._asking: dict[str, asyncio.Task[Route]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._pid = os.getpid()
        self._open = False
        self._refusal: CometError | None = None

    # Life.

    async def start(self, topics: list[str], *, settle: bool) -> None:
        """Ask for the topics' routes; with `settle`, wait for the server's settings.

        Raises ConnectionFailed, RequestRefused (an unknown topic), RuntimeError (a second start).
        """
        if self._open:
            raise RuntimeError("the client was started already")
        self._open = True
        self._refusal = None
        try:
            connection = self._connect(self.access_point)
            for topic in topics:
                await self.route(topic)
            if settle:
                async with asyncio.timeout(self.request_timeout_s + SETTLE_MORE_S):
                    await connection.settled.wait()
        except TimeoutError:
            await self.close()
            said_nothing = f"{self.access_point} did not answer our settings in time"
            raise self._refusal or ConnectionFailed(said_nothing) from None
        except BaseException:
            await self.close()
            raise
        self._tasks = [
            asyncio.create_task(self._every(HEARTBEAT_S, self._beat)),
            asyncio.create_task(self._every(REFRESH_S, self._refresh_all)),
            asyncio.create_task(self._every(RESYNC_S, self._resync)),
        ]

    async def close(self) -> None:
        """Say good-bye and let go of everything; a second call does nothing."""
        if not self._open or self._pid != os.getpid():
            return
        self._open = False
        tasks = [*self._tasks, *self._asking.values()]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._say_good_bye()
        finally:
            connections, self._connections = list(self._connections.values()), {}
            await asyncio.gather(*(each.close() for each in connections))

    async def _say_good_bye(self) -> None:
        request = v2.NotifyClientTerminationRequest(group=self.resource(self.group))
        await asyncio.gather(
            *(
                connection.unary(
                    paths.NOTIFY_CLIENT_TERMINATION,
                    request,
                    v2.NotifyClientTerminationResponse,
                    GOOD_BYE_S,
                )
                for connection in list(self._connections.values())
                if connection.settled.is_set()
            ),
            return_exceptions=True,  # whoever is not there need not be told
        )

    def check(self) -> None:
        """Raises Closed or Forked when this client cannot be used."""
        if self._pid != os.getpid():
            raise Forked("this client belongs to the process that made it, before a fork")
        if not self._open:
            raise Closed("the client is not open: use it within `async with`")

    # Calls.

    def resource(self, name: str) -> v2.Resource:
        """A topic or group as it is sent."""
        return v2.Resource(resource_namespace=self.namespace, name=name)

    async def ask(
        self, target: Target, path: str, request: Any, answer: type[A], left_s: float = math.inf
    ) -> A:
        """One try of one unary call; a failed endpoint is avoided from then on. Raises Again."""
        try_s = min(self.request_timeout_s, left_s)
        try:
            return await self._connect(target).unary(path, request, answer, try_s)
        except RetryableError:
            self.isolation.fail(target, steady_s())
            raise

    async def stream(
        self, target: Target, path: str, request: Any, answer: type[A], timeout_s: float
    ) -> list[A]:
        """One try of one call with many answers. Raises Again."""
        try:
            return await self._connect(target).stream(path, request, answer, timeout_s)
        except RetryableError:
            self.isolation.fail(target, steady_s())
            raise

    async def ask_until_done(
        self,
        target: Target | None,
        path: str,
        request: Any,
        answer: type[A],
        fine: tuple[int, ...] = (),
        *,
        tries: Tries | None = None,
        question: bool = False,
    ) -> A:
        """A call that may be repeated without harm, anywhere: first at `target`, then at the access
        point. Codes of `fine` are the caller's business, as OK is. A `question` changes nothing, so
        its outcome is never unknown. Raises ConnectionFailed, OutcomeUnknown, RequestRefused."""
        self.check()
        where = target or self.access_point

        async def once(left_s: float) -> A:
            nonlocal where
            try:
                found = await self.ask(where, path, request, answer, left_s)
            except RetryableError as error:
                where = self.access_point
                if tries is not None and error.maybe_done:
                    tries.maybe_done = True
                raise
            status = found.status
            if status.code != v2.OK and status.code not in fine:
                refusal = refused(status.code, status.message)
                if is_retriable(status.code):
                    raise RetryableError(refusal, maybe_done=False)
                raise refusal
            return found

        return await until_done(once, self.timeout_s, harmless=question)

    # Routes.

    async def route(self, topic: str) -> Route:
        """The topic's route, asked for when it is new. Raises ConnectionFailed, RequestRefused."""
        known = self._routes.get(topic)
        return known if known is not None else await self.refresh(topic)

    async def refresh(self, topic: str) -> Route:
        """Ask for the route now; those who ask at once share the answer."""
        self.check()
        task = self._asking.get(topic)
        if task is None:
            task = self._asking[topic] = asyncio.create_task(self._ask_route(topic))
            task.add_done_callback(lambda done: self._asked(topic, done))
        return await asyncio.shield(task)

    def _asked(self, topic: str, task: asyncio.Task[Route]) -> None:
        if self._asking.get(topic) is task:
            del self._asking[topic]
        if not task.cancelled():
            task.exception()  # those who asked may all have been cancelled

    async def _ask_route(self, topic: str) -> Route:
        request = v2.QueryRouteRequest(
            topic=self.resource(topic), endpoints=self.access_point.proto()
        )
        asked_s = steady_s()
        answer = await self.ask_until_done(
            None, paths.QUERY_ROUTE, request, v2.QueryRouteResponse, question=True
        )
        known = self._routes.get(topic)
        turn = known.turn if known is not None else int.from_bytes(os.urandom(2), "big")
        route = read_route(topic, answer.message_queues, turn)
        if not route.readable and not route.writable:
            raise refused(v2.TOPIC_NOT_FOUND, f"topic {topic} has no queues")
        route.asked_s = asked_s
        self._routes[topic] = route
        self.statistics.route_refreshes += 1
        for target in route.targets():
            self._connect(target)
        return route

    @property
    def topics(self) -> list[str]:
        """Those whose routes are known."""
        return list(self._routes)

    # Behind the scenes.

    def settings(self) -> v2.Settings:
        """What this client says about itself."""
        found = v2.Settings(client_type=self.client_type, access_point=self.access_point.proto())
        found.request_timeout.FromMilliseconds(int(self.request_timeout_s * 1000))
        found.user_agent.language = v2.PYTHON
        found.user_agent.version = "cometmq"
        found.user_agent.platform = platform.platform()
        found.user_agent.hostname = socket.gethostname()
        self._describe(found)
        return found

    async def resync(self) -> None:
        """Tell our settings everywhere, because they changed."""
        command = v2.TelemetryCommand(settings=self.settings())
        for connection in list(self._connections.values()):
            await connection.tell(command)

    def _connect(self, target: Target) -> Connection:
        self.check()
        found = self._connections.get(target)
        if found is None:
            found = self._connections[target] = Connection(
                target, self._caller, self.settings, self._on_command, self._tls
            )
        return found

    async def _on_command(self, connection: Connection, command: v2.TelemetryCommand) -> None:
        kind = command.WhichOneof("command")
        if kind == "settings" and command.status.code in (v2.OK, v2.CODE_UNSPECIFIED):
            self.server_settings = command.settings
            connection.settled.set()
            if self.on_settings is not None:
                self.on_settings(command.settings)
        elif kind == "recover_orphaned_transaction_command" and self.on_orphan is not None:
            await self.on_orphan(connection, command.recover_orphaned_transaction_command)
        elif kind == "reconnect_endpoints_command":
            connection.reopen()
        elif kind in ("print_thread_stack_trace_command", "verify_message_command"):
            refusal = v2.Status(code=v2.NOT_IMPLEMENTED, message="not offered by this client")
            await connection.tell(v2.TelemetryCommand(status=refusal))
        elif command.status.code not in (v2.OK, v2.CODE_UNSPECIFIED):
            self._refusal = refused(command.status.code, command.status.message)
            log.warning("client.refused_by_server %s %s", connection.target, command.status)

    async def _every(self, period_s: float, job: Callable[[], Any]) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                await job()
            except CometError as error:
                log.warning("client.%s_failed error=%s", job.__name__.strip("_"), error)
            except Exception:  # a defect: the next round is not to be lost with this one
                log.exception("client.%s_failed", job.__name__.strip("_"))

    async def _beat(self) -> None:
        request = v2.HeartbeatRequest(client_type=self.client_type)
        if self.group:
            request.group.CopyFrom(self.resource(self.group))

        async def one(connection: Connection) -> None:
            try:
                await connection.unary(
                    paths.HEARTBEAT, request, v2.HeartbeatResponse, self.request_timeout_s
                )
            except (RetryableError, CometError) as error:
                log.info("client.heartbeat_failed target=%s error=%s", connection.target, error)
            else:
                self.isolation.recover(connection.target)

        await asyncio.gather(*(one(each) for each in list(self._connections.values())))

    async def _refresh_all(self) -> None:
        for topic in self.topics:
            try:
                await self.refresh(topic)
            except NotFound:
                self._routes.pop(topic, None)  # deleted; who still wants it asks, and is told
            except CometError as error:
                # The known route stays in use; the next round asks again.
                log.info("client.route_not_refreshed topic=%s error=%s", topic, error)
        await self._drop_unused()

    async def _drop_unused(self) -> None:
        used = {self.access_point}.union(*(route.targets() for route in self._routes.values()))
        for target in [target for target in self._connections if target not in used]:
            await self._connections[target].close()  # while it is here, our own close finds it
            self._connections.pop(target, None)
            self.isolation.recover(target)

    async def _resync(self) -> None:
        await self.resync()


def _tls(options: Options) -> grpc.ChannelCredentials | None:
    if not options.get("tls"):
        return None
    return grpc.ssl_channel_credentials(options.get("tls_roots"))
