"""Every alert fires in its drill, and has a runbook. promtool evaluates the rules."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from cometmq.tests.deploy.prometheus import ROOT, RULES, program

#: By alert, the series under which it fires, in promtool's notation with a sample a minute.
DRILLS: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("drills.json").read_text())
ALERTS = re.findall(r"- alert: (\w+)", RULES.read_text())
#: Longer than every `for`.
EVALUATED = "79m"


def test_every_alert_has_a_drill_and_a_runbook() -> None:
    assert len(ALERTS) >= 20
    assert sorted(DRILLS) == sorted(ALERTS)
    text = (ROOT / "docs" / "runbooks.md").read_text()
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == ALERTS
    assert all(f"docs/runbooks.md#{name.lower()}\n" in RULES.read_text() for name in ALERTS)


def firing(name: str, wanted: int, at: str) -> dict[str, object]:
    """Return a test of the number of firing alerts of this name at a time."""
    expression = f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)'
    return {
        "expr": expression,
        "eval_time": at,
        "exp_samples": [{"labels": "{}", "value": wanted}],
    }


def test_every_alert_fires_in_its_drill_alone(tmp_path: Path) -> None:
    """Without its series it does not fire: at minute 0 no series has lasted for any `for`."""
    tests = [
        {
            "interval": "1m",
            "input_series": [
                {"series": series, "values": values} for series, values in DRILLS[name].items()
            ],
            "promql_expr_test": [firing(name, 1, drill_end(name))],
        }
        for name in ALERTS
    ]
    quiet = {"interval": "1m", "input_series": [{"series": 'up{job="cometmq"}', "values": "1x90"}]}
    # The alert for a missing controller has no series then, as in a cluster without one.
    quiet["promql_expr_test"] = [firing(name, 0, EVALUATED) for name in ALERTS]
    file = tmp_path / "test.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "tests": [*tests, quiet]}))
    done = subprocess.run(
        [program("promtool"), "test", "rules", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def drill_end(name: str) -> str:
    """Return the minute of the last sample of a drill, at most."""
    last = max(int(values.rpartition("x")[2]) for values in DRILLS[name].values())
    return f"{last - 1}m"


def test_the_dashboards_are_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "gen_dashboards"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
