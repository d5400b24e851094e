"""`cometmq.v1.Admin`: topics, groups, offsets, members and settings, on the clients' port.

Reads are of this node; the access point sends them to the leader where there is one (`locate.py`).
The service needs no client id: its callers are tools. Topics, groups and offsets have modules of their
own; members and settings are here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...proto import v1, v2
from ...proto.errors import WireError
from .groups import GroupAdmin
from .offsets import OffsetAdmin
from .status import describe_cluster
from .topics import TopicAdmin

if TYPE_CHECKING:
    from ...front.context import RequestContext
    from ..node import Node


class Admin:
    """Handlers of the service. `settings` is every key with its value and origin."""

    def __init__(
        self, node: Node, door: Callable[[], str], settings: Mapping[str, tuple[str, str]]
    ) -> None:
        self._node = node
        self._door = door
        self._settings = settings
        self.topics = TopicAdmin(node)
        self.groups = GroupAdmin(node)
        self.offsets = OffsetAdmin(node)

    def describe_cluster(
        self, request: v1.DescribeClusterRequest, ctx: RequestContext
    ) -> v1.DescribeClusterResponse:
        """The members of this group as this node sees them."""
        return describe_cluster(self._node, self._door())

    def get_config(self, request: v1.GetConfigRequest, ctx: RequestContext) -> v1.GetConfigResponse:
        """Settings of this process; secrets are not shown."""
        keys = list(request.keys) or sorted(self._settings)
        unknown = [key for key in keys if key not in self._settings]
        if unknown:
            raise WireError(v2.NOT_FOUND, f"there is no setting {unknown[0]}")
        return v1.GetConfigResponse(
            code=v2.OK,
            message="OK",
            entries=[
                v1.ConfigEntry(key=key, value=value, origin=origin)
                for key in keys
                for value, origin in (self._settings[key],)
            ],
        )
