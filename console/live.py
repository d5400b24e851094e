"""Watches the cluster and streams what changes to the open overviews.

One task reads the members (each second while a page is open, otherwise each 5 s), another the
progress of the consumer groups, which costs more. All pages get the same rendered text.
"""

import asyncio
import contextlib
import hashlib
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from ..nodes.addresses import host_of
from ..operations.errors import CliError
from ..proto import paths, v1
from .cluster import Cluster
from .consumers import Facts, alarms_of, grew, old_transactions
from .forecast import Outlook, forecast, oldest
from .history import History, ReplicaHistory
from .language import LANGUAGE, said
from .overview import (
    BAD,
    OK,
    Alarm,
    Backlog,
    GroupState,
    Snapshot,
    alarms,
    keep_known,
    picture,
    state_of,
)
from .sessions import has_ended, may_watch
from .views import Views

# A dead node is shown within 2 s: a period, the timeout of a call and of a connection.
_PERIOD_S, _IDLE_PERIOD_S = 0.7, 5.0
_CALL_S = 0.7
_DIAL_S = 0.5
_BACKLOG_PERIOD_S = 5.0
#: Open overviews: each holds a connection of this process.
VIEWERS_MAX = 64
# Addresses that are tried each time: more replicas than a console can draw.
_ADDRESSES_MAX = 64
_LARGEST = 8
# Lags are compared with those of three minutes ago, or of a minute at least.
_LAGS_MAX, _GROWTH_MS = 36, 60_000
# A page asks for the state twice a second, less often in the background.
_ASKED_MS = 5_000
_FAILURES_SHOWN = 5
_SEEN_CHARS = 16
#: For a user without the right to read the cluster.
_HIDDEN = Snapshot(0, error=said("This user may not read the cluster (List on Cluster)."))
T = TypeVar("T")


