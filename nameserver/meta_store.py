"""State store interface: one operation, compare-and-set.

    `groups_file.py`      single controller: an fsynced file in its data directory
    `register_store.py`   three controllers: a CAS register over their acceptors

A state is only replaced by one of a higher version, and only if the version in place is the one
that the decision was made from (docs/formats/ha.md, section 6.3).
"""

from typing import Protocol

from ..ha.core.group_state import GroupState
from ..ha.state.state_codec import state_from, state_message
from ..proto import v1


class StoreUnavailableError(Exception):
    """The store is unreachable, or the outcome of a change is unknown: read it again."""


class MetaStore(Protocol):
    """A store of group states; calls on the event loop, which they never block."""

    async def read(self, cluster: str, group: str) -> GroupState:
        """Return the state in place; version 0: none. Raises StoreUnavailableError."""

    async def compare_and_set(
        self, expected_version: int, state: GroupState
    ) -> tuple[bool, GroupState]:
        """Replace the expected version by `state`; returns whether it was taken and the state in
        place.

        Durable on return. Raises StoreUnavailableError.
        """

    async def groups(self) -> list[tuple[str, str]]:
        """Return cluster and name of every group with a state. Raises StoreUnavailableError."""


def encode_state(state: GroupState) -> bytes:
    """Return the bytes of a state; equal states have equal bytes."""
    data: bytes = state_message(state).SerializeToString(deterministic=True)
    return data


def decode_state(data: bytes) -> GroupState:
    """Return the state in `data`. Raises ValueError."""
    try:
        state = state_from(v1.GroupState.FromString(data))
        state.validate()
    except Exception as error:
        raise ValueError(f"invalid group state: {error}") from None
    return state
