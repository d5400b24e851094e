"""Whether a topic exists in a cluster, and which there are: by its route, and by the Admin service."""

from __future__ import annotations

from ...proto import paths, v1, v2
from ..errors import PipelineError
from .channel import Channel, NoTopicError


def route_of(wire: Channel, topic: str) -> v2.QueryRouteResponse:
    """Raises NoTopicError."""
    request = v2.QueryRouteRequest(topic=v2.Resource(name=topic), endpoints=wire.target.proto())
    return wire.call(paths.QUERY_ROUTE, request, v2.QueryRouteResponse)


def topic_exists(wire: Channel, topic: str) -> bool:
    """Asked of the whole cluster; a broker that makes topics by their first use makes it."""
    try:
        route_of(wire, topic)
    except NoTopicError:
        return False
    except PipelineError:
        return True  # it is not for clients, or nobody can say now
    return True


def topic_names(wire: Channel) -> list[str]:
    """Of the access point's broker; none where it has no Admin service."""
    try:
        request = v1.ListTopicsRequest(include_system=True)
        answer = wire.call(paths.LIST_TOPICS, request, v1.ListTopicsResponse)
    except PipelineError:
        return []
    return [one.name for one in answer.topics]
