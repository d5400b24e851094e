"""A skip is listed with its reason, and fails with CI=true. An expected failure does neither."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
import pytest

def test_skipped():
    pytest.skip("no such tool")

@pytest.mark.xfail(strict=True)
def test_expected():
    assert False

def test_passes():
    pass
"""


@pytest.mark.parametrize(
    ("ci", "summary"), [("true", "1 failed, 1 passed, 1 xfailed"), ("", "1 passed, 1 skipped")]
)
def test_skips_fail_on_ci(tmp_path: Path, ci: str, summary: str) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-ra", "-p", "cometmq.tests.conftest"),
            *("-c", str(tmp_path / "pytest.ini"), str(tmp_path)),
        ],
        env={**os.environ, "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )
    assert summary in done.stdout, done.stdout
    assert "no such tool" in done.stdout
