"""Fixtures of the store's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.tests.store.kit import Kit


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    """An open, started store with segments of 4 KiB and queue files of 20 units."""
    kit = Kit(tmp_path / "store")
    kit.open()
    yield kit
    kit.store.close()
