"""Refused sends are counted by their cause."""

from __future__ import annotations

from pathlib import Path

from cometmq.broker.sending.answer import HUNG, cause_of
from cometmq.proto import v2
from cometmq.tests.broker.desk import desk, message
from cometmq.tests.broker.metrics.test_observed import samples


def test_the_cause_is_the_guard_or_the_code() -> None:
    assert cause_of(v2.TOO_MANY_REQUESTS, HUNG) == "pcbusy_clean_queue"
    assert cause_of(v2.HA_NOT_AVAILABLE, "this replica follows") == "ha_not_available"


async def test_refused_sends_are_counted_by_cause(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", b"a")
        one.node.store.gate.refuse("the disk broke")
        answer = await one.send(message("t", b"b"))
        assert answer.status.code == v2.INTERNAL_SERVER_ERROR
        found = await samples(one.live)
        (row,) = found["cometmq_refused_sends_total"]
        assert (row.labels["cause"], row.value) == ("internal_server_error", 1)
