"""`scripts/quickstart` with fewer messages: the first example of the README."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
MESSAGES = 2000


@pytest.mark.timeout(600)
def test_the_quickstart_loses_no_message(tmp_path: Path) -> None:
    verdict_file = tmp_path / "verdict.json"
    done = subprocess.run(
        [
            *(sys.executable, str(SCRIPTS / "quickstart_run.py")),
            *("--messages", str(MESSAGES), "--verdict", str(verdict_file)),
        ],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    print(done.stdout[-4000:], done.stderr[-4000:])
    assert done.returncode == 0
    verdict = json.loads(verdict_file.read_text())
    assert (verdict["sent"], verdict["acknowledged"]) == (MESSAGES, MESSAGES)
    assert (verdict["lost"], verdict["received"]) == (0, MESSAGES)
    assert verdict["received_while_the_master_was_down"] > 0
