"""`config/topics.json` and `config/subscriptionGroup.json`: the metadata files of Apache and its
tools.

Both are written shortly after every change and at the stop, in Apache's format. Fields that only
Apache interprets are kept, in topics, groups and the files themselves
(docs/formats/store-format.md, sections 12.1-12.3). Derived from the log: losing the files loses
only those extra fields. Entries of a directory that Apache wrote are imported. A file written by
this broker holds the number of its newest change in the log; an entry that is in such a file but
not in a log with later changes was deleted and is not imported, unless records of the log are
damaged.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...store.format.topic_names import META_TOPIC
from ..base import json_file
from .log import MetaLog
from .tables import (
    Group,
    Metadata,
    Topic,
    group_from_json,
    group_to_json,
    topic_from_json,
    topic_to_json,
)

TOPICS_FILE = "topics.json"
GROUPS_FILE = "subscriptionGroup.json"
TOPICS_TABLE = "topicConfigTable"
GROUPS_TABLE = "subscriptionGroupTable"
#: Key for the number of the newest change in the file. Apache ignores it and drops it on writing.
_WRITTEN_AT = "cometmqVersion"
# Rendering a file of 10,000 topics takes about 50 ms on the event loop: rendered at most this
# often.
_SAVE_DELAY_S = 1.0


class DataVersion:
    """The version in Apache's files; it increases with every write of the file."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self.counter = 0
        self.state_version = 0

    def load(self, bean: dict[str, Any]) -> None:
        """Continue from the version in a file."""
        self.counter = int(bean.get("counter", 0))
        self.state_version = int(bean.get("stateVersion", 0))

    def next(self) -> dict[str, int]:
        """Return the version for the file being written."""
        self.counter += 1
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self._wall_ms(),
        }


class MetaFiles:
    """Both files of one store directory."""

    def __init__(self, metadata: Metadata, directory: Path, wall_ms: Callable[[], int]) -> None:
        self._metadata = metadata
        self._topics_path = directory / TOPICS_FILE
        self._groups_path = directory / GROUPS_FILE
        self._topics_version = DataVersion(wall_ms)
        self._groups_version = DataVersion(wall_ms)
        self._meta_version: Callable[[], int] = int
        #: Entries of Apache's files that are not in the log yet; kept until this replica leads.
        self._unknown: tuple[list[Topic], list[Group]] = ([], [])
        self._topics_rest: dict[Any, Any] = {}
        self._groups_rest: dict[Any, Any] = {}
        self._topics = json_file.Saver(self._topics_path, self._render_topics, _SAVE_DELAY_S)
        self._groups = json_file.Saver(self._groups_path, self._render_groups, _SAVE_DELAY_S)

    def import_into(self, meta_log: MetaLog, write: bool, *, elected: bool = False) -> None:
        """Import the entries of the files into `meta_log`. Raises ConfigFileError.

        With `elected` leaders only files that Apache wrote are imported: entries that this broker's
        own file has beyond the log belong to a truncated tail or to another epoch. `write_unknown`
        writes the imported entries to the log.
        """
        topics = json_file.load(self._topics_path, _topics_of) or {}
        groups = json_file.load(self._groups_path, _groups_of) or {}
        self._topics_version.load(topics.get("dataVersion") or {})
        self._groups_version.load(groups.get("dataVersion") or {})
        self._topics_rest = _foreign_fields(topics, TOPICS_TABLE)
        self._groups_rest = _foreign_fields(groups, GROUPS_TABLE)
        self._meta_version = lambda: meta_log.version
        known = meta_log.version
        is_news = [
            _WRITTEN_AT not in content
            if elected
            else meta_log.damaged > 0 or _has_new_entries(content, known)
            for content in (topics, groups)
        ]
        if elected and not write:
            self._unknown = (
                _topics_of(topics) if is_news[0] else [],
                _groups_of(groups) if is_news[1] else [],
            )
            is_news = [False, False]
        meta_log.merge(
            _topics_of(topics),
            _groups_of(groups),
            write,
            new_topics=is_news[0],
            new_groups=is_news[1],
        )

    def write_unknown(self, meta_log: MetaLog) -> None:
        """Write the entries of Apache's files that the log does not have. Call it on the leader."""
        topics, groups = self._unknown
        if topics or groups:
            meta_log.merge(topics, groups, write=True)
            self._unknown = ([], [])

    def changed(self) -> None:
        """Schedule a write of both files; files that were not imported yet are not overwritten."""
        if any(self._unknown):
            return
        self._topics.changed()
        self._groups.changed()

    async def close(self) -> None:
        """Write pending changes."""
        await self._topics.close()
        await self._groups.close()

    def _render_topics(self) -> str:
        table = {name: topic_to_json(topic) for name, topic in self._metadata.topics.items()}
        # Apache treats the records of CometMQ's metadata topic as those of a system topic.
        table[META_TOPIC] = topic_to_json(Topic(META_TOPIC, 1, 1))
        content = {
            **self._topics_rest,
            _WRITTEN_AT: self._meta_version(),
            "dataVersion": self._topics_version.next(),
            TOPICS_TABLE: table,
        }
        return json_file.dumps(json_file.ordered(content))

    def _render_groups(self) -> str:
        content = {
            "forbiddenTable": {},
            **self._groups_rest,
            _WRITTEN_AT: self._meta_version(),
            "dataVersion": self._groups_version.next(),
            GROUPS_TABLE: {
                name: group_to_json(group) for name, group in self._metadata.groups.items()
            },
        }
        return json_file.dumps(json_file.ordered(content))


def _topics_of(content: dict[Any, Any]) -> list[Topic]:
    table = content.get(TOPICS_TABLE) or {}
    return [topic_from_json(name, bean) for name, bean in table.items() if name != META_TOPIC]


def _groups_of(content: dict[Any, Any]) -> list[Group]:
    table = content.get(GROUPS_TABLE) or {}
    return [group_from_json(name, bean) for name, bean in table.items()]


def _has_new_entries(content: dict[Any, Any], version: int) -> bool:
    """Return whether a file may have entries that a log at `version` lacks: Apache wrote it, or the
    log lost its end.
    """
    written_at = content.get(_WRITTEN_AT)
    return not isinstance(written_at, int) or written_at > version


def _foreign_fields(content: dict[Any, Any], table: str) -> dict[Any, Any]:
    """Return the fields of the file that CometMQ does not interpret; they are written back
    unchanged.
    """
    ours = (table, "dataVersion", _WRITTEN_AT)
    return {name: value for name, value in content.items() if name not in ours}
