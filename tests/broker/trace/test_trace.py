"""Message trace: record contents, and tracing a message by its id."""

from __future__ import annotations

from pathlib import Path

from cometmq.broker.trace.records import RECORDS_MAX, TRACE_TOPIC, Published, TraceBatch
from cometmq.proto import v2
from cometmq.store.format.record import decode
from cometmq.tests.broker.desk import Desk, desk, message


async def rows(one: Desk) -> list[list[str]]:
    """Return the fields of every trace record."""
    assert one.node.trace is not None
    one.node.trace.flush()
    await one.dispatched()
    records = [decode(r.data) for r in one.node.store.get(TRACE_TOPIC, 0, 0, 100).records]
    return [
        row.split("\x01") for record in records for row in record.body.decode().split("\x02")[:-1]
    ]


async def test_a_message_is_traced_by_its_id(tmp_path: Path) -> None:
    async with desk(tmp_path, trace_topic_enable=True) as one:
        one.topic("t")
        await one.send(message("t", b"12345", "ID-1", tag="x", keys=["k1", "k2"]))
        await one.dispatched()
        got = await one.receive("t", "g")
        (handle,) = got.handles
        one.ack("t", "g", handle)
        pub, before, after = await rows(one)
        assert pub[0] == "Pub" and len(pub) == 15
        assert pub[2:8] == ["DefaultRegion", "t", "t", "ID-1", "x", "k1 k2"]
        assert (pub[9], pub[11], pub[13], pub[14]) == ("5", "0", "true", "127.0.0.1")
        assert pub[8] == one.live.bound.client and len(pub[12]) == 32
        assert before[0] == "SubBefore" and len(before) == 8
        assert before[2:4] == ["DefaultRegion", "g"]
        assert before[5:] == ["ID-1", "0", "k1 k2"]
        assert after[0] == "SubAfter" and len(after) == 9
        # The client's id of the message; the two records share the id of the delivery.
        assert (after[1], after[4], after[6], after[8]) == (before[4], "true", "0", "g")
        found = one.node.store.queries.query(TRACE_TOPIC, "ID-1", index_type="K")
        assert [record.topic for record in found] == [TRACE_TOPIC]
        assert one.node.store.queries.query(TRACE_TOPIC, "k2", index_type="K")


async def test_message_types_are_written_as_ordinals(tmp_path: Path) -> None:
    async with desk(tmp_path, trace_topic_enable=True) as one:
        one.topic("m", message_type=-1)
        later = message("m", b"d")
        later.system_properties.delivery_timestamp.FromMilliseconds(
            one.node.runtime.clock.wall_ms() + 60_000
        )
        half = message("m", b"x", message_type=v2.TRANSACTION)
        for sent in (message("m", b"n"), message("m", b"f", message_group="g"), later, half):
            assert (await one.send(sent)).status.code == v2.OK
        assert [(row[4], row[11]) for row in await rows(one)] == [
            ("m", ordinal) for ordinal in ("0", "4", "3", "1")
        ]


async def test_a_full_batch_is_written_only_if_enabled(tmp_path: Path) -> None:
    async with desk(tmp_path / "on", trace_topic_enable=True) as one:
        one.topic("t")
        for n in range(RECORDS_MAX + 1):
            await one.send(message("t", b"x", f"ID-{n}"))
        assert len(await rows(one)) == RECORDS_MAX + 1
        assert one.node.trace is not None and one.node.trace.dropped == 0
    async with desk(tmp_path / "off") as one:
        one.topic("t")
        await one.send(message("t"))
        assert one.node.trace is None
        assert one.node.metadata.topic(TRACE_TOPIC) is None


async def test_an_unwritable_log_loses_only_the_trace(tmp_path: Path) -> None:
    async with desk(tmp_path, trace_topic_enable=True) as one:
        one.topic("t")
        await one.send(message("t"))
        replication = one.node.replication
        real = replication.write_refusal
        replication.write_refusal = lambda: "too few"  # type: ignore[method-assign]
        assert one.node.trace is not None
        one.node.trace.flush()
        assert one.node.trace.dropped == 1
        replication.write_refusal = real  # type: ignore[method-assign]


def test_keys_are_bounded() -> None:
    batch = TraceBatch()
    row = Published(1, "r", "t", "i", "", "", "h", 0, 0, "o", "c").encode()
    for n in range(60):
        assert not batch.full
        batch.add(row, (f"{n:0300}", f"{n:0300}"))
        if batch.full:
            break
    assert batch.keys_size <= 16_384 and len(batch.keys) == min(60, 16_384 // 301)
