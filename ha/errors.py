"""What a caller of replication can react to.

HaError
├── HaPortInUseError        another process listens on haListenPort
├── WrongReplicaError       the data directory belongs to another cluster or group
├── DamagedStateError       a file in `<store>/ha/` cannot be believed
└── CutRefusedError         a plan (`rejoin/pending.py`) would take away bytes that must stay

Refusals on the wire (WRONG_CLUSTER, DIVERGED, ...) are states, not exceptions: see `core/follower.py`.
"""


class HaError(Exception):
    """Base of everything this module raises for its callers."""


class HaPortInUseError(HaError):
    """The replication port cannot be bound; the sentence says what to do."""


class WrongReplicaError(HaError):
    """`replica.meta` names another cluster or group than the configuration."""


class DamagedStateError(HaError):
    """Both copies of a small state file fail their checksum."""


class CutRefusedError(HaError):
    """A plan would take away bytes that must stay; nothing was changed."""
