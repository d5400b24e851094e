"""Fixtures of the pipeline tests: one small Spark session per process, golden stores."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.tests.conftest import SPARK_FILES
from cometmq.tests.formats import cases


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Raise the timeout: a JVM starts in ten seconds, or in minutes on a busy machine."""
    grouped = {Path(file).name for file in SPARK_FILES}
    for item in items:
        if "spark" not in getattr(item, "fixturenames", ()):
            continue
        if item.path.name not in grouped:
            raise pytest.UsageError(f"{item.path.name} uses Spark: add it to SPARK_FILES")
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real session: two threads, a small heap, no user interface."""
    pyspark_sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
    from cometmq.pipeline.jvm import NoJavaError
    from cometmq.pipeline.pyspark_rocketmq import configure, register

    folder = tmp_path_factory.mktemp("spark")
    builder = pyspark_sql.SparkSession.builder.master("local[2]").appName("cometmq-tests")
    try:
        builder = configure(builder)
    except NoJavaError as error:
        pytest.skip(str(error))
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "768m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "ERROR",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = builder.getOrCreate()
        register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directory of a golden case, unpacked once and read-only."""
    folder = tmp_path_factory.mktemp("golden")
    known: dict[str, Path] = {}

    def unpacked(case: str) -> Path:
        if case not in known:
            known[case] = cases.unpack(case, folder)
        return known[case]

    return unpacked
