"""Runs the parts of a job on Spark; `Report` of a job.

A part is a plain value and its function belongs to a module: both are pickled into tasks, whose
machines need this package (`cometmq pipeline pack`). Every part is one task, because splits are
large; Spark repeats a failed part.
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
    """Result of a job. `problems`: sentences about everything that is wrong."""

    job: str
    summary: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        return {
            "job": self.job,
            **self.summary,
            "rows": self.rows,
            "problems": self.problems,
        }


def run_parts(
    spark: SparkSession | None, parts: Sequence[W], function: Callable[[W], R], what: str
) -> list[R]:
    """Call `function` with every part, each in a task. Return the results in order.

    Without a session the parts run in this process, one after the other.
    """
    if not parts:
        return []
    if spark is None:
        return [function(part) for part in parts]
    context = spark.sparkContext
    context.setJobDescription(f"cometmq: {what}")
    found: list[R] = context.parallelize(parts, len(parts)).map(function).collect()
    return found
