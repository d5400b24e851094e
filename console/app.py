"""The console as a Starlette application: its sections, its files, its failures."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from ..operations.connection import Connection
from ..operations.errors import CliError
from .archives import Archives
from .body_types import BodyTypes
from .cluster import Cluster
from .language import Templates, said
from .live import OverviewPages, Watch
from .pages.clients import ClientPages
from .pages.configuration import ConfigurationPages
from .pages.dead_letters import DeadLetterPages
from .pages.everything import SearchPage
from .pages.groups import GroupPages
from .pages.high_availability import HighAvailabilityPages
from .pages.login import Gate
from .pages.messages import MessagePages
from .pages.spark import SparkPages
from .pages.store import StorePages
from .pages.timers import TimerPages
from .pages.topics import TopicPages
from .pages.users import UserPages
from .search import MessageSearch
from .security import HEADERS, Guard
from .targets import PREFIX, Target, paths_of
from .views import Views

# Threads for calls to the cluster. Each page holds one until it is answered; more would only wait
# in the broker, and each costs memory.
_THREADS = 12


@dataclass(frozen=True, slots=True)
class Login:
    """What a console with a login needs: a connection that calls as the user of each request."""

    connection: Connection
    steady_ns: Callable[[], int]


class _Files(StaticFiles):
    """The files of the wheel; the URL has the version, so that a browser keeps them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        found = await super().get_response(path, scope)
        found.headers["Cache-Control"] = "public, max-age=86400"
        return found


def make_app(
    targets: Sequence[Target],
    templates: Templates,
    wall_ms: Callable[[], int],
    *,
    hosts: Iterable[str],
    archives: Archives,
    body_types: BodyTypes,
    lag_alert: int,
    login: Login | None = None,
) -> tuple[Starlette, list[Watch]]:
    """Return the application and a watch of each cluster; `hosts` are further names of the
    console. With a `login` its only cluster is called as the user of each request."""
    bases = paths_of(targets)
    routes: list[BaseRoute] = [
        Mount("/static", _Files(packages=[(__package__, "static")]), name="static")
    ]
    views_of: dict[str, Views] = {}
    watches = []
    for target in targets:
        base = dict(bases).get(target.name, "")
        views = views_of[base] = Views(
            templates,
            endpoint=target.connection.endpoint,
            base=base,
            context=target.name,
            contexts=bases,
        )
        cluster = Cluster(target.connection, wall_ms)
        watch = Watch(cluster, wall_ms, is_only=not bases)
        watches.append(watch)
        pages = _pages(
            Cluster(login.connection, wall_ms) if login else cluster,
            views,
            watch,
            archives=archives,
            body_types=body_types,
            lag_alert=lag_alert,
        )
        routes.append(Mount(base, routes=pages))
    if bases:
        routes.append(Route("/{path:path}", _ToFirst(bases[0][1]), methods=["GET"]))
    gates = [Middleware(Guard, names=hosts)]
    if login:
        gates.append(Middleware(Gate, login.connection, templates, login.steady_ns))
    return _application(routes, views_of, watches, gates), watches


class _ToFirst:
    """Leads a URL that names no cluster to the page of the first one."""

    def __init__(self, base: str) -> None:
        self._base = base

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Redirect."""
        path, query = scope["path"], scope["query_string"].decode("latin-1")
        if path.startswith(PREFIX):
            raise HTTPException(404, said("This console does not show a cluster of this name."))
        url = self._base + quote(path) + (f"?{query}" if query else "")
        await RedirectResponse(url)(scope, receive, send)


def _application(
    routes: Sequence[BaseRoute],
    views_of: Mapping[str, Views],
    watches: Sequence[Watch],
    gates: Sequence[Middleware],
) -> Starlette:
    """Return the application; `views_of` has the views of each cluster by the path of its pages."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
        tasks = [asyncio.create_task(watch.run()) for watch in watches]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def views_for(request: Request) -> Views:
        base = request.scope.get("root_path", "")
        return views_of[base] if base in views_of else next(iter(views_of.values()))

    async def failed(request: Request, error: Exception) -> Response:
        if isinstance(error, CliError) and _is_poll(request):
            return Response(status_code=204)  # the figures stay; the state of the page tells why
        return views_for(request).error(request, error)

    async def crashed(request: Request, _error: Exception) -> Response:
        """Answer a fault of the console itself; uvicorn logs it."""
        found = views_for(request).error(
            request, HTTPException(500, said("Its log has the details."))
        )
        found.headers.update(HEADERS)  # this answer does not pass the guard
        return found

    return Starlette(
        routes=routes,
        middleware=gates,
        exception_handlers={CliError: failed, HTTPException: failed, Exception: crashed},
        lifespan=lifespan,
    )


def _is_poll(request: Request) -> bool:
    """Return whether a part of an open page asks for its own replacement."""
    own = request.headers.get("hx-trigger", "")
    return bool(own) and own == request.headers.get("hx-target")


def _pages(
    cluster: Cluster,
    views: Views,
    watch: Watch,
    *,
    archives: Archives,
    body_types: BodyTypes,
    lag_alert: int,
) -> list[BaseRoute]:
    """Return the pages of one cluster."""
    wall_ms = watch.wall_ms
    search = MessageSearch(cluster, wall_ms)
    return [
        *OverviewPages(watch, views, lag_alert).routes(),
        *TopicPages(cluster, views, wall_ms).routes(),
        *GroupPages(cluster, views, watch).routes(),
        *MessagePages(cluster, views, search, body_types).routes(),
        *DeadLetterPages(cluster, views, search, wall_ms).routes(),
        *TimerPages(cluster, views, wall_ms).routes(),
        *HighAvailabilityPages(cluster, watch, views).routes(),
        *StorePages(cluster, watch, views).routes(),
        *SparkPages(cluster, views, archives).routes(),
        *ClientPages(cluster, views).routes(),
        *UserPages(cluster, views, wall_ms).routes(),
        *ConfigurationPages(cluster, views).routes(),
        *SearchPage(cluster, views).routes(),
    ]
