"""ResetOffsets of a group of lite topics: by parent, by pattern, with a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.names import lite as lite_names
from cometmq.broker.names.lite import queue_of
from cometmq.proto import paths, v1, v2
from cometmq.tests.broker.lite_desk import ADD, PARENT, Lite, lite

EARLIEST, LATEST = v1.ResetOffsetsRequest.EARLIEST, v1.ResetOffsetsRequest.LATEST


async def answered(one: Lite, **asked: Any) -> v1.ResetOffsetsResponse:
    """Call ResetOffsets."""
    request = v1.ResetOffsetsRequest(**{"group": one.group, "topic": PARENT, **asked})
    async with one.one.live.client() as wire:
        answer: Any = await wire.call(paths.RESET_OFFSETS, request, v1.ResetOffsetsResponse)
    assert isinstance(answer, v1.ResetOffsetsResponse)
    return answer


async def reset(one: Lite, **asked: Any) -> dict[str, tuple[int, int]]:
    """Reset the group; return the offsets before and after of each lite topic."""
    answer = await answered(one, **asked)
    return {change.topic: (change.before, change.after) for change in answer.changes}


async def consumed(one: Lite, *names: str) -> None:
    """Send two messages to each lite topic, receive and acknowledge them."""
    assert one.sync(ADD, *names) == v2.OK
    for name in names:
        await one.send(name, b"%s-1" % name.encode(), b"%s-2" % name.encode())
    for _ in names:
        got = await one.receive(batch=2)
        one.ack(*got.handles)
    assert [one.offset(name) for name in names] == [2] * len(names)


async def test_a_reset_of_the_parent_moves_every_lite_topic_after_a_plan(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        await consumed(one, "a", "b")
        planned = await reset(one, edge=EARLIEST, dry_run=True)
        assert planned == {queue_of(PARENT, name): (2, 0) for name in ("a", "b")}
        assert (one.offset("a"), one.offset("b")) == (2, 2)
        assert await reset(one, edge=EARLIEST) == planned
        bodies = (await one.receive(batch=4)).bodies + (await one.receive(batch=4)).bodies
        assert sorted(bodies) == [b"a-1", b"a-2", b"b-1", b"b-2"]


async def test_a_pattern_moves_only_the_lite_topics_that_it_matches(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        await consumed(one, "room-1", "room-2", "lobby")
        moved = await reset(one, edge=EARLIEST, lite_topics="room-*")
        assert set(moved) == {queue_of(PARENT, "room-1"), queue_of(PARENT, "room-2")}
        assert one.offset("lobby") == 2
        await reset(one, edge=LATEST, lite_topics="room-1")
        assert (one.offset("room-1"), one.offset("room-2")) == (2, 0)


async def test_a_reset_drops_the_lock_and_what_is_in_flight(tmp_path: Path) -> None:
    async with lite(tmp_path) as one:
        assert one.sync(ADD, "a") == v2.OK
        await one.send("a", b"1", b"2")
        assert (await one.receive(batch=1)).bodies == [b"1"]
        await one.nothing()  # locked
        await reset(one, edge=EARLIEST)
        assert (await one.receive(batch=4)).bodies == [b"1", b"2"]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"lite_topics": "none*"}, "has no lite topic that matches none*"),
        ({"queue_id": 0}, "name lite topics instead of a queue"),
        ({"topic": "other"}, f"consumes the lite topics of {PARENT}"),
    ],
)
async def test_a_reset_that_would_have_no_effect_is_refused(
    tmp_path: Path, asked: dict[str, Any], sentence: str
) -> None:
    async with lite(tmp_path) as one:
        one.parent("other")
        await consumed(one, "a")
        answer = await answered(one, edge=EARLIEST, **asked)
        assert answer.code != v2.OK
        assert sentence in answer.message
        assert one.offset("a") == 2


async def test_a_reset_of_too_many_lite_topics_is_refused_before_any_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lite_names, "LITE_TOPICS_MAX", 1)
    async with lite(tmp_path) as one:
        await consumed(one, "a", "b")
        answer = await answered(one, edge=EARLIEST)
        assert (answer.code, "by a pattern" in answer.message) == (v2.TOO_MANY_REQUESTS, True)
        assert (one.offset("a"), one.offset("b")) == (2, 2)
