"""Entry point of the data source `rocketmq`: Spark loads `DefaultSource` of `pyspark_*` packages.

    spark = pyspark_rocketmq.configure(SparkSession.builder).getOrCreate()
    spark.read.format("rocketmq").option("path", "/data/store").load()

Spark searches installed packages and PYTHONPATH, not `--py-files`: there, and for the sink
`rocketmq-archive`, call `register(spark)`. This module imports little, because Spark imports every
such package whenever it looks up a source.
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
    """Register the formats `rocketmq` and `rocketmq-archive` in a session."""
    from cometmq.pipeline.archive.sink import ArchiveDataSource

    spark.dataSource.register(DefaultSource)
    spark.dataSource.register(ArchiveDataSource)


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Apply the settings that the sources need, and find a Java.

    Tasks run this Python unless PYSPARK_PYTHON names another one. Raises NoJavaError.
    """
    from cometmq.pipeline.jvm import use_java

    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        # Workers of a busy machine need longer than Spark's 15 s to connect back.
        "spark.python.authenticate.socketTimeout": "120s",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder
