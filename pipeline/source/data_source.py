"""Data source of the format `rocketmq`: batch and streaming, source and sink."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader
    from pyspark.sql.types import StructType
except ModuleNotFoundError as error:
    from ..errors import spark_needed

    raise ImportError(spark_needed("The data sources of CometMQ")) from error

from ..errors import OptionError, spark_needed
from ..schema import COLUMNS, ddl, shown

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

    from .options import SourceOptions
    from .reader import LogReader


class RocketMQDataSource(DataSource):
    """`spark.read.format("rocketmq")`, `readStream`, `write`, `writeStream`."""

    @classmethod
    def name(cls) -> str:
        """The format name."""
        return "rocketmq"

    def schema(self) -> str:
        """Return the row schema of the selected columns."""
        options = self._parsed()
        return ddl(options.columns, options.properties)

    def reader(self, schema: StructType) -> LogReader:
        """Called by Spark."""
        from .reader import FilteringLogReader, LogReader

        options = self._narrowed(schema)
        return (FilteringLogReader if options.filter_pushdown else LogReader)(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Called by Spark."""
        from ..spark_api import HAS_LIMITS
        from .stream import LogStreamReader
        from .stream_without_start import StreamReaderWithoutStart

        options = self._narrowed(schema)
        if options.ending is not None:
            raise OptionError(
                "A stream has no end. Use endingOffsets and endingTimestamp with a batch read only."
            )
        return LogStreamReader(options) if HAS_LIMITS else StreamReaderWithoutStart(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Called by Spark."""
        from ..sink import RocketMQWriter

        return RocketMQWriter(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Called by Spark."""
        from ..sink import RocketMQStreamWriter
        from ..spark_api import stream_writer

        return stream_writer(RocketMQStreamWriter(dict(self.options), schema, overwrite), schema)

    def _parsed(self) -> SourceOptions:
        from .options import parse  # imports NumPy and Arrow, so not at import time

        return parse(dict(self.options))

    def _narrowed(self, schema: StructType) -> SourceOptions:
        """Return the options with the columns of Spark's schema."""
        options = self._parsed()
        names = schema.fieldNames()
        unknown = [name for name in names if name not in COLUMNS]
        if unknown:
            raise OptionError(
                f"There is no column {unknown[0]!r}. Columns are: {', '.join(COLUMNS)}."
            )
        form = options.properties
        if "properties" in names:
            kind = schema["properties"].dataType.typeName()
            form = "string" if kind == "string" else "map"
        given = [f"{one.name} {one.dataType.simpleString()}" for one in schema]
        if ", ".join(given) != ddl(names, form):
            raise OptionError(f"The schema must match the source's schema: {ddl(names, form)}.")
        return replace(options, columns=shown(names, form), properties=form)
