"""The group of a classic client's request, from recorded requests; routes with one address."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from cometmq.broker.base.cluster_view import GroupView
from cometmq.broker.proxy.classic.routes import rewritten
from cometmq.broker.proxy.classic.targets import ANYWHERE, EVERYWHERE, group_of
from cometmq.proto import v1
from cometmq.remoting.bare_json import BareJsonError, loads
from cometmq.remoting.codes import Reply, Request
from cometmq.remoting.command import Command, reply
from cometmq.remoting.connection import RemotingError
from cometmq.tests.remoting.recordings import frames, scenarios

OWN = "proxy:8080"
#: Java clients name no broker in them: with several groups they go by the topic.
UNNAMED = {Request.QUERY_MESSAGE, Request.VIEW_MESSAGE_BY_ID, Request.QUERY_ASSIGNMENT}


def groups(*names: str, topics: tuple[str, ...] = ()) -> list[GroupView]:
    own = {topic: v1.TopicRoute(name=topic) for topic in topics}
    other = {"other": v1.TopicRoute(name="other")}
    return [GroupView(name, topics=own if name == names[0] else other) for name in names]


def test_the_recorded_requests_of_java_clients_name_their_group() -> None:
    known = groups("broker-0", "broker-a", topics=("one",))
    named: Counter[int] = Counter()
    unnamed = set()
    for scenario in scenarios():
        if scenario in ("client-go", "mqadmin", "setup", "setup4"):
            continue
        for frame in frames(scenario):
            command = frame.command
            is_request = frame.from_client and not command.is_response
            if frame.server == "namesrv" or not is_request or command.code in EVERYWHERE | ANYWHERE:
                continue
            try:
                found = group_of(command, known)
            except RemotingError as error:
                assert error.code == Reply.VERSION_NOT_SUPPORTED
                unnamed.add(command.code)
                continue
            assert found is known[1], command
            named[command.code] += 1
    assert unnamed <= UNNAMED, unnamed
    assert named.keys() >= {
        *(Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE, Request.SEND_REPLY_MESSAGE_V2),
        *(Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE, Request.POP_MESSAGE),
        *(Request.LOCK_BATCH_MQ, Request.UNLOCK_BATCH_MQ, Request.CONSUMER_SEND_MSG_BACK),
        *(Request.END_TRANSACTION, Request.ACK_MESSAGE, Request.RECALL_MESSAGE),
    }


def test_the_handle_or_the_topic_tells_the_group_of_a_request_without_a_name() -> None:
    known = groups("broker-a", "broker-b", topics=("t",))
    handle = "0 1764000000000 30000 0 0 broker-b 0 0"
    acked = Command(Request.ACK_MESSAGE, {"topic": "t", "extraInfo": handle})
    assert group_of(acked, known) is known[1]
    body = json.dumps({"brokerName": "broker-b", "acks": []}).encode()
    assert group_of(Command(Request.BATCH_ACK_MESSAGE, body=body), known) is known[1]
    assert group_of(Command(Request.SEND_MESSAGE, {"topic": "t"}), known) is known[0]
    assert group_of(Command(Request.SEND_MESSAGE_V2, {"b": "t"}), known) is known[0]
    back = Command(Request.CONSUMER_SEND_MSG_BACK, {"originTopic": "t"})
    assert group_of(back, known) is known[0]
    with pytest.raises(RemotingError, match="names no broker"):
        group_of(Command(Request.SEND_MESSAGE, {"topic": "nowhere"}), known)
    known[1].topics.clear()  # it is about to register again
    with pytest.raises(RemotingError, match="2 of them have the topic 't'"):
        group_of(Command(Request.SEND_MESSAGE, {"topic": "t"}), known)
    assert group_of(Command(Request.PULL_MESSAGE, {"bname": "gone"}), known) is None
    assert group_of(Command(Request.PULL_MESSAGE), []) is None


def test_a_request_to_a_group_that_is_not_up_goes_to_no_other_one() -> None:
    """The offset of a queue of broker-b is none of broker-a's queue with the same number."""
    known = groups("broker-a", topics=("t",))
    fields = {"bname": "broker-b", "topic": "t", "queueId": "0", "commitOffset": "5000"}
    committed = Command(Request.UPDATE_CONSUMER_OFFSET, fields)
    assert group_of(committed, known) is None
    assert group_of(committed, known, ["broker-b"]) is None
    without = Command(Request.SEND_MESSAGE, {"topic": "u"})
    assert group_of(without, known) is known[0]
    with pytest.raises(RemotingError, match="may be in one that is not: broker-b") as error:
        group_of(without, known, ["broker-b"])
    assert error.value.code == Reply.SERVICE_NOT_AVAILABLE
    assert group_of(Command(Request.SEND_MESSAGE, {"topic": "t"}), known, ["broker-b"]) is known[0]


def test_recorded_routes_name_the_proxy_and_keep_everything_else() -> None:
    count = 0
    for scenario in scenarios():
        asked: dict[tuple[int, int], int] = {}
        for frame in frames(scenario):
            command, key = frame.command, (frame.connection, frame.command.opaque)
            if frame.from_client:
                asked[key] = command.code
                continue
            code = asked.get(key, 0)
            routes = (Request.GET_ROUTEINFO_BY_TOPIC, Request.GET_BROKER_CLUSTER_INFO)
            if frame.server != "namesrv" or code not in routes or command.code:
                continue
            before = command.body
            assert rewritten(code, command, OWN) == ["broker-a"]
            assert command.body == before.replace(b"127.0.0.2:10911", OWN.encode())
            count += 1
    assert count > 100


def test_a_group_without_a_leader_keeps_one_follower_and_standard_json_stays_so() -> None:
    brokers = [
        {"brokerName": "a", "brokerAddrs": {"2": "x:1", "1": "y:1"}},
        {"brokerName": "b", "brokerAddrs": {"10": "x:1", "0": "y:1"}},
    ]
    answer = reply(0, body=json.dumps({"brokerDatas": brokers}).encode())
    assert rewritten(Request.GET_ROUTEINFO_BY_TOPIC, answer, OWN) == ["a", "b"]
    found = json.loads(answer.body)["brokerDatas"]
    assert [each["brokerAddrs"] for each in found] == [{"1": OWN}, {"0": OWN}]
    assert b" " not in answer.body, "the Go client cuts the addresses at commas and colons"
    bare = reply(0, body=b'{"topicList":["b"],"brokerAddr":"x:1"}')
    assert rewritten(Request.GET_SYSTEM_TOPIC_LIST_FROM_NS, bare, OWN) == []
    assert loads(bare.body)["brokerAddr"] == OWN
    refused = reply(Reply.TOPIC_NOT_EXIST, "none", body=b"text")
    assert rewritten(Request.GET_ROUTEINFO_BY_TOPIC, refused, OWN) == []
    assert refused.body == b"text"
    with pytest.raises(BareJsonError):
        rewritten(Request.GET_ROUTEINFO_BY_TOPIC, reply(0, body=b"{"), OWN)
