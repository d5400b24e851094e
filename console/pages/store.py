"""Store: the segments of a log with the reason why each is kept, growth, disk, scrub, damage.

The figures are those of the leader of a broker group, whose store takes the writes, or of a
replica that the URL names, through the node that has it.
"""

from collections import Counter
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from ...operations.errors import CliError
from ...proto import paths, v1
from ..cluster import Cluster, problems
from ..forecast import forecast, growth, oldest
from ..inputs import whole
from ..language import said
from ..live import Watch
from ..views import Views, link
from .paging import page_of

_BROKER_ID_MAX = 1_000_000

#: What a reason of retention means for a segment.
REASONS = {
    "last": (said("written to"), "ok"),
    "young": (said("kept: young"), ""),
    "hour": (said("expired, waits for its hour"), "warning"),
    "not written out": (said("not written out"), ""),
    "archive": (said("kept for the archive"), "warning"),
    "replica": (said("kept for a follower"), "warning"),
    "held": (said("held by a reader"), "warning"),
    "batch": (said("deleted in a later round"), "warning"),
    "behind": (said("behind an older one"), "warning"),
    "expired": (said("deleted next"), "bad"),
    "disk": (said("deleted for space"), "bad"),
}


class StorePages:
    """The section of the store."""

    def __init__(self, cluster: Cluster, watch: Watch, views: Views) -> None:
        self._cluster = cluster
        self._watch = watch
        self._views = views

    def routes(self) -> list[BaseRoute]:
        """Return the routes of this section."""
        return [self._views.show("/store", self.store)]

    def store(self, request: Request) -> Response:
        """Show the store of one broker group: that of the URL, or the first that answers."""
        query = request.query_params
        wanted = query.get("broker", "")
        among = (wanted,) if wanted else None
        replica = query.get("replica", "")
        asked = v1.DescribeStoreRequest()
        if replica:
            asked.broker_id = whole(replica, said("The broker id"), most=_BROKER_ID_MAX)
        outcomes = self._cluster.groups(among).each(
            paths.DESCRIBE_STORE, asked, v1.DescribeStoreResponse
        )
        found = next((one for one in outcomes if one.answer is not None), None)
        if found is None and outcomes and outcomes[0].error is not None:
            raise CliError(str(outcomes[0].error), outcomes[0].error.code)
        assert found is not None and found.answer is not None
        return self._views.page(
            request,
            "store.html",
            title=said("Store"),
            problems=problems(outcomes),
            broker=found.broker,
            brokers={name: link("/store", broker=name) for name in self._cluster.names() if name},
            replica=replica,
            replicas=self._replicas(found.broker),
            **store_values(found.answer, self._watch.wall_ms(), query.get("page", "")),
        )

    def _replicas(self, broker: str) -> list[tuple[str, str, str]]:
        """Return the id, the role and the link of each replica of the overview."""
        states = [one for one in self._watch.asked().groups if one.name == broker and one.answer]
        members = [member for one in states if one.answer for member in one.answer.members]
        found = []
        for member in members:
            broker_id = str(member.replica.broker_id)
            role = "leader" if member.role == v1.LEADER else "follower"
            found.append((broker_id, role, link("/store", broker=broker, replica=broker_id)))
        return found


def store_values(store: v1.DescribeStoreResponse, now_ms: int, page: str) -> dict[str, Any]:
    """Return what the page shows of a store; the newest segments are first."""
    newest = list(reversed(store.segments))
    return {
        "store": store,
        "now_ms": now_ms,
        "page": page_of(newest, "", page, lambda one: one.reason),
        "reasons": REASONS,
        "counts": Counter(one.reason for one in store.segments).most_common(),
        "columns": growth(store.segments, store.log_end, now_ms),
        "forecast": forecast(store),
        "oldest": oldest(store, now_ms),
        "mismatches": sorted(store.record_mismatches.items()),
    }
