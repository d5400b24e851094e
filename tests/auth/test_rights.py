"""Every method of every service has a right, and the needs name what the request names."""

from typing import Any

import pytest

from cometmq.auth.model import CLUSTER, GROUP, TOPIC, Action
from cometmq.broker import services
from cometmq.broker.access.rights import NODE_SERVICES, RIGHTS
from cometmq.broker.names.recall_handle import RecallHandle
from cometmq.front.service import methods_of
from cometmq.proto import paths, v1, v2
from cometmq.proto.methods import rpc_methods
from cometmq.proto.pool import POOL

PUB, SUB = Action.PUB, Action.SUB


class Anything:
    """Stands for every part that a handler belongs to."""

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any) -> Any:
        return self


def served() -> set[str]:
    """The paths of the broker's own tables."""
    part: Any = Anything()
    rows = [
        *services.messaging(part, part, part, part),
        *services.administration(
            admin=part,
            sender=part,
            maintenance=part,
            queries=part,
            timers=part,
            transactions=part,
            store=part,
            replication=part,
            users=part,
            quotas=part,
        ),
        *services.reading(part),
        *services.testing(part),
    ]
    return {row.path for row in rows}


def test_every_path_of_the_client_port_has_a_right_and_no_other() -> None:
    assert served() == RIGHTS.keys()


def test_every_service_is_of_clients_or_between_nodes() -> None:
    names = {path.split("/")[1] for path in RIGHTS} | NODE_SERVICES
    files = ("control", "controller", "ha", "nameserver", "test")
    found = {
        service.full_name
        for file in files
        for service in POOL.FindFileByName(f"cometmq/v1/{file}.proto").services_by_name.values()
    }
    assert found <= names
    assert all(rpc_methods(name) for name in NODE_SERVICES)


def test_a_method_without_a_right_is_found() -> None:
    (extra,) = methods_of("apache.rocketmq.v2.Admin", {"ChangeLogLevel": print})
    assert extra.path not in RIGHTS


def needs(path: str, request: Any) -> Any:
    return RIGHTS[path](request)


def test_consumers_need_the_group_and_the_topic() -> None:
    group, topic = v2.Resource(name="g"), v2.Resource(name="t")
    queue = v2.MessageQueue(topic=topic)
    both = ((GROUP, "g", SUB), (TOPIC, "t", SUB))
    for request in (
        v2.AckMessageRequest(group=group, topic=topic),
        v2.ChangeInvisibleDurationRequest(group=group, topic=topic),
        v2.ForwardMessageToDeadLetterQueueRequest(group=group, topic=topic),
        v2.QueryAssignmentRequest(group=group, topic=topic),
        v2.SyncLiteSubscriptionRequest(group=group, topic=topic),
        v2.ReceiveMessageRequest(group=group, message_queue=queue),
        v2.PullMessageRequest(group=group, message_queue=queue),
        v2.UpdateOffsetRequest(group=group, message_queue=queue),
        v2.GetOffsetRequest(group=group, message_queue=queue),
    ):
        method = type(request).__name__.removesuffix("Request")
        assert needs(f"{paths.MESSAGING}{method}", request) == both, method
    assert needs(paths.QUERY_OFFSET, v2.QueryOffsetRequest(message_queue=queue)) == both[1:]
    assert needs(paths.PULL_MESSAGE, v2.PullMessageRequest(message_queue=queue)) == both[1:]


def test_producers_need_the_topic() -> None:
    topic = v2.Resource(name="t")
    message = v2.Message(topic=topic)
    for path, request in (
        (paths.SEND_MESSAGE, v2.SendMessageRequest(messages=[message, message])),
        (paths.END_TRANSACTION, v2.EndTransactionRequest(topic=topic)),
        (paths.RECALL_MESSAGE, v2.RecallMessageRequest(topic=topic)),
    ):
        assert needs(path, request) == ((TOPIC, "t", PUB),)
    assert needs(paths.QUERY_ROUTE, v2.QueryRouteRequest(topic=topic)) == (
        (TOPIC, "t", Action.PUB | Action.SUB),
    )
    assert needs(paths.SEND_MESSAGE, v2.SendMessageRequest()) == ()


def test_a_recall_handle_needs_the_topic_that_it_names() -> None:
    handle = RecallHandle("other", "broker-a", 1, "id").encode()
    request = v2.RecallMessageRequest(topic=v2.Resource(name="t"), recall_handle=handle)
    assert needs(paths.RECALL_MESSAGE, request) == ((TOPIC, "t", PUB), (TOPIC, "other", PUB))


def test_heartbeats_of_consumers_need_the_group() -> None:
    group = v2.Resource(name="g")
    consumer = v2.HeartbeatRequest(group=group, client_type=v2.PUSH_CONSUMER)
    assert needs(paths.HEARTBEAT, consumer) == ((GROUP, "g", SUB),)
    assert needs(paths.HEARTBEAT, v2.HeartbeatRequest(client_type=v2.PRODUCER)) == ()
    leaving = v2.NotifyClientTerminationRequest(group=group)
    assert needs(paths.NOTIFY_CLIENT_TERMINATION, leaving) == ((GROUP, "g", SUB),)


def test_settings_need_every_topic_that_they_list() -> None:
    a, b, g = (v2.Resource(name=name) for name in ("a", "b", "g"))
    publishing = v2.TelemetryCommand(settings=v2.Settings(publishing=v2.Publishing(topics=[a, b])))
    assert needs(paths.TELEMETRY, publishing) == ((TOPIC, "a", PUB), (TOPIC, "b", PUB))
    entries = [v2.SubscriptionEntry(topic=a)]
    subscription = v2.TelemetryCommand(
        settings=v2.Settings(subscription=v2.Subscription(group=g, subscriptions=entries))
    )
    assert needs(paths.TELEMETRY, subscription) == ((GROUP, "g", SUB), (TOPIC, "a", SUB))
    assert needs(paths.TELEMETRY, v2.TelemetryCommand()) == ()


@pytest.mark.parametrize(
    ("path", "action"),
    [
        (paths.READ_LOG, Action.SUB),
        (paths.READ_OFFSETS, Action.SUB),
        (paths.LOCATE_LOG, Action.SUB),
        (paths.QUERY_MESSAGES, Action.SUB),
        (paths.LIST_TIMERS, Action.SUB),
        (paths.LIST_TRANSACTIONS, Action.SUB),
        (paths.DESCRIBE_STORE, Action.GET),
        (paths.DELETE_TOPIC, Action.DELETE),
        (paths.SET_ARCHIVE_WATERMARK, Action.UPDATE),
        (paths.SET_DRAINED, Action.UPDATE),
    ],
)
def test_methods_across_topics_need_the_cluster(path: str, action: Action) -> None:
    assert needs(path, v1.ReadLogRequest()) == ((CLUSTER, "", action),)
