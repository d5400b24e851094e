"""Which archived diverged tails each replica of a group sends again, and which it only marks. Pure.

Replicas that followed the same lost leader archive the same bytes: equal epoch, start, end and
CRC-32 (`diverged_key.py`). The first replica sends them; the others, and holders of a tail that was
sent in an earlier run, only mark their copies as replayed. A replica that does not answer or
returns no checksums cannot be compared, so messages may be sent twice (docs/formats/ha.md, R7).
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from ...proto import v1
from .diverged_key import content_key


class ReplicaReplay(Struct, frozen=True):
    """What one replica is asked for."""

    #: A sentence for each tail.
    steps: list[str]
    #: None: it has nothing to replay.
    request: v1.ReplayTailRequest | None


class ReplayPlan:
    """The replays of one run, in the order in which the replicas are asked."""

    def __init__(self, replicas: Iterable[Sequence[v1.ArchivedTail]], file_id: str) -> None:
        """`replicas` are the tails of every replica that answers; an archive given by `file_id` is
        sent even if it was sent before."""
        self._file_id = file_id
        self._sent = (
            set()
            if file_id
            else {content_key(tail) for tails in replicas for tail in tails if tail.replayed}
        )

    def next(self, name: str, tails: Sequence[v1.ArchivedTail], *, dry_run: bool) -> ReplicaReplay:
        """Return what the next replica is asked for, and count its tails as sent."""
        file_id = self._file_id
        wanted = [t for t in tails if (t.file_id == file_id if file_id else not t.replayed)]
        if not wanted:
            return ReplicaReplay([f"{name} has no archived tail to replay"], None)
        again = [tail.file_id for tail in wanted if content_key(tail) in self._sent - {None}]
        self._sent |= {content_key(tail) for tail in wanted}
        steps = [
            f"{name}: {tail.file_id} holds {tail.messages} messages, "
            f"{tail.answered_ok} of them answered OK"
            for tail in wanted
        ]
        request = v1.ReplayTailRequest(file_id=file_id, dry_run=dry_run, sent_elsewhere=again)
        return ReplicaReplay(steps, request)
