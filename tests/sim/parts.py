"""The product's classes of a simulated cluster, and the rules that only its shells can break.

A planted bug is another `Parts` (`bugs.py`): one class replaced by a subclass from which exactly
one rule was removed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from cometmq.ha.core import hello
from cometmq.ha.core.controller.group_controller import GroupController
from cometmq.ha.core.epochs import EpochHistory
from cometmq.ha.core.follower import Follower
from cometmq.ha.core.in_sync import InSyncSet
from cometmq.ha.core.lease import Lease
from cometmq.ha.core.pending_isr import Proposals
from cometmq.ha.core.role_machine import RoleMachine


@dataclass(frozen=True, slots=True)
class ShellRules:
    """The rules of a replica's shell for its disk (docs/formats/ha.md, sections 6.5 and 6.8)."""

    suspects_power_loss: bool = True
    suspect_mark_is_durable: bool = True
    zeroes_what_it_cuts: bool = True
    archives_what_it_cuts: bool = True
    promise_before_ack: bool = True
    drains_before_a_planned_change: bool = True


@dataclass(frozen=True, slots=True)
class Parts:
    role_machine: type[RoleMachine] = RoleMachine
    lease: type[Lease] = Lease
    follower: type[Follower] = Follower
    in_sync: type[InSyncSet] = InSyncSet
    proposals: type[Proposals] = Proposals
    history: type[EpochHistory] = EpochHistory
    controller: type[GroupController] = GroupController
    decide: Callable[
        [hello.FollowerFacts, hello.LeaderFacts], hello.Accept | hello.CutTo | hello.Reject
    ] = hello.decide
    rules: ShellRules = field(default_factory=ShellRules)
