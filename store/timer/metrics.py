"""`config/timermetrics`: how many messages wait, by real topic. Derived data, informational.

    {"dataVersion":{"counter":n,"stateVersion":0,"timestamp":ms},
     "timingCount":{"Topic":{"count":n,"timeStamp":ms}}}

One line of JSON, rewritten with every flush that found a change; the version counts the changes
(docs/formats/store-format.md, section 12.3; JSON dialect: `format/json_file.py`). A topic stays
listed when its count is 0. Recalled messages do not count. A start counts the units of the timer
log, and replaces what a crash or another leader has left here.
"""

from pathlib import Path
from typing import Any

from ..format.disk import Disk
from ..format.json_file import dumps, load, persist


class TimerMetrics:
    """The counts; one thread, but `write` may run on another."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._content: dict[Any, Any] = {}
        self._version: dict[Any, Any] = {"counter": 0, "stateVersion": 0, "timestamp": 0}
        self._counts: dict[str, dict[str, Any]] = {}
        # Values of the version's counter: of the file, and of the text for it.
        self._written = self._taken = 0

    def load(self) -> None:
        """Read the file or its backup. Raises ConfigFileError."""
        self._content = load(self._path, _counts_of) or {}
        self._version.update(self._content.get("dataVersion") or {})
        self._counts = _counts_of(self._content)
        self._written = self._version["counter"]

    def add(self, topic: str, delta: int, now_ms: int) -> None:
        """Change the count of a topic; the version moves."""
        count = self._counts.setdefault(topic, {"count": 0, "timeStamp": 0})
        count["count"] += delta
        count["timeStamp"] = now_ms
        self._version["counter"] += 1
        self._version["timestamp"] = now_ms

    def set(self, topic: str, number: int, now_ms: int) -> None:
        """Replace the count of a topic, after a recount."""
        if number != self.count(topic):
            self.add(topic, number - self.count(topic), now_ms)

    def count(self, topic: str) -> int:
        number: int = self._counts.get(topic, {"count": 0})["count"]
        return number

    def counts(self) -> dict[str, int]:
        """Return the number of waiting messages, by topic."""
        return {topic: entry["count"] for topic, entry in self._counts.items()}

    def take_text(self) -> str:
        """Return the text for `write`, which does not run; "" if the file has it."""
        self._taken = self._version["counter"]
        return "" if self._taken == self._written else self.render()

    def render(self) -> str:
        content = {**self._content, "dataVersion": self._version, "timingCount": self._counts}
        return dumps(content, compact=True)

    def write(self, text: str) -> None:
        """Replace the file. Raises OSError."""
        if text:
            persist(self._path, text, self._disk)
            self._written = self._taken


def _counts_of(content: dict[Any, Any]) -> dict[str, dict[str, Any]]:
    table = content.get("timingCount") or {}
    return {topic: {**entry, "count": int(entry["count"])} for topic, entry in table.items()}
