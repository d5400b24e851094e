"""The overview's alarms, figures and pictures, from answers of brokers."""

from __future__ import annotations

from cometmq.console.history import POINTS_MAX, History
from cometmq.console.overview import (
    BAD,
    BOX_HEIGHT,
    OK,
    WARNING,
    WIDTH,
    Backlog,
    GroupState,
    Snapshot,
    alarms,
    keep_known,
    picture,
)
from cometmq.proto import v1


def member(broker_id: int, *, leads: bool = False, **fields: object) -> v1.MemberStatus:
    values = {"alive": True, "in_sync": True, **fields}
    found = v1.MemberStatus(role=v1.LEADER if leads else v1.FOLLOWER, **values)  # type: ignore[arg-type]
    found.replica.group, found.replica.broker_id = "broker-a", broker_id
    found.addresses.client = f"127.0.0.1:{8081 + 2 * broker_id}"
    return found


def group(*members: v1.MemberStatus, refusal: str = "", **store: object) -> GroupState:
    answer = v1.DescribeClusterResponse(members=members, write_refusal=refusal)
    answer.store.MergeFrom(v1.StoreStatus(**store))  # type: ignore[arg-type]
    return GroupState("", answer)


def told(*groups: GroupState, unreachable: frozenset[str] = frozenset()) -> list[tuple[str, str]]:
    found = alarms(Snapshot(1, groups, unreachable=unreachable))
    return [(one.level, one.text) for one in found]


def test_a_healthy_group_has_no_alarm() -> None:
    assert told(group(member(0, leads=True), member(1), disk_use=40, pressure="none")) == []


def test_each_trouble_is_one_sentence_and_failures_are_first() -> None:
    found = told(
        group(
            member(0, leads=True),
            member(1, in_sync=False, behind=2048),
            member(2, alive=False),
            refusal="too few replicas are in sync",
            disk_use=76,
            pressure="any_hour",
        )
    )
    assert found == [
        (BAD, "broker-a refuses writes: too few replicas are in sync"),
        (BAD, "broker-a: broker 2 (follower, 127.0.0.1:8085) is not alive."),
        (WARNING, "broker-a: broker 1 (follower, 127.0.0.1:8083) is not in sync, 2.0 KiB behind."),
        (WARNING, "broker-a: the disk is 76 % full."),
        (WARNING, "broker-a: The disk fills: expired segments are deleted at any hour."),
    ]


def test_a_replica_that_refuses_connections_is_an_alarm_before_the_cluster_notices() -> None:
    found = told(group(member(0, leads=True), member(1)), unreachable=frozenset(["127.0.0.1:8081"]))
    text = "broker-a: broker 0 (leader, 127.0.0.1:8081) does not accept connections."
    assert found == [(BAD, text)]


def test_a_group_that_stops_answering_keeps_its_picture_and_has_no_rates() -> None:
    old = group(member(0, leads=True), put_tps=5.0)
    (kept,) = keep_known([GroupState("", None, "no answer")], [old])
    snapshot = Snapshot(2, [kept])
    assert kept.answer is old.answer
    assert [one.text for one in alarms(snapshot)] == ["broker-a: no answer"]
    assert snapshot.rates() is None
    assert snapshot.disk_use() == -1


def test_rates_are_the_sums_of_all_groups() -> None:
    snapshot = Snapshot(1, [group(put_tps=2.0, get_tps=1.0), group(put_tps=3.0, disk_use=50)])
    assert snapshot.rates() == (5.0, 1.0)
    assert snapshot.disk_use() == 50


def test_unreadable_groups_are_a_warning() -> None:
    found = alarms(Snapshot(1, backlog=Backlog(error="refused")))
    assert [one.level for one in found] == [WARNING]


def test_the_picture_has_the_leader_at_the_left_and_fits_its_box() -> None:
    members = [member(0), member(1, leads=True), member(2, in_sync=False, behind=4096)]
    drawn = picture(group(*members), frozenset())
    assert [(box.title, box.state) for box in drawn.boxes] == [
        ("broker 1 · leader", OK),
        ("broker 0 · follower", OK),
        ("broker 2 · follower", WARNING),
    ]
    assert drawn.boxes[0].x < min(box.x for box in drawn.boxes[1:])
    assert all(0 <= box.x < WIDTH and box.y + BOX_HEIGHT <= drawn.height for box in drawn.boxes)
    assert [(line.state, line.label) for line in drawn.links] == [(OK, ""), (WARNING, "4.0 KiB")]
    assert drawn.text.endswith("broker 2 · follower not in sync")


def test_a_group_without_a_leader_is_drawn_without_lines() -> None:
    drawn = picture(group(member(0), member(1)), frozenset())
    assert len(drawn.boxes) == 2
    assert drawn.links == []


def test_the_history_keeps_the_newest_points_in_columns() -> None:
    history = History(2)
    assert history.columns() == [[], [], []]
    for n in range(POINTS_MAX + 5):
        history.add(n * 1_000, (n, None))
    times, first, second = history.columns()
    assert len(times) == POINTS_MAX
    assert (times[0], first[-1]) == (5.0, POINTS_MAX + 4)
    assert second[-1] is None
    assert history.last() == [times[-1], first[-1], None]


def test_a_group_from_the_given_lag_on_has_an_alarm() -> None:
    snapshot = Snapshot(1, backlog=Backlog(at_ms=1, largest=[("slow", 12_000), ("fast", 9)]))
    assert [one.text for one in alarms(snapshot, 10_000)] == [
        "Consumer group slow lags: 12,000 messages."
    ]
    assert alarms(snapshot) == []
