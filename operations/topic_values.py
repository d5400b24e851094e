"""Topic types and permissions, by the names that operators use."""

from ..proto import v2

MIXED = -1
#: Types of a topic, as in `--type`.
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

#: Permissions of a topic, as in `--perm`.
PERMISSIONS = {"none": 0, "write": 2, "read": 4, "rw": 6}
_PERMISSION_NAMES = {0: "none", 2: "write", 4: "read", 6: "read, write"}


def permission_name(perm: int) -> str:
    """Return the name of a permission."""
    return _PERMISSION_NAMES[perm & 6]
