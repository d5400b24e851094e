"""The systemd units: hardened, with limits, and their commands are ours."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).resolve().parents[2] / "deploy" / "systemd").glob("*.service"))
#: Tenths of an exposure level of `systemd-analyze security`, which calls 3.0 "OK".
EXPOSURE_MAX = 30


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_exposes_little_and_bounds_memory_and_descriptors(unit: Path) -> None:
    words = ("systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}")
    done = subprocess.run([*words, str(unit)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr
    text = unit.read_text()
    assert "ProtectSystem=strict\n" in text
    assert re.search(r"^MemoryMax=\d", text, re.MULTILINE)
    assert re.search(r"^LimitNOFILE=\d", text, re.MULTILINE)
