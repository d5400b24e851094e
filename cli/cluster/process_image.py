"""What only the kernel and the C library can do for a fork server (`fork_server.py`). Linux.

A fork whose parent is this process's parent; the command line that the kernel shows; the number of
malloc's arenas.
"""

import ctypes
import errno
import os
import signal
import sys
from collections.abc import Mapping, Sequence

# The number of the call `clone`, by machine, and a flag of it: <linux/sched.h>.
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT = 0x8000
# <linux/prctl.h>
_PR_SET_MM = 35
_PR_SET_MM_MAP = 14
# <malloc.h>
_M_ARENA_MAX = -8
# Numbers of values in /proc/self/stat, see proc(5).
_STAT = {
    **{"start_code": 26, "end_code": 27, "start_stack": 28},
    **{"start_data": 45, "end_data": 46, "start_brk": 47},
}
_NAME_STAT = 2  # the process's name: the only value that may have spaces


class _Map(ctypes.Structure):
    """`struct prctl_mm_map`."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data")),
        *((name, ctypes.c_uint64) for name in ("start_brk", "brk", "start_stack", "arg_start")),
        *((name, ctypes.c_uint64) for name in ("arg_end", "env_start", "env_end", "auxv")),
        *(("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_int32)),
    )


def can_fork_beside() -> bool:
    """Return whether `fork_beside` knows this machine."""
    return sys.platform == "linux" and os.uname().machine in _CLONE


def fork_beside() -> int:
    """Fork as `os.fork`, but the new process is a child of this process's parent.

    The C library's own preparations for a fork, which free the locks of other threads, do not run:
    raises OSError in a process with several threads, or if the kernel refuses.
    """
    if len(os.listdir("/proc/self/task")) > 1:
        raise OSError(errno.EBUSY, "the process has several threads")
    python, libc = ctypes.pythonapi, ctypes.PyDLL(None, use_errno=True)
    python.PyOS_BeforeFork()
    number, flags = _CLONE[os.uname().machine], _CLONE_PARENT | signal.SIGCHLD
    pid: int = libc.syscall(ctypes.c_long(number), ctypes.c_ulong(flags), None, None, None, None)
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    code = ctypes.get_errno()
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(code, os.strerror(code))
    return pid


def set_command_line(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Let the kernel show this command line and environment; False if it refuses."""
    arguments = b"".join(os.fsencode(word) + b"\0" for word in command)
    variables = b"".join(os.fsencode(f"{k}={v}") + b"\0" for k, v in environment.items())
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
    with open("/proc/self/stat", "rb") as file:
        values = file.read().rpartition(b") ")[2].split()
    places = {name: int(values[number - _NAME_STAT - 1]) for name, number in _STAT.items()}
    # Never freed: the kernel reads it until the end of the process.
    begin = libc.malloc(ctypes.c_size_t(len(arguments) + len(variables)))
    ctypes.memmove(begin, arguments + variables, len(arguments) + len(variables))
    middle, end = begin + len(arguments), begin + len(arguments) + len(variables)
    strings = {"arg_start": begin, "arg_end": middle, "env_start": middle, "env_end": end}
    layout = _Map(**places, **strings, brk=libc.sbrk(0), exe_fd=-1)
    size = ctypes.c_ulong(ctypes.sizeof(layout))
    return bool(libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.byref(layout), size, 0) == 0)


def limit_arenas(count: int) -> None:
    """Limit malloc's arenas, as MALLOC_ARENA_MAX does at the start of a process."""
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, count)
