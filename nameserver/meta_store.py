"""Where the groups' states are kept: one operation, compare-and-set, behind one interface.

    `groups_file.py`      one nameserver decides: an fsynced file in its data directory
    `register_store.py`   three decide together: a CAS register over their acceptors

A state is only ever replaced by one of a higher version, and only when the version in place is the one that the
decision was made from (HA note, 6.3).
"""

from typing import Protocol

from ..ha.core.group_state import GroupState
from ..ha.state.state_codec import state_from, state_message
from ..proto import v1


class StoreUnavailableError(Exception):
    """The store cannot be reached, or does not know whether it took the change: read it again."""


class MetaStore(Protocol):
    """All calls on the event loop; none of them blocks it."""

    async def read(self, cluster: str, group: str) -> GroupState:
        """What is in place; version 0: nothing. Raises StoreUnavailableError."""

    async def compare_and_set(
        self, expected_version: int, state: GroupState
    ) -> tuple[bool, GroupState]:
        """Put `state` in place of the expected version; returns whether it was taken, and what is in
        place now. Durable on return. Raises StoreUnavailableError."""

    async def groups(self) -> list[tuple[str, str]]:
        """Cluster and name of every group that has a state. Raises StoreUnavailableError."""


def encode_state(state: GroupState) -> bytes:
    """A state as stores keep it; equal states are equal bytes."""
    data: bytes = state_message(state).SerializeToString(deterministic=True)
    return data


def decode_state(data: bytes) -> GroupState:
    """The state in `data`. Raises ValueError."""
    try:
        state = state_from(v1.GroupState.FromString(data))
        state.validate()
    except Exception as error:
        raise ValueError(f"no group state: {error}") from None
    return state
