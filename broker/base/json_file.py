"""Saver: writes a configuration file in a thread; the text is rendered on the event loop.

The file is written shortly after the last change and at `close`, never by two writers at once. A
failed write (full disk) is retried until it succeeds. `store/format/json_file.py` defines the
dialect and the `.bak` protocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from ...store.format.json_file import ConfigFileError, dumps, load, loads, ordered, persist

__all__ = ["ConfigFileError", "Saver", "dumps", "load", "loads", "ordered", "persist"]

logger = logging.getLogger(__name__)

# Changes within this time are written together: a burst of new groups is one write.
_SAVE_DELAY_S = 0.1
# After a failure (usually a full disk) the write is retried, with or without a new change.
_RETRY_DELAY_S = 5.0


class Saver:
    """Writes one file in a thread after changes, one write at a time.

    The text is rendered on the event loop, which makes it consistent; only the disk write is in a
    thread.
    """

    def __init__(
        self, path: Path, render: Callable[[], str], delay_s: float = _SAVE_DELAY_S
    ) -> None:
        #: Awaited between rendering and writing; returns whether the data on which the text relies
        #: is on disk. If not, the text is discarded and rendered again later.
        self.ready: Callable[[], Awaitable[bool]] | None = None
        #: Called when the text rendered last is on disk.
        self.written: Callable[[], None] | None = None
        self._path = path
        self._render = render
        self._delay_s = delay_s
        self._dirty = False
        self._trouble = ""  # the error of the last failed write
        self._task: asyncio.Task[None] | None = None

    def changed(self) -> None:
        """Schedule a write after a change."""
        self._dirty = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Wait for a write in progress, then write pending changes."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
            # A task cancelled before its first step has not run its cleanup.
            self._task = None
        if self._dirty:
            self._dirty = False
            text = self._render()
            if self.ready is not None and not await self.ready():
                logger.warning("config_file.not_written path=%s error=too_early", self._path)
                return
            try:
                persist(self._path, text)
            except OSError as error:
                # The previous file is older, not wrong: stopping continues.
                logger.warning("config_file.not_written path=%s error=%s", self._path, error)
                return
            if self.written is not None:
                self.written()

    async def _run(self) -> None:
        try:
            delay_s = self._delay_s
            while self._dirty:
                await asyncio.sleep(delay_s)
                self._dirty = False
                written = await self._write(self._render())
                delay_s = self._delay_s if written else max(self._delay_s, _RETRY_DELAY_S)
        finally:
            self._task = None

    async def _write(self, text: str) -> bool:
        """Write the text; return whether it was written."""
        if self.ready is not None:
            try:
                ready = await self.ready()
            except asyncio.CancelledError:
                self._dirty = True
                raise
            if not ready:
                self._dirty = True
                return False
        writing = asyncio.ensure_future(asyncio.to_thread(persist, self._path, text))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The thread cannot be interrupted: two writers must not write the file at once.
            await asyncio.wait((writing,))
            if writing.exception() is not None:
                self._dirty = True  # `close` retries once
            raise
        except OSError as error:
            self._dirty = True
            if str(error) != self._trouble:  # every retry repeats the error
                logger.warning("config_file.write_failed path=%s error=%s", self._path, error)
            self._trouble = str(error)
            return False
        self._trouble = ""
        if self.written is not None:
            self.written()
        return True
