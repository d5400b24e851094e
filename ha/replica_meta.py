"""`<store>/ha/replica.meta`: who this replica is, across restarts. Truth; durable before anyone sees it.

A replica is (broker id, uuid, incarnation): the uuid is born with the data directory, the incarnation
counts its starts, so that a message about an earlier life is recognised (HA note, section 6.2). Losing
the file costs nothing but the identity: the leader then sees a new replica with an old log.
"""

import uuid
from dataclasses import dataclass
from pathlib import Path

from ..store.disk import Disk
from .errors import WrongReplicaError
from .slots import SlotFile

META_NAME = "replica.meta"


@dataclass(frozen=True, slots=True)
class Identity:
    """What the configuration says about a replica."""

    cluster: str
    group: str
    broker_id: int


@dataclass(frozen=True, slots=True)
class ReplicaMeta:
    replica_uuid: str
    incarnation: int  #: starts of this data directory, this one included
    promised_epoch: int  #: frames of an older epoch are refused


def start_replica(directory: Path, identity: Identity, disk: Disk | None = None) -> ReplicaMeta:
    """Count one more start of the replica in `directory` (`<store>/ha`) and return what it is now.

    Raises WrongReplicaError when the directory belongs to another cluster or group.
    """
    slots = SlotFile(directory / META_NAME, durable=True, disk=disk)
    state = slots.load()
    if state is None:
        state = {"replica_uuid": str(uuid.uuid4()), "incarnation": 0, "promised_epoch": 1}
    elif (state["cluster"], state["group"]) != (identity.cluster, identity.group):
        raise WrongReplicaError(
            f"{directory} belongs to group {state['group']} of cluster {state['cluster']}, the "
            f"configuration says group {identity.group} of cluster {identity.cluster}. Point "
            "storePathRootDir to this replica's own directory, or delete "
            f"{directory / META_NAME} if the cluster or group was renamed on purpose."
        )
    state.update(
        cluster=identity.cluster,
        group=identity.group,
        broker_id=identity.broker_id,
        incarnation=state["incarnation"] + 1,
    )
    slots.save(state)
    slots.close()
    return ReplicaMeta(state["replica_uuid"], state["incarnation"], state["promised_epoch"])
