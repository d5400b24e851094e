"""Writes consumer groups that clients bring to the metadata log; on a leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...proto.errors import WireError

if TYPE_CHECKING:
    from ...store.message_store import MessageStore
    from ..base.leadership import Leadership
    from ..visible.dispatch_pump import DispatchPump
    from .log import MetaLog
    from .tables import Group


class GroupRecorder:
    """Writes a new group if the log accepts it; otherwise the group exists in memory only."""

    def __init__(
        self, store: MessageStore, leadership: Leadership, meta_log: MetaLog, pump: DispatchPump
    ) -> None:
        self._store = store
        self._leadership = leadership
        self._meta_log = meta_log
        self._pump = pump

    def record(self, group: Group) -> bool:
        """Write `group`; returns False if nothing can be written now."""
        if not self._store.writable or self._leadership.write_refusal() is not None:
            return False
        try:
            self._meta_log.write_group(group)
        except WireError:
            # The disk is full: readers need no record of the group.
            return False
        self._pump.appended()
        return True
