"""`cometmq ha replay-tail`: sends each archived diverged tail once, even if several replicas
archived it (`ha/rejoin/replay_plan.py`)."""

from collections.abc import Callable, Sequence

from ...ha.rejoin.replay_plan import ReplayPlan
from ...operations.replication import Replica
from ...proto import paths, v1
from .replicas import call, refresh

_REPLAY_S = 600.0


def replay(
    replicas: Sequence[Replica],
    selected: Sequence[Replica],
    file_id: str,
    *,
    dry_run: bool,
    say: Callable[[str], None],
) -> int:
    """Replay on the selected replicas in turn; returns the messages sent. Raises CliError."""
    for one in replicas:
        refresh(one)
    plan = ReplayPlan([one.status.tails for one in replicas if one.status is not None], file_id)
    messages = 0
    for one in selected:
        if one.status is None:
            say(f"{one.name} does not answer: {one.error}")
            continue
        asked = plan.next(one.name, one.status.tails, dry_run=dry_run)
        for step in asked.steps:
            say(step)
        if asked.request is None:
            continue
        answer = call(one, paths.REPLAY_TAIL, asked.request, v1.ControlResponse, _REPLAY_S)
        for step in answer.steps:
            say(f"{one.name}: {step}")
        messages += int(answer.messages)
    return messages
