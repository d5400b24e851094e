"""Doubts: former leaders that may still write after an election (pure; rule R4).

An election by silence proves nothing about the former leader, so the new one waits until every
earlier permission to write has ended. It stops waiting as soon as each incarnation in doubt is
proven gone: its process ended, its replica returned in a later incarnation, or it reports that it
promised the new epoch and does not lead (docs/design/replication.md). A leader that was elected and
never led has not waited for its own predecessors, so their doubts pass on to the next election.
"""

from collections.abc import Mapping

from msgspec import Struct

from ..group_state import Ref
from .events import Replica


class Doubt(Struct, frozen=True):
    """One incarnation; `replica_uuid` is its disk."""

    ref: Ref
    replica_uuid: str


class Doubts(Struct, frozen=True):
    """The doubts of the election of `epoch`. None: they are not known to this controller."""

    epoch: int = 0
    incarnations: tuple[Doubt, ...] | None = None

    def after(
        self, former: Doubt | None, epoch: int, new_epoch: int, *, all_gone: bool
    ) -> "Doubts":
        """Return the doubts of the next election.

        `former` is the leader of `epoch` if nothing proves its end. `all_gone`: nothing before it
        can write.
        """
        earlier: tuple[Doubt, ...] | None = ()
        if not all_gone:
            earlier = self.incarnations if self.epoch == epoch else None
        if earlier is None:
            return Doubts(new_epoch)
        return Doubts(new_epoch, earlier if former is None else (*earlier, former))

    def are_resolved(self, epoch: int, replicas: Mapping[int, Replica]) -> bool:
        """Return whether every incarnation in doubt of the election of `epoch` is gone."""
        return (
            self.epoch == epoch
            and self.incarnations is not None
            and all(
                is_gone(doubt, replicas.get(doubt.ref.broker_id), epoch)
                for doubt in self.incarnations
            )
        )


def is_gone(doubt: Doubt, replica: Replica | None, epoch: int) -> bool:
    """Return whether this incarnation cannot write in an epoch before `epoch` any more."""
    if replica is None:
        return False
    heartbeat = replica.heartbeat
    if replica.ref == doubt.ref:
        has_promised = not heartbeat.leads and heartbeat.promised_epoch >= epoch
        return replica.dead or has_promised
    is_later = heartbeat.incarnation > doubt.ref.incarnation
    return is_later and bool(doubt.replica_uuid) and heartbeat.replica_uuid == doubt.replica_uuid
