"""Role of a replica at its start: follower without a leader, or from the files of a static group.

A static leader continues its epoch. It does not lead if an operator promoted another replica
meanwhile (`group.state`), or if it promised a newer epoch to an unknown leader (it was fenced). See
docs/formats/ha.md, sections 6.5 and 6.7.
"""

import logging

from ..core.group_state import GroupState
from ..core.lease import Lease
from ..core.role_machine import Role, RoleMachine
from ..state.replica import FIRST_EPOCH, Replica

logger = logging.getLogger(__name__)


def first_role(replica: Replica) -> RoleMachine:
    """Return the role machine of a starting replica."""
    is_static = not replica.config.enable_controller_mode
    lease = Lease(replica.config.lease_ns, is_needed=not is_static)
    machine = RoleMachine(replica.ref, lease, replica.promised_epoch, replica.state)
    state = replica.state
    if is_static and _is_deposed(replica, state):
        logger.warning(
            "ha.role.deposed broker_id=%d: the configuration makes this former leader a slave: it "
            "follows the master",
            machine.me.broker_id,
        )
        state = machine.state = None
        return machine
    if state is not None and state.leader is not None:
        # An earlier incarnation may have received a frame of the leader just before.
        machine.heard_ns = replica.steady_ns()
        machine.led_epoch = replica.newest_epoch_with_bytes()
        if state.leader.broker_id == machine.me.broker_id:
            machine.former = (machine.me.broker_id, state.epoch)
    if is_static and _leads_statically(replica, state):
        last_epoch = max(FIRST_EPOCH, replica.history.last_epoch)
        if replica.promised_epoch > last_epoch:
            machine.role = Role.FENCED
            logger.error(
                "ha.fenced promised_epoch=%d last_epoch=%d: this replica was fenced by a "
                "newer epoch. Promote one with scripts/promote.",
                replica.promised_epoch,
                last_epoch,
            )
            return machine
        replica.promise(last_epoch)
        if replica.history.last_epoch < last_epoch:
            replica.assign_epoch(last_epoch, replica.log.log_end)
        machine.role, machine.epoch = Role.LEADER, last_epoch
        machine.promised_epoch = replica.epoch = last_epoch
    return machine


def _is_deposed(replica: Replica, state: GroupState | None) -> bool:
    """Return whether another replica was promoted while this leader was down: its file then has a
    slave's role and another brokerId (`scripts/promote --conf`). A slave that was promoted keeps
    its brokerId and leads on."""
    if state is None or state.leader is None or replica.config.is_leader:
        return False
    return state.leader.broker_id != replica.ref.broker_id and _names(state, replica)


def _names(state: GroupState, replica: Replica) -> bool:
    """Return whether the state's leader is this replica, under whatever broker id."""
    member = None if state.leader is None else state.member(state.leader.broker_id)
    return member is not None and member.replica_uuid == replica.meta.replica_uuid


def _leads_statically(replica: Replica, state: GroupState | None) -> bool:
    """Return whether this static replica leads; the last promotion takes precedence over the
    configuration."""
    if state is None or state.leader is None:
        return replica.config.is_leader
    is_me = _names(state, replica)
    if not is_me and replica.config.is_leader:
        logger.error(
            "ha.role.overruled brokerRole=%s, but the group's state of version %d names "
            "broker %d as the leader: this replica follows it. Delete %s if that is "
            "outdated.",
            replica.config.broker_role,
            state.version,
            state.leader.broker_id,
            replica.directory / "group.state",
        )
    return is_me
