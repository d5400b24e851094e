"""Spark: the archive watermark and gate of each broker group, and the archives of the pipeline.

Brokers hold the watermark only; the archives and their last jobs are read from the directories of
`--archive`, which the console must be able to read.
"""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from ...proto import paths, v1
from ..archives import RECORDS_MAX, Archives
from ..cluster import Cluster, problems
from ..language import said
from ..views import Views


class SparkPages:
    """The section of the data pipeline."""

    def __init__(self, cluster: Cluster, views: Views, archives: Archives) -> None:
        self._cluster = cluster
        self._views = views
        self._archives = archives

    def routes(self) -> list[BaseRoute]:
        """Return the routes of this section."""
        return [self._views.show("/spark", self.spark)]

    def spark(self, request: Request) -> Response:
        """Show watermarks and archives."""
        outcomes = self._cluster.each(
            paths.GET_ARCHIVE_WATERMARK,
            v1.GetArchiveWatermarkRequest(),
            v1.GetArchiveWatermarkResponse,
        )
        archives = self._archives.read()
        return self._views.page(
            request,
            "spark.html",
            title=said("Spark"),
            marks=[(one.broker, one.answer) for one in outcomes if one.answer is not None],
            archives=archives,
            records_max=RECORDS_MAX,
            problems=[*problems(outcomes), *(one.problem for one in archives if one.problem)],
        )
