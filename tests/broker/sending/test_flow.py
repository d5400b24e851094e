"""Flow control of sends: refusals and their reported causes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.sending.held_sends import HeldSends
from cometmq.front.reply_future import ReplyFuture
from cometmq.proto import v2
from cometmq.tests.broker.desk import Desk, desk, message
from cometmq.tests.broker.live import settings

LIMIT_MS = 150
#: The loop stalls for longer than the limit; the stall itself is under test.
STALL_S = 0.2


async def codes(one: Desk, count: int) -> Counter[tuple[int, str]]:
    """Send concurrently; return the count of each code and guard."""
    answers = await asyncio.gather(*(one.send(message("t", b"x")) for _ in range(count)))
    return Counter(
        (answer.status.code, answer.status.message.partition("]")[0]) for answer in answers
    )


async def test_sends_that_waited_too_long_are_refused(tmp_path: Path) -> None:
    async with desk(tmp_path, wait_time_mills_in_send_queue=LIMIT_MS) as one:
        one.topic("t")
        waiting = asyncio.ensure_future(codes(one, 3))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(STALL_S)  # noqa: ASYNC251
        found = await waiting
        refusal = (v2.TOO_MANY_REQUESTS, "[TIMEOUT_CLEAN_QUEUE")
        assert found == {refusal: 3}
        async with asyncio.timeout(60):  # a slow machine stalls for longer than the limit too
            while (found := await codes(one, 3)) != {(v2.OK, "OK"): 3}:
                assert set(found) <= {refusal, (v2.OK, "OK")}


async def test_held_sends_do_not_expire_while_a_new_leader_starts(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, wait_time_mills_in_send_queue=LIMIT_MS) as one:
        one.topic("t")
        one.node.sender.lead()  # a new leader's components block the loop for a moment
        waiting = asyncio.ensure_future(codes(one, 3))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(STALL_S)  # noqa: ASYNC251
        assert await waiting == {(v2.OK, "OK"): 3}


async def test_released_sends_are_appended_in_several_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        monkeypatch.setattr("cometmq.broker.sending.send_queue.APPEND_AT", 2)
        sender = one.node.sender
        request = v2.SendMessageRequest(messages=[message("t", b"x")])
        answers = []
        for _ in range(5):  # as when all held sends are released at once
            answers.append(sender.send(request, one.context()))
            assert sender.waiting <= 2
        assert [answer.done() for answer in answers] == [True] * 4 + [False]
        await answers[-1]


async def test_held_sends_are_cancelled_when_an_instance_ends() -> None:
    held = HeldSends(asyncio.get_running_loop())
    answer = ReplyFuture()
    held.add(asyncio.sleep(3_600), answer)
    await asyncio.sleep(0)
    held.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (answer.cancelled(), len(held)) == (True, 0)


async def test_fast_failure_can_be_switched_off(tmp_path: Path) -> None:
    async with desk(
        tmp_path, broker_fast_failure_enable=False, wait_time_mills_in_send_queue=LIMIT_MS
    ) as one:
        one.topic("t")
        waiting = asyncio.ensure_future(codes(one, 3))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        time.sleep(STALL_S)  # noqa: ASYNC251
        assert await waiting == {(v2.OK, "OK"): 3}


async def test_a_full_queue_refuses_at_once(tmp_path: Path) -> None:
    async with desk(tmp_path, send_thread_pool_queue_capacity=8) as one:
        one.topic("t")
        found = await codes(one, 12)
        assert found == {(v2.OK, "OK"): 8, (v2.TOO_MANY_REQUESTS, "[REJECTREQUEST"): 4}


async def test_a_stalled_write_refuses_the_sends_behind_it_once(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    slow = replace(chosen.store, os_page_cache_busy_time_out_mills=LIMIT_MS)
    async with desk(tmp_path, replace(chosen, store=slow)) as one:
        one.topic("t")
        store = one.node.store
        real = store.writer.append_many

        def hung(messages: Any) -> Any:
            time.sleep(STALL_S)
            return real(messages)

        store.writer.append_many = hung  # type: ignore[method-assign]
        assert await codes(one, 1) == {(v2.OK, "OK"): 1}
        store.writer.append_many = real  # type: ignore[method-assign]
        found = await codes(one, 2)
        assert found == {(v2.TOO_MANY_REQUESTS, "[PCBUSY_CLEAN_QUEUE"): 2}
        assert await codes(one, 2) == {(v2.OK, "OK"): 2}


async def test_sends_are_refused_while_the_pool_has_no_free_buffer(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    pooled = replace(
        chosen.store,
        transient_store_pool_enable=True,
        transient_store_pool_size=1,
        fast_fail_if_no_buffer_in_store_pool=True,
        mapped_file_size_commit_log=64 << 10,
        commit_interval_commit_log=60_000,
    )
    async with desk(tmp_path, replace(chosen, store=pooled)) as one:
        one.topic("t")
        for n in range(12):
            answer = await one.send(message("t", bytes(16 << 10), f"ID-{n}"))
            if answer.status.code != v2.OK:
                break
        assert answer.status.code == v2.TOO_MANY_REQUESTS, answer
        assert answer.status.message.startswith("[REJECTREQUEST] No buffer"), answer


async def test_too_many_held_pulls_are_refused_with_the_cause(tmp_path: Path) -> None:
    async with desk(tmp_path, pop_polling_size=1) as one:
        one.topic("t")
        request = v2.PullMessageRequest(
            group=v2.Resource(name="g"),
            message_queue=v2.MessageQueue(topic=v2.Resource(name="t"), id=0),
            offset=0,
            batch_size=1,
        )
        held = one.pulls.pull_message(request, one.context())
        assert isinstance(held, asyncio.Future)
        try:
            one.pulls.pull_message(request, one.context())
        except Exception as error:
            assert str(error).startswith("TOO_MANY_REQUESTS"), error
            assert "[POLLING_FULL]" in str(error)
        else:
            raise AssertionError("a second pull was held")
        held.cancel()
