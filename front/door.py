"""The interface of a front door, and the choice between the native and the grpcio door.

Services do not depend on the door; only the banner and a metric's label show which one is open.
"""

import importlib.util
import logging
from collections.abc import Callable
from typing import Protocol

from .clock import Clock
from .config import DoorConfig
from .errors import DoorMissingError
from .faults import FaultTable
from .service import ServiceTable
from .statistics import DoorStatistics

logger = logging.getLogger(__name__)

_NATIVE_MODULE = "cometmq_native"


class Door(Protocol):
    """A server in front of a service table."""

    name: str
    #: True if requests that arrive while the loop is busy are delivered together in one callback.
    batches: bool

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (0: the system chooses). Raises PortInUseError, AddressError."""

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, let calls in flight finish within the grace time, close."""

    def statistics(self) -> DoorStatistics:
        """Return the current counters."""


DoorMaker = Callable[..., Door]


def choose_door(config: DoorConfig) -> DoorMaker:
    """Return a factory for the configured door: `maker(services, clock, faults=None)`.

    Raises DoorMissingError if the configuration requires the native door and it is not installed.
    """
    native = None if config.front_door == "grpcio" else _native_maker()
    if config.front_door == "native" and native is None:
        raise DoorMissingError(
            "frontDoor=native, but the package cometmq-native is not installed: "
            "install it, or set frontDoor=auto"
        )
    if config.front_tls_certificate and native is None:
        raise DoorMissingError(
            "frontTlsCertificate is set, but the grpcio door supports plaintext only: install "
            "cometmq-native and set frontDoor=auto, or remove frontTlsCertificate"
        )
    if native is not None:
        return _bind(native, config)
    if config.front_door == "auto":
        logger.info(
            "door.chosen door=grpcio reason=cometmq-native-not-installed "
            "cost=several-times-the-cpu-per-call"
        )
    from .grpcio_door import GrpcioDoor

    return _bind(GrpcioDoor, config)


def _bind(maker: Callable[..., Door], config: DoorConfig) -> DoorMaker:
    def make(services: ServiceTable, clock: Clock, faults: FaultTable | None = None) -> Door:
        return maker(services, config, clock, faults)

    return make


def _native_maker() -> DoorMaker | None:
    if importlib.util.find_spec(_NATIVE_MODULE) is None:
        return None
    from .native_door import NativeDoor

    return NativeDoor
