"""One operation that an operator ordered, while it is under way, and how it is answered (pure; HA note, 6.6)."""

from dataclasses import dataclass, field

from ..group_state import Policy, Ref
from .events import Effect, OperationAnswer, Outcome


@dataclass(slots=True)
class Operation:
    """A switchover, forced election or change of the policy under way. Request 0: the controller's own idea."""

    request: int
    target: Ref
    deadline_ns: int
    phase: str = "catch_up"  #: catch_up, step_down, electing, taking_over
    mark_end: int = 0  #: the leader's end at the start
    drain_until_ns: int = 0
    epoch: int = 0
    steps: list[str] = field(default_factory=list)
    lost: tuple[int, int] = (0, 0)
    loses: bool = False
    is_forced: bool = False
    why: str = ""
    policy: Policy | None = None  #: of the epoch that begins; None: as it is


def refuse(request: int, reason: str, effects: list[Effect]) -> None:
    """The command was not begun."""
    effects.append(OperationAnswer(request, Outcome.REFUSED, reason, (reason,)))


def answer(operation: Operation, outcome: Outcome, text: str, effects: list[Effect]) -> None:
    """How it ended, for whoever asked; nobody asked for the controller's own ideas."""
    if operation.request:
        steps = tuple(operation.steps)
        answer = OperationAnswer(operation.request, outcome, text, steps, *operation.lost)
        effects.append(answer)
