"""Routing of requests for another broker group while that group has no leader."""

from __future__ import annotations

from typing import cast
from unittest.mock import create_autospec

import pytest

from cometmq.broker.base.cluster_view import ClusterView
from cometmq.broker.base.leadership import Leadership
from cometmq.broker.cold.cold_reads import ColdReads
from cometmq.broker.lite.fanout import LiteFanout
from cometmq.broker.metadata.tables import Metadata, Topic
from cometmq.broker.routing.request_router import RequestRouter
from cometmq.front.access_point import UNKNOWN
from cometmq.front.context import RequestContext
from cometmq.ha.engine import Replication
from cometmq.proto import paths, v1, v2
from cometmq.proto.errors import WireError
from cometmq.tests.broker.base.test_cluster_view import Time, group, member

CREATE = v1.CreateTopicRequest(broker="b")
LIST = v1.ListTopicsRequest(broker="b")


def router(
    *members: v1.Member, incomplete: bool = False, absent: tuple[str, ...] = ()
) -> RequestRouter:
    """The router of the leader of group a beside group b."""
    view = ClusterView("a", Time())
    groups = [group("a", member(0, 10, leader=True)), group("b", *members)]
    view.update("ns", groups, incomplete=incomplete, absent=absent)
    return RequestRouter(
        leadership=create_autospec(Leadership, instance=True),
        replication=create_autospec(Replication, instance=True),
        metadata=create_autospec(Metadata, instance=True),
        cluster=view,
        cold_reads=create_autospec(ColdReads, instance=True),
        lite_fanout=create_autospec(LiteFanout, instance=True),
    )


def locate(found: RequestRouter, path: str, request: object) -> str | None:
    return found.locate(path, request, cast(RequestContext, None))


def test_a_change_for_a_group_whose_replicas_died_before_one_led_is_held() -> None:
    found = router(member(0, 20, alive=False), member(1, 30, alive=False))
    assert locate(found, paths.CREATE_TOPIC, CREATE) == UNKNOWN


def test_a_read_of_a_group_without_a_replica_is_refused_and_not_served_by_another_group() -> None:
    found = router(member(0, 20, alive=False), member(1, 30, alive=False))
    with pytest.raises(WireError, match="no replica of b can be reached") as error:
        locate(found, paths.LIST_TOPICS, LIST)
    assert error.value.code == v2.PROXY_TIMEOUT


def test_a_read_of_a_group_without_a_leader_goes_to_a_replica_that_lives() -> None:
    found = router(member(0, 20, alive=False), member(1, 30))
    assert locate(found, paths.LIST_TOPICS, LIST) == "10.0.0.1:30"


def test_all_sends_are_served_by_a_leader_that_is_not_pausing() -> None:
    found = router(member(0, 20, leader=True))
    leadership = found._leadership
    leadership.is_leader, leadership.pausing = True, False
    assert found.serves_all(paths.SEND_MESSAGE)
    assert not found.serves_all(paths.ACK_MESSAGE), "its group is in each receipt handle"
    leadership.pausing = True
    assert not found.serves_all(paths.SEND_MESSAGE)
    leadership.is_leader, leadership.pausing = False, False
    assert not found.serves_all(paths.SEND_MESSAGE)


def test_a_receive_for_a_group_that_is_awaited_is_told_to_try_again() -> None:
    found = router(member(0, 20, leader=True), incomplete=True)
    found._metadata.topic.return_value = None  # type: ignore[attr-defined]
    request = v2.ReceiveMessageRequest()
    request.message_queue.topic.name = "t"
    for broker in ("", "c"):
        request.message_queue.broker.name = broker
        with pytest.raises(WireError, match="may not be up yet; try again"):
            locate(found, paths.RECEIVE_MESSAGE, request)


@pytest.mark.parametrize(
    ("path", "code"),
    [(paths.LIST_TOPICS, v2.PROXY_TIMEOUT), (paths.CREATE_TOPIC, v2.HA_NOT_AVAILABLE)],
)
def test_a_call_to_a_group_that_is_not_up_is_not_served_by_another_one(
    path: str, code: int
) -> None:
    found = router(member(0, 20, leader=True), absent=("c",))
    found._metadata.topic.return_value = None  # type: ignore[attr-defined]
    request = (v1.ListTopicsRequest if path == paths.LIST_TOPICS else v1.CreateTopicRequest)(
        broker="c"
    )
    with pytest.raises(WireError, match=r"broker group c is not up\. Start it, or") as error:
        locate(found, path, request)
    assert error.value.code == code
    request.broker = "b"
    assert locate(found, path, request) == "10.0.0.1:20"


def test_a_topic_that_may_be_in_a_group_that_is_not_up_is_not_denied() -> None:
    found = router(member(0, 20, leader=True), absent=("c", *(f"group-{n}" for n in range(9))))
    found._metadata.topic.return_value = None  # type: ignore[attr-defined]
    request = v2.ReceiveMessageRequest()
    request.message_queue.topic.name = "t"
    with pytest.raises(WireError, match=r"may be in one that is not: c, group-0, .* and 5 more"):
        locate(found, paths.RECEIVE_MESSAGE, request)
    found._leadership.is_leader, found._leadership.pausing = True, False
    found._metadata.topic.return_value = object()  # type: ignore[attr-defined]
    assert locate(found, paths.RECEIVE_MESSAGE, request) is None, "it is here"


def test_a_lite_topic_is_in_one_group_wherever_it_is_sent_to() -> None:
    parent = Topic("t", 1, 1, message_type=v2.LITE)
    request = v2.SendMessageRequest(messages=[v2.Message(topic=v2.Resource(name="t"))])
    owners: dict[str, list[str | None]] = {}
    for own in ("a", "b"):
        view = ClusterView(own, Time())
        leaders = {"a": member(0, 10, leader=True), "b": member(0, 20, leader=True)}
        view.update("ns", [group(name, leaders[name], topics=("t",)) for name in ("a", "b")])
        found = router()
        found._cluster = view
        found._metadata.topic.return_value = parent  # type: ignore[attr-defined]
        found._leadership.is_leader, found._leadership.pausing = True, False
        for lite in map(str, range(20)):
            request.messages[0].system_properties.lite_topic = lite
            at = locate(found, paths.SEND_MESSAGE, request)
            owners.setdefault(lite, []).append(at or f"here: {own}")
    here = {"10.0.0.1:10": "here: a", "10.0.0.1:20": "here: b"}
    assert all(len({here.get(at, at) for at in each if at}) == 1 for each in owners.values())
    assert len({each[0] for each in owners.values()}) == 2
