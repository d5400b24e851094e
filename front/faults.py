"""Fault injection for tests: RPCs that fail, wait or lose their answer, disk calls that fail.

The table exists only with `testHooks=true`. An empty table costs one truth test for each RPC and
disk call. A seeded generator draws the rates, so that the same calls in the same order get the same
faults. Fields: `proto/cometmq/v1/test.proto`.
"""

import errno
import os
import threading
from enum import StrEnum
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from ..proto import paths
from ..proto.errors import CODES, RpcFailure, WireError
from .clock import Clock

ANY_TARGET = "*"
#: Upper bound on entries: every call scans all of them.
FAULTS_MAX = 1_000
_GRPC_CODE_MAX = 16
_STANDARD = "/grpc."  # health and reflection


class FaultKind(StrEnum):
    """The kind of call that a fault affects."""

    RPC = "RPC"
    DISK = "DISK"


class FaultAction(StrEnum):
    """FAIL: refuse the call. DELAY: serve it later. DROP: serve it and discard the answer."""

    FAIL = "FAIL"
    DELAY = "DELAY"
    DROP = "DROP"


class Fault(Struct):
    """One entry. `code` (FAIL only) is a wire code or gRPC status for RPC, an errno for DISK."""

    id: str
    kind: FaultKind
    #: A method path or the name of a disk call; "*" matches all. The Test service is exempt.
    target: str
    action: FaultAction
    code: int = 0
    delay_ms: int = 0
    #: Share of calls that are affected, 0 to 1.
    rate: float = 1.0
    #: Remaining hits; 0: no limit, -1: none.
    remaining: int = 0
    hits: int = 0
    last_hit_ns: int = 0

    @property
    def spent(self) -> bool:
        """True if a limited fault has used all its hits; it stays listed with its `hits`."""
        return self.remaining < 0

    @property
    def _known_code(self) -> bool:
        return self._is_grpc or (self.code > 0 and self.code in CODES)

    @property
    def _is_grpc(self) -> bool:
        return 1 <= self.code <= _GRPC_CODE_MAX

    def check(self) -> None:
        """Raise ValueError if the entry is invalid."""
        if not self.id:
            raise ValueError("a fault needs an id (to replace or clear it)")
        if not self.target:
            raise ValueError("a fault needs a target: a method path, a disk call or *")
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"the rate of fault {self.id} must be within 0..1, not {self.rate}")
        if self.remaining < 0 or self.delay_ms < 0:
            raise ValueError(f"remaining and delay of fault {self.id} cannot be negative")
        if self.kind is FaultKind.DISK:
            self._check_disk()
        elif self.action is FaultAction.FAIL and not self._known_code:
            raise ValueError(
                f"code {self.code} of fault {self.id} is neither a wire code nor a gRPC status"
            )

    def _check_disk(self) -> None:
        if self.action is FaultAction.DROP:
            raise ValueError(f"fault {self.id}: action DROP is not valid for disk calls")
        if self.action is FaultAction.FAIL and self.code not in errno.errorcode:
            raise ValueError(f"code {self.code} of fault {self.id} is not an errno")

    def raise_rpc(self) -> None:
        """Raise the WireError or RpcFailure of a FAIL."""
        if self._is_grpc:
            raise RpcFailure(self.code, f"injected by fault {self.id}")
        raise WireError(self.code, f"injected by fault {self.id}")


class FaultTable:
    """The faults of one process. RPCs are checked on the loop, disk calls on any thread."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self._random = Random(seed)
        self._clock = clock
        self._lock = threading.Lock()
        self._faults: dict[str, Fault] = {}
        #: Read without the lock, replaced as a whole.
        self.rpc: tuple[Fault, ...] = ()
        self._disk: tuple[Fault, ...] = ()
        # A delayed disk call blocks its thread, like a slow disk. This event is never set.
        self._never = threading.Event()

    def put(self, fault: Fault) -> None:
        """Add a fault, or replace the one with its id. Raises ValueError."""
        fault.check()
        with self._lock:
            if fault.id not in self._faults and len(self._faults) >= FAULTS_MAX:
                raise ValueError(f"the limit of {FAULTS_MAX} faults is reached; clear some first")
            self._faults[fault.id] = replace(fault, hits=0, last_hit_ns=0)
            self._index()

    def clear(self, *ids: str) -> int:
        """Remove the faults with these ids, or all; returns the number of removed faults."""
        with self._lock:
            gone = [id for id in (ids or tuple(self._faults)) if self._faults.pop(id, None)]
            self._index()
        return len(gone)

    def list(self) -> list[Fault]:
        """Return copies, in insertion order."""
        with self._lock:
            return [replace(fault) for fault in self._faults.values()]

    def rpc_fault(self, path: str) -> Fault | None:
        """Return the fault for a call, or None; a returned fault counts as a hit."""
        if path.startswith((paths.TEST, _STANDARD)):
            # A fault on all methods must not block the call that clears it, nor health checks.
            return None
        return self._hit(self.rpc, path)

    def disk_fault(self, call: str) -> None:
        """Raise OSError or wait, if a fault matches the disk call (used as `Disk.fault`)."""
        if not self._disk:
            return
        fault = self._hit(self._disk, call)
        if fault is None:
            return
        if fault.delay_ms:
            self._never.wait(fault.delay_ms / 1_000)
        if fault.action is FaultAction.FAIL:
            raise OSError(fault.code, f"{os.strerror(fault.code)} (injected by {fault.id})")

    def _hit(self, faults: tuple[Fault, ...], target: str) -> Fault | None:
        with self._lock:
            for fault in faults:
                if fault.target not in (target, ANY_TARGET) or self._random.random() >= fault.rate:
                    continue
                fault.hits += 1
                fault.last_hit_ns = self._clock.steady_ns()
                if fault.remaining:
                    # 0 means no limit, so the last hit leaves -1.
                    fault.remaining = fault.remaining - 1 or -1
                    if fault.spent:
                        self._index()
                return fault
        return None

    def _index(self) -> None:
        faults = [fault for fault in self._faults.values() if not fault.spent]
        self.rpc = tuple(fault for fault in faults if fault.kind is FaultKind.RPC)
        self._disk = tuple(fault for fault in faults if fault.kind is FaultKind.DISK)
