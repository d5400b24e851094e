"""Configuration by namespace and key that tools keep at a nameserver, and its file.

RocketMQ's tools store the queues of ordered topics there. Each nameserver has its own table: tools
write to all of them. It is a JSON file in `namesrvDataDir`; without that directory it is in memory
only. A change counts when it is on disk.
"""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

#: Tools write one entry for each ordered topic. Every change writes the whole file.
ENTRIES_MAX = 10_000
NAME_CHARS_MAX = 255
VALUE_CHARS_MAX = 4_096
#: Of all entries: each change writes them. An ordered topic has about 100 characters.
TABLE_CHARS_MAX = 1 << 20
_FILE = "kv-config.json"

Table = dict[str, dict[str, str]]


class KvRefusedError(ValueError):
    """A change is beyond a limit, or could not be stored."""


class KvConfig:
    """The table of one nameserver."""

    def __init__(self, directory: str) -> None:
        self._path = Path(directory) / _FILE if directory else None
        self._table: Table = {}
        self._writing = asyncio.Lock()

    def open(self) -> None:
        """Read the file, if there is one. Raises OSError, ValueError."""
        if self._path is None or not self._path.exists():
            return
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
        except ValueError as error:
            text = f"{self._path} is damaged ({error}): restore it, or move it away (its entries"
            raise ValueError(f"{text} are those that tools have put, and are lost then).") from None
        if not isinstance(document, dict) or not all(
            isinstance(each, dict) for each in document.values()
        ):
            raise ValueError(f"{self._path} is not a table of namespaces")
        self._table = {
            str(namespace): {str(key): str(value) for key, value in entries.items()}
            for namespace, entries in document.items()
        }

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, or None."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str]:
        """Return the entries of a namespace; empty if there are none."""
        return self._table.get(namespace, {})

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value. Raises KvRefusedError."""
        if not (namespace and key) or max(len(namespace), len(key)) > NAME_CHARS_MAX:
            raise KvRefusedError(f"namespace and key have 1 to {NAME_CHARS_MAX} characters")
        if len(value) > VALUE_CHARS_MAX:
            raise KvRefusedError(f"a value has at most {VALUE_CHARS_MAX} characters")
        async with self._writing:
            is_new = self.get(namespace, key) is None
            if is_new and sum(map(len, self._table.values())) >= ENTRIES_MAX:
                raise KvRefusedError(f"there are {ENTRIES_MAX} entries already")
            if self._chars() + len(namespace) + len(key) + len(value) > TABLE_CHARS_MAX:
                raise KvRefusedError(f"all entries have at most {TABLE_CHARS_MAX} characters")
            await self._replace(namespace, {**self.namespace(namespace), key: value})

    async def delete(self, namespace: str, key: str) -> None:
        """Remove a value, if it exists. Raises KvRefusedError."""
        async with self._writing:
            kept = dict(self.namespace(namespace))
            if kept.pop(key, None) is not None:
                await self._replace(namespace, kept)

    def _chars(self) -> int:
        """Return the size of all entries, with their namespaces."""
        return sum(
            len(namespace) + len(key) + len(value)
            for namespace, entries in self._table.items()
            for key, value in entries.items()
        )

    async def _replace(self, namespace: str, entries: dict[str, str]) -> None:
        table = {name: each for name, each in self._table.items() if name != namespace}
        if entries:
            table[namespace] = entries
        if self._path is not None:
            try:
                await asyncio.to_thread(_write, self._path, table)
            except OSError as error:
                raise KvRefusedError(f"the entry cannot be stored: {error}") from None
        self._table = table


def _write(path: Path, table: Table) -> None:
    """Replace the file atomically."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(table, file, sort_keys=True, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
