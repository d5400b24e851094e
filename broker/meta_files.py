"""`config/topics.json` and `config/subscriptionGroup.json`: what Apache and its tools read.

Promises: written soon after every change and at the stop, in Apache's own form; fields that only
Apache interprets survive (store format, sections 12.1-12.3). Derived from the log: losing the files
costs nothing but those extra fields. What they alone know (a directory that Apache wrote) is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import json_file
from .meta_log import META_TOPIC, MetaLog
from .metadata import (
    Metadata,
    Topic,
    group_from_json,
    group_to_json,
    topic_from_json,
    topic_to_json,
)

TOPICS_FILE = "topics.json"
GROUPS_FILE = "subscriptionGroup.json"
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
        self._forbidden: dict[str, Any] = {}
        self._topics = json_file.Saver(self._topics_path, self._render_topics, _SAVE_DELAY_S)
        self._groups = json_file.Saver(self._groups_path, self._render_groups, _SAVE_DELAY_S)

    def import_into(self, meta_log: MetaLog, write: bool) -> None:
        """Give `meta_log` what the files hold. Raises ConfigFileError."""
        topics = json_file.load(self._topics_path) or {}
        groups = json_file.load(self._groups_path) or {}
        self._topics_version.load(topics.get("dataVersion", {}))
        self._groups_version.load(groups.get("dataVersion", {}))
        self._forbidden = groups.get("forbiddenTable", {})
        topic_table = topics.get("topicConfigTable", {})
        meta_log.merge(
            [
                topic_from_json(name, bean)
                for name, bean in topic_table.items()
                if name != META_TOPIC
            ],
            [
                group_from_json(name, bean)
                for name, bean in groups.get("subscriptionGroupTable", {}).items()
            ],
            write,
        )

    def changed(self) -> None:
        """The tables changed: both files are written soon."""
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
        return json_file.dumps(
            {"dataVersion": self._topics_version.next(), "topicConfigTable": table}
        )

    def _render_groups(self) -> str:
        return json_file.dumps(
            {
                "dataVersion": self._groups_version.next(),
                "forbiddenTable": self._forbidden,
                "subscriptionGroupTable": {
                    name: group_to_json(group) for name, group in self._metadata.groups.items()
                },
            }
        )
