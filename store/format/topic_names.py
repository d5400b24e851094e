"""Names of topics, as far as the store cares: what may be a folder, and which queues are light ones.

A light queue (LMQ) has a name that begins with `%LMQ%`. Its units point to records of other topics
(store format, section 3.9; `lmq_queues.py`). Pure.
"""

from typing import Final

from .record import TOPIC_BYTES_MAX, TOPIC_BYTES_V1_MAX

LIGHT_PREFIX: Final = "%LMQ%"
#: Names that hold the name of a topic or a group, so that they may be longer than one.
_LONG_PREFIXES: Final = ("%RETRY%", LIGHT_PREFIX)


def check_topic(topic: str) -> None:
    """Raises ValueError for a topic that cannot be stored (store format, section 2.5).

    The topic names a directory, so it must not be able to leave its place.
    """
    size = len(topic.encode())
    if not topic or topic in (".", "..") or "/" in topic or "\0" in topic:
        raise ValueError(f"{topic!r} cannot be the name of a topic.")
    if size > TOPIC_BYTES_MAX or (
        size > TOPIC_BYTES_V1_MAX and not topic.startswith(_LONG_PREFIXES)
    ):
        raise ValueError(f"The topic {topic[:40]!r}... has {size} bytes; the limit is 127.")


def is_lmq(topic: str) -> bool:
    """Whether a queue of this topic is a light one."""
    return topic.startswith(LIGHT_PREFIX)
