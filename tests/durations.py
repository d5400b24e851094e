"""How long each test file took in its last run here: kept in `.cache/durations.json`.

`tests/conftest.py` records every run; `tests/changed.py` reads. A run of a part of a file (`-k`)
does not replace the record of more tests.
"""

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent.parent / ".cache" / "durations.json"


def read() -> dict[str, float]:
    """Return the seconds of each recorded file; nothing if no run was recorded."""
    return {file: seconds for file, (_, seconds) in _stored().items()}


class Recorder:
    """A pytest plugin of the process that prints the results."""

    def __init__(self) -> None:
        self._tests: dict[str, set[str]] = defaultdict(set)
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add one phase of a test."""
        file = report.nodeid.split("::", 1)[0]
        self._tests[file].add(report.nodeid)
        self._seconds[file] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Merge this run into the record."""
        stored = _stored()
        for file, tests in self._tests.items():
            if len(tests) >= stored.get(file, (0, 0.0))[0]:
                stored[file] = (len(tests), round(self._seconds[file], 2))
        KEPT.parent.mkdir(exist_ok=True)
        partial = KEPT.with_name(f"{KEPT.name}.{os.getpid()}")
        partial.write_text(json.dumps(stored, indent=0, sort_keys=True))
        partial.replace(KEPT)


def _stored() -> dict[str, tuple[int, float]]:
    try:
        return {file: (row[0], row[1]) for file, row in json.loads(KEPT.read_text()).items()}
    except (OSError, ValueError):  # none yet, or a broken one: the record only saves time
        return {}
