"""`cometmq ha` and `scripts/promote`: the static sequence, the controller's commands, what each
refuses."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cometmq.cli.ha.command import ha
from cometmq.cli.ha.promote import Watch, promote, rewrite
from cometmq.cli.ha.replicas import find, last_set
from cometmq.cli.ha.rows import STATUS_S
from cometmq.cli.ha.static_groups import PromotionRequest, StaticFailover
from cometmq.operations.errors import CliError, Exit
from cometmq.proto import paths, v1, v2
from cometmq.tests.cli.replica_doors import GROUP, NameserverDoor, ReplicaDoor

Make = Callable[..., Any]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def state_of(leader: int, *in_sync: int, version: int = 3, epoch: int = 4) -> v1.GroupState:
    state = v1.GroupState(cluster="c", group=GROUP, version=version, epoch=epoch)
    state.leader.broker_id, state.leader.incarnation = leader, 1
    for one in in_sync:
        state.in_sync.add(broker_id=one, incarnation=1)
    return state


def doors(stack: ExitStack, *replicas: ReplicaDoor) -> NameserverDoor:
    for one in replicas:
        stack.enter_context(one)
    return stack.enter_context(NameserverDoor(replicas))


def static(stack: ExitStack, *replicas: ReplicaDoor) -> str:
    return doors(stack, *replicas).address


def invoke(*arguments: str) -> tuple[int, Any]:
    """The exit code and the document; a CliError's code, with its sentence."""
    done = CliRunner().invoke(ha, [*arguments, "-o", "json"], standalone_mode=False)
    if isinstance(done.exception, CliError):
        return done.exception.code, str(done.exception)
    if done.exception is not None:
        raise done.exception
    return done.return_value or 0, json.loads(done.stdout)


def test_the_most_advanced_in_sync_replica_is_promoted(stack: ExitStack) -> None:
    state = state_of(0, 0, 1, 2)
    old = ReplicaDoor(0, role="leader", state=state)
    behind, ahead = ReplicaDoor(1, end=900, state=state), ReplicaDoor(2, end=1000, state=state)
    namesrv = static(stack, old, behind, ahead)
    old.stop()
    code, found = invoke("failover", "--namesrv", namesrv)
    assert (code, found["leader"], found["epoch"]) == (0, 2, 5)
    assert ahead.calls == ["fence 5", "promote"]
    assert behind.calls == ["fence 5", "follow 2"]
    assert ahead.promoted is not None
    assert ahead.promoted.old_leader_is_dead
    assert ahead.promoted.state.version == 4
    assert [ref.broker_id for ref in ahead.promoted.state.in_sync] == [2]  # 1 is behind


def test_a_replica_that_missed_the_last_epoch_is_not_promoted(stack: ExitStack) -> None:
    """It was down during the last promotion: its state is a former one, and names itself."""
    former, newer = state_of(0, 0, 1, epoch=4), state_of(1, 1, version=4, epoch=5)
    returned = ReplicaDoor(0, end=900, epoch=4, state=former)
    leader = ReplicaDoor(1, role="leader", end=1000, epoch=5, state=newer)
    namesrv = static(stack, returned, leader)
    leader.stop()
    code, sentence = invoke("failover", "--namesrv", namesrv)
    assert (code, returned.promoted) == (Exit.FAILED, None)
    assert "has nothing of epoch 5, which broker 1" in sentence
    with socket.create_server(("127.0.0.1", leader.port)):  # it may be alive
        code, sentence = invoke("failover", "--namesrv", namesrv, "--accept-loss")
        assert (code, returned.promoted) == (Exit.FAILED, None)
        assert "may still accept writes" in sentence
    code, found = invoke("failover", "--namesrv", namesrv, "--accept-loss")
    assert (code, found["leader"]) == (0, 0)
    assert found["epoch"] > 5, "no two leaders have one epoch"


def test_an_unreachable_leader_that_may_be_alive_is_not_replaced(stack: ExitStack) -> None:
    state = state_of(0, 0, 1)
    old, other = ReplicaDoor(0, role="leader", state=state), ReplicaDoor(1, state=state)
    namesrv = static(stack, old, other)
    old.stop()
    with socket.create_server(("127.0.0.1", old.port)):  # it listens and does not answer
        code, sentence = invoke("failover", "--namesrv", namesrv)
        assert code == Exit.FAILED
        assert "may still accept writes" in sentence
        assert other.promoted is None
        code, found = invoke("failover", "--namesrv", namesrv, "--dead")
    assert (code, found["leader"]) == (0, 1)


