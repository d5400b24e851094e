"""Topics and groups: tables, JSON beans, record bodies and snapshots."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.messages.validation import MIXED
from cometmq.broker.metadata.codec import (
    Assembly,
    group_message,
    group_of,
    snapshot_parts,
    topic_message,
    topic_of,
)
from cometmq.broker.metadata.tables import (
    DEFAULT_BACKOFF_MS,
    Group,
    Metadata,
    Topic,
    group_from_json,
    group_to_json,
    topic_from_json,
    topic_to_json,
    type_attribute,
)
from cometmq.front.clock import Clock
from cometmq.proto import v1, v2
from cometmq.proto.errors import WireError

NAMES = st.text("abcXYZ019_-%|", min_size=1, max_size=40)
TYPES = st.sampled_from([v2.NORMAL, v2.FIFO, v2.DELAY, v2.TRANSACTION, MIXED])


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    kind = draw(TYPES)
    return Topic(
        draw(NAMES),
        draw(st.integers(0, 1024)),
        draw(st.integers(0, 1024)),
        draw(st.integers(0, 7)),
        kind,
        type_attribute(kind),
    )


@st.composite
def groups(draw: st.DrawFn) -> Group:
    extra: dict[str, Any] = draw(
        st.sampled_from(
            [
                {},
                {
                    "groupRetryPolicy": {
                        "type": "CUSTOMIZED",
                        "customizedRetryPolicy": {"next": [5]},
                    }
                },
                {
                    "groupRetryPolicy": {
                        "type": "EXPONENTIAL",
                        "exponentialRetryPolicy": {"initial": 7, "max": 70, "multiplier": 3},
                    }
                },
                {"consumeFromMinEnable": False},
            ]
        )
    )
    return Group(
        draw(NAMES),
        draw(st.booleans()),
        draw(st.integers(1, 100)),
        draw(st.booleans()),
        draw(st.integers(0, 8)),
        {},
        extra,
    )


@given(topics(), groups())
def test_records_round_trip_topics_and_groups(topic: Topic, group: Group) -> None:
    assert topic_of(v1.TopicConfig.FromString(topic_message(topic).SerializeToString())) == topic
    again = group_of(v1.GroupConfig.FromString(group_message(group).SerializeToString()))
    assert again == group
    assert again.backoff_ms() == group.backoff_ms()


@given(topics(), groups())
def test_beans_round_trip_topics_and_groups(topic: Topic, group: Group) -> None:
    bean = topic_to_json(topic)
    assert list(bean) == sorted(bean), "Apache writes bean fields in alphabetical order"
    again = topic_from_json(topic.name, bean)
    assert topic_to_json(again) == bean
    assert (again.read_queues, again.perm, again.message_type) == (
        topic.read_queues,
        topic.perm,
        topic.message_type,
    )
    bean = group_to_json(group)
    assert list(bean) == sorted(bean)
    assert group_to_json(group_from_json(group.name, bean)) == bean
    assert group_from_json(group.name, bean).max_attempts == group.max_attempts


def test_unknown_fields_of_a_bean_are_kept() -> None:
    bean = {"readQueueNums": 4, "writeQueueNums": 4, "topicSysFlag": 3, "novelty": {"a": [1]}}
    assert topic_to_json(topic_from_json("t", bean))["novelty"] == {"a": [1]}
    assert topic_to_json(topic_from_json("t", bean))["topicSysFlag"] == 3


@given(st.lists(topics(), max_size=20), st.lists(groups(), max_size=20), st.integers(60, 4_000))
def test_an_incomplete_snapshot_is_ignored(
    all_topics: list[Topic], all_groups: list[Group], part_bytes: int
) -> None:
    parts = snapshot_parts(
        9, all_topics, all_groups, [], [], deleted_groups={}, part_bytes=part_bytes
    )
    assert all(part.ByteSize() <= part_bytes + 400 for part in parts)
    assembly = Assembly()
    complete = [assembly.add(part) for part in parts]
    assert complete[:-1] == [None] * (len(parts) - 1)
    last = complete[-1]
    assert last is not None
    assert [topic_of(topic) for part in last for topic in part.topics] == all_topics
    assert [group_of(group) for part in last for group in part.groups] == all_groups
    if len(parts) > 1:
        torn = Assembly()
        assert [torn.add(part) for part in parts[1:]] == [None] * (len(parts) - 1)
        assert torn.add(parts[0]) is None


def test_the_default_backoff_is_the_delay_levels() -> None:
    assert Group("g").backoff_ms() == DEFAULT_BACKOFF_MS
    assert DEFAULT_BACKOFF_MS[:5] == (1_000, 5_000, 10_000, 30_000, 60_000)
    assert DEFAULT_BACKOFF_MS[-1] == 7_200_000
    assert len(DEFAULT_BACKOFF_MS) == 18


def test_groups_are_created_only_if_enabled() -> None:
    written: list[str] = []
    tables = Metadata(
        auto_create_group=True, max_topics=10, max_groups=1, steady_ns=Clock().steady_ns
    )
    assert tables.ensure_group("g").max_attempts == 17
    assert tables.group("g") is None, "a follower never writes"

    def record(group: Group) -> bool:
        written.append(group.name)
        tables.put_group(group)
        return True

    tables.record_groups(record)
    assert tables.ensure_group("g") is tables.ensure_group("g")
    assert written == ["g"]
    with pytest.raises(WireError) as refused:
        tables.ensure_group("one too many")
    assert refused.value.code == v2.FORBIDDEN
    strict = Metadata(
        auto_create_group=False, max_topics=10, max_groups=10, steady_ns=Clock().steady_ns
    )
    with pytest.raises(WireError) as missing:
        strict.ensure_group("g")
    assert missing.value.code == v2.CONSUMER_GROUP_NOT_FOUND


def test_the_version_increases_with_every_topic_change() -> None:
    tables = Metadata(
        auto_create_group=True, max_topics=1, max_groups=1, steady_ns=Clock().steady_ns
    )
    tables.put_topic(Topic("t", 1, 1))
    tables.put_group(Group("g"))
    assert tables.version == 1
    tables.remove_topic("t")
    tables.remove_topic("t")
    assert tables.version == 2
