"""docs/metrics.md matches what running servers export, and has what the reference exports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_metrics_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "gen_metrics"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def listed() -> dict[str, set[str]]:
    """Return the labels of each metric of the page, by the name of its samples."""
    found = {}
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        if line.startswith("| `"):
            _, names, _, labels, *_ = line.split("|")
            for name in re.findall(r"`(\w+)`", names):
                found[name] = {label.strip() for label in labels.split(",")} - {""}
    return found


def test_every_metric_of_the_reference_exists_with_its_labels() -> None:
    ours = listed()
    golden = ROOT / "tests" / "formats" / "golden" / "metrics-5.5.0.txt"
    rows = [line.split(" ") for line in golden.read_text().splitlines() if line[0] != "#"]
    assert len(rows) > 40
    for name, *labels in rows:
        wanted = set(labels[0].split(",")) if labels else set()
        assert wanted <= ours[name], name
