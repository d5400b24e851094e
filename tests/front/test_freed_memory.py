"""Freed memory goes back to the operating system, also what is freed later.

Each test has a process of its own: in a process that ran other tests, their free memory and threads
decide where the C library puts the pieces.
"""

import errno
import functools
import subprocess
import sys
from collections.abc import Callable

import psutil
import pytest

from cometmq.front.process import FreedMemory


def _in_a_process(test: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        line = f"from {__name__} import {test.__name__} as test; test.__wrapped__()"
        ended = subprocess.run(
            [sys.executable, "-c", line], check=False, stderr=subprocess.PIPE, text=True
        )
        assert ended.returncode == 0, ended.stderr

    return run


@_in_a_process
def test_freed_memory_is_checked_again_after_a_lack_of_descriptors() -> None:
    freed = FreedMemory()

    def without_descriptors(_: psutil.Process) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psutil.Process, "memory_info", without_descriptors)
        assert not any(freed.grown() for _ in range(20))
    pieces = bytearray(b"x") * (64 << 20)
    assert any(freed.grown() for _ in range(20)), len(pieces)


@_in_a_process
def test_freed_memory_is_returned_once_the_process_has_grown() -> None:
    freed = FreedMemory()
    assert not any(freed.grown() for _ in range(20))
    # Small pieces, and one behind them: the C library keeps them when they are freed.
    pieces = [bytearray(1_000) for _ in range(100_000)]
    last = bytearray(1_000)
    own = psutil.Process().memory_full_info().uss
    assert any(freed.grown() for _ in range(20))
    del pieces
    freed.give_back()
    assert psutil.Process().memory_full_info().uss < own - (32 << 20), len(last)
    assert not any(freed.grown() for _ in range(20))


@_in_a_process
def test_memory_in_use_does_not_delay_the_return_of_what_is_freed_later() -> None:
    freed = FreedMemory()
    in_use = bytearray(b"x") * (64 << 20)
    for _ in range(4):  # growth that a return does not undo
        if any(freed.grown() for _ in range(5)):
            freed.give_back()
    pieces = [bytearray(1_000) for _ in range(100_000)]
    last = bytearray(1_000)
    del pieces
    assert any(freed.grown() for _ in range(5)), (len(in_use), len(last))


@_in_a_process
def test_memory_in_use_at_a_return_is_returned_when_it_is_freed_later() -> None:
    freed = FreedMemory()
    pieces = [bytearray(1_000) for _ in range(100_000)]
    last = bytearray(1_000)
    for _ in range(3):
        assert any(freed.grown() for _ in range(20))
        freed.give_back()
    own = psutil.Process().memory_full_info().uss
    del pieces
    assert any(freed.grown() for _ in range(20)), len(last)
    freed.give_back()
    assert psutil.Process().memory_full_info().uss < own - (32 << 20)
