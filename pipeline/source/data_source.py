"""Data source of the format `rocketmq`: batch and streaming, source and sink."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ..errors import OptionError
from ..schema import COLUMNS, ddl, shown

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

    from .options import SourceOptions
    from .reader import LogReader
    from .stream import LogStreamReader


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

    def streamReader(self, schema: StructType) -> LogStreamReader:
        """Called by Spark."""
        from .stream import LogStreamReader

        options = self._narrowed(schema)
        if options.ending is not None:
            raise OptionError(
                "A stream has no end. Use endingOffsets and endingTimestamp with a batch read only."
            )
        return LogStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Called by Spark."""
        from ..sink import RocketMQWriter

        return RocketMQWriter(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Called by Spark."""
        from ..sink import RocketMQStreamWriter

        return RocketMQStreamWriter(dict(self.options), schema, overwrite)

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
