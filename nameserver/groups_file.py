"""Groups file `groups.state`: the groups' states of a single controller. Source of truth.

Its loss costs a rebuild from the copies on the replicas (docs/formats/ha.md, drill 22): no group
stops, and there is no election before an in-sync replica of the newest known version has answered.
A damaged file is kept under another name and counts as lost. Every change is durable before it is
published; writes and fsync run in one thread, off the event loop. Format: `record_file.py`, keys
are group names.
"""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ..ha.core.group_state import GroupState
from .meta_store import StoreUnavailableError, decode_state, encode_state
from .record_file import DamagedFileError, RecordFile

logger = logging.getLogger(__name__)

FILE = "groups.state"


class GroupsFile:
    """A `MetaStore` on one file."""

    def __init__(self, directory: Path) -> None:
        self._file = RecordFile(directory / FILE)
        self._states: dict[str, GroupState] = {}
        self._writing: set[str] = set()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="groups-state")

    def open(self) -> None:
        """Read the file. Raises OSError."""
        try:
            self._file.open()
            self._states = {name: decode_state(data) for name, data in self._file.values.items()}
        except (DamagedFileError, ValueError) as error:
            aside = self._file.set_aside()
            logger.error(
                "groups_state.damaged kept_as=%s error=%s: states are rebuilt from the replicas",
                aside,
                error,
            )
            self._file = RecordFile(self._file.path)
            self._file.open()
            self._states = {}
        if self._file.tail_was_cut:
            logger.warning(
                "groups_state.torn file=%s: an unfinished change was cut", self._file.path
            )
        logger.info("groups_state.opened groups=%d", len(self._states))

    async def close(self) -> None:
        """Complete pending writes."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._thread.shutdown)
        self._file.close()

    async def read(self, cluster: str, group: str) -> GroupState:
        """Return the state in place."""
        return self._states.get(group, GroupState(cluster, group))

    async def groups(self) -> list[tuple[str, str]]:
        """Return every group in the file."""
        return [(state.cluster, name) for name, state in sorted(self._states.items())]

    async def compare_and_set(
        self, expected_version: int, state: GroupState
    ) -> tuple[bool, GroupState]:
        """Replace a state (see `MetaStore`)."""
        old = self._states.get(state.group, GroupState(state.cluster, state.group))
        if old.version != expected_version:
            return False, old
        if state.group in self._writing:
            raise StoreUnavailableError(f"another change of group {state.group} is being written")
        self._writing.add(state.group)
        loop = asyncio.get_running_loop()
        try:
            change = {state.group: encode_state(state)}
            await loop.run_in_executor(self._thread, self._file.put, change)
        except OSError as error:
            logger.error("groups_state.not_written group=%s error=%s", state.group, error)
            raise StoreUnavailableError(str(error)) from None
        finally:
            self._writing.discard(state.group)
        self._states[state.group] = state
        return True, state
