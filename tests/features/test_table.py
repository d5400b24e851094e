"""Every row of the feature table and every pitfall has a test mark, and no mark is unknown."""

from __future__ import annotations

from cometmq.tests.features.table import (
    GRPC_API,
    PAGE,
    SEMANTICS,
    marks,
    pitfalls_of,
    rows_of,
)

FEATURES = rows_of(SEMANTICS, "## 13. Feature table")
PITFALLS = pitfalls_of(GRPC_API)


def test_every_row_of_the_feature_table_has_a_test() -> None:
    assert len(FEATURES) >= 65
    named = marks()["feature"]
    assert [row for row in FEATURES if row not in named] == []
    assert sorted(set(named) - set(FEATURES), key=str) == [], "named by a test, but not a row"


def test_every_pitfall_has_a_test() -> None:
    assert list(range(1, 62)) == PITFALLS
    named = marks()["pitfall"]
    assert [number for number in PITFALLS if number not in named] == []
    assert sorted(set(named) - set(PITFALLS), key=str) == [], "named by a test, but no pitfall"


def test_the_page_has_every_row_and_every_pitfall_in_order() -> None:
    assert rows_of(PAGE, "## Features") == FEATURES
    assert rows_of(PAGE, "## Pitfalls") == [str(number) for number in PITFALLS]
