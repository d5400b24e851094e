"""Option values: topic types, permissions."""

import click

from ..proto import v2

MIXED = -1
#: `--type` of a topic.
TOPIC_TYPES = {
    "normal": int(v2.NORMAL),
    "fifo": int(v2.FIFO),
    "delay": int(v2.DELAY),
    "transaction": int(v2.TRANSACTION),
    "mixed": MIXED,
    "priority": int(v2.PRIORITY),
    "lite": int(v2.LITE),
}
TOPIC_TYPE_NAMES = {number: name for name, number in TOPIC_TYPES.items()}

#: `--perm` of a topic.
PERMISSION_METAVAR = "none|read|write|rw"
PERMISSIONS = {"none": 0, "write": 2, "read": 4, "rw": 6}
_PERMISSION_NAMES = {0: "none", 2: "write", 4: "read", 6: "read, write"}


def permission_name(perm: int) -> str:
    """Return the name of a permission."""
    return _PERMISSION_NAMES[perm & 6]


def permission(text: str) -> int:
    """Parse `--perm`: `none`, `read`, `write`, `rw`, or RocketMQ's number."""
    word = text.lower()
    if word in PERMISSIONS:
        return PERMISSIONS[word]
    if word in {str(number) for number in PERMISSIONS.values()}:
        return int(word)
    raise click.BadParameter(f"'{text}' is not one of {', '.join(PERMISSIONS)}, 0, 2, 4, 6.")
