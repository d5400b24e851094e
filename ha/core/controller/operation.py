"""The state of one operator command in progress (pure; docs/formats/ha.md, section 6.6)."""

from msgspec import Struct, field

from ..group_state import Policy, Ref
from .events import Effect, OperationAnswer, Outcome


class Operation(Struct):
    """A switchover, forced election or policy change. Request 0: started by the controller."""

    request: int
    target: Ref
    deadline_ns: int
    phase: str = "catch_up"  #: catch_up, step_down, electing, taking_over
    mark_end: int = 0  #: the leader's log end at the start
    drain_until_ns: int = 0
    epoch: int = 0
    steps: list[str] = field(default_factory=list)
    lost: tuple[int, int] = (0, 0)
    loses: bool = False
    is_forced: bool = False
    is_step_aside: bool = False  #: the leader lacks its quorum: nothing to wait for
    why: str = ""
    policy: Policy | None = None  #: policy of the next epoch; None: unchanged


def refuse(request: int, reason: str, effects: list[Effect]) -> None:
    """Answer that the command was refused."""
    effects.append(OperationAnswer(request, Outcome.REFUSED, reason, (reason,)))


def answer(operation: Operation, outcome: Outcome, text: str, effects: list[Effect]) -> None:
    """Answer the command, unless the controller started it."""
    if operation.request:
        steps = tuple(operation.steps)
        answer = OperationAnswer(operation.request, outcome, text, steps, *operation.lost)
        effects.append(answer)
