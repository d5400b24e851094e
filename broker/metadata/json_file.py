"""Saving a configuration file off the loop: changes are gathered, the text is made on the loop.

Promises: after the last change the file is written soon, and at `close`; never two writes at once. A
write that fails (no room) is tried again until it works. The dialect and the `.bak` protocol stand in `store/format/json_file.py`; what is needed of them
here comes from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from ...store.format.json_file import ConfigFileError, dumps, load, loads, ordered, persist

__all__ = ["ConfigFileError", "Saver", "dumps", "load", "loads", "ordered", "persist"]

log = logging.getLogger(__name__)

# Changes within this time are written once: a burst of new groups is one file, not a thousand.
_SAVE_DELAY_S = 0.1
# After a failure (a full disk, most of the time) it is tried again, with or without a change.
_RETRY_DELAY_S = 5.0


class Saver:
    """Writes one file off the loop after changes, never two writes at once.

    The text is made on the loop, so that it is of one moment; only the disk is waited for elsewhere.
    """

    def __init__(
        self, path: Path, render: Callable[[], str], delay_s: float = _SAVE_DELAY_S
    ) -> None:
        self.ready: Callable[[], Awaitable[bool]] | None = None
        """Awaited between making the text and writing it: whether what the text relies on is on the
        disk. If it is not, the text is dropped, and made again later."""
        self.written: Callable[[], None] | None = None
        """Told that the text which was made last is on the disk."""
        self._path = path
        self._render = render
        self._delay_s = delay_s
        self._dirty = False
        self._trouble = ""  # why the last write failed
        self._task: asyncio.Task[None] | None = None

    def changed(self) -> None:
        """Something that the file holds has changed; it is written soon."""
        self._dirty = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Wait for a write that is under way, then write what is left."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))
            # A task that was cancelled before its first step has cleaned up nothing.
            self._task = None
        if self._dirty:
            self._dirty = False
            text = self._render()
            if self.ready is not None and not await self.ready():
                log.warning("config_file.not_written path=%s error=too_early", self._path)
                return
            try:
                persist(self._path, text)
            except OSError as error:
                # What stands in the file of before is older, not wrong; stopping goes on.
                log.warning("config_file.not_written path=%s error=%s", self._path, error)
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
        """Returns whether it was written; else it is still to be done."""
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
            # The thread cannot be stopped half way: two writers must not meet on the file.
            await asyncio.wait((writing,))
            if writing.exception() is not None:
                self._dirty = True  # `close` tries once more
            raise
        except OSError as error:
            self._dirty = True
            if str(error) != self._trouble:  # it comes back with every try
                log.warning("config_file.write_failed path=%s error=%s", self._path, error)
            self._trouble = str(error)
            return False
        self._trouble = ""
        if self.written is not None:
            self.written()
        return True
