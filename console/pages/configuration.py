"""Configuration: the settings of the broker that answers, with their values and origins."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from ...proto import paths, v1
from ..cluster import CALL_S, Cluster
from ..language import said
from ..views import Views
from .paging import page_of


class ConfigurationPages:
    """The section of configuration."""

    def __init__(self, cluster: Cluster, views: Views) -> None:
        self._cluster = cluster
        self._views = views

    def routes(self) -> list[BaseRoute]:
        """Return the routes of this section."""
        return [self._views.show("/configuration", self.settings)]

    def settings(self, request: Request) -> Response:
        """List the settings that match `q`; with `changed` only those that are not defaults."""
        query = request.query_params
        answer = self._cluster.connection.call(
            paths.GET_CONFIG, v1.GetConfigRequest(), v1.GetConfigResponse, CALL_S
        )
        changed = bool(query.get("changed"))
        entries = sorted(answer.entries, key=lambda one: one.key.lower())
        shown = [one for one in entries if not changed or one.origin != "default"]
        wanted = query.get("q", "")[:255]
        return self._views.page(
            request,
            "configuration.html",
            title=said("Configuration"),
            page=page_of(shown, wanted, query.get("page", ""), _text),
            wanted=wanted,
            changed=changed,
        )


def _text(entry: v1.ConfigEntry) -> str:
    return f"{entry.key} {entry.value}"