def test_a_live_leader_is_fenced_first(stack: ExitStack) -> None:
    old, other = ReplicaDoor(0, role="leader"), ReplicaDoor(1)
    code, found = invoke("failover", "--namesrv", static(stack, old, other))
    assert (code, found["leader"]) == (0, 1)
    assert old.calls == ["fence 2", "follow 1"]
    assert other.promoted is not None
    assert not other.promoted.old_leader_is_dead


def test_no_replica_is_promoted_without_the_in_sync_set(stack: ExitStack) -> None:
    state = state_of(0, 0)
    old, other = ReplicaDoor(0, role="leader", state=state), ReplicaDoor(1, state=state)
    namesrv = static(stack, old, other)
    old.stop()
    code, sentence = invoke("failover", "--namesrv", namesrv)
    assert code == Exit.FAILED
    assert "in-sync set [0]" in sentence
    assert other.calls == []
    code, found = invoke("force-elect", "--to", "1", "--namesrv", namesrv)
    assert (code, other.calls) == (0, [])  # without --accept-loss only the plan
    code, found = invoke("force-elect", "--to", "1", "--namesrv", namesrv, "--accept-loss")
    assert (code, found["leader"]) == (0, 1)
    assert other.promoted is not None
    assert other.promoted.state.accept_loss


def test_a_replica_with_less_than_the_leader_had_confirmed_is_refused(stack: ExitStack) -> None:
    old, other = ReplicaDoor(0, role="leader", end=5000), ReplicaDoor(1, end=4000)
    namesrv = static(stack, old, other)
    old.stop()
    code, sentence = invoke("failover", "--namesrv", namesrv)
    assert code == Exit.FAILED
    assert "confirmed 5000" in sentence


def test_a_replica_that_the_leader_had_dropped_is_not_promoted(stack: ExitStack) -> None:
    """Its own state names it: the leader has died before its next heartbeat."""
    state = state_of(0, 0, 1)
    old, other = ReplicaDoor(0, role="leader", state=state), ReplicaDoor(1, state=state)
    nameserver = doors(stack, old, other)
    old.stop()
    for registered, known_to, reason in (
        ([0], 1, "not in the in-sync set that the leader had last"),
        (None, 1, "no nameserver that answers has it"),
        ([0, 1], 3, "1 of the 3 nameservers of the group answered with it, and 2 must"),
    ):
        nameserver.registered, nameserver.nameservers = registered, known_to
        for more in ((), ("--dry-run",), ("--to", "1")):
            code, sentence = invoke("failover", "--namesrv", nameserver.address, *more)
            assert (code, other.promoted) == (Exit.FAILED, None)
            assert reason in sentence
    code, sentence = invoke("failover", "--replica", other.address)
    assert (code, "no nameserver was asked" in sentence) == (Exit.FAILED, True)
    nameserver.registered, nameserver.nameservers = [0, 1], 2
    assert invoke("failover", "--namesrv", nameserver.address)[0] == 0


def test_a_leader_that_restarted_nameservers_do_not_know_may_be_alive(stack: ExitStack) -> None:
    """Their file names it in the last in-sync set, but no route has its address."""
    other = ReplicaDoor(1, state=state_of(0, 0, 1))
    nameserver = doors(stack, other)
    nameserver.registered, nameserver.set_leader = [0, 1], "u0"
    other.epoch = 4
    for more in ((), ("--dry-run",), ("--accept-loss",)):
        code, sentence = invoke("failover", "--namesrv", nameserver.address, *more)
        assert (code, other.promoted) == (Exit.FAILED, None)
        assert "has not registered since the nameservers started" in sentence
    assert invoke("failover", "--namesrv", nameserver.address, "--dead")[0] == 0


def test_a_suspect_replica_does_not_lead(stack: ExitStack) -> None:
    old, other = ReplicaDoor(0, role="leader"), ReplicaDoor(1, suspect=True)
    namesrv = static(stack, old, other)
    old.stop()
    assert invoke("failover", "--namesrv", namesrv)[0] == Exit.FAILED


def test_a_dry_run_changes_nothing(stack: ExitStack) -> None:
    old, other = ReplicaDoor(0, role="leader"), ReplicaDoor(1)
    namesrv = static(stack, old, other)
    for command in ("failover", "switchover"):
        code, found = invoke(command, "--namesrv", namesrv, "--dry-run")
        assert code == 0
        assert found["steps"]
    assert old.calls == other.calls == []


