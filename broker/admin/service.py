"""`cometmq.v1.Admin` on the client port: topics, groups, offsets, clients, members and settings.

The access point forwards calls to the leader if there is one (`routing/request_router.py`). The
service needs no client id, because its callers are tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ...proto import v1, v2
from ...proto.errors import WireError

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ...front.service import Method
    from ..maintenance.status import BrokerStatus
    from .clients import ClientAdmin
    from .groups import GroupAdmin
    from .live_settings import LiveSettings
    from .offsets import OffsetAdmin
    from .topics import TopicAdmin


class Admin:
    """Handlers of the service."""

    def __init__(
        self,
        *,
        topics: TopicAdmin,
        groups: GroupAdmin,
        offsets: OffsetAdmin,
        clients: ClientAdmin,
        status: BrokerStatus,
        brokers: Callable[[], Iterable[str]],
        door: Callable[[], str],
        settings: LiveSettings,
        kept: Mapping[str, str],
    ) -> None:
        """`brokers` returns the names of the known groups, `door` the name of the open front
        door; `kept` has the settings with replacements that cannot be used."""
        self.topics = topics
        self.groups = groups
        self.offsets = offsets
        self.clients = clients
        self._status = status
        self._brokers = brokers
        self._door = door
        self.settings = settings
        self._kept = kept

    def list_brokers(
        self, request: v1.ListBrokersRequest, ctx: RequestContext
    ) -> v1.ListBrokersResponse:
        """The names of the broker groups that this node knows, also of those that are not up."""
        own, names = self._status.broker, sorted(self._brokers())
        return v1.ListBrokersResponse(code=v2.OK, message="OK", brokers=names, broker=own)

    def describe_cluster(
        self, request: v1.DescribeClusterRequest, ctx: RequestContext
    ) -> v1.DescribeClusterResponse:
        """The members of this group as this node sees them."""
        return self._status.describe(self._door())

    def get_config(self, request: v1.GetConfigRequest, ctx: RequestContext) -> v1.GetConfigResponse:
        """Settings of this process, each once; secrets are masked."""
        settings = self.settings.settings
        keys = list(dict.fromkeys(request.keys)) or sorted(settings)
        unknown = [key for key in keys if key not in settings]
        if unknown:
            raise WireError(v2.NOT_FOUND, f"unknown setting {unknown[0]}")
        live = set(self.settings.keys())
        return v1.GetConfigResponse(
            code=v2.OK,
            message="OK",
            entries=[
                v1.ConfigEntry(key=key, value=value, origin=origin, at_run_time=key in live)
                for key in keys
                for value, origin in (settings[key],)
            ],
            kept=self._kept,
        )

    def change_config(
        self, request: v1.ChangeConfigRequest, ctx: RequestContext
    ) -> v1.ChangeConfigResponse:
        """Change settings of this process, until it ends. Raises WireError."""
        keys = self.settings.change(request.values, dry_run=request.dry_run)
        return v1.ChangeConfigResponse(code=v2.OK, message="OK", keys=keys)


def addressed(own: str, method: Method) -> Method:
    """Return the method with a refusal of calls that name another group than `own`.

    The access point forwards those for the groups that it knows.
    """
    return replace(method, handler=partial(_serve, own, method.handler))


def _serve(own: str, handler: Callable[..., Any], request: Any, ctx: RequestContext) -> Any:
    name = getattr(request, "broker", own)
    if name not in ("", own):
        raise WireError(v2.NOT_FOUND, f"broker group {name} is not known here; this is {own}")
    return handler(request, ctx)
