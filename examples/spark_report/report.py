"""A Spark job: the revenue of each item from the topic `orders`, as a table and as Parquet.

With STORE, the store directory of a broker, it reads the files in place; otherwise the network.
"""

import os
import sys

import pyspark_rocketmq as rq
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

ENDPOINTS = os.environ.get("COMETMQ_ENDPOINT", "127.0.0.1:8081")
ORDER = "id int, item string, amount int"


def main(target: str) -> None:
    spark = rq.configure(SparkSession.builder.master("local[2]")).getOrCreate()
    rq.register(spark)
    source = spark.read.format("rocketmq").option("subscribe", "orders")
    store = os.environ.get("STORE")
    source = source.option("path", store) if store else source.option("endpoints", ENDPOINTS)
    order = f.from_json(f.col("body").cast("string"), ORDER).alias("order")
    report = (
        source.load()
        .select(order)
        .dropDuplicates(["order"])  # a producer may have sent an order twice
        .groupBy("order.item")
        .agg(f.count("*").alias("orders"), f.sum("order.amount").alias("revenue"))
        .orderBy("item")
    )
    report.write.mode("overwrite").parquet(target)
    spark.read.parquet(target).orderBy("item").show()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
