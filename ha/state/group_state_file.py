"""Group state file `<store>/ha/group.state`: this replica's newest copy; durable on return.

The source of truth is the controllers' store (in a static group, the operator's last promotion). A
controller that lost its store rebuilds it from these copies (docs/formats/ha.md, section 6.3), a
replica that starts without a controller finds its leader here, and promotion scripts read it.
Losing the file costs no data.
"""

import base64
import logging
from pathlib import Path

from ...proto import v1
from ...store.format.disk import Disk
from ..core.group_state import GroupState
from ..errors import DamagedStateError
from .slots import SlotFile
from .state_codec import state_from, state_message

STATE_NAME = "group.state"
#: 16 members with long host names take about 6 KiB in base64.
_SLOT_BYTES = 16 * 1024

logger = logging.getLogger(__name__)


class GroupStateFile:
    def __init__(self, directory: Path, disk: Disk | None = None) -> None:
        self._slots = SlotFile(
            directory / STATE_NAME, durable=True, disk=disk, slot_bytes=_SLOT_BYTES
        )
        self.state = self._load()

    def _load(self) -> GroupState | None:
        try:
            payload = self._slots.load()
        except DamagedStateError as error:
            logger.warning(
                "ha.state.damaged error=%s; the controller or the leader sends it again", error
            )
            return None
        if payload is None:
            return None
        return state_from(v1.GroupState.FromString(base64.b64decode(payload["state"])))

    def save(self, state: GroupState) -> None:
        """Write the state. Raises OSError, with the previous one in place."""
        body = state_message(state).SerializeToString()
        leader = None if state.leader is None else str(state.leader)
        self._slots.save(
            {
                "version": state.version,
                "epoch": state.epoch,
                "leader": leader,
                "state": base64.b64encode(body).decode(),
            }
        )
        self.state = state

    def close(self) -> None:
        self._slots.close()
