"""The data pipeline: PySpark reads the commit log where it lies, the topics over the wire, and keeps history.

`decode` and `splits` know no Spark; sources, sinks and jobs stand on them. Users import `pyspark_rocketmq`
(the name by which Spark finds a Python data source). Format and measurements: pipeline note (spark.md).
"""
