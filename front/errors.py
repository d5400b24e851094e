"""Errors of opening a door; each is a sentence for the operator who reads it.

DoorError
    PortInUseError     someone else listens there: stop them, or choose another port
    AddressError       the address cannot be listened on: it is not this machine's, or forbidden
    DoorMissingError   what the configuration asks for needs a package that is not installed
    CertificateError   the files of the certificate cannot be read, or do not belong together
"""


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
    """The address cannot be bound for a reason other than its port being taken."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"Cannot listen on {host}:{port} ({reason}): give an address of this machine and a port "
            f"that this user may open (above 1023)."
        )


class DoorMissingError(DoorError):
    """The door that the configuration demands is not installed."""


class CertificateError(DoorError):
    """The certificate that the configuration names cannot be used."""
