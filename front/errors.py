"""Errors of opening a door; each message is a complete sentence for the operator.

DoorError
    PortInUseError     another process listens on the port
    AddressError       the address cannot be bound: not an address of this machine, or forbidden
    DoorMissingError   the configuration requires a package that is not installed
    CertificateError   the certificate files cannot be read, or do not belong together
"""

import errno

from ..nodes.addresses import host_port


class DoorError(Exception):
    """A front door could not be opened."""


def scarcity(error: BaseException) -> str:
    """Return what to do if the process could not have a descriptor, memory or a thread; "" for any
    other error."""
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.EMFILE, errno.ENFILE):
        return "the process has no free descriptor; raise the limit (ulimit -n, LimitNOFILE)."
    if "start new thread" in str(error) or number == errno.EAGAIN:
        return (
            "the process may have no further thread; raise the limit (ulimit -u, ulimit -v, "
            "docker run --pids-limit, TasksMax)."
        )
    if isinstance(error, MemoryError) or number in (errno.ENOMEM, errno.ENOBUFS):
        return (
            "the process has no memory left; raise the limit (ulimit -v, docker run --memory, "
            "MemoryMax)."
        )
    return ""


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

    def __init__(self, host: str, port: int, error: OSError) -> None:
        reason = error.strerror or str(error)
        advice = scarcity(error) or (
            "use an address of this machine and a port that this user may open (above 1023)."
        )
        super().__init__(f"Cannot listen on {host_port(host, port)} ({reason}): {advice}")


class DoorMissingError(DoorError):
    """The configured door is not installed."""


class CertificateError(DoorError):
    """The configured certificate cannot be used."""
