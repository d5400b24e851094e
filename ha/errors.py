"""Exceptions of replication.

    HaError
    ├── HaPortInUseError     another process listens on haListenPort
    ├── WrongReplicaError    the data directory belongs to another cluster or group
    ├── DamagedStateError    a file in `<store>/ha/` fails its checksum
    └── CutRefusedError      a plan would remove bytes that must stay

Refusals on the wire (WRONG_CLUSTER, DIVERGED, ...) are states, not exceptions: see
`core/follower.py`.
"""


class HaError(Exception):
    """Base class of replication errors."""


class HaPortInUseError(HaError):
    """The replication port cannot be bound."""


class WrongReplicaError(HaError):
    """`replica.meta` names another cluster or group than the configuration."""


class DamagedStateError(HaError):
    """Both copies of a small state file fail their checksum."""


class CutRefusedError(HaError):
    """A plan would remove bytes that must stay; nothing was changed."""
