"""The transient store pool: buffers outside of Python's heap that take the writes of the log.

    append -> buffer            visible to the writer only
    commit -> page cache        readable, survives the process      every 200 ms, or at 4 pages
    flush  -> disk              survives power loss

With it an append never touches the page cache, whose locks and write-back may delay a plain write.
The price: acknowledged messages that are not committed are lost with the process (up to about 200
ms), not only in a power loss. There are as many buffers as configured, each as large as a segment,
locked in memory where allowed, and created on first use. A buffer is returned when its segment is
full and committed. Only new segments get one: existing ones are written directly; so is a segment
without a free buffer, unless `fastFailIfNoBufferInStorePool` refuses it
(docs/formats/store-format.md, sections 7.1, 7.2 and 8).

A failed commit is never repeated, like a failed flush: the store becomes read-only.
"""

import contextlib
import errno
import mmap
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from ..config.store_config import StoreConfig
from ..format.errors import NoBufferError
from .memory import lock
from .write_gate import WriteGate

_PAGE_BYTES = 4096


class TransientPool:
    """The buffers. `borrow` is called by the writer; `give_back` also by the commit thread."""

    def __init__(
        self,
        buffers: int,
        buffer_bytes: int,
        *,
        fail_fast: bool,
        later: Callable[[Callable[[], object]], object] = lambda chore: chore(),
    ) -> None:
        self.commit_lock = threading.Lock()  #: held during a commit
        self.failure = ""  #: why a commit failed; no commit is possible then
        self.committer: LogCommitter | None = None  #: once it has started
        self._bytes = buffer_bytes
        self._fail_fast = fail_fast
        self._later = later  # locking reads every page: not on the appending thread
        self._unmade = buffers
        self._free: list[memoryview] = []
        self._maps: list[mmap.mmap] = []

    def borrow(self) -> memoryview | None:
        """Return a buffer; None when all are in use. Raises NoBufferError instead, if
        configured."""
        if self._free:
            return self._free.pop()
        if self._unmade:
            self._unmade -= 1
            made = mmap.mmap(-1, self._bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._later(partial(lock, made))
            self._maps.append(made)
            return memoryview(made)
        if self._fail_fast:
            raise NoBufferError(
                "No buffer of the transient store pool is free: the disk is slower than the "
                "senders. Raise transientStorePoolSize or switch fastFailIfNoBufferInStorePool off."
            )
        return None

    def give_back(self, buffer: memoryview | None) -> None:
        if buffer is not None:
            self._free.append(buffer)

    @property
    def available(self) -> int:
        """Number of buffers that a new segment could get."""
        return len(self._free) + self._unmade

    def check(self) -> None:
        """Raise OSError if a commit failed before."""
        if self.failure:
            raise OSError(errno.EIO, f"a commit failed before ({self.failure})")

    def wake(self, uncommitted: int) -> None:
        if self.committer is not None:
            self.committer.wake(uncommitted)

    def close(self) -> None:
        """Free the memory. Only when no segment has a buffer any more."""
        for buffer in self._free:
            buffer.release()
        for made in self._maps:
            with contextlib.suppress(BufferError):  # still in use: freed with its last user
                made.close()
        self._free, self._maps = [], []


class Committing(Protocol):
    """The part of the log that the commit thread uses."""

    end: int
    readable_end: int
    pool: TransientPool | None

    def commit(self) -> None: ...


class LogCommitter:
    """The commit thread: runs at an interval, and when enough pages wait."""

    def __init__(
        self,
        log: Committing,
        *,
        interval_ms: int,
        least_pages: int,
        thorough_ms: int,
        gate: WriteGate,
    ) -> None:
        self._log = log
        self._interval_s = interval_ms / 1000
        self._least_bytes = least_pages * _PAGE_BYTES
        self._thorough_every = max(thorough_ms // interval_ms, 1)
        self._gate = gate
        self._condition = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="store-commit-log", daemon=True)

    @classmethod
    def of(
        cls,
        log: Committing,
        config: StoreConfig,
        gate: WriteGate,
    ) -> "LogCommitter":
        return cls(
            log,
            interval_ms=config.commit_interval_commit_log,
            least_pages=config.commit_commit_log_least_pages,
            thorough_ms=config.commit_commit_log_thorough_interval,
            gate=gate,
        )

    def start(self) -> None:
        if self._log.pool is not None:
            self._log.pool.committer = self
        self._thread.start()

    def wake(self, uncommitted: int) -> None:
        """Note that this many bytes wait in buffers."""
        if uncommitted >= self._least_bytes:
            with self._condition:
                self._condition.notify()

    def stop(self) -> None:
        """Commit the rest, unless a commit failed, and end the thread."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            ticks = 0
            while not self._stopping:
                with self._condition:
                    if not self._stopping and self._waiting < self._least_bytes:
                        woken = self._condition.wait(self._interval_s)
                        ticks += not woken
                if self._waiting >= self._least_bytes or ticks >= self._thorough_every:
                    ticks = 0
                    self._log.commit()
            self._log.commit()
        except OSError as error:
            self._gate.refuse(f"Writing the commit log failed: {error}.")
        except BaseException as error:
            self._gate.refuse(f"The commit thread ended: {error!r}.")
            raise

    @property
    def _waiting(self) -> int:
        return self._log.end - self._log.readable_end
