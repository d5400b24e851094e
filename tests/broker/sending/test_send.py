"""SendMessage: queues, responses, durability, refusals; stored records equal sent messages."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from cometmq.broker.metadata.tables import Topic
from cometmq.broker.sending.send_queue import LINGER_LONG_S, LINGER_S, next_linger_s
from cometmq.broker.sending.topic_template import fifo_queue
from cometmq.broker.server import BrokerServer
from cometmq.front.config import DoorConfig
from cometmq.proto import v2
from cometmq.store.format.record import Message, decode, unpack_host
from cometmq.store.format.results import PutStatus
from cometmq.tests.broker.desk import Desk, desk, message
from cometmq.tests.broker.live import settings

_PUT_OK = PutStatus.PUT_OK


def stored(one: Desk, topic: str, queue_id: int = 0) -> list[Any]:
    """Return every record of a queue."""
    return [decode(r.data) for r in one.node.store.get(topic, queue_id, 0, 1_000).records]


@pytest.mark.parametrize(
    ("group", "queues"),
    [
        ("a", [0, 0, 0, 0]),
        ("order-1", [0, 3, 3, 3]),
        ("Aa", [1, 1, 5, 14]),
        ("x-42", [1, 2, 7, 7]),
        ("用户", [1, 3, 3, 10]),
    ],
)
def test_message_groups_have_fixed_queues(group: str, queues: list[int]) -> None:
    assert [fifo_queue(group, n) for n in (2, 4, 8, 16)] == queues
    assert fifo_queue(group, 1) == 0


async def test_a_response_contains_message_id_and_offset(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        for n in range(3):
            answer = await one.send(message("t", message_id=f"ID-{n}"))
            assert (answer.status.code, answer.status.message) == (v2.OK, "OK")
            (entry,) = answer.entries
            assert (entry.status.code, entry.message_id) == (v2.OK, f"ID-{n}")
            assert (entry.transaction_id, entry.recall_handle) == (f"ID-{n}", "")
            assert entry.offset == n
        long_id = "x" * 300
        answer = await one.send(message("t", message_id=long_id))
        assert answer.entries[0].message_id == long_id
        assert one.node.runtime.counters.sent["t", v2.NORMAL].messages == 4


async def test_records_contain_the_fields_of_message_and_connection(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        sent = message("t", b"hello", "ID", tag="x", keys=["k"], properties={"a": "1"})
        sent.system_properties.born_timestamp.FromMilliseconds(1_795_255_684_123)
        await one.send(sent)
        await one.send(message("t", b"zip", "ID2", body_encoding=v2.GZIP))
        await one.dispatched()
        record, zipped = stored(one, "t")
        assert (record.topic, record.body) == ("t", b"hello")
        assert record.born_timestamp_ms == 1_795_255_684_123
        assert unpack_host(record.born_host) == ("127.0.0.1", 4711)
        port = int(one.live.bound.client.rpartition(":")[2])
        assert unpack_host(record.store_host) == ("127.0.0.1", port)
        assert record.properties_dict == {
            "MSG_REGION": "DefaultRegion",
            "UNIQ_KEY": "ID",
            "CLUSTER": "DefaultCluster",
            "PGROUP": "t",
            "RECONSUME_TIME": "0",
            "TAGS": "x",
            "__BORNHOST": "client",
            "BORN_TIMESTAMP": "1795255684123",
            "KEYS": "k",
            "a": "1",
            "TRACE_ON": "true",
        }
        assert (record.sys_flag, zipped.sys_flag, zipped.body) == (0, 1, b"zip")
        assert abs(zipped.born_timestamp_ms - one.node.runtime.clock.wall_ms()) < 60_000


async def test_normal_messages_rotate_over_queues_and_message_groups_keep_theirs(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", queues=4)
        # The Python and Go clients always send queue 0.
        await asyncio.gather(*(one.send(message("t", b"%d" % n, queue_id=0)) for n in range(40)))
        one.topic("f", queues=4, message_type=v2.FIFO)
        for n in range(12):
            await one.send(message("f", b"%d" % n, message_group=f"group-{n % 3}"))
        await one.dispatched()
        counts = [one.node.store.max_offset("t", q) for q in range(4)]
        assert counts == [10, 10, 10, 10]
        for n in range(3):
            queue = stored(one, "f", fifo_queue(f"group-{n}", 4))
            mine = [r.body for r in queue if r.properties_dict["__SHARDINGKEY"] == f"group-{n}"]
            assert mine == [b"%d" % m for m in range(n, 12, 3)]


async def test_the_properties_of_a_received_message_can_be_sent_again(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("f", message_type=v2.FIFO)
        one.group("g", orderly=True)
        users = {"colour": "red"}
        await one.sent("f", b"first", message_group="old", properties=users)
        (got,) = (await one.receive("f", "g")).messages
        assert got.user_properties == {"colour": "red", "__SHARDINGKEY": "old"}
        again = dict(got.user_properties)
        await one.sent("f", b"again", message_group="new", properties=again)
        one.topic("n")
        await one.sent("n", b"again", properties=again)
        assert [r.properties_dict["__SHARDINGKEY"] for r in stored(one, "f")] == ["old", "new"]
        (copy,) = (await one.receive("n", "g2")).messages
        assert copy.system_properties.message_type == v2.NORMAL
        assert copy.user_properties == {"colour": "red"}


async def test_each_message_of_a_request_has_an_entry_in_order(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t", queues=4)
        answer = await one.send(*(message("t", b"%d" % n, f"ID-{n}") for n in range(5)))
        assert [entry.message_id for entry in answer.entries] == [f"ID-{n}" for n in range(5)]
        # One request, one queue, consecutive offsets.
        assert [entry.offset for entry in answer.entries] == [0, 1, 2, 3, 4]
        one.topic("f", queues=4, message_type=v2.FIFO)
        groups = [f"g{n % 4}" for n in range(12)]
        answer = await one.send(
            *(message("f", b"%d" % n, f"ID-{n}", message_group=g) for n, g in enumerate(groups))
        )
        assert answer.status.code == v2.OK
        await one.dispatched()
        used = Counter(fifo_queue(group, 4) for group in groups)
        for queue_id, count in used.items():
            assert one.node.store.max_offset("f", queue_id) == count


async def test_one_append_serves_all_sends_of_a_loop_turn(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        appends: list[int] = []
        real = one.node.store.writer.append_many

        def counted(messages: Any) -> Any:
            appends.append(len(messages))
            return real(messages)

        one.node.store.writer.append_many = counted  # type: ignore[method-assign]
        await asyncio.gather(*(one.send(message("t", b"%d" % n)) for n in range(64)))
        assert appends == [64]


LATER = v2.Timestamp(seconds=1)
REFUSED: list[tuple[dict[str, Any], int]] = [
    ({"topic": "nowhere"}, v2.TOPIC_NOT_FOUND),
    ({"topic": "TBW102"}, v2.ILLEGAL_TOPIC),
    ({"topic": "readonly"}, v2.FORBIDDEN),
    ({"topic": "fifo"}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ({"message_group": "g"}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ({"topic": "mixed", "message_group": "g"}, v2.OK),
    ({"body": b""}, v2.MESSAGE_BODY_EMPTY),
    ({"message_id": "i" * 33_000}, v2.MESSAGE_PROPERTIES_TOO_LARGE),
    ({"message_type": v2.TRANSACTION}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ({"priority": 1}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ({"lite_topic": "l"}, v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    (
        {"topic": "mixed", "message_type": v2.TRANSACTION, "message_group": "g"},
        v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    (
        {"topic": "mixed", "message_type": v2.TRANSACTION, "delivery_timestamp": LATER},
        v2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    ({"topic": "mixed", "priority": 1}, v2.OK),
    ({"topic": "mixed", "priority": -1}, v2.BAD_REQUEST),
]


async def test_refused_requests_have_a_code_and_no_entries(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        one.topic("fifo", message_type=v2.FIFO)
        one.topic("mixed", message_type=-1)
        one.node.meta_log.write_topic(Topic("readonly", 1, 1, perm=4))
        for fields, code in REFUSED:
            answer = await one.send(message(**{"topic": "t", **fields}))
            assert answer.status.code == code, fields
            assert len(answer.entries) == (code == v2.OK)
        anonymous = await one.send(message("t"), client_id=" ")
        assert anonymous.status.code == v2.CLIENT_ID_REQUIRED
        assert (await one.send()).status.code == v2.MESSAGE_CORRUPTED
        # Other sends are not affected.
        assert (await one.send(message("t"))).status.code == v2.OK


async def test_a_delivery_time_in_the_past_is_now(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("d", message_type=v2.DELAY)
        now_ms = one.node.runtime.clock.wall_ms()
        past = message("d", b"late")
        past.system_properties.delivery_timestamp.FromMilliseconds(now_ms - 1_234)
        answer = await one.send(past)
        assert (answer.status.code, answer.entries[0].recall_handle) == (v2.OK, "")
        await one.dispatched()
        system = (await one.receive("d", "g")).messages[0].system_properties
        assert system.message_type == v2.DELAY
        assert system.delivery_timestamp.ToMilliseconds() == now_ms - 1_234


async def test_differing_results_have_their_own_codes(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        huge = "i" * 33_000
        answer = await one.send(message("t", message_id="a"), message("t", message_id=huge))
        assert answer.status.code == v2.MULTIPLE_RESULTS
        assert [entry.status.code for entry in answer.entries] == [
            v2.OK,
            v2.MESSAGE_PROPERTIES_TOO_LARGE,
        ]
        assert [entry.message_id for entry in answer.entries] == ["a", huge]


async def test_waiting_sends_are_bounded(tmp_path: Path) -> None:
    async with desk(tmp_path, send_thread_pool_queue_capacity=8) as one:
        one.topic("t")
        answers = await asyncio.gather(*(one.send(message("t", b"%d" % n)) for n in range(12)))
        codes = Counter(answer.status.code for answer in answers)
        assert codes == {v2.OK: 8, v2.TOO_MANY_REQUESTS: 4}
        assert (await one.send(message("t"))).status.code == v2.OK


async def test_a_disconnected_client_does_not_affect_other_sends(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        left = one.node.sender.send(
            v2.SendMessageRequest(messages=[message("t", b"left")]), one.context()
        )
        left.cancel()
        assert (await one.send(message("t", b"stays"))).status.code == v2.OK


async def test_a_full_disk_fails_sends_without_partial_writes(
    tmp_path: Path,
) -> None:
    base = settings(tmp_path)
    chosen = replace(base, store=replace(base.store, mapped_file_size_commit_log=256 << 10))
    async with desk(tmp_path, chosen) as one:
        one.topic("t")

        def full(call: str) -> None:
            if call == "fallocate":
                raise OSError(errno.ENOSPC, "No space left on device")

        codes = []
        one.node.store.disk.fault = full
        for n in range(60):
            answer = await one.send(message("t", bytes(32 << 10), f"ID-{n}"))
            codes.append(answer.status.code)
        stored_count = codes.index(v2.INTERNAL_SERVER_ERROR)
        assert set(codes[stored_count:]) == {v2.INTERNAL_SERVER_ERROR}
        end = one.node.store.log_end
        one.node.store.disk.fault = None
        await asyncio.sleep(0.2)
        answer = await one.send(message("t", b"room again"))
        assert answer.status.code in (v2.OK, v2.INTERNAL_SERVER_ERROR)
        await one.dispatched()
        assert one.node.store.max_offset("t", 0) == stored_count + (answer.status.code == v2.OK)
        assert one.node.store.log_end >= end


async def test_a_new_group_can_read_while_the_disk_is_full(tmp_path: Path) -> None:
    base = settings(tmp_path)
    chosen = replace(base, store=replace(base.store, mapped_file_size_commit_log=256 << 10))
    async with desk(tmp_path, chosen) as one:
        one.topic("t")
        store = one.node.store

        def full(call: str) -> None:
            if call == "fallocate":
                raise OSError(errno.ENOSPC, "No space left on device")

        await one.send(message("t", b"first"))
        store.disk.fault = full
        for size in (32 << 10, 0):
            # The smallest record possible: after it, a group's record does not fit either.
            while store.writer.append_many([Message("t", 0, bytes(size))])[0].status is _PUT_OK:
                pass
        received = await one.receive("t", "new-group")
        assert received.bodies[0] == b"first"
        assert one.ack("t", "new-group", received.handles[0]).status.code == v2.OK


def test_one_or_two_senders_do_not_linger() -> None:
    assert next_linger_s(0.0, 1) == 0.0
    assert next_linger_s(0.0, 2) == 0.0


def test_many_senders_linger_and_share_an_append() -> None:
    assert next_linger_s(0.0, 3) == LINGER_S
    assert next_linger_s(LINGER_S, 2) == LINGER_S
    assert next_linger_s(LINGER_S, 8) == LINGER_LONG_S
    assert next_linger_s(LINGER_LONG_S, 4) == LINGER_S
    assert next_linger_s(LINGER_S, 1) == 0.0


async def test_a_lingering_send_is_answered(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        for _ in range(3):
            answers = await asyncio.gather(*(one.send(message("t", b"x")) for _ in range(9)))
            assert {answer.status.code for answer in answers} == {v2.OK}
        assert (await one.send(message("t", b"alone"))).status.code == v2.OK


@pytest.mark.parametrize("door", ["grpcio", "auto"])
async def test_sends_linger_only_behind_a_door_that_passes_them_one_by_one(
    tmp_path: Path, door: Literal["grpcio", "auto"]
) -> None:
    chosen = settings(tmp_path)
    server = BrokerServer(chosen.broker, chosen.store, chosen.ha, DoorConfig(front_door=door))
    bound = await server.start()
    try:
        assert server.broker.sender.lingers is (bound.door == "grpcio")
    finally:
        await server.stop(0)
