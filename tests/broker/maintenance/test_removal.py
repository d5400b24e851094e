"""Topics removed with a topic or a group; retry topics with an ambiguous name stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.maintenance.removal import retry_topics_of_topic, topics_of_group
from cometmq.broker.metadata.tables import Group, Metadata, Topic
from cometmq.broker.names.retry import queue_topics
from cometmq.front.clock import Clock

NAMES = st.sampled_from(["a", "b", "a_b", "b_a", "a_b_c", "c"])


def tables(topics: list[str], groups: list[str]) -> Metadata:
    metadata = Metadata(True, 1_000, 1_000, Clock().steady_ns)
    for topic in topics:
        metadata.put_topic(Topic(topic, 1, 1))
    for group in groups:
        metadata.put_group(Group(group))
    return metadata


def test_a_topics_retry_topics_of_both_forms_are_removed() -> None:
    mine = ["%RETRY%g_t", "%RETRY%g+t", "%RETRY%h_t"]
    metadata = tables(["t", "u", *mine, "%RETRY%g_u", "%RETRY%g", "%DLQ%g"], ["g", "h"])
    assert retry_topics_of_topic(metadata, "t", metadata.groups) == sorted(mine)


def test_all_topics_of_a_group_are_removed() -> None:
    mine = ["%RETRY%g_t", "%RETRY%g+t", "%RETRY%g_gone", "%RETRY%g", "%DLQ%g"]
    metadata = tables(["t", *mine, "%RETRY%h_t", "%DLQ%h"], ["g", "h"])
    assert topics_of_group(metadata, "g") == sorted(mine)


def test_an_ambiguous_retry_topic_stays() -> None:
    metadata = tables(["c", "b_c", "%RETRY%a_b_c"], ["a", "a_b"])
    assert retry_topics_of_topic(metadata, "c", metadata.groups) == []
    assert retry_topics_of_topic(metadata, "b_c", metadata.groups) == []
    assert topics_of_group(metadata, "a") == []
    assert topics_of_group(metadata, "a_b") == []
    metadata.remove_topic("b_c")
    assert retry_topics_of_topic(metadata, "c", metadata.groups) == ["%RETRY%a_b_c"]
    assert topics_of_group(metadata, "a_b") == ["%RETRY%a_b_c"]


@given(st.sets(NAMES), st.sets(NAMES), st.sets(st.tuples(NAMES, NAMES)))
def test_topics_of_other_groups_stay(
    topics: set[str], groups: set[str], retried: set[tuple[str, str]]
) -> None:
    names = {name for topic, group in retried for name in queue_topics(topic, group)[1:]}
    metadata = tables([*topics, *names], [*groups])
    for gone in topics:
        others = {name for t in topics - {gone} for g in groups for name in queue_topics(t, g)[1:]}
        assert not others & set(retry_topics_of_topic(metadata, gone, groups))
    for gone in groups:
        others = {name for t in topics for g in groups - {gone} for name in queue_topics(t, g)[1:]}
        assert not others & set(topics_of_group(metadata, gone))
