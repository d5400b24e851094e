"""Interfaces of the scrub: the store, the options, and the result."""

from typing import Protocol

from msgspec import Struct, field

from ...store.blocks import BlockAccess
from ...store.index.service import IndexService


class ScrubbedStore(Protocol):
    """The part of a store that the scrub needs (`store/message_store.py`)."""

    @property
    def blocks(self) -> BlockAccess: ...

    @property
    def index(self) -> IndexService: ...

    @property
    def log_start(self) -> int: ...

    @property
    def log_end(self) -> int: ...

    @property
    def dispatched_offset(self) -> int: ...

    def read_log(self, offset: int, max_bytes: int) -> bytes: ...


class Options(Struct, frozen=True):
    interval_s: float = 3600.0  #: 0: only on request
    bytes_per_second: int = 64 << 20  #: read limit; 0: none


class Result(Struct):
    """Results of a scrub: of one round, or in total since the start."""

    rounds: int = 0
    blocks: int = 0  #: compared with their digests
    damaged: int = 0  #: did not match
    repaired: int = 0
    lost: int = 0  #: damaged, and no replica has the right bytes
    different: int = 0  #: another replica has other bytes, and both match their own digests
    unreached: list[str] = field(default_factory=list)  #: replicas that did not answer
