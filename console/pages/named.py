"""What the pages of topics and of consumer groups share: lists by name, creation, deletion."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from ...operations.broker_groups import Outcome, answers
from ..cluster import Cluster, check, problems
from ..inputs import bad
from ..language import said
from ..views import Form, Plan, Views, moved, quoted
from .paging import page_of, sorted_by

R = TypeVar("R")


class Named(Protocol):
    """A row of a list."""

    @property
    def name(self) -> str:
        """What the row is about."""


N = TypeVar("N", bound=Named)
_SEARCH_MAX = 255


@dataclass(frozen=True, slots=True)
class Section(Generic[R]):
    """The pages of one kind of object: its name in texts, its path, and its call of deletion.

    `deletion` makes the request from the name, and the answer class parses its plan.
    """

    what: str
    path: str
    delete_path: str
    deletion: Callable[..., Any]
    plan: type[R]
    notices: dict[str, str]

    def url(self, name: str) -> str:
        """Return the path of the page of an object."""
        return f"{self.path}/{quoted(name)}"

    def notice(self, request: Request) -> str:
        """Return the notice of a change that has led to this page."""
        return self.notices.get(request.query_params.get("done", ""), "")

    def created(self, name: str, outcomes: Sequence[Outcome[Any]]) -> Response:
        """Lead to an object that was to be created. Raises CliError if a broker group failed."""
        check(outcomes)
        is_new = any(answer.created or answer.altered for _, answer in answers(outcomes))
        return moved(self.url(name), done="created" if is_new else "unchanged")

    def deletions(self, cluster: Cluster, name: str) -> list[Outcome[R]]:
        """Return what the deletion of an object would remove."""
        return cluster.each(self.delete_path, self.deletion(name=name, dry_run=True), self.plan)

    def show_deletion(
        self,
        request: Request,
        views: Views,
        cluster: Cluster,
        sentences: Callable[[Sequence[R]], list[str]],
    ) -> Response:
        """Show what a deletion removes; `sentences` describes the plans of the broker groups."""
        name = request.path_params["name"]
        looked = self.deletions(cluster, name)
        losses = sentences([answer for _, answer in answers(looked)])
        url = self.url(name)
        plan = Plan(
            said("Delete {} {}", self.what, name),
            losses + problems(looked),
            f"{url}/delete",
            said("Delete the {}", self.what),
            url,
            typed=name,
        )
        return views.plan(request, plan)

    def delete(self, request: Request, form: Form, cluster: Cluster) -> Response:
        """Delete an object; its name must have been typed. Raises CliError."""
        name = request.path_params["name"]
        if form.text("typed") != name:
            raise bad("The typed name is not that of the {}.", self.what)
        wanted = self.deletion(name=name, accept_loss=True)
        looked = self.deletions(cluster, name)
        check(cluster.groups().carry_out(self.delete_path, wanted, self.plan, looked))
        return moved(self.path, done="deleted")


def searched(
    request: Request,
    rows: Iterable[N],
    columns: Mapping[str, Callable[[N], Any]],
    text: Callable[[N], str] = lambda row: row.name,
) -> dict[str, Any]:
    """Return what the template of a list shows: the page that a URL asks for, and its parameters.

    `columns` are those that can be sorted, with the key of a row; a search looks at its `text`.
    """
    query = request.query_params
    wanted, sort = query.get("q", "")[:_SEARCH_MAX], query.get("sort", "")
    sort = sort if sort.removeprefix("-") in columns else next(iter(columns))
    page = page_of(sorted_by(rows, columns, sort), wanted, query.get("page", ""), text)
    system = "1" if query.get("system") else ""
    return {"page": page, "query": {"q": wanted, "sort": sort, "system": system}, "wanted": wanted}