def test_policy_is_set_by_the_controller_and_refused_for_a_static_group(
    stack: ExitStack,
) -> None:
    one, other = ReplicaDoor(0, role="leader"), ReplicaDoor(1)
    namesrv = static(stack, one, other)
    code, sentence = invoke("policy", "--namesrv", namesrv)
    assert code == Exit.USAGE
    assert "--min-in-sync" in sentence
    code, sentence = invoke("policy", "--sync", "--namesrv", namesrv)
    assert code == Exit.FAILED
    assert "brokerRole" in sentence
    door = stack.enter_context(NameserverDoor([one, other], state_of(0, 0, 1)))
    code, found = invoke("policy", "--async", "--namesrv", door.address)
    assert (code, found["steps"]) == (0, ["decided"])
    (asked,) = door.asked
    assert asked.HasField("sync")
    assert (asked.sync, asked.min_in_sync) == (False, 0)
    invoke("policy", "--min-in-sync", "2", "--namesrv", door.address)
    assert (door.asked[-1].HasField("sync"), door.asked[-1].min_in_sync) == (False, 2)


def test_a_planned_switchover_drains_the_leader(stack: ExitStack) -> None:
    state = state_of(0, 0, 1)
    old, other = ReplicaDoor(0, role="leader", state=state), ReplicaDoor(1, state=state)
    code, found = invoke("switchover", "--namesrv", static(stack, old, other))
    assert (code, found["leader"]) == (0, 1)
    assert old.calls == ["step down", "fence 5", "follow 1"]
    assert other.promoted is not None
    assert [ref.broker_id for ref in other.promoted.state.in_sync] == [0, 1]


def test_status_of_a_static_group(stack: ExitStack) -> None:
    namesrv = static(stack, ReplicaDoor(0, role="leader"), ReplicaDoor(1, end=900))
    code, (found,) = invoke("status", "--namesrv", namesrv)
    assert (code, found["leader"]) == (0, "0")
    assert [row["role"] for row in found["replicas"]] == ["leader", "follower"]
    table = CliRunner().invoke(ha, ["status", "--namesrv", namesrv], standalone_mode=False)
    assert "follower" in table.stdout


def test_status_without_a_leader_is_unhealthy(stack: ExitStack) -> None:
    namesrv = static(stack, ReplicaDoor(0), ReplicaDoor(1))
    assert invoke("status", "--namesrv", namesrv)[0] == Exit.UNHEALTHY


def test_commands_call_the_active_controller(stack: ExitStack) -> None:
    replicas = [
        stack.enter_context(ReplicaDoor(n, role="leader" if n == 0 else "follower")) for n in (0, 1)
    ]
    state = state_of(0, 0, 1)
    idle = stack.enter_context(NameserverDoor(replicas, state, active=False))
    active = stack.enter_context(NameserverDoor(replicas, state))
    namesrv = f"{idle.address};{active.address}"
    code, found = invoke("switchover", "--to", "1", "--namesrv", namesrv)
    assert (code, found["steps"]) == (0, ["decided"])
    assert (active.asked[0].to, idle.asked) == (1, [])
    code, found = invoke("failover", "--dead", "--namesrv", namesrv)
    assert (code, len(idle.asked), len(active.asked)) == (0, 1, 3)
    code, (shown,) = invoke("status", "--namesrv", namesrv)
    assert (code, shown["phase"], shown["in_sync"]) == (0, "stable", [0, 1])
    active.stop()
    code, sentence = invoke("switchover", "--namesrv", namesrv)
    assert (code, "No active controller" in sentence) == (Exit.UNHEALTHY, True)


def test_replay_and_reseed(stack: ExitStack) -> None:
    tail = v1.ArchivedTail(file_id="2-100-200.log", messages=7, answered_ok=5)
    old = ReplicaDoor(1, tails=[tail])
    namesrv = static(stack, ReplicaDoor(0, role="leader"), old)
    code, found = invoke("replay-tail", "--namesrv", namesrv)
    assert (code, found["messages"], old.calls) == (0, 7, ["replay False"])
    assert invoke("reseed", "--id", "1", "--namesrv", namesrv, "--dry-run")[0] == 0
    assert old.calls[-1] == "reseed True"
    code, sentence = invoke("reseed", "--id", "0", "--namesrv", namesrv)
    assert (code, "is the leader" in sentence) == (Exit.FAILED, True)
    assert invoke("reseed", "--id", "7", "--namesrv", namesrv)[0] == Exit.NOT_FOUND


