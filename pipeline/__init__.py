"""Data pipeline: PySpark sources, sinks and jobs over commit logs, topics and archives.

`decode` and `splits` do not use Spark; sources, sinks and jobs are built on them. Users import
`pyspark_rocketmq`, the name by which Spark finds a Python data source (docs/pipeline.md).
"""
