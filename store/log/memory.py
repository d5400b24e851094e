"""Memory advice for the log's maps: mlock and madvise.

The only module that calls mlock; `mmap` has no method for it, so it calls libc. Advice only: if the
limit (RLIMIT_MEMLOCK), the platform or libc refuses, the store works as before and logs one WARNING
per process (`memory.not_locked`). Settings: docs/formats/store-format.md, section 8.
"""

import ctypes
import errno
import functools
import logging
import mmap
import os
import resource
from collections.abc import Callable
from contextlib import suppress

logger = logging.getLogger(__name__)
_CLOSED = "the map is closed"
#: `advise_unused` holds the GIL for this much at a time, half a millisecond.
_UNUSED_BYTES = 64 << 20


class _Buffer(ctypes.Structure):
    """CPython's Py_buffer: the only way to the address of a read-only map."""

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
    """Call libc; return the reason of a failure, or ""."""
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
    """Lock the pages in memory; return false, with one WARNING, if that is refused."""
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
    """Unlock the pages; a closed map is ignored."""
    _call("munlock", memory)


def advise_soon(memory: mmap.mmap) -> None:
    """Advise that the pages will be needed (MADV_WILLNEED)."""
    _advise(memory, "MADV_WILLNEED")


def advise_random(memory: mmap.mmap) -> None:
    """Disable read-ahead (MADV_RANDOM): for logs that are read in small, scattered pieces."""
    _advise(memory, "MADV_RANDOM")


def advise_unused(memory: mmap.mmap) -> None:
    """Take a file's pages out of this process's memory (MADV_DONTNEED); they stay in the page
    cache, where the next reader finds them. What was read once would count as resident as long as
    it is mapped. A closed or locked map is ignored. Any thread."""
    begin = 0
    with suppress(ValueError, OSError):  # closed, or locked
        while begin < len(memory):
            _advise(memory, "MADV_DONTNEED", begin, min(_UNUSED_BYTES, len(memory) - begin))
            begin += _UNUSED_BYTES


def _advise(memory: mmap.mmap, name: str, *part: int) -> None:
    advice = getattr(mmap, name, None)
    if advice is not None:
        memory.madvise(advice, *part)
