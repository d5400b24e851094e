"""Identity of this process on its host, for the nameserver that watches it.

Linux only: boot id, pid namespace, pid and start time. Elsewhere, and without /proc, there is none.
"""

import os
from pathlib import Path

from ...proto import v1

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
#: Position of `starttime` behind the command name in /proc/PID/stat (field 22, counted from 3).
_STARTED = 19


def this_process() -> v1.HostProcess | None:
    """Return this process; None on a system without these values."""
    pid = os.getpid()
    started = started_ticks(pid)
    if started is None:
        return None
    try:
        boot_id, namespace = _BOOT_ID.read_text().strip(), os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None
    return v1.HostProcess(boot_id=boot_id, pid_namespace=namespace, pid=pid, started_ticks=started)


def started_ticks(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since the boot; None: not readable."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[_STARTED])
    except (OSError, ValueError, IndexError):
        return None
