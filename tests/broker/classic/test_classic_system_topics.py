"""System topics that classic clients write and tools read: traces, the benchmark, waiting messages;
all others stay closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cometmq.remoting.admin_codes import Admin
from cometmq.remoting.bare_json import loads
from cometmq.remoting.codes import Reply, Request
from cometmq.store.format.message_id import OffsetId
from cometmq.store.format.topic_names import META_TOPIC
from cometmq.tests.broker.classic_wire import classic, message, pulled, pulling, records
from cometmq.tests.remoting.client import RemotingClient

TRACE, BENCHMARK, HALF = "RMQ_SYS_TRACE_TOPIC", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC"


async def found(client: RemotingClient, topic: str, key: str) -> list[bytes]:
    """Return the bodies that a query by key finds."""
    fields = {"beginTimestamp": 0, "endTimestamp": 1 << 42, "maxNum": 32}
    answer = await client.call(Request.QUERY_MESSAGE, topic=topic, key=key, **fields)
    if answer.code == Reply.QUERY_NOT_FOUND:
        return []
    assert answer.code == Reply.SUCCESS, answer
    return [record.body for record in records(answer.body)]


async def viewed(client: RemotingClient, sent: Any) -> tuple[str, bytes]:
    """Return topic and body of the message that the answer to a send names."""
    place = OffsetId.parse(sent.fields["msgId"])
    assert place is not None
    answer = await client.call(Request.VIEW_MESSAGE_BY_ID, offset=place.physical_offset)
    assert answer.code == Reply.SUCCESS, answer
    (record,) = records(answer.body)
    return record.topic, record.body


async def test_traces_of_clients_are_written_and_found(tmp_path: Path) -> None:
    async with classic(tmp_path, trace_topic_enable=True) as (live, client):
        assert TRACE in live.node.metadata.topics, "its route is there before the first record"
        sent = await client.post(
            message(b"Pub\x01...", "KEYS\x01id7\x02UNIQ_KEY\x01t1\x02", b=TRACE, e=0)
        )
        assert sent.code == Reply.SUCCESS
        assert await found(client, TRACE, "id7") == [b"Pub\x01..."]
        assert await viewed(client, sent) == (TRACE, b"Pub\x01...")


async def test_the_topic_of_the_benchmark_is_created_written_and_read(tmp_path: Path) -> None:
    async with classic(tmp_path) as (_, client):
        wanted = {"topic": BENCHMARK, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
        more = {"topicFilterType": "SINGLE_TAG", "defaultTopic": "TBW102", "order": "false"}
        answer = await client.call(Admin.UPDATE_AND_CREATE_TOPIC, **wanted, **more, topicSysFlag=0)
        assert answer.code == Reply.SUCCESS, answer
        assert (await client.post(message(b=BENCHMARK, e=1))).code == Reply.SUCCESS
        (record,) = await pulled(client, topic=BENCHMARK, queueId=1)
        assert record.body == b"hello"


async def test_messages_that_wait_are_found_where_they_wait(tmp_path: Path) -> None:
    async with classic(tmp_path) as (_, client):
        half = "TRAN_MSG\x01true\x02PGROUP\x01p\x02KEYS\x01order7\x02UNIQ_KEY\x01h1\x02"
        sent = await client.post(message(b"half", half, f=4))
        assert sent.code == Reply.SUCCESS, sent
        assert await found(client, HALF, "order7") == [b"half"]
        assert await viewed(client, sent) == (HALF, b"half")
        for delay in ("DELAY\x0118\x02", "TIMER_DELAY_SEC\x01600\x02"):
            sent = await client.post(message(b"later", f"{delay}UNIQ_KEY\x01d1\x02"))
            assert sent.code == Reply.SUCCESS, sent
            topic, body = await viewed(client, sent)
            assert topic in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer") and body == b"later"


async def test_messages_that_wait_are_read_by_tools_where_they_wait(tmp_path: Path) -> None:
    """`mqadmin topicStatus`, `queryMsgByOffset` and `printMsg`."""
    async with classic(tmp_path) as (_, client):
        half = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01h1\x02"
        assert (await client.post(message(b"half", half, f=4))).code == Reply.SUCCESS
        later = message(b"later", "DELAY\x011\x02UNIQ_KEY\x01d1\x02")
        assert (await client.post(later)).code == Reply.SUCCESS
        for topic, body in ((HALF, b"half"), ("SCHEDULE_TOPIC_XXXX", b"later")):
            stats = loads((await client.call(Admin.GET_TOPIC_STATS_INFO, topic=topic)).body)
            assert max(row["maxOffset"] for row in stats["offsetTable"].values()) == 1
            asked: dict[str, Any] = {"topic": topic, "queueId": 0}
            (record,) = await pulled(client, consumerGroup="TOOLS_CONSUMER", **asked)
            assert (record.topic, record.body) == (topic, body)
            answer = await client.post(pulling(**asked))
            assert "is a system topic" in (answer.remark or ""), "not of a consumer group"


async def test_other_system_topics_stay_closed(tmp_path: Path) -> None:
    async with classic(tmp_path) as (live, client):
        for topic in (META_TOPIC, HALF, "SCHEDULE_TOPIC_XXXX", "TBW102"):
            sent = await client.post(message(b=topic, e=0))
            assert "is a system topic" in (sent.remark or "")
        assert await found(client, META_TOPIC, "x") == []
        offset = live.node.store.log_start
        answer = await client.call(Request.VIEW_MESSAGE_BY_ID, offset=offset)
        assert answer.code == Reply.SYSTEM_ERROR, "a record of the metadata"
