"""Role changes in place: the next leader's state, and what clients notice."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.assembly.parts import Broker
from cometmq.broker.lifecycle import Bound, BrokerLifecycle
from cometmq.ha.engine import Role
from cometmq.proto import paths, v2
from cometmq.store.timer.recovery import TimerRecovery
from cometmq.store.timer.store import TimerStore
from cometmq.tests.broker.desk import desk, message
from cometmq.tests.broker.live import create_topic, running, settings, until
from cometmq.tests.broker.metadata.test_meta_log import APACHE_TOPICS
from cometmq.tests.broker.role_desk import Elections, elections, replica
from cometmq.tests.broker.timing import TOPIC, arrives, delayed, send


async def sent(
    group: Elections, broker_id: int, text: str, topic: str = "t"
) -> v2.SendMessageResponse:
    """Receive one message through a replica's client port."""
    async with group.replicas[broker_id].client() as wire:
        request = v2.SendMessageRequest(messages=[message(topic, text.encode())])
        answer: v2.SendMessageResponse = await wire.call(
            paths.SEND_MESSAGE, request, v2.SendMessageResponse
        )
        return answer


async def test_no_replica_leads_before_an_election(tmp_path: Path) -> None:
    async with elections(replica(tmp_path / "a", 0)) as group:
        node = group.node(0)
        assert (node.leadership.is_leader, node.replication.role) == (False, Role.FOLLOWER)
        await group.elect(0)
        async with group.replicas[0].client() as wire:
            assert (await create_topic(wire, "t")).code == v2.OK
        assert (await sent(group, 0, "one")).status.code == v2.OK


async def test_leader_and_follower_swap_roles_in_place(tmp_path: Path) -> None:
    async with elections(replica(tmp_path / "a", 0), replica(tmp_path / "b", 1)) as group:
        first = await group.elect(0, 1)
        async with group.replicas[0].client() as wire:
            assert (await create_topic(wire, "t")).code == v2.OK
        assert (await sent(group, 0, "one")).status.code == v2.OK
        second = group.node(1)
        await until(lambda: second.store.log_end == first.store.log_end)
        await group.elect(1, 0)
        assert not first.leadership.is_leader
        assert (await sent(group, 1, "two")).status.code == v2.OK
        # Through the former leader, which forwards now.
        assert (await sent(group, 0, "three")).status.code == v2.OK
        await until(lambda: second.store.log_end == first.store.log_end)
        end = second.store.log_end
        assert first.store.read_log(0, end) == second.store.read_log(0, end)
        assert second.metadata.topic("t") is not None


async def test_the_first_leader_imports_apaches_files_into_its_log(tmp_path: Path) -> None:
    config = tmp_path / "a" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text(APACHE_TOPICS)
    async with elections(replica(tmp_path / "a", 0), replica(tmp_path / "b", 1)) as group:
        node = group.node(0)
        # The file is neither read nor overwritten before.
        assert node.metadata.topic("old") is None
        await group.elect(0, 1)
        assert node.metadata.topic("old") is not None
        await until(lambda: group.node(1).metadata.topic("old") is not None)


async def test_an_instance_that_must_reopen_before_it_serves_reopens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(settings(tmp_path)) as live:
        begin = BrokerLifecycle.start

        async def begin_and_ask(begun: BrokerLifecycle) -> Bound:
            if live.server.instances == 1:
                begun._callbacks.reopen("its leader had it cut again")
            return await begin(begun)

        monkeypatch.setattr(BrokerLifecycle, "start", begin_and_ask)
        live.server.instance._callbacks.reopen("its leader had it cut")
        await until(lambda: live.server.instances == 3 and live.server.alive)


