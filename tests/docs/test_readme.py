"""README.md: its length, and its pictures."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[2]
PICTURES = sorted((ROOT / "docs" / "images").glob("*.svg"))


def test_the_readme_fits_on_120_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_picture_of_the_architecture_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "draw_architecture"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.name)
def test_a_picture_is_valid_and_loads_nothing(picture: Path) -> None:
    text = picture.read_text()
    ElementTree.fromstring(text)
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|<script|<image", text)


def test_the_recorded_failover_lost_no_order() -> None:
    svg = (ROOT / "docs" / "images" / "failover.svg").read_text()
    lines = ["".join(row.itertext()) for row in ElementTree.fromstring(svg)]
    assert any("kill -9" in line for line in lines)
    assert "10000 orders are acknowledged" in lines
    assert "10000" in lines[-3:]  # distinct orders that the consumer received