def test_a_tail_archived_by_two_replicas_is_sent_once(stack: ExitStack) -> None:
    def tail(crc32: int, *, replayed: bool = False) -> v1.ArchivedTail:
        return v1.ArchivedTail(
            file_id="2-100-200",
            epoch=2,
            start=100,
            end=200,
            messages=8,
            crc32=crc32,
            replayed=replayed,
        )

    one, two = ReplicaDoor(1, tails=[tail(7)]), ReplicaDoor(2, tails=[tail(7)])
    other = ReplicaDoor(3, tails=[tail(8)])
    namesrv = static(stack, ReplicaDoor(0, role="leader"), one, two, other)
    code, found = invoke("replay-tail", "--namesrv", namesrv)
    assert (code, found["messages"]) == (0, 16), "other bytes are sent, the same ones are not"
    assert two.calls == ["replay False but 2-100-200"]
    assert any("not sent twice" in step for step in found["steps"])
    one.tails, two.tails, other.tails = [tail(7, replayed=True)], [tail(7)], []
    code, found = invoke("replay-tail", "--id", "2", "--namesrv", namesrv)
    assert (code, found["messages"]) == (0, 0), "an earlier run sent it from the other"
    code, found = invoke("replay-tail", "--file", "2-100-200", "--id", "2", "--namesrv", namesrv)
    assert (code, found["messages"]) == (0, 8), "an operator may repeat it"


def test_diff_lists_damaged_and_different_blocks(stack: ExitStack) -> None:
    def block(at: int, crc32: int, now: int) -> v1.BlockDigest:
        return v1.BlockDigest(offset=at, length=10, crc32=crc32, sealed=True, now=now)

    good = ReplicaDoor(0, role="leader", digests=[block(0, 1, 1), block(10, 2, 2), block(20, 3, 3)])
    bad = ReplicaDoor(1, digests=[block(0, 1, 1), block(10, 2, 9), block(20, 4, 4)])
    code, rows = invoke("diff", "--namesrv", static(stack, good, bad))
    assert code == Exit.PROBLEMS
    assert [(row["offset"], row["what"], row["brokers"]) for row in rows] == [
        (10, "damaged", [1]),
        (20, "different", [0, 1]),
    ]


def test_an_unreachable_nameserver_is_an_error_sentence() -> None:
    code, sentence = invoke("status", "--namesrv", "127.0.0.1:1")
    assert (code, "Cannot connect" in sentence) == (Exit.FAILED, True)


def test_promote_writes_the_roles_into_the_files(stack: ExitStack, tmp_path: Path) -> None:
    old, other = ReplicaDoor(0, role="leader"), ReplicaDoor(1)
    namesrv = static(stack, old, other)
    old.stop()
    files = [tmp_path / "a.conf", tmp_path / "b.conf"]
    files[0].write_text("# the master\nbrokerId=0\nbrokerRole=ASYNC_MASTER\n")
    files[1].write_text("brokerId = 1\nbrokerRole=SLAVE\nbrokerName=g\n")
    confs = [word for n, path in enumerate(files) for word in ("--conf", f"{n}={path}")]
    arguments = [
        "--namesrv",
        namesrv,
        "--watch",
        "--once",
        "--after",
        "0",
        "--every",
        "0.01",
        *confs,
    ]
    done = CliRunner().invoke(promote, arguments, standalone_mode=False)
    assert done.exception is None, done.output
    assert other.promoted is not None
    assert files[1].read_text() == "brokerId=0\nbrokerRole=ASYNC_MASTER\nbrokerName=g\n"
    assert files[0].read_text() == "# the master\nbrokerId=2\nbrokerRole=SLAVE\n"


def test_the_watch_waits_and_fences_an_old_leader(stack: ExitStack) -> None:
    old, other = ReplicaDoor(0, role="leader"), ReplicaDoor(1, end=1100)
    namesrv = static(stack, old, other)
    said: list[str] = []
    found = find(namesrv, "", ())[0]
    watch = Watch(
        lambda: find(namesrv, "", ())[0],
        PromotionRequest(),
        5.0,
        {},
        said.append,
        last_set=last_set(namesrv, found, ()),
    )
    assert not watch.step(0.0)
    old.role = "follower"
    assert not watch.step(1.0)  # silent, not for long enough
    assert not watch.step(5.9)
    assert watch.step(6.0)
    old.role, old.calls = "leader", []  # it comes back as what it was
    assert not watch.step(7.0)
    assert old.calls == ["fence 2", "follow 1"]