async def test_an_ended_instance_is_freed(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live:
        former = weakref.ref(live.server.instance)
        live.server.instance._callbacks.reopen("its log was cut")
        await until(lambda: live.server.instances == 2 and live.server.alive)
        assert former() is None


async def test_a_failed_step_down_is_fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(settings(tmp_path)) as live:
        role, said = live.server.instance.role, list[str]()
        monkeypatch.setattr(role, "_fatal", said.append)

        def fail() -> None:
            raise OSError("no such device")

        with monkeypatch.context() as broken:
            broken.setattr(live.node.levels, "follow", fail)
            with pytest.raises(OSError, match="no such device"):
                role.follow("a test")
        assert said == ["this replica cannot step down: no such device"]


async def test_timer_files_that_cannot_be_recovered_are_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(settings(tmp_path)) as live:
        timers, said = live.node.timers, list[str]()
        monkeypatch.setattr(live.server.instance.role, "_fatal", said.append)

        def fail(*_: Any) -> None:
            raise OSError("no such device")

        with monkeypatch.context() as broken:
            broken.setattr(TimerStore, "recover", fail)
            assert timers._timers is not None
            timers._timers.damaged = True
            timers.wake()
            await until(lambda: said)
        assert said == ["the timer files cannot be used: no such device"]


async def test_timers_start_once_when_a_leader_is_reelected_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(settings(tmp_path)) as live:
        role, timers = live.server.instance.role, live.node.timers
        begun: list[TimerStore] = []
        recover = TimerStore.recover

        def count(files: TimerStore, *more: Any) -> TimerRecovery:
            begun.append(files)
            assert timers._timers is None, "the files are in use"
            return recover(files, *more)

        monkeypatch.setattr(TimerStore, "recover", count)
        for epoch in (2, 3):
            role.follow("a test")
            role.lead(epoch)
        assert not begun
        await until(lambda: timers._running)
        assert len(begun) == 1


async def test_a_new_leader_accepts_messages_while_its_timer_files_are_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with desk(tmp_path) as k:
        k.topic(TOPIC, message_type=v2.DELAY)
        role, timers = k.live.server.instance.role, k.node.timers
        recover, readable = TimerStore.recover, threading.Event()
        begun = 0

        def wait(files: TimerStore, *more: Any) -> TimerRecovery:
            nonlocal begun
            begun += 1
            readable.wait()
            return recover(files, *more)

        monkeypatch.setattr(TimerStore, "recover", wait)
        role.follow("a test")
        await until(lambda: timers._timers is None)
        role.lead(2)
        await until(lambda: begun)
        hour_ms = 3_600_000
        await send(k, delayed(b"one", k.node.runtime.clock.wall_ms() + hour_ms))
        role.follow("a test")
        role.lead(3)
        assert not timers._running
        readable.set()
        await until(lambda: timers._running)
        assert begun == 2, "the recovery of the earlier epoch does not count"
        k.advance(hour_ms)
        await arrives(k, b"one")


@pytest.mark.parametrize("opens", ["_start_delays", "_start_transactions"])
async def test_a_newer_epoch_during_the_start_makes_the_replica_a_follower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: str
) -> None:
    begin = getattr(BrokerLifecycle, opens)

    def step_down_first(lifecycle: BrokerLifecycle, node: Broker) -> None:
        node.replication.roles.events.stepped_down("a newer epoch was seen")
        begin(lifecycle, node)

    monkeypatch.setattr(BrokerLifecycle, opens, step_down_first)
    async with running(settings(tmp_path)) as live:
        node = live.node
        assert (node.leadership.is_leader, node.leadership.pop_leads) == (False, False)
        assert not node.timers._running
        assert not node.transactions._leads


async def test_a_leader_sends_unchanged_state_again_after_a_reelection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with elections(replica(tmp_path / "a", 0), replica(tmp_path / "b", 1)) as group:
        heard: list[bytes] = []
        monkeypatch.setattr(group.node(0).pop_roles, "locks_snapshot", lambda: b"as ever")
        monkeypatch.setattr(group.node(1).pop_roles, "locks_apply", heard.append)
        one, other = (group.node(n).store for n in (0, 1))
        await group.elect(0, 1)
        await until(lambda: heard and one.log_end == other.log_end)
        await group.elect(1, 0)
        await until(lambda: one.log_end == other.log_end)
        heard.clear()
        await group.elect(0, 1)
        await until(lambda: heard)
        assert set(heard) == {b"as ever"}


async def test_the_lock_file_is_not_written_after_a_step_down(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as live:
        locks = live.node.pop._order_info
        locks.changed()
        saver = locks._saver
        assert saver is not None
        live.server.instance.role.follow("a test")
        await locks.close()
        assert saver._task is None
