"""docs/design/dependencies.md has every dependency, its reason, and the size that it has here."""

from __future__ import annotations

import platform
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from cometmq.tests.deploy.test_release import script

PAGE = Path(__file__).resolve().parents[2] / "docs" / "design" / "dependencies.md"
_ROW = re.compile(r"^\| `?([\w.-]+)`? \| ([\d.]+) \| (\d*) ?\| (.*?) ?\|$", re.MULTILINE)


def test_the_table_of_dependencies_is_true() -> None:
    costs = script("gen_costs")
    rows = {name: (float(mb), ms, why) for name, mb, ms, why in _ROW.findall(PAGE.read_text())}
    reasons = costs.reasons()
    assert set(rows) == {*reasons, "cometmq", "all"}, "run scripts/gen_costs"
    assert {name: rows[name][2] for name in reasons} == reasons, "run scripts/gen_costs"
    assert all(rows[name][1] for name in reasons)
    here = (sys.version_info[:2], platform.machine(), find_spec("cometmq_native") is not None)
    if here != ((3, 11), "x86_64", True):
        return  # the sizes are those of this platform
    found, total = costs.sizes()
    found |= {"cometmq": costs.own_mb(), "all": total}
    wrong = {
        name: f"{size:.1f} MB"
        for name, size in found.items()
        if abs(size - rows[name][0]) > max(0.3, size / 10)
    }
    assert not wrong, "run scripts/gen_costs"
