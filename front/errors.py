"""Errors of opening a door; each message is a complete sentence for the operator.

DoorError
    PortInUseError     another process listens on the port
    AddressError       the address cannot be bound: not an address of this machine, or forbidden
    DoorMissingError   the configuration requires a package that is not installed
    CertificateError   the certificate files cannot be read, or do not belong together
"""

from ..proto.addresses import host_port


class DoorError(Exception):
    """A front door could not be opened."""


class PortInUseError(DoorError):
    """Another process listens on the port."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(
            f"Port {port} on {host} is in use by another process: stop that process, "
            f"or choose another port (0 lets the system choose)."
        )
        self.host = host
        self.port = port


class AddressError(DoorError):
    """The address cannot be bound for a reason other than a port in use."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"Cannot listen on {host_port(host, port)} ({reason}): use an address of this machine "
            f"and a port that this user may open (above 1023)."
        )


class DoorMissingError(DoorError):
    """The configured door is not installed."""


class CertificateError(DoorError):
    """The configured certificate cannot be used."""
