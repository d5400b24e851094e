"""Broadcasting consumers: tracked offsets, start offsets, expiry."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cometmq.broker.metadata.tables import Group
from cometmq.broker.pull.broadcast import SILENT_MS, STALE_MS, BroadcastOffsets, broadcast_group
from cometmq.proto import v2
from cometmq.proto.errors import WireError
from cometmq.tests.broker.admin.test_admin_groups import delete as delete_group
from cometmq.tests.broker.desk import Desk, desk

LIMIT = 3
_clients = st.sampled_from("abcd")
_topics = st.sampled_from("tu")


class Readers(RuleBasedStateMachine):
    """The table beside a plain list of the pulls."""

    def __init__(self) -> None:
        super().__init__()
        self.table = BroadcastOffsets(LIMIT)
        self.seen: dict[tuple[str, str], int] = {}
        self.said: dict[tuple[str, str, int], tuple[int, int]] = {}
        self.now_ms = 0

    @rule(ms=st.sampled_from([1, 1_000, SILENT_MS // 2, SILENT_MS, STALE_MS]))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule(topic=_topics, client=_clients)
    def begin(self, topic: str, client: str) -> None:
        self.table.begin(topic, "g", client, self.now_ms)
        if (topic, client) in self.seen or len(self.seen) < LIMIT:
            self.seen[topic, client] = self.now_ms

    @rule(topic=_topics, client=_clients, queue=st.integers(0, 1), offset=st.integers(0, 9))
    def pull(self, topic: str, client: str, queue: int, offset: int) -> None:
        self.table.pulled(topic, "g", client, queue_id=queue, offset=offset, now_ms=self.now_ms)
        if (topic, client) in self.seen:
            self.seen[topic, client] = self.now_ms
            self.said[topic, client, queue] = (offset, self.now_ms)

    @rule()
    def commit(self) -> None:
        for (topic, client), seen_ms in list(self.seen.items()):
            if self.now_ms - seen_ms > SILENT_MS:
                del self.seen[topic, client]
        self.said = {
            key: value
            for key, value in self.said.items()
            if key[:2] in self.seen and self.now_ms - value[1] <= STALE_MS
        }
        lowest: dict[tuple[str, int], int] = {}
        for (topic, _, queue), (offset, _) in self.said.items():
            lowest[topic, queue] = min(offset, lowest.get((topic, queue), offset))
        found = {
            (topic, queue): offset for topic, _, queue, offset in self.table.slowest(self.now_ms)
        }
        assert found == lowest

    @invariant()
    def it_is_bounded(self) -> None:
        assert len(self.table) == len(self.seen) <= LIMIT


TestReaders = Readers.TestCase


def pull(one: Desk, offset: int, client: str) -> tuple[int, int]:
    """Return code and next offset of a pull that is answered at once."""
    request = v2.PullMessageRequest(
        group=v2.Resource(name="g"),
        message_queue=v2.MessageQueue(topic=v2.Resource(name="t")),
        offset=offset,
        batch_size=2,
    )
    answer = one.pulls.pull_message(request, one.context(client, remaining_ms=50))
    assert isinstance(answer, list)
    items = [v2.PullMessageResponse.FromString(item) for item in answer]
    return items[0].status.code, items[-1].next_offset


async def test_a_new_client_starts_at_the_slowest_clients_offset(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", *(b"%d" % n for n in range(6)))
        assert pull(one, -1, "a") == (v2.ILLEGAL_OFFSET, 0)
        assert pull(one, -1, "b") == (v2.ILLEGAL_OFFSET, 0)
        # Both clients read everything, each at its own pace; the group itself has no offset.
        assert [pull(one, n, "a") for n in (0, 2, 4)] == [(v2.OK, n) for n in (2, 4, 6)]
        assert [pull(one, n, "b") for n in (0, 2)] == [(v2.OK, n) for n in (2, 4)]
        one.pulls.close()
        assert one.node.offsets.get("t", broadcast_group("g"), 0) == 2
        assert one.node.offsets.get("t", "g", 0) is None
    async with desk(tmp_path) as one:
        assert pull(one, -1, "c") == (v2.ILLEGAL_OFFSET, 2)


async def test_a_group_that_shares_queues_starts_at_its_own_offset(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        await one.sent("t", *(b"%d" % n for n in range(6)))
        one.node.offsets.commit("t", "g", 0, 5)
        assert pull(one, -1, "a") == (v2.ILLEGAL_OFFSET, 5)


async def test_broadcasting_can_be_forbidden_for_a_group(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        one.topic("t")
        one.node.metadata.put_group(Group("g", extra={"consumeBroadcastEnable": False}))
        try:
            pull(one, -1, "a")
        except WireError as error:
            assert error.code == v2.FORBIDDEN
        else:
            raise AssertionError("it broadcast")
        assert pull(one, 0, "a") == (v2.MESSAGE_NOT_FOUND, 0)


async def test_offsets_of_a_deleted_group_are_not_those_of_its_successor(tmp_path: Path) -> None:
    async with desk(tmp_path) as one, one.live.client() as wire:
        one.topic("t")
        one.group("g")
        await one.sent("t", *(b"%d" % number for number in range(4)))
        assert pull(one, -1, "a")[1] == 0
        pull(one, 3, "a")
        one.pulls._commit_broadcast()
        assert one.node.offsets.get("t", "g@broadcast", 0) == 3
        assert (await delete_group(wire, "g", force=True)).code == v2.OK
        one.group("g")
        one.pulls._commit_broadcast()
        assert pull(one, -1, "a")[1] == 0
