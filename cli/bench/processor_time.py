"""CPU time of this process, and of the servers that run on this machine."""

import contextlib
import ipaddress
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Used:
    """CPU time between two moments, in seconds; servers by name and process id."""

    client_s: float
    servers_s: Mapping[str, float]


class ProcessorTime:
    """A stopwatch of CPU time; it starts at once."""

    def __init__(self, addresses: Iterable[tuple[str, int]]) -> None:
        """`addresses`: hosts and ports of the servers; those of other machines are left out."""
        ports = {port for host, port in addresses if _is_local(host)}
        self._servers = {pid: psutil.Process(pid) for pid in _listeners(ports)}
        self._server_s = {pid: _cpu_s(process) for pid, process in self._servers.items()}
        self._client_s = time.process_time()

    def read(self) -> Used:
        """Return the CPU time since the start. A server that has ended is left out."""
        client_s = time.process_time() - self._client_s
        servers_s = {}
        for pid, process in self._servers.items():
            with contextlib.suppress(psutil.Error):
                name = f"{process.name()} {pid}"
                servers_s[name] = _cpu_s(process) - self._server_s[pid]
        return Used(client_s, servers_s)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    own = {each.address.split("%")[0] for found in psutil.net_if_addrs().values() for each in found}
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback or host in own
    return False


def _listeners(ports: set[int]) -> set[int]:
    """Return the ids of the processes that listen on the ports; only those visible to this user."""
    try:
        found = psutil.net_connections("tcp")
    except psutil.AccessDenied:  # macOS shows them to root only
        return set()
    return {
        each.pid
        for each in found
        if each.pid
        and each.status == psutil.CONN_LISTEN
        and each.laddr
        and each.laddr.port in ports
    }
