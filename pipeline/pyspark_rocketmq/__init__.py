"""The name by which Spark finds CometMQ's data source: any `pyspark_*` package with a `DefaultSource`.

    spark = pyspark_rocketmq.configure(SparkSession.builder).getOrCreate()
    spark.read.format("rocketmq").option("path", "/data/store").load()

Spark looks for it in installed packages and on PYTHONPATH, not in `--py-files`: there, and for the sink
`rocketmq-archive`, call `register(spark)`. Nothing heavy is imported here, because Spark imports every
such package whenever it looks for any source. (pipeline note, sections 1 and 7)
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from cometmq.pipeline.source.data_source import RocketMQDataSource as DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DefaultSource", "configure", "register"]


def register(spark: SparkSession) -> None:
    """Make the formats `rocketmq` and `rocketmq-archive` known to a session."""
    from cometmq.pipeline.archive.sink import ArchiveDataSource

    spark.dataSource.register(DefaultSource)
    spark.dataSource.register(ArchiveDataSource)


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """The settings that the sources want; finds a Java, and has tasks run this Python unless
    PYSPARK_PYTHON names another. Raises NoJavaError."""
    from cometmq.pipeline.jvm import use_java

    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        # Workers of a machine that is busy need longer than Spark's 15 s to connect back.
        "spark.python.authenticate.socketTimeout": "120s",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder
