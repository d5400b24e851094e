"""Topic names: validity as folder names, and light queue names. Pure functions.

A light queue (LMQ) has a name that begins with `%LMQ%`. Its units point to records of other topics
(docs/formats/store-format.md, section 3.9; `lmq_queues.py`).
"""

from contextlib import suppress
from typing import Final

from .layout import QUEUE_FOLDER, check_name
from .record_layout import (
    TOPIC_BYTES_MAX,
    TOPIC_BYTES_V1_MAX,
)

LMQ_PREFIX: Final = "%LMQ%"
#: The system topic that holds topics, groups, users and the starts of epochs.
META_TOPIC: Final = "rmq_sys_COMETMQ_META"
#: Names that contain the name of a topic or a group, so that they may be longer.
_LONG_PREFIXES: Final = ("%RETRY%", LMQ_PREFIX)


def check_topic(topic: str) -> None:
    """Raise ValueError for an invalid topic (docs/formats/store-format.md, section 2.5).

    The topic names a directory, so it must not escape its parent.
    """
    size = len(check_name(topic, "topic name").encode())
    if size > TOPIC_BYTES_MAX or (
        size > TOPIC_BYTES_V1_MAX and not topic.startswith(_LONG_PREFIXES)
    ):
        raise ValueError(f"The topic {topic[:40]!r}... has {size} bytes; the limit is 127.")


def queue_path(root: str, topic: str, queue_id: int) -> str:
    """Return the folder of a consume queue. Raises ValueError for an invalid topic or queue id."""
    check_topic(topic)
    if queue_id < 0:
        raise ValueError(f"{queue_id} is not a queue id.")
    return f"{root}/{QUEUE_FOLDER}/{topic}/{queue_id}"


def is_queue_name(topic: str, queue_id: int) -> bool:
    """Return whether a record's topic and queue id can name the folder of a queue."""
    with suppress(ValueError):
        return bool(queue_path("", topic, queue_id))
    return False


def is_lmq(topic: str) -> bool:
    """Return whether the topic is a light queue."""
    return topic.startswith(LMQ_PREFIX)
