"""Departure of a replica that stops: whether the group still waits for it (pure).

A stopping replica reports `leaving` in its heartbeats. The controller then removes a follower from
the in-sync set with one change of the state, and switches over from a leader to the most advanced
in-sync follower. The replica serves until that is done, so that no send waits for it afterwards
(docs/design/replication.md).
"""

from .role_machine import Role, RoleMachine


def has_left(machine: RoleMachine) -> bool:
    """Return whether the replica may stop without a cost for the group.

    It does not lead and is not in sync, or no other replica is in sync and could take over.
    """
    state = machine.state
    if state is None or state.in_sync == (machine.me,):
        return True
    leads = machine.role in (Role.LEADER, Role.PROMOTING)
    return not leads and machine.me not in state.in_sync
