"""What the kernel is told about the log's memory: pages that stay, pages that come early.

The only module that knows mlock; `mmap` has no call for it, so libc is asked. All of it is advice:
where the limit (RLIMIT_MEMLOCK), the platform or libc says no, the store works as before, and one
WARNING a process says so (`memory.not_locked`). Settings: store format, section 8.
"""

import ctypes
import errno
import functools
import logging
import mmap
import os
import resource
from collections.abc import Callable

logger = logging.getLogger(__name__)
_CLOSED = "the map was closed meanwhile"


class _Buffer(ctypes.Structure):
    """CPython's Py_buffer: the one way to the address of a map that may not be written."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


@functools.cache
def _libc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        for name in ("mlock", "munlock"):
            getattr(libc, name).argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    except (OSError, AttributeError):
        return None
    return libc


@functools.cache
def _warn(reason: str) -> None:
    logger.warning("memory.not_locked reason=%s", reason)


def _call(name: str, memory: mmap.mmap) -> str:
    """Ask libc; returns why it did not happen, or ""."""
    libc = _libc()
    if libc is None:
        return f"this platform has no {name}"
    function: Callable[[int, int], int] = getattr(libc, name)
    buffer = _Buffer()
    try:
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(memory), ctypes.byref(buffer), 0)
    except ValueError:
        return _CLOSED
    try:
        if function(buffer.buf, buffer.len) == 0:
            return ""
        code = ctypes.get_errno()
    finally:
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(buffer))
    return os.strerror(code) if code != errno.ENOMEM else "the limit of locked memory is too low"


def lock(memory: mmap.mmap) -> bool:
    """Keep the pages in memory; false, with one WARNING, where that is not allowed."""
    reason = _call("mlock", memory)
    if reason and reason != _CLOSED:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft} bytes"
        _warn(
            f"{reason} (RLIMIT_MEMLOCK is {limit}); the log's pages may be swapped or dropped: "
            "raise the limit (LimitMEMLOCK=infinity, ulimit -l) or switch the option off"
        )
    return not reason


def unlock(memory: mmap.mmap) -> None:
    """Let the pages go again; a map that was closed has none."""
    _call("munlock", memory)


def advise_soon(memory: mmap.mmap) -> None:
    """The pages will be needed (MADV_WILLNEED)."""
    _advise(memory, "MADV_WILLNEED")


def advise_random(memory: mmap.mmap) -> None:
    """No read-ahead (MADV_RANDOM): for logs that are read in small pieces, far from each other."""
    _advise(memory, "MADV_RANDOM")


def _advise(memory: mmap.mmap, name: str) -> None:
    advice = getattr(mmap, name, None)
    if advice is not None:
        memory.madvise(advice)
