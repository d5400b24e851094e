"""`scripts/test --changed` chooses tests by what they import, the nearest first."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from cometmq.tests import changed, durations

ROOT = Path(changed.ROOT)


@cache
def chosen(file: str) -> list[str]:
    """Return what a change of one file affects."""
    return changed.affected([file], SOURCES)


SOURCES = tuple(
    str(path.relative_to(ROOT))
    for folder in ("broker", "client", "store", "proto", "tests/broker", "tests/console")
    for path in (ROOT / folder).rglob("*.py")
)


def test_the_tests_that_import_the_changed_module_come_first() -> None:
    found = chosen("broker/pop/attempts.py")
    assert found[0] == "tests/broker/pop/test_pop_attempts.py"
    assert "tests/broker/journal/test_pop_restart.py" in found  # through the composition root


def test_a_changed_test_file_is_chosen() -> None:
    assert chosen("tests/broker/pop/test_pop.py")[0] == "tests/broker/pop/test_pop.py"


def test_a_change_of_the_harness_of_processes_is_not_a_change_of_what_it_starts() -> None:
    facts = {
        "broker/a.py": changed.Facts([], [], []),
        "tests/harness/up.py": changed.Facts([(0, "cometmq.broker", ["a"])], [], []),
        "tests/cli/test_processes.py": changed.Facts(
            [(0, "cometmq.tests.harness", ["up"])], [], []
        ),
    }
    graph = changed.Graph(facts)
    assert "tests/cli/test_processes.py" not in graph.distances(["broker/a.py"])
    assert "tests/cli/test_processes.py" in graph.distances(["tests/harness/up.py"])


def test_lazy_imports_count() -> None:
    facts = {
        "cli/topic.py": changed.Facts([], [], []),
        "cli/main.py": changed.Facts([], [], ["topic"]),
        "client/producer.py": changed.Facts([], [], []),
        "client/__init__.py": changed.Facts([], [(1, "producer", ["Producer"])], []),
        "tests/cli/test_topic.py": changed.Facts([(0, "cometmq.cli.main", ["main"])], [], []),
        "tests/client/test_a.py": changed.Facts([(0, "cometmq.client", ["Producer"])], [], []),
    }
    graph = changed.Graph(facts)
    assert graph.distances(["cli/topic.py"])["tests/cli/test_topic.py"] == 2
    assert graph.distances(["client/producer.py"])["tests/client/test_a.py"] == 1


def test_a_template_affects_the_tests_of_its_pages() -> None:
    assert "tests/console/test_pages.py" in chosen("console/templates/base.html")


def test_what_does_not_fit_into_the_time_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durations, "read", lambda: {"a": 50.0, "b": 20.0, "c": 5.0})
    assert changed.within(60.0, ["a", "b", "c"]) == (["a", "c"], ["b"])


def test_the_smoke_tests_exist() -> None:
    for name in (*changed.ALWAYS, *changed.SMOKE):
        assert (ROOT / name).is_file(), name
