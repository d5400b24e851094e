"""Saver: a burst of changes is one write, and the last change is always written."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from cometmq.broker.base import json_file
from cometmq.tests.broker.live import until


async def _save_many(path: Path) -> int:
    rendered = 0

    def render() -> str:
        nonlocal rendered
        rendered += 1
        return json_file.dumps({"n": rendered})

    saver = json_file.Saver(path, render, 0.01)
    for _ in range(50):
        saver.changed()
    await until(path.exists)
    saver.changed()
    await saver.close()
    return rendered


async def test_a_burst_of_changes_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    rendered = await _save_many(path)
    assert json_file.load(path) == {"n": rendered}
    assert rendered == 2


async def test_a_write_that_fails_during_the_stop_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "offsets.json"
    began, may_fail = threading.Event(), threading.Event()

    def fail(*_: object) -> None:
        began.set()
        may_fail.wait()
        raise OSError(errno.ENOSPC, "no room")

    saver = json_file.Saver(path, lambda: json_file.dumps({"n": 1}), 0.0)
    with monkeypatch.context() as patched:
        patched.setattr(json_file, "persist", fail)
        saver.changed()
        await asyncio.to_thread(began.wait)
    closing = asyncio.ensure_future(saver.close())
    await asyncio.sleep(0)
    may_fail.set()
    await closing
    assert json_file.load(path) == {"n": 1}
