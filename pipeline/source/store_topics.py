"""Topics of a store, from `config/topics.json` and the queue folders; either may be missing.

Format: docs/formats/store-format.md, sections 1 and 8.
"""

from __future__ import annotations

import json
import os

from ...store.format.layout import BATCH_QUEUE_FOLDER, CONFIG_FOLDER, QUEUE_FOLDER

_TABLE = "topicConfigTable"


def topics_of(root: str) -> set[str]:
    """Return the topics of the store; empty if unknown. Raises OSError."""
    found = _configured(os.path.join(root, CONFIG_FOLDER, "topics.json"))
    for kind in (QUEUE_FOLDER, BATCH_QUEUE_FOLDER):
        try:
            with os.scandir(os.path.join(root, kind)) as entries:
                found |= {entry.name for entry in entries if entry.is_dir()}
        except (FileNotFoundError, NotADirectoryError):
            continue
    return found


def _configured(path: str) -> set[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return set(json.load(file)[_TABLE])
    except (OSError, ValueError, KeyError, TypeError):
        return set()  # missing or damaged
