"""RocketMQ's JSON configuration files: a tolerant reader, a writer of its dialect, the `.bak` protocol.

Promises: reads what fastjson 1 and 2 write (integer keys without quotes included); a file that is
missing, empty or broken falls back to its `.bak`; a crash at any point of `persist` leaves at least
one whole file (store format, sections 12.1 and 12.2). What these files hold is derived from the log,
or a few seconds old at most; the owners say which.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

# A string (kept as it is), or a bare integer where a key stands.
_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|([{,]\s*)(-?\d+)(\s*:)')
# Changes within this time are written once: a burst of new groups is one file, not a thousand.
_SAVE_DELAY_S = 0.1


class ConfigFileError(Exception):
    """A configuration file and its backup are both unreadable."""


def loads(text: str) -> dict[str, Any]:
    """Parse an object in fastjson's dialect. Raises ValueError."""

    def quote(match: re.Match[str]) -> str:
        if match.group(2) is None:
            return match.group()
        return f'{match.group(1)}"{match.group(2)}"{match.group(3)}'

    value = json.loads(_BARE_KEY.sub(quote, text))
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def dumps(value: dict[str, Any]) -> str:
    """Tabs, no space after the colon, no newline at the end; the caller orders the fields."""
    return json.dumps(value, indent="\t", separators=(",", ":"), ensure_ascii=False)


def load(path: Path) -> dict[str, Any] | None:
    """The file's object, or its backup's; None when there is neither."""
    found = _read(path)
    if found is not None:
        return found
    # Unreadable: gone before the next persist would make it the backup.
    path.unlink(missing_ok=True)
    backup = path.with_name(path.name + ".bak")
    if not backup.exists():
        return None
    found = _read(backup)
    if found is None:
        raise ConfigFileError(
            f"{path} and its backup are both unreadable: restore one of them, or delete the "
            "backup to start without it."
        )
    log.warning("config_file.backup_used path=%s", path)
    return found


def persist(path: Path, text: str) -> None:
    """Write the file; what was there before becomes `.bak`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        os.replace(path, path.with_name(path.name + ".bak"))
        _fsync_directory(path.parent)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    _fsync_directory(path.parent)


class Saver:
    """Writes one file off the loop after changes, never two writes at once.

    The text is made on the loop, so that it is of one moment; only the disk is waited for elsewhere.
    """

    def __init__(
        self, path: Path, render: Callable[[], str], delay_s: float = _SAVE_DELAY_S
    ) -> None:
        self._path = path
        self._render = render
        self._delay_s = delay_s
        self._dirty = False
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
            persist(self._path, self._render())

    async def _run(self) -> None:
        try:
            while self._dirty:
                await asyncio.sleep(self._delay_s)
                self._dirty = False
                await self._write(self._render())
        finally:
            self._task = None

    async def _write(self, text: str) -> None:
        writing = asyncio.ensure_future(asyncio.to_thread(persist, self._path, text))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The thread cannot be stopped half way: two writers must not meet on the file.
            await asyncio.wait((writing,))
            raise
        except OSError as error:
            # The log holds the truth; the file is written again with the next change.
            self._dirty = False
            log.warning("config_file.write_failed path=%s error=%s", self._path, error)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_text(encoding="utf-8")
        return loads(text) if text.strip() else None
    except FileNotFoundError:
        return None
    except ValueError as error:
        log.warning("config_file.unreadable path=%s error=%s", path, error)
        return None


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