class Watch:
    """The newest snapshot and the history of its figures."""

    def __init__(
        self, cluster: Cluster, wall_ms: Callable[[], int], *, is_only: bool = True
    ) -> None:
        """`is_only`: the console shows no other cluster, so this one is read without a viewer."""
        self._cluster = cluster
        self.wall_ms = wall_ms
        self._is_only = is_only
        self._asked_ms = 0
        # Threads of its own: a cluster that does not answer holds up no page of another one.
        self._threads = CapacityLimiter(2)
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._reached: set[str] = set()
        self._backlog = Backlog()
        # The lags of the last minutes, by group.
        self._lags: deque[tuple[int, dict[str, int]]] = deque(maxlen=_LAGS_MAX)
        # When each group had a client last.
        self._seen_ms: dict[str, int] = {}
        self.history = History(3)
        #: Of the disk of each leader, by name of the broker group.
        self._forecasts: dict[str, Outlook] = {}
        #: By title of the broker group.
        self.replicas: dict[str, ReplicaHistory] = {}
        self.snapshot = Snapshot(0)
        self.viewers = 0
        self.closed = False

    async def run(self) -> None:
        """Watch until cancelled."""
        backlog = asyncio.create_task(self._watch_backlog())
        try:
            while True:
                await self._look()
                self._wanted.clear()
                if self._is_watched():
                    await asyncio.sleep(_PERIOD_S)
                else:
                    await self._idle()
        finally:
            backlog.cancel()
            await asyncio.gather(backlog, return_exceptions=True)

    async def _idle(self) -> None:
        """Wait for a viewer, or for the next look at the only cluster."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wanted.wait(), _IDLE_PERIOD_S if self._is_only else None)

    def _is_watched(self) -> bool:
        return bool(self.viewers) or 0 <= self.wall_ms() - self._asked_ms < _ASKED_MS

    async def _watch_backlog(self) -> None:
        while True:
            if self._is_only or self._is_watched() or not self._backlog.at_ms:
                self._backlog = await self._in_thread(self._read_backlog)
                self._forecasts = await self._in_thread(self._read_forecasts)
            await asyncio.sleep(_BACKLOG_PERIOD_S)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._threads)

    async def _look(self) -> None:
        known = _addresses(self.snapshot.groups)
        (read, error), unreachable = await asyncio.gather(
            self._in_thread(self._read_groups), self._unreachable(known)
        )
        groups = keep_known(read, self.snapshot.groups)
        if more := [each for each in _addresses(groups) if each not in known]:
            unreachable |= await self._unreachable(more)
        now_ms = self.wall_ms()
        self.snapshot = Snapshot(
            now_ms, groups, self._backlog, unreachable, error, forecasts=self._forecasts
        )
        rates = self.snapshot.rates()
        lag = self._backlog.lag if self._backlog.at_ms else None
        self.history.add(now_ms, (*(rates or (None, None)), lag))
        for group in groups:
            answers = group.answer is not None and not group.error
            history = self.replicas.setdefault(group.title, ReplicaHistory())
            history.add(now_ms, group.answer.members if group.answer and answers else None)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _read_groups(self) -> tuple[list[GroupState], str]:
        try:
            outcomes = self._cluster.groups(timeout_s=_CALL_S).each(
                paths.DESCRIBE_CLUSTER, v1.DescribeClusterRequest(), v1.DescribeClusterResponse
            )
        except CliError as error:
            return [], str(error)
        return [GroupState(one.broker, one.answer, str(one.error or "")) for one in outcomes], ""

    def _read_backlog(self) -> Backlog:
        try:
            outcomes = self._cluster.pages(
                paths.LIST_GROUPS, v1.ListGroupsRequest(), v1.ListGroupsResponse, "groups"
            )
        except CliError as error:
            return Backlog(error=str(error))
        failed = [str(one.error) for one in outcomes if one.error is not None]
        if failed:  # sums without a broker group would be wrong
            return Backlog(error=failed[0])
        found: dict[str, Facts] = {}
        sums = Facts("")
        for page in (page for one in outcomes for page in one.answer or ()):
            for config, each in zip(page.groups, page.progress, strict=True):
                facts = found.setdefault(config.name, Facts(config.name))
                facts.paused = facts.paused or not config.consume_enable
                facts.add(each)
                sums.add(each)
        now_ms = self.wall_ms()
        self._enter_growth(found, now_ms)
        seen = {
            name: now_ms if one.clients else self._seen_ms.get(name, 0)
            for name, one in found.items()
        }
        self._seen_ms = {name: at_ms for name, at_ms in seen.items() if at_ms}
        for name, one in found.items():
            one.absent_ms = self.absent_ms(name)
        largest = sorted(found.values(), key=lambda one: -one.lag)[:_LARGEST]
        return Backlog(
            now_ms,
            sums.lag,
            sums.in_flight,
            sums.retries,
            sums.dead_letters,
            groups=len(found),
            largest=[(one.name, one.lag) for one in largest if one.lag],
            alarms=[*alarms_of(found.values()), *self._transaction_alarms(now_ms)],
        )

    def _transaction_alarms(self, now_ms: int) -> Sequence[Alarm]:
        """Return an alarm if the oldest transaction without an outcome is old."""
        request = v1.ListTransactionsRequest(count=1)
        try:
            found = self._cluster.each(
                paths.LIST_TRANSACTIONS, request, v1.ListTransactionsResponse
            )
        except CliError:
            return ()
        known = [one.answer for one in found if one.answer is not None]
        open_ones = [one for answer in known for one in answer.transactions]
        oldest_ms = min((one.since_ms for one in open_ones), default=now_ms)
        return old_transactions(sum(one.open for one in known), now_ms - oldest_ms)

    def absent_ms(self, group: str) -> int:
        """Return how long ago this console saw a client of a group; 0: never."""
        seen_ms = self._seen_ms.get(group, 0)
        return max(1, self.wall_ms() - seen_ms) if seen_ms else 0

    def _enter_growth(self, found: Mapping[str, Facts], now_ms: int) -> None:
        """Enter how the lags grew since the oldest reading, if that is long enough ago."""
        before_ms, before = self._lags[0] if self._lags else (now_ms, {})
        if now_ms - before_ms >= _GROWTH_MS:
            for name, one in found.items():
                one.grown = grew(one.lag, before[name]) if name in before else 0
                one.over_ms = now_ms - before_ms
        self._lags.append((now_ms, {name: one.lag for name, one in found.items()}))

    def _read_forecasts(self) -> dict[str, Outlook]:
        try:
            outcomes = self._cluster.each(
                paths.DESCRIBE_STORE, v1.DescribeStoreRequest(), v1.DescribeStoreResponse
            )
        except CliError:
            return {}  # the overview has words for an unknown forecast
        now_ms = self.wall_ms()
        return {
            one.broker: Outlook(forecast(one.answer), oldest(one.answer, now_ms))
            for one in outcomes
            if one.answer is not None
        }

    async def _unreachable(self, addresses: list[str]) -> frozenset[str]:
        """Return the addresses that refuse connections, and those that no longer answer.

        An address that was never reached may be one of another network: it is no failure.
        """
        found = await asyncio.gather(*map(_answers, addresses))
        pairs = list(zip(addresses, found, strict=True))
        self._reached.update(address for address, answers in pairs if answers)
        return frozenset(
            address for address, answers in pairs if not answers and address in self._reached
        )

    def asked(self) -> Snapshot:
        """Return the newest snapshot for a page that asks again soon."""
        self._asked_ms = self.wall_ms()
        self._wanted.set()
        return self.snapshot if may_watch() else _HIDDEN

    async def changes(self) -> AsyncIterator[Snapshot]:
        """Yield the newest snapshot, then each new one."""
        self.viewers += 1
        self._wanted.set()
        try:
            while not self.closed:
                changed = self._changed
                if has_ended():
                    break
                yield self.snapshot if may_watch() else _HIDDEN
                await changed.wait()
        finally:
            self.viewers -= 1

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        self.closed = True
        self._tell()


def _addresses(groups: Sequence[GroupState]) -> list[str]:
    """Return the client addresses of all replicas."""
    members = [one for group in groups if group.answer for one in group.answer.members]
    found = [one.addresses.client for one in members if one.addresses.client]
    return found[:_ADDRESSES_MAX]


async def _answers(address: str) -> bool:
    """Return whether an address accepts a connection."""
    try:
        port = int(address.rpartition(":")[2])
        dialled = asyncio.open_connection(host_of(address), port)
        _, writer = await asyncio.wait_for(dialled, _DIAL_S)
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return True


def streaming(watch: Watch, events: AsyncIterator[str]) -> Response:
    """Return the stream of an open page. Raises HTTPException if there are too many."""
    if watch.viewers >= VIEWERS_MAX:
        raise HTTPException(503, said("This console streams to at most {} pages.", VIEWERS_MAX))
    return StreamingResponse(events, media_type="text/event-stream")


class OverviewPages:
    """The overview and its stream."""

    def __init__(self, watch: Watch, views: Views, lag_alert: int) -> None:
        """`lag_alert` is the lag of a consumer group from which there is an alarm; 0: none."""
        self._watch = watch
        self._views = views
        self._lag_alert = lag_alert
        # The rendered part of the newest snapshot by language: one text for all its viewers.
        self._rendered: dict[str, tuple[Snapshot, str]] = {}

    def routes(self) -> list[BaseRoute]:
        """Return the routes of this section."""
        return [
            self._views.show("/", self.overview),
            Route("/live", self.live, methods=["GET"]),
            Route("/state", self.state, methods=["GET"]),
        ]

    def overview(self, request: Request) -> Response:
        """Show the newest snapshot."""
        part = self._part(self._watch.asked())
        return self._views.page(request, "overview.html", title=said("Overview"), part=part)

    async def state(self, request: Request) -> Response:
        """Return the failures of the cluster for an open page, which polls them.

        The answer is empty while they are those that the page shows already.
        """
        snapshot = self._watch.asked()
        failures = [one.text for one in alarms(snapshot) if one.level == BAD]
        seen = hashlib.sha256("\n".join(failures).encode()).hexdigest()[:_SEEN_CHARS]
        if request.query_params.get("seen") == seen:
            return Response(status_code=204)
        text = self._views.part("state.html", failures=failures[:_FAILURES_SHOWN], seen=seen)
        return HTMLResponse(text)

    async def live(self, _request: Request) -> Response:
        """Stream the page's part and the points of the curves as events."""
        return streaming(self._watch, self._events())

    async def _events(self) -> AsyncIterator[str]:
        if may_watch():
            yield event("curves", json.dumps({"all": self._watch.history.columns()}))
        async for snapshot in self._watch.changes():
            yield event("overview", self._part(snapshot))
            if may_watch():
                yield event("curves", json.dumps({"point": self._watch.history.last()}))

    def _part(self, snapshot: Snapshot) -> str:
        language = LANGUAGE.get()
        known, text = self._rendered.get(language, (None, ""))
        if known is not snapshot:
            text = self._views.part("overview_part.html", **_values(snapshot, self._lag_alert))
            self._rendered[language] = snapshot, text
        return text


def _values(snapshot: Snapshot, lag_alert: int) -> dict[str, Any]:
    members = [one for group in snapshot.groups if group.answer for one in group.answer.members]
    states = [state_of(one, snapshot.unreachable) for one in members]
    return {
        "snapshot": snapshot,
        "alarms": alarms(snapshot, lag_alert),
        "rates": snapshot.rates(),
        "disk_use": snapshot.disk_use(),
        "pictures": [
            (group, picture(group, snapshot.unreachable))
            for group in snapshot.groups
            if group.answer is not None
        ],
        "in_sync": states.count(OK),
        "members": len(members),
    }


def event(name: str, text: str) -> str:
    """Return a server-sent event; each line of the text is one of its data lines."""
    lines = "\n".join(f"data: {line}" for line in text.splitlines())
    return f"event: {name}\n{lines}\n\n"
