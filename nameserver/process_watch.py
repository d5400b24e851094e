"""Process watch: reports the exit of a broker on this host to the controllers.

A broker's heartbeat names its process. If the process has this nameserver's boot id and pid
namespace, the nameserver opens a pid file descriptor and checks the start time, so that a reused
pid is never watched. The descriptor becomes readable when the process ends: proof of death without
a supervisor (docs/design/replication.md). Linux only; elsewhere nothing is watched.
"""

import asyncio
import logging
import os
from collections.abc import Callable

from ..ha.state.host_process import started_ticks, this_process
from ..proto import v1

logger = logging.getLogger(__name__)

#: As many as sessions; one descriptor each.
_WATCHED_MAX = 4_096


class ProcessWatch:
    """The watched processes; `on_exit` receives the last identity that a process reported."""

    def __init__(self, on_exit: Callable[[v1.ReplicaIdentity], None]) -> None:
        self._on_exit = on_exit
        self._here = this_process() if hasattr(os, "pidfd_open") else None
        self._watched: dict[tuple[int, int], tuple[int, v1.ReplicaIdentity]] = {}

    def heartbeat(self, identity: v1.ReplicaIdentity, process: v1.HostProcess) -> None:
        """Watch the process of a heartbeat, if it runs on this host."""
        here = self._here
        if here is None or process.boot_id != here.boot_id:
            return
        if process.pid_namespace != here.pid_namespace or process.pid <= 0:
            return
        key = (process.pid, process.started_ticks)
        known = self._watched.get(key)
        if known is not None:
            if known[1] != identity:  # the same process opened its store again
                self._watched[key] = (known[0], identity)
            return
        if len(self._watched) >= _WATCHED_MAX:
            return
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            return  # it has ended, or the kernel has no pid descriptors
        if started_ticks(process.pid) != process.started_ticks:
            os.close(descriptor)
            return
        self._watched[key] = (descriptor, identity)
        asyncio.get_running_loop().add_reader(descriptor, self._exited, key)
        logger.info("process.watched pid=%d broker_id=%d", process.pid, identity.broker_id)

    def close(self) -> None:
        """Stop watching."""
        for descriptor, _ in self._watched.values():
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        self._watched.clear()

    def _exited(self, key: tuple[int, int]) -> None:
        descriptor, identity = self._watched.pop(key)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)
        logger.info("process.ended pid=%d broker_id=%d", key[0], identity.broker_id)
        self._on_exit(identity)
