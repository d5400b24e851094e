"""Drills on hosts, in short: one round each, on three hosts in network namespaces."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.tests.drills.hosts.lab import missing
from cometmq.tests.drills.hosts.rows import ROWS

SHORT = ("stop-leader", "one-way", "vanished")
RUN_S = 900.0


def test_each_row_has_a_name_of_its_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert set(SHORT) <= {row.name for row in ROWS}


@pytest.mark.timeout(RUN_S + 30)
@pytest.mark.parametrize(
    "name",
    [
        "vanished",
        pytest.param("stop-leader", marks=pytest.mark.slow),
        # Slow lane: on a busy machine a client may stay silent until the link is back.
        pytest.param("one-way", marks=pytest.mark.slow),
    ],
)
def test_a_fault_loses_nothing_and_clients_with_several_addresses_go_on(
    name: str, tmp_path: Path
) -> None:
    if reason := missing():
        pytest.skip(reason)
    out = tmp_path / "result.json"
    words = ["--hosts", "--only", name, "--rounds", "1", "--clients", "", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cometmq.tests.drills.run", *words],
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(out.read_text())
    assert (found["lost"], found["phantom"], found["late"]) == (0, 0, 0)
    assert found["acknowledged"] > 0
    assert "sdk" not in found["silent"], "the SDK found another host while the fault lasted"
    if name == "one-way":
        assert found["silent"] == [], "the isolated host sent its clients away"
