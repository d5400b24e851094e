"""What a scrub needs of a store, what can be set, and what it says it found (`scrub.py`)."""

from dataclasses import dataclass, field
from typing import Protocol

from ...store.blocks import BlockAccess


class ScrubbedStore(Protocol):
    """The part of a store that a scrub uses."""

    @property
    def blocks(self) -> BlockAccess: ...

    @property
    def log_start(self) -> int: ...

    @property
    def log_end(self) -> int: ...

    def read_log(self, offset: int, max_bytes: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Options:
    interval_s: float = 3600.0  #: 0: only when somebody asks
    bytes_per_second: int = 64 << 20  #: of reading; 0: no limit


@dataclass(slots=True)
class Result:
    """What scrubbing found since the start, and in one round."""

    rounds: int = 0
    blocks: int = 0  #: checked against their digests
    rotten: int = 0  #: did not match
    mended: int = 0
    lost: int = 0  #: rotten, and nobody has the right bytes
    different: int = 0  #: another replica has other bytes, and both match their own digests
    unreached: list[str] = field(default_factory=list)  #: replicas that did not answer
