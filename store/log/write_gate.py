"""The write gate: whether the store accepts writes, and why not. Any thread may change it.

    not started / closed   no writes
    broken                 until the next start: a flush, a log write or a queue write failed, and
                           the state of the disk is unknown
    paused                 no disk space, or no free descriptor. Nothing failed midway; ends when
                           there is some. Several causes may hold the pause, each is resumed
                           separately

Writers read `refusal`; it is "" while writes are accepted. Reads do not depend on it.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..events import StoreEvents
from ..format.disk import NO_SPACE

logger = logging.getLogger(__name__)

_NOT_STARTED = "The store was not started."
_CLOSED = "The store is closed."


@contextmanager
def suppress_no_space() -> Iterator[None]:
    """Ignore a full disk: for writes that are useful but not necessary."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise


class WriteGate:
    """Holds why a store refuses writes. The thread that changes that calls `events`."""

    def __init__(self, events: StoreEvents) -> None:
        #: Why writes are refused, or "".
        self.refusal = _NOT_STARTED
        #: True once the store is read-only until the next start.
        self.broken = False
        self._events = events
        self._started = False
        self._pauses: dict[str, str] = {}
        self._lock = threading.Lock()

    @property
    def closed(self) -> bool:
        return self.refusal == _CLOSED

    @property
    def paused(self) -> bool:
        """Whether writes are refused temporarily."""
        return bool(self._pauses) and not self.broken and self._started and not self.closed

    def is_paused_only_by(self, cause: str) -> bool:
        """Return whether writes go on once this cause is resumed."""
        return self.paused and set(self._pauses) <= {cause}

    def start(self) -> None:
        with self._lock:
            self._started = True
            self._update_refusal()

    def close(self) -> None:
        with self._lock:
            self.refusal = _CLOSED

    def refuse(self, reason: str) -> None:
        """Refuse all further writes; the first reason stays."""
        with self._lock:
            if self.broken or self.closed:
                return
            self.broken = True
            self.refusal = f"The store is read-only: {reason} Repair the disk and restart."
        logger.error("store.read_only reason=%s", reason)
        self._events.refused(self.refusal)

    def pause(self, cause: str, reason: str, ends_when: str = "disk space is free") -> None:
        """Refuse writes until this cause is resumed; `reason` is a sentence."""
        with self._lock:
            new = cause not in self._pauses
            self._pauses[cause] = f"{reason} Messages are refused until {ends_when}."
            self._update_refusal()
        if new:
            logger.warning("store.paused cause=%s reason=%s", cause, reason)

    def resume(self, cause: str) -> None:
        """End the pause of this cause; ignored without one."""
        with self._lock:
            ended = self._pauses.pop(cause, None) is not None
            self._update_refusal()
            free = ended and not self._pauses
        if ended:
            logger.warning("store.resumed cause=%s", cause)
        if free:
            self._events.resumed()

    def _update_refusal(self) -> None:
        if self.broken or self.closed or not self._started:
            return
        self.refusal = next(iter(self._pauses.values()), "")
