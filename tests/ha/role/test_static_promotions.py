"""Static groups through promotion after promotion: the set of in-sync replicas that their leaders
store, their files, and what `ha status` reports. Real replicas in this process; the promotions are
those of `scripts/promote`."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cometmq.cli.ha.promote import Watch, roles_after, value_of
from cometmq.cli.ha.replicas import refresh
from cometmq.cli.ha.static_groups import PromotionRequest, StaticFailover, old_leader
from cometmq.ha.core.role_machine import Role
from cometmq.operations.errors import CliError
from cometmq.operations.replication import GroupView, Replica, health, in_sync_ids, newest_state
from cometmq.proto import v1
from cometmq.tests.ha.live import Live, assert_equal_logs, log_bytes, until


class StaticPair:
    """Two replicas whose roles are in their files."""

    def __init__(self, root: Path) -> None:
        self.lives: dict[str, Live] = {}
        self.files = {name: root / f"{name}.conf" for name in "ab"}
        self.confs = {0: self.files["a"], 1: self.files["b"]}
        for number, name in enumerate("ab"):
            role = "SLAVE" if number else "SYNC_MASTER"
            text = f"storePathRootDir={root / name}\nbrokerId={number}\nbrokerRole={role}\n"
            self.files[name].write_text(text)
        self.stored: list[bytes] = []
        self.known: dict[str, Replica] = {}
        self.registered: v1.InSyncSet | None = None
        self.watch = Watch(
            self.alive, PromotionRequest(), 0.0, self.confs, lambda _: None, last_set=self.last_set
        )

    async def start(self, name: str) -> Live:
        """Start a replica as its file says."""
        other = next((one for key, one in self.lives.items() if key != name), None)
        options: dict[str, Any] = {"broker_role": value_of(self.files[name], "brokerRole")}
        if name in self.known:
            options["ha_listen_port"] = int(self.known[name].ha.rpartition(":")[2])
        if other is not None and options["broker_role"] == "SLAVE":
            options["ha_master_address"] = other.address
        live = Live(
            Path(value_of(self.files[name], "storePathRootDir")),
            broker_id=int(value_of(self.files[name], "brokerId")),
            **options,
        )
        await live.start()

        def promoted(epoch: int) -> None:
            live.append(b"EPOCH_START %d" % epoch)

        live.told.promoted = promoted
        self.lives[name] = live
        if other is not None and live.replication.is_leader:
            # The other one may be connected before the leader is ready.
            await until(lambda: live.replication.in_sync_count == 2)
        live.replication.announce(client="", ha=live.address, metrics="")
        uuid = live.replication.replica.meta.replica_uuid
        self.known[name] = Replica("group", live.broker_id, live.address, uuid=uuid)
        return live

    async def stop(self, name: str) -> None:
        self.note_roles()
        await self.lives.pop(name).stop()

    def leader(self) -> str:
        return next(k for k, one in self.lives.items() if one.replication.role is Role.LEADER)

    def note_roles(self) -> None:
        """As the routes have them."""
        for name, live in self.lives.items():
            self.known[name].known_leader = live.replication.is_leader
            self.registered = live.replication.registered_set() or self.registered

    def last_set(self) -> tuple[v1.InSyncSet | None, str]:
        """Return what a nameserver knows."""
        return self.registered, "no leader has registered"

    def look(self) -> list[Replica]:
        return [
            Replica("group", one.broker_id, one.ha, uuid=one.uuid, known_leader=one.known_leader)
            for one in self.known.values()
        ]

    async def load(self) -> None:
        """Append on the leader and wait until everything is confirmed."""
        live = self.lives[self.leader()]
        bodies = [b"%08d" % n for n in range(len(self.stored), len(self.stored) + 20)]
        end = live.append(*bodies)
        self.stored += bodies
        await until(lambda: live.replication.confirm >= end)

    async def whole(self) -> None:
        """Wait until both are in sync and know it."""
        await until(lambda: self.lives[self.leader()].replication.in_sync_count == 2)

        def stored_by_both() -> bool:
            ids = {one.broker_id for one in self.lives.values()}
            states = [one.replication.replica.state for one in self.lives.values()]
            return all(
                state is None or {ref.broker_id for ref in state.in_sync} == ids for state in states
            )

        await until(stored_by_both)

    def alive(self) -> list[Replica]:
        """Return what a nameserver knows: a replica that has stopped is in no route."""
        self.note_roles()
        return [one for one in self.look() if one.ha in {x.address for x in self.lives.values()}]

    def status(self) -> tuple[str, list[str]]:
        """Return the state that `ha status` shows."""
        replicas = self.look()
        for one in replicas:
            refresh(one)
        return health(GroupView("group", replicas, None))


def _known(found: v1.InSyncSet | None) -> tuple[v1.InSyncSet | None, str]:
    return found, "the nameserver has restarted"


def both(replicas: list[Replica]) -> v1.InSyncSet:
    return v1.InSyncSet(epoch=1 << 40, replica_uuids=[one.uuid for one in replicas])


def by_script(pair: StaticPair) -> None:
    replicas = pair.look()
    for one in replicas:
        refresh(one)
    old = old_leader(replicas, newest_state(replicas))
    run = StaticFailover(replicas, PromotionRequest(), lambda _: None, pair.last_set)
    run.failover()
    assert run.chosen is not None
    ids = {one.broker_id for one in replicas}
    roles_after(pair.confs, old, run.chosen, ids, lambda _: None)


def by_watch(pair: StaticPair) -> None:
    assert pair.watch.step(0.0)


@pytest.mark.parametrize("promote", [by_script, by_watch])
async def test_a_static_group_survives_ten_promotions(tmp_path: Path, promote: Any) -> None:
    pair = StaticPair(tmp_path)
    await pair.start("a")
    await pair.start("b")
    await pair.whole()
    for number in range(10):
        await pair.load()
        lost = pair.leader()
        assert not await asyncio.to_thread(pair.watch.step, 0.0)
        await pair.stop(lost)
        await asyncio.to_thread(promote, pair)
        # A slave's file does not say so, but an OK means what it meant.
        assert pair.lives[pair.leader()].replication.policy.sync
        await pair.load()
        returned = await pair.start(lost)
        await pair.whole()
        if number % 3 == 1:  # as its rewritten file says, with another broker id
            leader = pair.leader()
            await pair.stop(leader)
            await pair.start(leader)
            await pair.whole()
        assert pair.leader() != lost
        assert returned.replication.role is Role.FOLLOWER
        assert await asyncio.to_thread(pair.status) == ("healthy", [])
    last = pair.lives.pop(pair.leader())
    (follower,) = pair.lives.values()
    await assert_equal_logs(last, follower)
    content = log_bytes(follower.log)
    assert all(body in content for body in pair.stored)
    await last.stop()
    await follower.stop()


async def test_a_leader_is_alone_when_the_nameservers_have_its_set(tmp_path: Path) -> None:
    leader = Live(tmp_path / "a")
    leader.nameservers = ["127.0.0.1:1"]
    told: list[v1.InSyncSet | None] = []
    leader.told.members_changed = lambda: told.append(leader.replication.registered_set())
    await leader.start()
    follower = Live(tmp_path / "b", broker_id=1, ha_master_address=leader.address)
    replication = leader.replication
    leader.append(b"1")
    assert replication.confirm == 0
    first = replication.registered_set()
    assert first is not None
    replication.set_registered(first)
    await until(lambda: replication.confirm == leader.log.log_end)
    await follower.start()
    await until(lambda: replication.in_sync_count == 2)
    joined = told[-1]
    assert joined is not None
    assert len(joined.replica_uuids) == 2
    replication.set_registered(joined)
    before = leader.append(b"2")
    await until(lambda: replication.confirm == before)
    await follower.stop()
    await until(lambda: replication.in_sync_count == 1)
    end = leader.append(b"3")
    replication.set_registered(joined)
    assert replication.confirm == before
    alone = told[-1]
    assert alone is not None
    assert list(alone.replica_uuids) == [alone.leader_uuid]
    assert alone.revision > joined.revision
    replication.set_registered(alone)
    await until(lambda: replication.confirm == end)
    await leader.stop()


async def test_a_follower_that_left_the_set_is_not_promoted(tmp_path: Path) -> None:
    pair = StaticPair(tmp_path)
    await pair.start("a")
    await pair.start("b")
    await pair.whole()
    await pair.stop("a")
    await asyncio.to_thread(by_script, pair)
    await pair.start("a")
    await pair.whole()
    await pair.stop("a")
    await until(lambda: pair.lives["b"].replication.in_sync_count == 1)
    await pair.load()  # without a
    state = pair.lives["b"].replication.replica.state
    assert state is not None
    assert [ref.broker_id for ref in state.in_sync] == [1]
    confirm = pair.lives["b"].replication.confirm
    known = pair.known["b"]
    await pair.stop("b")
    last = pair.registered
    follower = await pair.start("a")
    replicas = [known, pair.known["a"]]
    request = PromotionRequest(leader_is_dead=True)
    for reason, found, registered in (
        ("in-sync set that the leader had last, ", last, 0),  # died before its next heartbeat
        ("is not known: the nameserver has restarted", None, 0),
        ("messages would be lost", both(replicas), confirm),
    ):
        known.known_confirm = registered
        run = StaticFailover(
            replicas,
            request,
            lambda _: None,
            partial(_known, found),
        )
        with pytest.raises(CliError, match=reason):
            await asyncio.to_thread(run.failover)
    assert follower.replication.role is not Role.LEADER
    assert in_sync_ids(newest_state(replicas)) == {1, 2}, "what it knew last"
    await pair.stop("a")


async def test_a_refused_failover_does_not_stop_a_leader_out_of_reach(tmp_path: Path) -> None:
    """The nameservers have restarted, and a paused leader has not registered since."""
    pair = StaticPair(tmp_path)
    await pair.start("a")
    await pair.start("b")
    await pair.whole()
    await pair.load()
    pair.note_roles()
    for replicas, last, reason in (
        ([pair.known["b"]], pair.registered, "has not registered since the nameservers started"),
        ([pair.known["b"]], None, "is not known: the nameserver has restarted"),
    ):
        known = partial(_known, last)
        run = StaticFailover(replicas, PromotionRequest(), lambda _: None, known)
        with pytest.raises(CliError, match=reason):
            await asyncio.to_thread(run.failover)
    await pair.load()
    assert pair.leader() == "a"
    for name in ("a", "b"):
        await pair.stop(name)
