"""Read-only view of a group for the rules around the group controller (pure).

`GroupController` implements `GroupView` and `GroupChanges`. The rules (`directives.py`,
`leader_watch.py`, `operations.py`, `operator_messages.py`) depend on these protocols only.
"""

from collections.abc import Mapping
from typing import Protocol

from ..group_state import GroupState, Ref
from .events import AlterIsr, Effect, Limits, PendingChange, Replica


class OperationsView(Protocol):
    """The operator command in progress, as directives depend on it."""

    @property
    def stepping_down(self) -> bool:
        """Whether a step-down of the leader is in progress."""
        ...

    @property
    def next_leader(self) -> Ref | None:
        """The target of the operation in progress."""
        ...

    def drain_ms(self, now_ns: int) -> int:
        """Return the milliseconds that the leader has left to step down."""
        ...


class GroupView(Protocol):
    """One group as its controller sees it."""

    @property
    def limits(self) -> Limits: ...
    @property
    def state(self) -> GroupState:
        """The newest committed state known to this controller."""
        ...

    @property
    def active(self) -> bool:
        """Whether this nameserver decides."""
        ...

    @property
    def is_read(self) -> bool:
        """Whether the state store was read at least once since this controller became active."""
        ...

    @property
    def replicas(self) -> Mapping[int, Replica]:
        """The registered replicas by broker id."""
        ...

    @property
    def operations(self) -> OperationsView: ...
    @property
    def pending(self) -> PendingChange | None:
        """The change that the store has not confirmed yet."""
        ...

    @property
    def grace_until_ns(self) -> int:
        """Before this time silence of a replica proves nothing."""
        ...

    @property
    def claim_until_ns(self) -> int:
        """End of this nameserver's right to decide."""
        ...

    @property
    def leases_end_ns(self) -> int:
        """End of every lease of a former leader that a nameserver may have granted."""
        ...

    @property
    def elected_ns(self) -> int:
        """Time of the last election."""
        ...

    @property
    def confirm_seen(self) -> int:
        """The newest confirm offset in a leader's heartbeat; for operator messages only."""
        ...

    @property
    def proven_epoch(self) -> int:
        """Every leader before this epoch is proven gone."""
        ...

    @property
    def led_epoch(self) -> int:
        """The newest epoch whose leader reported that it leads."""
        ...

    @property
    def vacant_epoch(self) -> int:
        """Every leader up to and including this epoch is proven gone."""
        ...

    def newest_known(self) -> GroupState:
        """Return the newest state held by this controller or any replica."""
        ...

    def leader_row(self, state: GroupState) -> Replica | None:
        """Return the registration of the leader of `state`, if it is the same incarnation."""
        ...


class GroupChanges(GroupView, Protocol):
    """A group whose state an operation may change."""

    def cas(
        self,
        state: GroupState,
        why: str,
        effects: list[Effect],
        *,
        proven: bool = False,
        proposal: AlterIsr | None = None,
        taken: bool = False,
    ) -> None:
        """Append the effect that asks the store for `state` as the next version."""
        ...
