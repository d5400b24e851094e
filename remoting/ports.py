"""The setting `remotingListenPort`: its special values and its check. Pure."""

#: Value of `remotingListenPort` for a port that the operating system chooses; 0 is off.
ANY_PORT = -1

_PORT_MAX = 65_535


def check_remoting(port: int) -> None:
    """Raise ValueError unless `remotingListenPort` is valid."""
    if not ANY_PORT <= port <= _PORT_MAX:
        raise ValueError(
            f"remotingListenPort is {port}, but must be 0 (off), -1 (any free port) or a port."
        )


def shares_port(port: int, grpc_port: int) -> bool:
    """Return True if `remotingListenPort` is the port of gRPC clients: one for both protocols."""
    return port > 0 and port == grpc_port
