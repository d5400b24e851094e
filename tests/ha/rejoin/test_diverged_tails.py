"""Replay of archived tails: records become messages again, each is sent once, as by a producer."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from cometmq.ha.rejoin import (
    archive,
    pending,
)
from cometmq.ha.rejoin import (
    diverged_tails as tails,
)
from cometmq.ha.rejoin.diverged_key import content_key
from cometmq.ha.rejoin.diverged_messages import ORIGIN
from cometmq.ha.rejoin.plan import CUT, Plan, write_plan
from cometmq.proto import v1, v2
from cometmq.store.format.disk import Disk
from cometmq.store.format.record import Message, encode_properties
from tests.store.kit import Kit, message


def _archive(root: Path, messages: list[Message], before: int = 3) -> Path:
    """Cut `messages` off a store; returns its ha directory."""
    kit = Kit(root, max_hash_slot_num=100, max_index_num=400)
    kit.open()
    kit.write_many(before)
    cut_at = kit.store.log_end
    for each in messages:
        (result,) = kit.store.writer.append_many([each])
        assert result.size > 0, result
    kit.dispatch()
    kit.close()
    write_plan(root / "ha", Plan(CUT, cut_at, epoch=2, leader="broker 1", at_ms=7))
    pending.run(root, kit.store.config)
    return root / "ha"


def _with(topic: str, body: bytes = b"body", **properties: str) -> Message:
    each = message(body, topic=topic)
    each.properties = encode_properties(properties)
    return each


class Group:
    """A group that accepts sends, and refuses those that the test selects."""

    def __init__(self) -> None:
        self.taken: list[v2.Message] = []
        self.refuse: set[bytes] = set()
        self.down = False

    async def send(self, request: v2.SendMessageRequest) -> v2.SendMessageResponse:
        if self.down:
            raise ConnectionError("no leader")
        (sent,) = request.messages
        code = v2.TOPIC_NOT_FOUND if sent.body in self.refuse else v2.OK
        if code == v2.OK:
            self.taken.append(sent)
        return v2.SendMessageResponse(status=v2.Status(code=code, message="refused by the test"))

    @property
    def bodies(self) -> list[bytes]:
        return [sent.body for sent in self.taken]


async def _run(directory: Path, group: Group, **request: object) -> v1.ControlResponse:
    replay = tails.Replay(directory, group.send)
    return await replay.run(v1.ReplayTailRequest(**request))  # type: ignore[arg-type]


async def _sent(directory: Path) -> list[v2.Message]:
    group = Group()
    assert (await _run(directory, group)).code == v2.OK
    return group.taken


async def test_replayed_messages_equal_the_original_sends(tmp_path: Path) -> None:
    properties = {
        **{"UNIQ_KEY": "ID1", "TAGS": "a", "KEYS": "k1 k2", "__SHARDINGKEY": "g", "colour": "red"},
        **{"CLUSTER": "c", "PGROUP": "p", "__BORNHOST": "10.0.0.1:5"},
    }
    directory = _archive(tmp_path, [_with("Orders", b"hello", **properties)])
    (sent,) = await _sent(directory)
    (tail,) = archive.load_tails(directory)
    system = sent.system_properties
    assert (sent.topic.name, sent.body) == ("Orders", b"hello")
    assert (system.message_id, system.tag, list(system.keys)) == ("ID1", "a", ["k1", "k2"])
    assert (system.message_group, system.message_type) == ("g", v2.FIFO)
    assert dict(sent.user_properties) == {
        "colour": "red",
        ORIGIN: f"{tail.file_id}@{tail.start}",
    }


async def test_a_tail_of_several_segments_is_replayed_completely(tmp_path: Path) -> None:
    bodies = [b"%04d" % index * 60 for index in range(50)]
    directory = _archive(tmp_path, [_with("Orders", body, UNIQ_KEY="K") for body in bodies])
    (tail,) = archive.load_tails(directory)
    assert tail.messages == 50
    assert sorted(sent.body for sent in await _sent(directory)) == bodies


async def test_delayed_messages_keep_their_time(tmp_path: Path) -> None:
    timer = {
        "REAL_TOPIC": "Orders",
        "REAL_QID": "1",
        "TIMER_OUT_MS": "1700000009000",
        "UNIQ_KEY": "A",
    }
    level = {"REAL_TOPIC": "Orders", "REAL_QID": "1", "DELAY": "2", "UNIQ_KEY": "B"}
    first, second = await _sent(
        _archive(
            tmp_path,
            [
                _with("rmq_sys_wheel_timer", b"1", **timer),
                _with("SCHEDULE_TOPIC_XXXX", b"2", **level),
            ],
        )
    )
    assert first.topic.name == second.topic.name == "Orders"
    assert first.system_properties.delivery_timestamp.ToMilliseconds() == 1_700_000_009_000
    assert second.system_properties.delivery_timestamp.ToMilliseconds() == 1_700_000_005_000
    assert first.system_properties.message_type == v2.DELAY


async def test_numbers_outside_their_range_do_not_stop_a_replay(tmp_path: Path) -> None:
    high = {"TIMER_OUT_MS": str((1 << 63) - 1), "REAL_TOPIC": "Orders", "REAL_QID": "0"}
    late = _with("rmq_sys_wheel_timer", b"1", UNIQ_KEY="A", **high)
    late.born_timestamp_ms = (1 << 63) - 1
    odd = _with("Orders", b"2", UNIQ_KEY="B", _SYS_MSG_PRIORITY_="\u00b2")
    huge = _with("Orders", b"3", UNIQ_KEY="C", _SYS_MSG_PRIORITY_=str(1 << 40))
    sent = await _sent(_archive(tmp_path, [late, odd, huge]))
    assert sorted(one.body for one in sent) == [b"1", b"2", b"3"]


async def test_half_messages_are_replayed_unless_the_tail_has_their_outcome(tmp_path: Path) -> None:
    half = {"REAL_TOPIC": "Orders", "REAL_QID": "0", "TRAN_MSG": "true"}
    committed = _with("Orders", b"committed", TRAN_MSG="true", UNIQ_KEY="A")
    committed.sys_flag = 0x8
    directory = _archive(
        tmp_path,
        [
            _with("RMQ_SYS_TRANS_HALF_TOPIC", b"committed", UNIQ_KEY="A", **half),
            _with("RMQ_SYS_TRANS_HALF_TOPIC", b"rolled back", UNIQ_KEY="B", **half),
            _with("RMQ_SYS_TRANS_HALF_TOPIC", b"open", UNIQ_KEY="C", **half),
            committed,
            _with("RMQ_SYS_TRANS_OP_HALF_TOPIC", b"0,1", TAGS="d"),
        ],
    )
    sent = {each.body: each.system_properties.message_type for each in await _sent(directory)}
    assert sent == {b"open": v2.TRANSACTION, b"committed": v2.NORMAL}


async def test_internal_records_of_the_broker_are_not_replayed(tmp_path: Path) -> None:
    directory = _archive(
        tmp_path,
        [
            _with("rmq_sys_COMETMQ_META", TAGS="META"),
            _with("rmq_sys_REVIVE_LOG_c", TAGS="ck"),
            _with("%RETRY%g_Orders"),
            _with("%DLQ%g"),
            _with("Orders", b"a timer's copy", TIMER_DEQUEUE_MS="5", TIMER_OUT_MS="4"),
            _with("Orders", b"a message"),
        ],
    )
    (tail,) = archive.load_tails(directory)
    assert (tail.records, tail.messages) == (6, 1)
    assert [sent.body for sent in await _sent(directory)] == [b"a message"]


async def test_a_compressed_body_is_replayed_unchanged(tmp_path: Path) -> None:
    each = _with("Orders", b"\x78\x9c...", UNIQ_KEY="A")
    each.sys_flag = 0x1
    (sent,) = await _sent(_archive(tmp_path, [each]))
    assert sent.system_properties.body_encoding == v2.GZIP
    assert sent.body == each.body


async def test_a_tail_is_replayed_once(tmp_path: Path) -> None:
    directory = _archive(tmp_path, [_with("Orders", b"a"), _with("Orders", b"b")])
    group = Group()
    dry = await _run(directory, group, dry_run=True)
    assert (dry.messages, group.taken) == (2, [])
    assert (await _run(directory, group)).messages == 2
    assert [tail.replayed for tail in tails.list_tails(directory)] == [True]
    again = await _run(directory, group)
    assert (again.messages, list(again.steps)) == (0, ["there is nothing to replay"])
    assert group.bodies == [b"a", b"b"]


async def test_a_tail_sent_by_another_replica_is_marked_and_not_sent(tmp_path: Path) -> None:
    one = _archive(tmp_path / "one", [_with("Orders", b"a"), _with("Orders", b"b")])
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    two = tmp_path / "two" / "ha"
    (of_one,), (of_two,) = tails.list_tails(one), tails.list_tails(two)
    assert content_key(of_one) == content_key(of_two) is not None
    group = Group()
    assert (await _run(one, group)).messages == 2
    dry = await _run(two, group, sent_elsewhere=[of_two.file_id], dry_run=True)
    assert (dry.messages, tails.list_tails(two)[0].replayed) == (0, False)
    answer = await _run(two, group, sent_elsewhere=[of_two.file_id])
    assert (answer.code, answer.messages) == (v2.OK, 0)
    assert "not sent twice" in answer.steps[0]
    assert tails.list_tails(two)[0].replayed
    assert sorted(group.bodies) == [b"a", b"b"]


async def test_an_interrupted_replay_continues(tmp_path: Path) -> None:
    bodies = [b"%d" % index for index in range(150)]
    directory = _archive(tmp_path, [_with("Orders", body) for body in bodies])
    group = Group()

    async def until_it_falls(request: v2.SendMessageRequest) -> v2.SendMessageResponse:
        group.down = group.down or len(group.taken) >= 64
        return await group.send(request)

    replay = tails.Replay(directory, until_it_falls)
    answer = await replay.run(v1.ReplayTailRequest())
    assert answer.code == v2.INTERNAL_ERROR
    assert "no leader" in answer.message
    assert not tails.list_tails(directory)[0].replayed
    group.down = False
    assert (await _run(directory, group)).code == v2.OK
    assert sorted(group.bodies, key=int) == bodies, "each once"
    assert tails.list_tails(directory)[0].replayed


async def test_only_refused_messages_are_sent_again(tmp_path: Path) -> None:
    directory = _archive(tmp_path, [_with("Orders", body) for body in (b"a", b"b", b"c")])
    group = Group()
    group.refuse = {b"b"}
    answer = await _run(directory, group)
    assert (answer.code, answer.messages) == (v2.INTERNAL_ERROR, 2)
    group.refuse = set()
    assert (await _run(directory, group)).messages == 1
    assert group.bodies == [b"a", b"c", b"b"]


async def test_replay_of_one_tail_by_its_file_id(tmp_path: Path) -> None:
    directory = _archive(tmp_path, [_with("Orders", b"a")])
    (tail,) = archive.load_tails(directory)
    archive.save(directory, replace(tail, replayed=True, replayed_to=0), Disk())
    group = Group()
    assert (await _run(directory, group, file_id="9-0-1")).code == v2.NOT_FOUND
    assert (await _run(directory, group, file_id=tail.file_id)).messages == 1, (
        "an operator may repeat it"
    )
