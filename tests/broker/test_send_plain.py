"""The fast path for common messages gives the same results as the ordered checks."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.messages.convert import SYS_COMPRESSED
from cometmq.broker.messages.stored_properties import encode_sent
from cometmq.broker.messages.validation import MIXED, check_message_type, check_messages
from cometmq.broker.metadata.tables import PERM_READ, Topic
from cometmq.broker.sending.fast_path import Origin, fifo_queue, make_template, prepare_fast
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.store.format.record import pack_host
from cometmq.tests.broker.desk import message

NOW_MS = 1_795_255_684_123
ORIGIN = Origin("region", "cluster", 64, pack_host("10.0.0.1", 8081))
PEER = ("10.0.0.2", pack_host("10.0.0.2", 50001))

_text = st.text(st.sampled_from("aZ9_-|. \x01\x7fé"), max_size=5)
_system = st.fixed_dictionaries(
    {},
    optional={
        "message_id": _text,
        "tag": _text,
        "keys": st.lists(_text, max_size=2),
        "message_group": _text,
        "trace_context": _text,
        "lite_topic": st.sampled_from(["", "lite"]),
        "delivery_timestamp": st.just(v2.Timestamp(seconds=1)),
        "priority": st.integers(-1, 2),
        "message_type": st.sampled_from([v2.NORMAL, v2.FIFO, v2.TRANSACTION]),
        "body_encoding": st.sampled_from([v2.IDENTITY, v2.GZIP]),
        "born_timestamp": st.just(v2.Timestamp(seconds=7, nanos=8_999_999)),
        "properties": st.dictionaries(_text, _text, max_size=1),
        "body": st.binary(max_size=70),
    },
)


def _sent(systems: list[dict[str, Any]], topics: list[str]) -> list[v2.Message]:
    request = v2.SendMessageRequest(
        messages=[message(topic, **system) for topic, system in zip(topics, systems, strict=True)]
    )
    return list(v2.SendMessageRequest.FromString(request.SerializeToString()).messages)


@given(
    st.lists(st.tuples(_system, st.sampled_from("tttttu")), min_size=1, max_size=3),
    st.sampled_from([v2.NORMAL, v2.FIFO, v2.DELAY, MIXED]),
)
def test_the_fast_path_stores_the_same_record_as_the_checked_path(
    sent: list[tuple[dict[str, Any], str]], message_type: int
) -> None:
    messages = _sent([system for system, _ in sent], ["t", *[topic for _, topic in sent[1:]]])
    topic = Topic("t", 4, 4, message_type=message_type)
    template = make_template(topic, ORIGIN, 5)
    ready = prepare_fast(messages, template, ORIGIN, PEER, NOW_MS)
    if ready is None:
        assert template.turn == 5
        return
    drafts = check_messages(messages, NOW_MS, ORIGIN.max_body)
    check_message_type(drafts, message_type)
    assert template.turn == 6
    assert (ready.topic, ready.message_type) == ("t", drafts[0].message_type)
    assert ready.ids == [draft.message_id.encode() for draft in drafts]
    assert ready.size == sum(len(draft.body) for draft in drafts)
    for draft, found in zip(drafts, ready.messages, strict=True):
        queue_id = fifo_queue(draft.message_group, 4) if draft.message_group else 1
        host = draft.born_host or PEER[0]
        assert found.properties == encode_sent(draft, "t", "region", "cluster", host)
        assert (found.topic, found.queue_id, found.body) == ("t", queue_id, draft.body)
        assert found.sys_flag == (SYS_COMPRESSED if draft.compressed else 0)
        assert found.born_timestamp_ms == draft.born_ms
        assert (found.born_host, found.store_host) == (PEER[1], ORIGIN.store_host)


def test_common_messages_take_the_fast_path() -> None:
    plain = _sent([{}, {"tag": "a", "keys": ["k"], "trace_context": "t"}], ["t", "t"])
    assert prepare_fast(plain, make_template(Topic("t", 4, 4), ORIGIN, 0), ORIGIN, PEER, NOW_MS)
    fifo = _sent([{"message_group": "g"}], ["t"])
    template = make_template(Topic("t", 4, 4, message_type=v2.FIFO), ORIGIN, 0)
    assert prepare_fast(fifo, template, ORIGIN, PEER, NOW_MS)


def test_messages_to_an_unwritable_topic_take_the_checked_path() -> None:
    sent = _sent([{}], ["t"])
    closed = make_template(Topic("t", 4, 4, perm=PERM_READ), ORIGIN, 0)
    assert prepare_fast(sent, closed, ORIGIN, PEER, NOW_MS) is None
    assert (
        prepare_fast(sent, make_template(Topic("t", 4, 0), ORIGIN, 0), ORIGIN, PEER, NOW_MS) is None
    )


def test_invalid_messages_take_the_checked_path() -> None:
    template = make_template(Topic("t", 4, 4, message_type=MIXED), ORIGIN, 0)
    faults: list[dict[str, Any]] = [
        {"body": b""},
        {"body": bytes(65)},
        {"message_id": " "},
        {"tag": "a|b"},
        {"keys": [""]},
        {"message_group": "g" * 64},
        {"trace_context": "\x01"},
        {"priority": -1},
        {"lite_topic": "?"},
        {"properties": {"KEYS": "x"}},
    ]
    for fault in faults:
        sent = _sent([fault], ["t"])
        assert prepare_fast(sent, template, ORIGIN, PEER, NOW_MS) is None, fault
        try:
            check_messages(sent, NOW_MS, ORIGIN.max_body)
        except WireError:
            continue
        raise AssertionError(fault)
