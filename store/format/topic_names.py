"""Topic names: validity as folder names, and light queue names. Pure functions.

A light queue (LMQ) has a name that begins with `%LMQ%`. Its units point to records of other topics
(docs/formats/store-format.md, section 3.9; `lmq_queues.py`).
"""

from typing import Final

from .record import TOPIC_BYTES_MAX, TOPIC_BYTES_V1_MAX

LMQ_PREFIX: Final = "%LMQ%"
#: Names that contain the name of a topic or a group, so that they may be longer.
_LONG_PREFIXES: Final = ("%RETRY%", LMQ_PREFIX)


def check_topic(topic: str) -> None:
    """Raise ValueError for an invalid topic (docs/formats/store-format.md, section 2.5).

    The topic names a directory, so it must not escape its parent.
    """
    size = len(topic.encode())
    if not topic or topic in (".", "..") or "/" in topic or "\0" in topic:
        raise ValueError(f"{topic!r} is not a valid topic name.")
    if size > TOPIC_BYTES_MAX or (
        size > TOPIC_BYTES_V1_MAX and not topic.startswith(_LONG_PREFIXES)
    ):
        raise ValueError(f"The topic {topic[:40]!r}... has {size} bytes; the limit is 127.")


def is_lmq(topic: str) -> bool:
    """Return whether the topic is a light queue."""
    return topic.startswith(LMQ_PREFIX)
