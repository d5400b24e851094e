"""The console as a Starlette application: its sections, its files, its failures."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from ..cli.errors import CliError
from .archives import Archives
from .cluster import Cluster
from .controllers import Controllers
from .live import OverviewPages, Watch
from .pages.clients import ClientPages
from .pages.configuration import ConfigurationPages
from .pages.dead_letters import DeadLetterPages
from .pages.groups import GroupPages
from .pages.high_availability import HighAvailabilityPages
from .pages.messages import MessagePages
from .pages.spark import SparkPages
from .pages.store import StorePages
from .pages.timers import TimerPages
from .pages.topics import TopicPages
from .pages.users import UserPages
from .search import MessageSearch
from .security import HEADERS, Guard
from .views import Views

# Threads for calls to the cluster. Each page holds one until it is answered; more would only wait
# in the broker, and each costs memory.
_THREADS = 12


class _Files(StaticFiles):
    """The files of the wheel; the URL has the version, so that a browser keeps them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        found = await super().get_response(path, scope)
        found.headers["Cache-Control"] = "public, max-age=86400"
        return found


def make_app(
    cluster: Cluster,
    controllers: Controllers,
    views: Views,
    wall_ms: Callable[[], int],
    *,
    hosts: Iterable[str],
    archives: Archives,
    lag_alert: int,
) -> tuple[Starlette, Watch]:
    """Return the application and its watch; `hosts` are further names of the console."""
    watch = Watch(cluster, wall_ms)
    search = MessageSearch(cluster, wall_ms)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
        task = asyncio.create_task(watch.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def failed(request: Request, error: Exception) -> Response:
        return views.error(request, error)

    async def crashed(request: Request, _error: Exception) -> Response:
        """Answer a fault of the console itself; uvicorn logs it."""
        found = views.error(request, HTTPException(500, "Its log has the details."))
        found.headers.update(HEADERS)  # this answer does not pass the guard
        return found

    app = Starlette(
        routes=[
            *OverviewPages(watch, views, lag_alert).routes(),
            *TopicPages(cluster, views).routes(),
            *GroupPages(cluster, views, wall_ms).routes(),
            *MessagePages(cluster, views, search).routes(),
            *DeadLetterPages(cluster, views, search, wall_ms).routes(),
            *TimerPages(cluster, views, wall_ms).routes(),
            *HighAvailabilityPages(cluster, controllers, views).routes(),
            *StorePages(cluster, views, wall_ms).routes(),
            *SparkPages(cluster, views, archives).routes(),
            *ClientPages(cluster, views).routes(),
            *UserPages(cluster, views, wall_ms).routes(),
            *ConfigurationPages(cluster, views).routes(),
            Mount("/static", _Files(packages=[(__package__, "static")]), name="static"),
        ],
        middleware=[Middleware(Guard, names=hosts)],
        exception_handlers={CliError: failed, HTTPException: failed, Exception: crashed},
        lifespan=lifespan,
    )
    return app, watch
