"""Entry point of the sink `rocketmq-archive`; see `cometmq.pipeline.archive.sink`.

Spark loads one `DefaultSource` per `pyspark_*` module, so every format has its own module.
"""

from importlib import import_module

DefaultSource = import_module("cometmq.pipeline.archive.sink").ArchiveDataSource