def test_an_unconfirmed_promotion_is_reported(stack: ExitStack) -> None:
    other = ReplicaDoor(1)
    namesrv = static(stack, other)
    other.handlers.pop("/cometmq.v1.ReplicaControl/Status")
    replicas = find(namesrv, "", ())[0]
    with pytest.raises(CliError, match="No replica"):
        StaticFailover(
            replicas, PromotionRequest(timeout_s=0.2), lambda _: None, lambda: (None, "")
        ).failover()


def test_rewriting_keeps_all_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("# text = kept\n\nbrokerId=3\nx=1=2\n")
    rewrite(path, {"brokerId": "0", "brokerRole": "SYNC_MASTER"})
    assert path.read_text() == "# text = kept\n\nbrokerId=0\nx=1=2\nbrokerRole=SYNC_MASTER\n"


def whole(stack: ExitStack) -> tuple[list[ReplicaDoor], NameserverDoor]:
    """Three replicas in sync and the active controller of their group."""
    replicas = [
        stack.enter_context(ReplicaDoor(n, role="leader" if n == 1 else "follower"))
        for n in (0, 1, 2)
    ]
    return replicas, stack.enter_context(NameserverDoor(replicas, state_of(1, 0, 1, 2)))


def test_status_of_a_healthy_group(stack: ExitStack) -> None:
    _, door = whole(stack)
    code, (found,) = invoke("status", "--namesrv", door.address)
    assert (code, found["health"], found["decided_by"]) == (0, "healthy", door.address)
    assert "problems" not in found


def test_a_group_is_healthy_once_the_expected_replicas_have_registered(stack: ExitStack) -> None:
    _, door = whole(stack)
    assert invoke("status", "--namesrv", door.address, "--replicas", "3")[0] == Exit.DONE
    code, (found,) = invoke("status", "--namesrv", door.address, "--replicas", "4")
    assert code == Exit.UNHEALTHY
    assert found["problems"] == ["3 of 4 replicas have registered"]


def test_an_overdue_heartbeat_is_a_problem(stack: ExitStack) -> None:
    _, door = whole(stack)
    door.silent_ms[2] = 2300
    code, (found,) = invoke("status", "--namesrv", door.address)
    assert (code, found["health"]) == (Exit.UNHEALTHY, "degraded")
    assert found["problems"] == ["broker 2 sends no heartbeats for 2.3 s"]
    assert [row["heartbeat_age_ms"] for row in found["replicas"]] == [0, 0, 2300]


def test_a_group_whose_brokers_all_stopped_accepts_no_writes(stack: ExitStack) -> None:
    replicas, door = whole(stack)
    for one in replicas:
        one.stop()
        door.silent_ms[one.broker_id] = 4000
    code, (found,) = invoke("status", "--namesrv", door.address)
    assert (code, found["health"]) == (Exit.UNHEALTHY, "no writes")
    assert {row["role"] for row in found["replicas"]} == {"unreachable"}
    for row in found["replicas"]:
        assert "Cannot connect" in row["note"] and "cometmq up" not in row["note"], "it is there"
    assert [row["log_end"] for row in found["replicas"]] == [None] * 3
    table = CliRunner().invoke(ha, ["status", "--namesrv", door.address], standalone_mode=False)
    assert "unknown" in table.stdout


def test_a_held_group_is_unhealthy(stack: ExitStack) -> None:
    _, door = whole(stack)
    assert door.state is not None
    door.state.ClearField("leader")
    door.state.hold_reason = "every candidate could lose messages"
    code, (found,) = invoke("status", "--namesrv", door.address)
    assert (code, found["health"], found["leader"]) == (Exit.UNHEALTHY, "no writes", "none")


def test_a_deposed_leader_that_still_reports_to_lead_is_a_former_leader(stack: ExitStack) -> None:
    replicas, door = whole(stack)
    replicas[0].role = "leader"
    _, (found,) = invoke("status", "--namesrv", door.address)
    assert [row["role"] for row in found["replicas"]] == ["former leader", "leader", "follower"]


