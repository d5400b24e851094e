"""The interface of a front door, and the choice between the native and the grpcio door.

Services do not depend on the door; only the banner and a metric's label show which one is open.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from ..nodes.node_links import NodeLinks
from ..proto import native
from .clock import Clock
from .config import DoorConfig
from .errors import CertificateError, DoorMissingError
from .faults import FaultTable
from .service import ServiceTable
from .shared.handover import Handover
from .statistics import DoorStatistics

logger = logging.getLogger(__name__)


class Door(Protocol):
    """A server in front of a service table."""

    name: str
    #: True if requests that arrive while the loop is busy are delivered together in one callback.
    batches: bool

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (0: the system chooses). Raises PortInUseError, AddressError."""

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, let calls in flight finish within the grace time, close."""

    def together(self) -> AbstractContextManager[object]:
        """As `service.Together`; on the event loop."""

    def statistics(self) -> DoorStatistics:
        """Return the current counters."""


DoorMaker = Callable[..., Door]


def check_certificates(config: DoorConfig, links: NodeLinks) -> None:
    """Raise ValueError if the other nodes would refuse the certificate of this node's port."""
    if config.front_tls_certificate and links.files is not None:
        raise ValueError(
            "frontTlsCertificate and tlsCertificate are both set: other nodes check the "
            "certificate of this port by tlsCa and tlsNodeName, so set tlsCertificate alone."
        )


def choose_door(
    config: DoorConfig,
    links: NodeLinks | None = None,
    handover: Handover | None = None,
    *,
    nodes: bool = False,
) -> DoorMaker:
    """Return a factory for the configured door: `maker(services, clock, faults=None)`.

    With `handover` the door's port takes remoting connections, too, and hands them over. `nodes`:
    the port is for nodes only. Callers with TLS need a certificate of `tlsCa`, and the standard
    services are not there.
    Raises DoorMissingError if the configuration requires the native door and it is not installed,
    and CertificateError for a certificate that no port uses.
    """
    links = links or NodeLinks()
    if config.front_tls_certificate and links.tls.tls_mode == "disabled":
        raise CertificateError("frontTlsCertificate is set, but tlsMode=disabled: remove one.")
    maker = None if config.front_door == "grpcio" else _native_maker()
    _check_client_certificates(config, links, nodes=nodes)
    if config.front_door == "native" and maker is None:
        raise DoorMissingError(
            "frontDoor=native, but the package cometmq-native is not installed, or "
            "COMETMQ_NATIVE=off: install it, or set frontDoor=auto"
        )
    if config.front_tls_certificate and maker is None:
        raise DoorMissingError(
            "frontTlsCertificate is set, but the grpcio door supports plaintext only: install "
            "cometmq-native and set frontDoor=auto, or remove frontTlsCertificate"
        )
    if maker is not None:
        return _bind(maker, config, links, handover, nodes=nodes)
    _check_grpcio(links)
    if config.front_door == "auto":
        logger.info(
            "door.chosen door=grpcio reason=cometmq-native-not-installed "
            "cost=several-times-the-cpu-per-call"
        )
    if handover is not None:
        from .shared.splicing_door import SplicingDoor

        return _bind(SplicingDoor, config, links, handover)
    from .grpcio_door import GrpcioDoor

    return _bind(GrpcioDoor, config, links, nodes=nodes)


def _check_client_certificates(config: DoorConfig, links: NodeLinks, *, nodes: bool) -> None:
    """Raise CertificateError for settings about certificates of clients that have no effect."""
    if nodes or links.files is not None or config.front_tls_client_ca:
        return
    for key, value in (
        ("tlsClientIdentity", links.tls.tls_client_identity.removeprefix("none")),
        ("tlsCrl", links.tls.tls_crl),
    ):
        if value:
            raise CertificateError(
                f"{key}={value}, but no port asks for certificates of clients: set tlsCertificate, "
                "tlsKey and tlsCa."
            )


def _check_grpcio(links: NodeLinks) -> None:
    """Raise DoorMissingError for a TLS mode that the grpcio door does not have."""
    if links.files is None:
        return
    if links.tls.tls_client_identity != "none":
        raise DoorMissingError(
            "tlsClientIdentity is set, but the grpcio door cannot request certificates: install "
            "cometmq-native and set frontDoor=auto, or set tlsClientIdentity=none"
        )
    if links.tls.tls_mode == "permissive":
        raise DoorMissingError(
            "tlsMode=permissive with tlsCertificate, but the grpcio door serves either plaintext "
            "or TLS: install cometmq-native and set frontDoor=auto, or set tlsMode=enforcing"
        )
    if not links.token:
        raise DoorMissingError(
            "tlsMode=enforcing without clusterToken, but the grpcio door cannot request "
            "certificates: install cometmq-native and set frontDoor=auto, or set clusterToken"
        )


def _bind(
    maker: Callable[..., Door],
    config: DoorConfig,
    links: NodeLinks,
    handover: Handover | None = None,
    *,
    nodes: bool = False,
) -> DoorMaker:
    shared: dict[str, Any] = {} if handover is None else {"handover": handover}
    if nodes:
        shared["nodes"] = True

    def make(services: ServiceTable, clock: Clock, faults: FaultTable | None = None) -> Door:
        return maker(services, config, clock, faults, links, **shared)

    return make


def _native_maker() -> Callable[..., Door] | None:
    """Return the native door; None without the crate. Raises DoorMissingError for a crate of
    another version."""
    try:
        crate = native.load()
    except native.NativeVersionError as error:
        raise DoorMissingError(str(error)) from error
    if crate is None:
        return None
    from .native.door import NativeDoor

    return partial(NativeDoor, native=crate)
