"""Identity file `<store>/ha/replica.meta`: uuid, incarnation, promise. Every change is durable.

A replica is (broker id, uuid, incarnation): the uuid is created with the data directory, the
incarnation counts its starts, so that a message about an earlier incarnation is recognised
(docs/formats/ha.md, section 6.2). Losing the file costs only the identity: the leader then sees a
new replica with an old log.

`promised_epoch`: frames of an older epoch are refused; durable before anything is acknowledged in
it (I1). `suspect`: this replica may have lost bytes that it acknowledged (section 6.5). A killed
process loses nothing that reached the page cache, so a start is suspect only if the last stop was
not clean, the machine rebooted since (another boot id) and the group acknowledges before it
flushes; or if a flush failed. The mark survives restarts, and is cleared when all bytes below the
leader's confirm offset are present again.
"""

import uuid
from pathlib import Path
from typing import Any

from msgspec import Struct

from ...store.format.disk import Disk
from ...store.format.layout import REPLICA_FILE
from ..errors import WrongReplicaError
from .boot_id import boot_id
from .slots import SlotFile

META_NAME = REPLICA_FILE


class Identity(Struct, frozen=True):
    """The configured identity of a replica."""

    cluster: str
    group: str
    broker_id: int


class ReplicaMeta:
    """The open file; every change is durable on return. Raises OSError, with the previous state in
    place."""

    def __init__(self, slots: SlotFile, state: dict[str, Any]) -> None:
        self._slots = slots
        self._state = state

    @property
    def replica_uuid(self) -> str:
        return str(self._state["replica_uuid"])

    @property
    def incarnation(self) -> int:
        """Number of starts of this data directory, including this one."""
        return int(self._state["incarnation"])

    @property
    def promised_epoch(self) -> int:
        return int(self._state["promised_epoch"])

    @property
    def suspect(self) -> bool:
        return bool(self._state["suspect"])

    @property
    def boot_id(self) -> str:
        return str(self._state["boot_id"])

    def promise(self, epoch: int) -> None:
        """Raise the promised epoch; it never decreases."""
        if epoch > self.promised_epoch:
            self._save(promised_epoch=epoch)

    def set_suspect(self, suspect: bool) -> None:
        if suspect is not self.suspect:
            self._save(suspect=suspect)

    def mark_clean(self) -> None:
        """Mark the stop as clean: everything is on disk and nothing more will be written."""
        self._save(clean_shutdown=True)

    def close(self) -> None:
        self._slots.close()

    def _save(self, **changes: Any) -> None:
        state = {**self._state, **changes}
        self._slots.save(state)
        self._state = state


def start_replica(
    directory: Path, identity: Identity, disk: Disk | None = None, *, sync_flush: bool = True
) -> ReplicaMeta:
    """Count one more start of the replica in `directory` (`<store>/ha`) and return its state.

    Raises WrongReplicaError when the directory belongs to another cluster or group.
    """
    slots = SlotFile(directory / META_NAME, durable=True, disk=disk)
    state = _checked(slots, directory, identity)
    if state is None:
        state = {"replica_uuid": str(uuid.uuid4()), "incarnation": 0, "promised_epoch": 1}
    now = boot_id(directory)
    state.update(
        cluster=identity.cluster,
        group=identity.group,
        broker_id=identity.broker_id,
        incarnation=state["incarnation"] + 1,
        suspect=_is_suspect(state, now, sync_flush=sync_flush),
        boot_id=now,
        clean_shutdown=False,
    )
    slots.save(state)
    return ReplicaMeta(slots, state)


def check_replica(directory: Path, identity: Identity) -> None:
    """Check that the data in `directory` (`<store>/ha`) is of this cluster and group, before its
    store is opened. Changes nothing. Raises WrongReplicaError, DamagedStateError."""
    _checked(SlotFile(directory / META_NAME, durable=True), directory, identity)


def _checked(slots: SlotFile, directory: Path, identity: Identity) -> dict[str, Any] | None:
    state = slots.load()
    if state and (state["cluster"], state["group"]) != (identity.cluster, identity.group):
        raise WrongReplicaError(
            f"{directory} belongs to group {state['group']} of cluster {state['cluster']}, "
            f"but the configuration has group {identity.group} of cluster "
            f"{identity.cluster}. Point storePathRootDir to this replica's own directory, or "
            f"delete {directory / META_NAME} if the cluster or group was renamed on purpose."
        )
    return state


def _is_suspect(state: dict[str, Any], now: str, *, sync_flush: bool) -> bool:
    if state.get("suspect", False):
        return True
    # A file without these fields is of an older version.
    clean = state.get("clean_shutdown", True)
    before = state.get("boot_id", now)
    return not clean and before != now and not sync_flush