def test_a_leader_that_refuses_writes_is_unhealthy(stack: ExitStack) -> None:
    replicas, door = whole(stack)
    replicas[1].refusal = "1 of 2 replicas in sync"
    code, (found,) = invoke("status", "--namesrv", door.address)
    assert (code, found["health"]) == (Exit.UNHEALTHY, "no writes")
    assert "1 of 2 replicas in sync" in found["problems"][0]


def test_silent_nodes_delay_status_once_and_not_each(stack: ExitStack) -> None:
    replicas, door = whole(stack)
    silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in silent]
    for one, address in zip((replicas[0], replicas[2]), addresses, strict=False):
        one.stop()
        one.address = address
    taken = []
    for _ in range(3):  # what a busy machine adds is not in the shortest
        began = time.monotonic()
        code, (found,) = invoke("status", "--namesrv", f"{addresses[2]};{door.address}")
        taken.append(time.monotonic() - began)
    calls = min(taken) / STATUS_S
    assert code == Exit.UNHEALTHY
    assert f"nameserver {addresses[2]} does not answer" in found["problems"]
    assert [row["role"] for row in found["replicas"]] == ["unreachable", "leader", "unreachable"]
    assert calls < 6, "three silent nodes, called twice in turn, would take nine timeouts"


def test_one_nameserver_names_those_that_elect_with_it(stack: ExitStack) -> None:
    replicas, active = whole(stack)
    asked = stack.enter_context(NameserverDoor(replicas, active.state, active=False))
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = f"127.0.0.1:{server.getsockname()[1]}"
    asked.peers = [active.address, ended]
    code, (found,) = invoke("status", "--namesrv", asked.address)
    assert (found["decided_by"], code) == (active.address, Exit.UNHEALTHY)
    assert found["problems"] == [f"nameserver {ended} does not answer"]
    assert invoke("switchover", "--to", "2", "--namesrv", asked.address)[0] == Exit.DONE
    assert active.asked and not asked.asked


def test_status_waits_for_the_only_controller_though_its_routes_are_known(stack: ExitStack) -> None:
    _, door = whole(stack)
    answer: Callable[[v1.GetGroupRequest], v1.GroupsResponse] = door.handlers[paths.GET_GROUPS][1]

    def late(request: v1.GetGroupRequest) -> v1.GroupsResponse:
        time.sleep(2 * STATUS_S)
        return answer(request)

    door.handlers[paths.GET_GROUPS] = v1.GetGroupRequest, late
    code, (found,) = invoke("status", "--namesrv", door.address)
    assert (code, found["health"], found["decided_by"]) == (0, "healthy", door.address)
    assert "policy" in found


def test_a_printed_restart_names_the_file_of_the_token(stack: ExitStack, tmp_path: Path) -> None:
    _, nameserver = whole(stack)
    file = tmp_path / "the token"
    file.write_text("secret-of-the-cluster\n")
    arguments = ["rolling-restart", "--plan", "--namesrv", nameserver.address, "--group", GROUP]
    done = CliRunner().invoke(ha, [*arguments, "--token-file", str(file)], standalone_mode=False)
    assert done.exception is None, done.output
    lines = done.stdout.splitlines()
    assert lines[0].startswith("#!")
    assert f"export COMETMQ_CLUSTER_TOKEN_FILE='{file}'" in lines
    assert "secret-of-the-cluster" not in done.stdout
    done = CliRunner().invoke(ha, arguments, standalone_mode=False)
    assert "export" not in done.stdout


def test_a_group_without_a_report_is_not_called_static(stack: ExitStack) -> None:
    _, door = whole(stack)
    refused = v1.GroupsResponse(code=v2.INTERNAL_SERVER_ERROR, message="the disk is full")
    door.handlers[paths.GET_GROUPS] = v1.GetGroupRequest, lambda _: refused
    code, (found,) = invoke("status", "--namesrv", door.address)
    assert (code, found["decided_by"]) == (Exit.UNHEALTHY, "unknown")
    assert "no nameserver reported this group" in found["problems"][0]
    assert "the disk is full" in found["problems"][0]
    code, sentence = invoke("failover", "--namesrv", door.address)
    assert code == Exit.FAILED
    assert "the disk is full" in sentence


def test_commands_send_the_token_of_a_file(stack: ExitStack, tmp_path: Path) -> None:
    _, door = whole(stack)
    (tmp_path / "token").write_text("secret\n")
    invoke("status", "--namesrv", door.address, "--token-file", str(tmp_path / "token"))
    assert door.tokens == {"secret"}
