"""Topics of a cluster: existence by route, names by the Admin service."""

from __future__ import annotations

from ...proto import paths, v1, v2
from ..errors import PipelineError
from .channel import Channel, NoTopicError


def route_of(wire: Channel, topic: str) -> v2.QueryRouteResponse:
    """Return the route of a topic. Raises NoTopicError."""
    request = v2.QueryRouteRequest(topic=v2.Resource(name=topic), endpoints=wire.target.proto())
    return wire.call(paths.QUERY_ROUTE, request, v2.QueryRouteResponse)


def topic_exists(wire: Channel, topic: str) -> bool:
    """Whether a topic exists. A broker with automatic topic creation creates it."""
    try:
        route_of(wire, topic)
    except NoTopicError:
        return False
    except PipelineError:
        return True  # internal, or the route is temporarily unavailable
    return True


def topic_names(wire: Channel) -> list[str]:
    """Return the topics of the access point's broker; empty without an Admin service."""
    request = v1.ListTopicsRequest(include_system=True)
    names: list[str] = []
    while True:
        try:
            answer = wire.call(paths.LIST_TOPICS, request, v1.ListTopicsResponse)
        except PipelineError:
            return []
        names += [one.name for one in answer.topics]
        if not (answer.more and answer.topics):
            return names
        request.after = names[-1]
