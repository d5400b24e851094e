"""The front door as the rest of the process sees it, and the choice of which one to open.

Services do not know which door they are behind; it shows in the banner and in a metric's label only
(front-door note, section 4).
"""

import importlib.util
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from .clock import Clock
from .config import DoorConfig
from .errors import DoorMissingError
from .faults import FaultTable
from .service import ServiceTable

logger = logging.getLogger(__name__)

_NATIVE_MODULE = "cometmq_native"


@dataclass(frozen=True, slots=True)
class DoorStatistics:
    """For metrics, health and tests."""

    door: str
    in_flight: int
    streams: int
    #: By path: how many calls ended in INTERNAL because of a fault of ours.
    internal_errors: Mapping[str, int]
    #: What the network half counts, by name; empty where the door cannot say.
    counters: Mapping[str, int] = field(default_factory=dict)


class Door(Protocol):
    """A server in front of a service table."""

    name: str
    #: Requests that came while the loop was busy are handed over together, in one turn.
    batches: bool

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (0: the system chooses). Raises PortInUseError, AddressError."""

    async def drain(self, grace_s: float) -> None:
        """Accept no more, let what is in flight finish within the grace time, close."""

    def statistics(self) -> DoorStatistics:
        """Counters as they are now."""


DoorMaker = Callable[..., Door]


def choose_door(config: DoorConfig) -> DoorMaker:
    """What makes the configured door, as `maker(services, clock, faults=None)`.

    Raises DoorMissingError when the native door is demanded and not installed.
    """
    native = None if config.front_door == "grpcio" else _native_maker()
    if config.front_door == "native" and native is None:
        raise DoorMissingError(
            "frontDoor=native, but the package cometmq-native is not installed: "
            "install it, or set frontDoor=auto"
        )
    if config.front_tls_certificate and native is None:
        raise DoorMissingError(
            "frontTlsCertificate is set, but the grpcio door speaks plaintext only: install "
            "cometmq-native and let frontDoor be auto, or leave the certificate out"
        )
    if native is not None:
        return _bind(native, config)
    if config.front_door == "auto":
        logger.info(
            "door.chosen door=grpcio reason=cometmq-native-not-installed "
            "cost=several-times-the-cpu-a-call"
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
