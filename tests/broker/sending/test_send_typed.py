"""Messages of every type: topic, stored form and receipt."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.messages.validation import MIXED, Draft
from cometmq.broker.sending.answer import ReceiptExtras
from cometmq.broker.sending.grpc_records import TypeHandler
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.store.format.record import Message, decode
from cometmq.store.format.results import AppendResult, PutStatus
from cometmq.tests.broker.desk import Desk, desk, message


def stored(one: Desk, topic: str, queue_id: int) -> list[Any]:
    """Return every record of a queue."""
    return [decode(r.data) for r in one.node.store.get(topic, queue_id, 0, 1_000).records]


async def test_a_priority_selects_a_queue(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("p", queues=4, message_type=v2.PRIORITY)
        one.topic("m", queues=4, message_type=MIXED)
        for topic in ("p", "m"):
            for priority in (0, 2, 3, 4, 1_000):
                answer = await one.send(message(topic, b"%d" % priority, priority=priority))
                assert answer.status.code == v2.OK
        await one.dispatched()
        for topic in ("p", "m"):
            bodies = [[r.body for r in stored(one, topic, queue)] for queue in range(4)]
            assert bodies == [[b"0"], [], [b"2"], [b"3", b"4", b"1000"]]
        (record,) = stored(one, "p", 2)
        assert record.properties_dict["_SYS_MSG_PRIORITY_"] == "2"
        received = await one.receive("p", "g")
        system = {m.body: m.system_properties for m in received.messages}[b"1000"]
        assert (system.message_type, system.priority) == (v2.PRIORITY, 1_000)


async def test_properties_of_another_type_are_dropped(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("m", queues=1, message_type=MIXED)
        await one.send(message("m", message_group="g", priority=1, lite_topic="l"))
        await one.send(message("m", priority=1, lite_topic="l", properties={"a": "1"}))
        await one.dispatched()
        fifo, priority = (record.properties_dict for record in stored(one, "m", 0))
        names = {"__SHARDINGKEY", "_SYS_MSG_PRIORITY_", "__LITE_TOPIC"}
        assert names & fifo.keys() == {"__SHARDINGKEY"}
        assert names & priority.keys() == {"_SYS_MSG_PRIORITY_"}
        assert priority["a"] == "1"


class Owner:
    """Stores messages of a type elsewhere, like the services for delays and transactions."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        self.stored: list[AppendResult] = []

    def prepare(
        self, draft: Draft, message: Message, properties: dict[str, str], topic: Any, ctx: Any
    ) -> tuple[Message, ReceiptExtras | None]:
        """Move the message to the topic `elsewhere`; `odd` messages have no receipt of their
        own.
        """
        self.seen.append((draft.message_id, ctx.client_id, properties))
        if draft.body == b"no":
            raise WireError(v2.FORBIDDEN, "not this one")
        message.topic, message.queue_id = "elsewhere", 0
        if draft.body == b"odd":
            return message, None
        return message, ReceiptExtras(recall_handle="handle", on_stored=self._stored)

    def _stored(self, result: AppendResult) -> str:
        self.stored.append(result)
        return f"tx-{result.queue_offset}"


@pytest.mark.parametrize("dedup", [False, True])
async def test_a_type_handler_creates_record_and_receipt(tmp_path: Path, dedup: bool) -> None:
    async with desk(tmp_path, message_deduplication_enable=dedup) as one:
        one.topic("m", queues=4, message_type=MIXED)
        one.topic("elsewhere")
        owner = Owner()
        typed: TypeHandler = owner
        one.node.sender.register(v2.LITE, typed)
        answer = await one.send(
            message("m", b"1", "A", lite_topic="l"),
            message("m", b"odd", "B", lite_topic="l"),
            message("m", b"3", "C"),
            message("m", b"4", "D", lite_topic="l"),
        )
        assert answer.status.code == v2.OK
        handles = [(e.message_id, e.recall_handle, e.transaction_id) for e in answer.entries]
        assert handles == [
            ("A", "handle", "tx-0"),
            ("B", "", "B"),
            ("C", "", "C"),
            ("D", "handle", "tx-2"),
        ]
        assert [result.status for result in owner.stored] == [PutStatus.PUT_OK] * 2
        assert [(i, client) for i, client, _ in owner.seen] == [
            ("A", "c@1"),
            ("B", "c@1"),
            ("D", "c@1"),
        ]
        assert owner.seen[0][2]["__LITE_TOPIC"] == "l"
        await one.dispatched()
        assert [record.body for record in stored(one, "elsewhere", 0)] == [b"1", b"odd", b"4"]
        if dedup:
            again = await one.send(message("m", b"4", "D", lite_topic="l"))
            assert again.entries[0] == answer.entries[3]
            assert len(owner.stored) == 2
        refused = await one.send(message("m", b"no", "E", lite_topic="l"))
        assert (refused.status.code, len(refused.entries)) == (v2.FORBIDDEN, 0)


async def test_a_failing_type_handler_does_not_affect_other_sends(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("m", message_type=MIXED)
        one.topic("elsewhere")

        class Broken(Owner):
            def _stored(self, result: AppendResult) -> str:
                raise LookupError("a bug")

        one.node.sender.register(v2.LITE, Broken())
        answers = await asyncio.gather(
            one.send(message("m", b"1", "A")),
            one.send(message("m", b"2", "B", lite_topic="l")),
            one.send(message("m", b"3", "C")),
            return_exceptions=True,
        )
        assert isinstance(answers[1], LookupError)
        for answer in (answers[0], answers[2]):
            assert isinstance(answer, v2.SendMessageResponse)
            assert answer.status.code == v2.OK


async def test_a_type_without_a_handler_is_refused(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("m", message_type=MIXED)
        one.node.sender.records.handlers.clear()
        end = one.node.store.log_end
        answer = await one.send(message("m", b"1"), message("m", b"2", lite_topic="l"))
        assert answer.status.code == v2.UNSUPPORTED
        assert one.node.store.log_end == end


async def test_internal_records_are_appended_after_earlier_sends(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        sender = one.node.sender
        early = asyncio.ensure_future(one.send(message("t", b"early")))
        await asyncio.sleep(0)
        results = sender.append_internal([Message("t", 0, b"%d" % n) for n in range(3)])
        assert [result.queue_offset for result in results] == [1, 2, 3]
        assert (await early).entries[0].offset == 0
        assert sender.append_internal([]) == []
        mixed = sender.append_internal([Message("t", 0, bytes(5 << 20)), Message("t", 0, b"x")])
        assert [result.status for result in mixed] == [
            PutStatus.MESSAGE_ILLEGAL,
            PutStatus.PUT_OK,
        ]
        with pytest.raises(WireError) as caught:
            sender.append_internal([Message("t", 0, bytes(5 << 20))])
        assert caught.value.code == v2.MESSAGE_BODY_TOO_LARGE


async def test_internal_records_are_refused_while_the_log_is_not_writable(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        replication = one.node.replication
        real = replication.write_refusal
        replication.write_refusal = lambda: "too few"  # type: ignore[method-assign]
        end = one.node.store.log_end
        with pytest.raises(WireError, match="too few"):
            one.node.sender.append_internal([Message("t", 0, b"x")])
        assert one.node.store.log_end == end
        replication.write_refusal = real  # type: ignore[method-assign]
        assert len(one.node.sender.append_internal([Message("t", 0, b"x")])) == 1
