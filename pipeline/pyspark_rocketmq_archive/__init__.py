"""The name by which Spark finds the sink `rocketmq-archive`; see `cometmq.pipeline.archive.sink`.

Spark looks into every module called `pyspark_*` for one `DefaultSource`: two formats are two modules.
"""

from importlib import import_module

DefaultSource = import_module("cometmq.pipeline.archive.sink").ArchiveDataSource
