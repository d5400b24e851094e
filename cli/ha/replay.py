"""`cometmq ha replay-tail`: every archived tail is sent once, although several replicas may have archived it.

Replicas that followed the same lost leader archive the same bytes: same epoch, start, end and CRC-32 (`ha/rejoin/diverged_key.py`). Whoever
comes later is told to mark its copy; so is who holds what another one sent in an earlier run. A replica that is silent, or
does not say its checksums, cannot be compared: then messages may come twice. (HA note, R7)
"""

from collections.abc import Callable, Sequence

from ...ha.rejoin.diverged_key import same_bytes
from ...proto import paths, v1
from .doors import Replica

_REPLAY_S = 600.0


def replay(
    replicas: Sequence[Replica],
    selected: Sequence[Replica],
    file_id: str,
    *,
    dry_run: bool,
    say: Callable[[str], None],
) -> int:
    """Ask the selected ones, one after the other; how many messages were sent. Raises CliError."""
    for one in replicas:
        one.ask()
    # Who names an archive wants it sent, whatever was sent before.
    sent = (
        set() if file_id else {same_bytes(t) for one in replicas for t in _tails(one) if t.replayed}
    )
    messages = 0
    for one in selected:
        if one.status is None:
            say(f"{one.name} is silent: {one.why_silent}")
            continue
        wanted = [t for t in _tails(one) if (t.file_id == file_id if file_id else not t.replayed)]
        for tail in wanted:
            say(
                f"{one.name}: {tail.file_id} holds {tail.messages} messages, {tail.answered_ok} were answered OK"
            )
        if not wanted:
            say(f"{one.name} has no archived tail to replay")
            continue
        again = [tail.file_id for tail in wanted if same_bytes(tail) in sent - {None}]
        request = v1.ReplayTailRequest(file_id=file_id, dry_run=dry_run, sent_elsewhere=again)
        answer = one.call(paths.REPLAY_TAIL, request, v1.ControlResponse, _REPLAY_S)
        for step in answer.steps:
            say(f"{one.name}: {step}")
        messages += int(answer.messages)
        sent |= {same_bytes(tail) for tail in wanted}
    return messages


def _tails(one: Replica) -> Sequence[v1.ArchivedTail]:
    return () if one.status is None else one.status.tails
