"""How a job runs its parts on Spark, and what it says at the end.

A part is a plain value, what is done with it a function of a module: both are pickled to where the task
runs, which needs this package there (`cometmq pipeline pack`). One task a part: the splits of a log are
large, and Spark repeats a part that failed where it may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

W = TypeVar("W")
R = TypeVar("R")


@dataclass(slots=True)
class Report:
    """What a job did. `problems` not empty: something is wrong, in sentences."""

    job: str
    summary: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "job": self.job,
            **self.summary,
            "rows": self.rows,
            "problems": self.problems,
        }


def run_parts(
    spark: SparkSession | None, parts: Sequence[W], function: Callable[[W], R], what: str
) -> list[R]:
    """Do `function` with every part, in tasks of their own; results in the order of the parts.

    Without a session it is done here, one after the other: for tests and for small stores.
    """
    if not parts:
        return []
    if spark is None:
        return [function(part) for part in parts]
    context = spark.sparkContext
    context.setJobDescription(f"cometmq: {what}")
    found: list[R] = context.parallelize(parts, len(parts)).map(function).collect()
    return found
