"""Moves consumer groups: their committed offsets, translated, and the retries that wait.

As long as a group has no consumer in the target, its offsets there follow those in the source. When
consumers of it appear in the target the group has moved: its offsets are its own from then on, and
messages that still wait for a retry at the source are brought to its retry topic in the target as
they come up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .cluster import Cluster, UnexpectedError
from .copying import Place, QueueCopy, translated
from .link import RefusedError

RETRY = "%RETRY%"
_SYSTEM_GROUPS = ("CID_RMQ_SYS_", "CID_ONSAPI_", "CID_ONS-HTTP-PROXY", "TOOLS_CONSUMER")
_MORE_SYSTEM_GROUPS = frozenset({"FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_SYS_RMQ_TRANS"})


def is_system_group(name: str) -> bool:
    """Return whether a group is a broker's own."""
    return name.startswith(_SYSTEM_GROUPS) or name in _MORE_SYSTEM_GROUPS


def retry_origin(topic: str, group: str) -> bool:
    """Return whether a topic is a retry topic of the group."""
    name = f"{RETRY}{group}"
    return topic == name or topic.startswith((f"{name}_", f"{name}+"))


@dataclass(slots=True)
class GroupState:
    """What is known of a group; shown by `mirror status`."""

    group: str
    #: in use, ready, behind, moved
    state: str = "behind"
    source_consumers: int = 0
    target_consumers: int = 0
    #: Committed offsets of the source that are not copied yet.
    not_copied: int = 0
    #: Messages that the group would get again if it moved now.
    repeated: int = 0
    #: Why it does not follow; "" if it does.
    error: str = ""
    #: It was found or created in the target.
    exists: bool = field(default=False, repr=False)
    #: Offsets of the source that the target follows, by source queue.
    followed: dict[Place, int] = field(default_factory=dict, repr=False)
    #: Offsets committed in the target by the mirror.
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict, repr=False)

    def row(self) -> dict[str, Any]:
        """Return the fields that are shown."""
        return {
            "group": self.group,
            "state": self.state,
            "source_consumers": self.source_consumers,
            "target_consumers": self.target_consumers,
            "not_copied": self.not_copied,
            "repeated": self.repeated,
            "error": self.error,
        }


class GroupMoves:
    """The groups of one mirror."""

    def __init__(
        self, source: Cluster, target: Cluster, moved: dict[str, list[tuple[Place, int]]]
    ) -> None:
        self._source = source
        self._target = target
        #: Saved with the progress.
        self.moved = moved
        self.states: dict[str, GroupState] = {}

    async def follow(
        self, group: str, bean: dict[str, Any], copies: Mapping[Place, QueueCopy]
    ) -> None:
        """Let the offsets in the target follow, or note that the group has moved.

        A refusal concerns this group only: it is shown. Raises LinkError.
        """
        state = self.states.setdefault(group, GroupState(group))
        try:
            await self._follow(state, bean, copies)
            state.error = ""
        except (RefusedError, UnexpectedError) as error:
            state.error = str(error)

    async def _follow(
        self, state: GroupState, bean: dict[str, Any], copies: Mapping[Place, QueueCopy]
    ) -> None:
        group = state.group
        if not state.exists:
            for broker in self._target.brokers.values():
                if group not in await broker.groups():
                    await broker.put_group(bean)
            state.exists = True
        state.source_consumers = await self._source.consumers(group)
        state.target_consumers = await self._target.consumers(group)
        if group in self.moved:
            state.state = "moved"
            return
        committed = await self._committed(group)
        if state.target_consumers:
            self.moved[group] = [
                (place, offset) for place, offset in committed if retry_origin(place.topic, group)
            ]
            state.state = "moved"
            return
        state.not_copied = state.repeated = 0
        for place, offset in committed:
            copy = copies.get(place)
            if copy is not None and not retry_origin(place.topic, group):
                await self._follow_queue(state, copy, offset)
        if state.not_copied:
            state.state = "behind"
        else:
            state.state = "in use" if state.source_consumers else "ready"

    async def _committed(self, group: str) -> list[tuple[Place, int]]:
        committed = []
        for name, broker in self._source.brokers.items():
            for (topic, queue_id), offset in (await broker.offsets(group)).items():
                retry = retry_origin(topic, group)
                if offset or retry or await broker.has_offset(group, topic, queue_id):
                    committed.append((Place(topic, name, queue_id), offset))
        return committed

    async def _follow_queue(self, state: GroupState, copy: QueueCopy, offset: int) -> None:
        position = copy.position
        state.not_copied += max(offset - max(position.following, copy.begin), 0)
        place = copy.target
        target = self._target.broker(place.broker)
        key = place.topic, place.broker, place.queue_id
        if state.followed.get(copy.source) != offset or offset > position.following:
            there = await translated(copy, target, offset)
            if state.committed.get(key) != there:
                await target.commit(state.group, place.topic, place.queue_id, there)
            state.followed[copy.source], state.committed[key] = offset, there
        there = state.committed[key]
        if offset < position.following:
            exact = position.target_end - (position.following - offset)
        else:
            exact = position.target_end
        state.repeated += max(exact - there, 0)
