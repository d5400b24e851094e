"""Saving off the loop: a burst of changes is one write, and the last change is always written."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cometmq.broker import json_file


async def _save_many(path: Path) -> int:
    rendered = 0

    def render() -> str:
        nonlocal rendered
        rendered += 1
        return json_file.dumps({"n": rendered})

    saver = json_file.Saver(path, render, 0.01)
    for _ in range(50):
        saver.changed()
    await asyncio.sleep(0.1)
    saver.changed()
    await saver.close()
    return rendered


def test_a_burst_of_changes_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    rendered = asyncio.run(_save_many(path))
    assert json_file.load(path) == {"n": rendered}
    assert rendered == 2
