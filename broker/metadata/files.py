"""`config/topics.json` and `config/subscriptionGroup.json`: what Apache and its tools read.

Promises: written soon after every change and at the stop, in Apache's own form; what only Apache
interprets survives: fields of a topic or group, and of the files themselves (store format, sections 12.1-12.3). Derived from the log: losing the files
costs nothing but those extra fields. What they alone know (a directory that Apache wrote) is imported.
A file that this broker wrote says up to which change of the log; what stands in it and not in a log that
goes further was deleted since, and stays away.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import json_file
from .log import META_TOPIC, MetaLog
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
_WRITTEN_AT = "cometmqVersion"
"""Number of the newest change in the file. Apache passes over it, and drops it when it writes the file."""
# A file of 10,000 topics takes about 50 ms to make, on the loop: not more often than this.
_SAVE_DELAY_S = 1.0


class DataVersion:
    """The version that Apache's files carry: it grows with every write of the file."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self.counter = 0
        self.state_version = 0

    def load(self, bean: dict[str, Any]) -> None:
        """Go on from what a file says."""
        self.counter = int(bean.get("counter", 0))
        self.state_version = int(bean.get("stateVersion", 0))

    def next(self) -> dict[str, int]:
        """The version of the file that is written now."""
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
        self._unknown: tuple[list[Topic], list[Group]] = ([], [])
        """What Apache's files say, until somebody leads."""
        self._topics_rest: dict[Any, Any] = {}
        self._groups_rest: dict[Any, Any] = {}
        self._topics = json_file.Saver(self._topics_path, self._render_topics, _SAVE_DELAY_S)
        self._groups = json_file.Saver(self._groups_path, self._render_groups, _SAVE_DELAY_S)

    def import_into(self, meta_log: MetaLog, write: bool, *, elected: bool = False) -> None:
        """Give `meta_log` what the files hold. Raises ConfigFileError.

        Where leaders are `elected`, only files that Apache wrote are news: what our own file has beyond
        the log is of a tail that was cut, or of another epoch. It is written by `write_unknown`.
        """
        topics = json_file.load(self._topics_path, _topics_of) or {}
        groups = json_file.load(self._groups_path, _groups_of) or {}
        self._topics_version.load(topics.get("dataVersion") or {})
        self._groups_version.load(groups.get("dataVersion") or {})
        self._topics_rest = _rest_of(topics, TOPICS_TABLE)
        self._groups_rest = _rest_of(groups, GROUPS_TABLE)
        self._meta_version = lambda: meta_log.version
        known = meta_log.version
        is_news = [
            _WRITTEN_AT not in content if elected else _is_news(content, known)
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
        """This replica leads: what Apache's files say and the log does not is in the log from now on."""
        topics, groups = self._unknown
        if topics or groups:
            self._unknown = ([], [])
            meta_log.merge(topics, groups, write=True)

    def changed(self) -> None:
        """The tables changed: both files are written soon, but never over what nobody has read yet."""
        if any(self._unknown):
            return
        self._topics.changed()
        self._groups.changed()

    async def close(self) -> None:
        """Write what is not written yet."""
        await self._topics.close()
        await self._groups.close()

    def _render_topics(self) -> str:
        table = {name: topic_to_json(topic) for name, topic in self._metadata.topics.items()}
        # Apache then sees the records of our own topic as those of an ordinary system topic.
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


def _is_news(content: dict[Any, Any], version: int) -> bool:
    """Whether a file may know what a log at `version` does not: Apache wrote it, or the log lost its
    end."""
    written_at = content.get(_WRITTEN_AT)
    return not isinstance(written_at, int) or written_at > version


def _rest_of(content: dict[Any, Any], table: str) -> dict[Any, Any]:
    """Fields of the file that are not ours: written back as they were."""
    ours = (table, "dataVersion", _WRITTEN_AT)
    return {name: value for name, value in content.items() if name not in ours}
