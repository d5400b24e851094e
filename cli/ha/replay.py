"""`cometmq ha replay-tail`: sends each archived diverged tail once, even if several replicas
archived it.

Replicas that followed the same lost leader archive the same bytes: equal epoch, start, end and
CRC-32 (`ha/rejoin/diverged_key.py`). The first selected replica sends them; the others, and holders
of a tail that was sent in an earlier run, only mark their copies as replayed. A replica that is
unreachable or returns no checksums cannot be compared, so messages may be sent twice
(docs/formats/ha.md, R7).
"""

from collections.abc import Callable, Sequence

from ...ha.rejoin.diverged_key import content_key
from ...proto import paths, v1
from .replicas import Replica

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
        one.refresh()
    # An archive given by name is sent even if it was sent before.
    sent = (
        set()
        if file_id
        else {content_key(t) for one in replicas for t in _tails(one) if t.replayed}
    )
    messages = 0
    for one in selected:
        if one.status is None:
            say(f"{one.name} does not answer: {one.error}")
            continue
        wanted = [t for t in _tails(one) if (t.file_id == file_id if file_id else not t.replayed)]
        for tail in wanted:
            say(
                f"{one.name}: {tail.file_id} holds {tail.messages} messages, "
                f"{tail.answered_ok} of them answered OK"
            )
        if not wanted:
            say(f"{one.name} has no archived tail to replay")
            continue
        again = [tail.file_id for tail in wanted if content_key(tail) in sent - {None}]
        request = v1.ReplayTailRequest(file_id=file_id, dry_run=dry_run, sent_elsewhere=again)
        answer = one.call(paths.REPLAY_TAIL, request, v1.ControlResponse, _REPLAY_S)
        for step in answer.steps:
            say(f"{one.name}: {step}")
        messages += int(answer.messages)
        sent |= {content_key(tail) for tail in wanted}
    return messages


def _tails(one: Replica) -> Sequence[v1.ArchivedTail]:
    return () if one.status is None else one.status.tails
