"""Faults that tests put in on purpose: RPCs that fail, wait or lose their answer, disks that fail.

The table exists only with `testHooks=true`. An empty table costs a door one truth test a call and
the disk one a call. Chance comes from one seeded generator, so that the same calls in the same order
meet the same faults. Rules of the fields: `proto/cometmq/v1/test.proto`.
"""

import errno
import os
import threading
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

from ..proto import paths
from ..proto.errors import CODES, RpcFailure, WireError
from .clock import Clock

ANY_TARGET = "*"
#: More are a mistake in the test: every call looks at each of them.
FAULTS_MAX = 1_000
_GRPC_CODE_MAX = 16
_STANDARD = "/grpc."  # health and reflection


class FaultKind(StrEnum):
    """What is disturbed."""

    RPC = "RPC"
    DISK = "DISK"


class FaultAction(StrEnum):
    """FAIL: refused before it is served. DELAY: served later. DROP: served, the answer never sent."""

    FAIL = "FAIL"
    DELAY = "DELAY"
    DROP = "DROP"


@dataclass(slots=True)
class Fault:
    """One entry. `code` is a wire code or gRPC status for RPC, an errno for DISK; for FAIL only."""

    id: str
    kind: FaultKind
    #: A method path or the name of a disk call; "*" is any. The Test service itself is never hit.
    target: str
    action: FaultAction
    code: int = 0
    delay_ms: int = 0
    #: The share of calls that it hits.
    rate: float = 1.0
    #: Hits left; 0 is no limit, -1 none.
    remaining: int = 0
    hits: int = 0
    last_hit_ns: int = 0

    @property
    def spent(self) -> bool:
        """It had a limited number of hits and has used them; it stays listed for its `hits`."""
        return self.remaining < 0

    @property
    def _known_code(self) -> bool:
        return self._is_grpc or (self.code > 0 and self.code in CODES)

    @property
    def _is_grpc(self) -> bool:
        return 1 <= self.code <= _GRPC_CODE_MAX

    def check(self) -> None:
        """Raise ValueError with a sentence when the entry makes no sense."""
        if not self.id:
            raise ValueError("a fault needs an id, by which it is replaced and cleared")
        if not self.target:
            raise ValueError("a fault needs a target: a method path, a disk call, or *")
        if not 0.0 <= self.rate <= 1.0:
            raise ValueError(f"the rate of fault {self.id} must be within 0..1, not {self.rate}")
        if self.remaining < 0 or self.delay_ms < 0:
            raise ValueError(f"remaining and delay of fault {self.id} cannot be negative")
        if self.kind is FaultKind.DISK:
            self._check_disk()
        elif self.action is FaultAction.FAIL and not self._known_code:
            raise ValueError(
                f"fault {self.id} fails with {self.code}: neither a wire code nor a gRPC status"
            )

    def _check_disk(self) -> None:
        if self.action is FaultAction.DROP:
            raise ValueError(f"fault {self.id}: a disk call fails or waits, it cannot be dropped")
        if self.action is FaultAction.FAIL and self.code not in errno.errorcode:
            raise ValueError(f"fault {self.id} fails with {self.code}, which is no errno")

    def raise_rpc(self) -> None:
        """Raise what a FAIL of an RPC is: a wire error or a gRPC status."""
        if self._is_grpc:
            raise RpcFailure(self.code, f"injected by fault {self.id}")
        raise WireError(self.code, f"injected by fault {self.id}")


class FaultTable:
    """The faults of one process. RPCs are looked up on the loop, disk calls on any thread."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self._random = Random(seed)
        self._clock = clock
        self._lock = threading.Lock()
        self._faults: dict[str, Fault] = {}
        #: Read without the lock, replaced as a whole; empty nearly always.
        self.rpc: tuple[Fault, ...] = ()
        self._disk: tuple[Fault, ...] = ()
        # Delays on a disk call block its thread, as a slow disk does. Nothing sets this event.
        self._never = threading.Event()

    def put(self, fault: Fault) -> None:
        """Add, or replace the one with this id. Raises ValueError."""
        fault.check()
        with self._lock:
            if fault.id not in self._faults and len(self._faults) >= FAULTS_MAX:
                raise ValueError(f"there are {FAULTS_MAX} faults already; clear some")
            self._faults[fault.id] = replace(fault, hits=0, last_hit_ns=0)
            self._index()

    def clear(self, *ids: str) -> int:
        """Remove these, or all; returns how many there were."""
        with self._lock:
            gone = [id for id in (ids or tuple(self._faults)) if self._faults.pop(id, None)]
            self._index()
        return len(gone)

    def list(self) -> list[Fault]:
        """Copies, in the order in which they were put."""
        with self._lock:
            return [replace(fault) for fault in self._faults.values()]

    def rpc_fault(self, path: str) -> Fault | None:
        """The fault that this call meets, if any; it counts as a hit."""
        if path.startswith((paths.TEST, _STANDARD)):
            # A fault of every method must not lock out the call that clears it, nor look like a
            # server that is down.
            return None
        return self._hit(self.rpc, path)

    def disk_fault(self, call: str) -> None:
        """For `Disk.fault`: raises OSError or waits, when this call meets a fault."""
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
