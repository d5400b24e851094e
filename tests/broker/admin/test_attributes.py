"""Attributes of topics and groups: changes against a small model, and every refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.admin.attributes import GROUP_RULES, TOPIC_RULES, changed
from cometmq.proto import v2
from cometmq.proto.errors import WireError

GOOD = {
    "message.type": ["NORMAL", "FIFO", "LITE"],
    "reserve.time": ["-1", "0", "86400000"],
    "lite.topic.expiration": ["-1", "1", "43200"],
}


@given(
    st.dictionaries(st.sampled_from(sorted(GOOD)), st.integers(0, 2)),
    st.dictionaries(st.sampled_from(sorted(GOOD)), st.integers(-1, 2)),
)
def test_changes_behave_like_those_of_a_dictionary(
    before: dict[str, int], wanted: dict[str, int]
) -> None:
    known = {key: GOOD[key][index] for key, index in before.items()}
    model = dict(known)
    changes = []
    for key, index in wanted.items():
        if index >= 0:
            changes.append(f"+{key}={GOOD[key][index]}")
            model[key] = GOOD[key][index]
        elif key in known:
            changes.append(f"-{key}")
            del model[key]
    kept = dict(known)
    assert changed(TOPIC_RULES, known, changes, new=False) == model
    assert known == kept, "what is altered is a copy"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("foo=1", "write \\+KEY=VALUE"),
        ("+foo", "write \\+KEY=VALUE"),
        ("-reserve.time=1", "write \\+KEY=VALUE"),
        ("", "write \\+KEY=VALUE"),
        ("+foo=1", "no attribute 'foo'"),
        ("+message.type=ODD", "not 'ODD'"),
        ("+lite.topic.expiration=43201", "from -1 to 43200"),
        ("+lite.topic.expiration=1_0", "from -1 to 43200"),
        ("+lite.topic.expiration=٣", "from -1 to 43200"),
        ("+lite.topic.expiration=" + "9" * 5_000, "from -1 to 43200"),
        ("+lite.topic.expiration=", "from -1 to 43200"),
        ("+cleanup.policy=COMPACTION", "is DELETE"),
        ("+queue.type=BatchCQ", "is SimpleCQ"),
        ("-reserve.time", "not set"),
    ],
)
def test_an_invalid_change_is_refused(change: str, sentence: str) -> None:
    with pytest.raises(WireError, match=sentence) as refused:
        changed(TOPIC_RULES, {}, [change], new=True)
    assert refused.value.code == v2.BAD_REQUEST


def test_a_key_named_twice_is_refused() -> None:
    with pytest.raises(WireError, match="twice"):
        changed(TOPIC_RULES, {"reserve.time": "1"}, ["-reserve.time", "+reserve.time=2"], new=False)


def test_fixed_attributes_cannot_be_changed() -> None:
    known = {"queue.type": "BatchCQ"}
    for change in ("+queue.type=SimpleCQ", "-queue.type"):
        with pytest.raises(WireError, match="cannot be changed"):
            changed(TOPIC_RULES, known, [change], new=False)
    assert changed(TOPIC_RULES, {}, ["+queue.type=SimpleCQ"], new=True) == {
        "queue.type": "SimpleCQ"
    }


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("priority.factor", "100", "101"),
        ("lite.bind.topic", "parent", ""),
        ("lite.bind.topic", "p", "x" * 128),
        ("lite.sub.model", "Exclusive", "exclusive"),
        ("lite.sub.wildcard", "true", "yes"),
        ("lite.sub.client.quota", "1", "0"),
        ("lite.sub.client.max.event.cnt", "400", "-1"),
    ],
)
def test_group_attributes_are_validated(key: str, good: str, bad: str) -> None:
    assert changed(GROUP_RULES, {}, [f"+{key}={good}"], new=True) == {key: good}
    with pytest.raises(WireError):
        changed(GROUP_RULES, {}, [f"+{key}={bad}"], new=True)
