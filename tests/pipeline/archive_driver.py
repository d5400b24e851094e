"""Driver of a streaming archive query, for tests that kill it.

    python -m cometmq.tests.pipeline.archive_driver STORE ARCHIVE CHECKPOINT MESSAGES_A_BATCH
    PARTITIONS

Prints `ready` when the query has started and `done` when it has archived the store.
"""

import sys

from pyspark.sql import SparkSession

from cometmq.pipeline.archive.sink import ArchiveDataSource
from cometmq.pipeline.source.data_source import RocketMQDataSource


def main(store: str, out: str, checkpoint: str, messages: str, partitions: str) -> None:
    builder = SparkSession.builder.master("local[2,4]").appName("archive driver")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(RocketMQDataSource)
    spark.dataSource.register(ArchiveDataSource)
    stream = (
        spark.readStream.format("rocketmq")
        .option("path", store)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", messages)
        .option("minPartitions", partitions)
        .load()
    )
    query = (
        stream.writeStream.format("rocketmq-archive")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    print("ready", flush=True)
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
