"""Pages as answers: templates with escaped values, forms with the token, errors as pages.

`Views` is what the pages of each subject share. A handler is a plain function in a thread; a
change (`act`) gets its form only after the checks of `security.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import StrictUndefined
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from .. import __version__
from ..operations import words
from ..operations.errors import CliError, Exit
from .language import COOKIE, LANGUAGES, Templates, counted, said
from .security import (
    FILE_FORM_FIELD_BYTES_MAX,
    FILE_FORM_FIELDS_MAX,
    FORM_BYTES_MAX,
    FORM_FIELDS_MAX,
    TOKEN_FIELD,
    UNREAD_BYTES_MAX,
    is_own_page,
    is_token,
)
from .sessions import CURRENT

#: The navigation: path and title of each section.
SECTIONS = (
    ("/", said("Overview")),
    ("/topics", said("Topics")),
    ("/groups", said("Groups")),
    ("/messages", said("Messages")),
    ("/dead-letters", said("Dead letters")),
    ("/timers", said("Timers")),
    ("/ha", said("High availability")),
    ("/store", said("Store")),
    ("/spark", said("Spark")),
    ("/clients", said("Clients")),
    ("/users", said("Users")),
    ("/configuration", said("Configuration")),
)
# Pages outside the path of their section.
_SECTION_OF = {"message": "/messages", "client": "/clients", "audit": "/users"}
_STATUS = {Exit.NOT_FOUND: 404, Exit.USAGE: 400}
_SLICE_BYTES = 16 << 10
#: Forms with a file that are parsed and handled at a time: each is in memory more than once.
_FILES_AT_ONCE = 2
_TITLES = {
    400: said("Not a valid request"),
    403: said("Not allowed"),
    404: said("Not found"),
    413: said("Too large"),
    500: said("The console failed"),
}


class Form(dict[str, str]):
    """The fields of a form; of a field that occurs several times, the last."""

    def __init__(
        self, pairs: list[tuple[str, str]], files: Mapping[str, UploadFile] | None = None
    ) -> None:
        super().__init__(pairs)
        self._pairs = pairs
        self.files = files or {}

    def all(self, name: str) -> list[str]:
        """Return every value of a field, in order."""
        return [value for key, value in self._pairs if key == name]

    def text(self, name: str) -> str:
        """Return a value without spaces around it; "" if it is absent."""
        return self.get(name, "").strip()


Page = Callable[[Request], Response]
Act = Callable[[Request, Form], Response]


@dataclass(frozen=True, slots=True)
class Plan:
    """What a change would do, for the page that asks for confirmation."""

    title: str
    #: What happens, as sentences.
    sentences: list[str]
    #: Where the confirmed form is sent, its fields, and its button.
    action: str
    button: str
    back: str
    fields: Mapping[str, str] = field(default_factory=dict)
    #: Rows of what changes; the keys of the first are the columns.
    rows: list[dict[str, object]] = field(default_factory=list)
    #: The user must type this text, if it is not empty.
    typed: str = ""
    #: Why it cannot be carried out; empty: it can.
    refusal: str = ""
    is_dangerous: bool = True


def templates(
    token: str, *, allow_changes: bool, trace_url: str = "", has_archives: bool = True
) -> Templates:
    """Return the templates, which all clusters of a console share.

    `token` is a secret of this process, which every form carries; `trace_url` has the place
    `{trace_id}`. Without archives the navigation lacks their section.
    """
    # Message bodies and names come from clients: every value is escaped.
    found = Templates(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "number": words.number,
        "short": words.short,
        "size": words.size,
        "moment": moment,
        "clock_time": _clock_time,
        "span": words.span,
        "q": quoted,
    }
    found.globals |= {
        "sections": [one for one in SECTIONS if has_archives or one[0] != "/spark"],
        "languages": LANGUAGES,
        "language_cookie": COOKIE,
        "version": __version__,
        "trace_url": trace_url,
        "allow_changes": allow_changes,
        "counted": counted,
        "said": said,
        "link": link,
        "token_field": TOKEN_FIELD,
        "token": token,
    }
    return found


def moment(ms: int) -> str:
    """Return a time in UTC, which the script of a page shows in the zone of the browser."""
    text = words.moment(ms)
    return Markup(f'<time data-ms="{ms}">{text}</time>') if ms > 0 else text


def _clock_time(ms: int) -> str:
    """Return a time of the day in UTC, which the script shows in the zone of the browser."""
    return Markup(f'<time data-ms="{ms}" data-clock>{words.clock_time(ms)}</time>')


def time_in_zone(ms: int) -> str:
    """Return a time with its zone, for a sentence."""
    return Markup("{} <span data-zone>(UTC)</span>").format(moment(ms))


class Views:
    """Renders the pages of one cluster and checks forms."""

    def __init__(
        self,
        templates: Templates,
        *,
        endpoint: str,
        base: str = "",
        context: str = "",
        contexts: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`base` is the path of this cluster's pages, in front of every link; `contexts` has the
        name and the path of each cluster of a console with several, `context` the name of this
        one."""
        self._templates = templates
        self.allow_changes = bool(templates.globals["allow_changes"])
        self._token = str(templates.globals["token"])
        self._base = base
        self._own = {
            "endpoint": endpoint,
            "base": base,
            "context": context,
            "contexts": contexts,
        }

    def part(self, template: str, **values: Any) -> str:
        """Render a template to text."""
        session = CURRENT.get()
        login = {
            "token": session.token if session else self._token,
            "user": session.credentials.access_key if session else "",
        }
        return self._templates.render(template, self._own, **{**login, **values})

    def page(
        self, request: Request, template: str, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Render a page; `section` marks its entry in the navigation."""
        path = request.scope["path"].removeprefix(self._base)
        first = path.split("/")[1]
        text = self.part(
            template,
            section=_SECTION_OF.get(first, f"/{first}"),
            request_path=quote(path),
            **values,
        )
        return HTMLResponse(text, status)

    def plan(self, request: Request, plan: Plan) -> Response:
        """Show what a change would do, with the form that carries it out."""
        return self.page(request, "plan.html", title=plan.title, plan=plan)

    def error(self, request: Request, error: Exception) -> Response:
        """Render a failure: a refused call, or an unknown page."""
        if isinstance(error, HTTPException):
            status, sentence = error.status_code, str(error.detail)
        else:
            assert isinstance(error, CliError)
            status, sentence = _STATUS.get(error.code, 502), str(error)
        title = _TITLES.get(status, said("The cluster did not answer as expected"))
        return self.page(
            request,
            "error.html",
            status=status,
            title=title,
            sentence=sentence,
            is_form=request.method == "POST",
        )

    def show(self, path: str, handler: Page) -> Route:
        """Return the route of a page that reads."""
        return Route(path, handler, methods=["GET"])

    def act(self, path: str, handler: Act, *, is_own: bool = False, too_large: str = "") -> Route:
        """Return the route of a change: refused if the console is read-only or the form foreign.

        `is_own`: it changes only what this browser shows, so a read-only console has it too.
        `too_large`: the form has a file, and this is the sentence about one that is too large.
        """
        turns = asyncio.Semaphore(_FILES_AT_ONCE)

        async def endpoint(request: Request) -> Response:
            if not (self.allow_changes or is_own):
                text = said(
                    "This console is read-only. To allow changes, start it with --allow-changes."
                )
                raise HTTPException(403, text)
            if not too_large:
                return await change(request, await read_form(request))
            data = await _body(request, FORM_BYTES_MAX, too_large)
            async with turns:
                return await change(request, await parse_file_form(request.headers, data))

        async def change(request: Request, form: Form) -> Response:
            session = CURRENT.get()
            token = session.token if session else self._token
            if not is_own_page(request.headers) or not is_token(token, form.text("token")):
                text = said(
                    "The form is from another page, or the console has restarted. Reload it."
                )
                raise HTTPException(403, text)
            found = await run_in_threadpool(handler, request, form)
            if place := found.headers.get("location"):
                found.headers["location"] = self._base + place
            return found

        return Route(path, endpoint, methods=["POST"])


async def read_form(request: Request) -> Form:
    """Read a form of bounded size. Raises HTTPException."""
    data = await _body(
        request, FORM_BYTES_MAX, said("A form has at most {} bytes.", FORM_BYTES_MAX)
    )
    try:
        pairs = parse_qsl(
            data.decode(), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX, errors="strict"
        )
    except ValueError:
        raise HTTPException(400, said("The form is malformed.")) from None
    return Form(pairs)


async def parse_file_form(headers: Headers, data: bytearray) -> Form:
    """Parse a form with a file, and empty `data`. Raises HTTPException."""
    malformed = HTTPException(400, said("The form is malformed."))
    if not headers.get("content-type", "").startswith("multipart/form-data;"):
        raise malformed
    parser = _FileFormParser(
        headers,
        _slices(data),
        max_files=1,
        max_fields=FILE_FORM_FIELDS_MAX,
        max_part_size=FILE_FORM_FIELD_BYTES_MAX,
    )
    try:
        found = (await parser.parse()).multi_items()
    except MultiPartException:
        raise malformed from None
    if not parser.is_whole:
        raise malformed
    return Form(
        [(name, value) for name, value in found if isinstance(value, str)],
        {name: value for name, value in found if isinstance(value, UploadFile)},
    )


class _FileFormParser(MultiPartParser):
    """Starlette's parser, which accepts a form without an end; it tells whether there was one."""

    is_whole = False

    def on_end(self) -> None:
        self.is_whole = True


async def _slices(data: bytearray) -> AsyncGenerator[bytes, None]:
    """Yield and remove a form in parts; other requests go on between them.

    The parser steps through lines that are like a boundary: 0.3 s for 1 MiB of them.
    """
    while data:
        part = bytes(data[:_SLICE_BYTES])
        del data[:_SLICE_BYTES]
        yield part
        await asyncio.sleep(0)


async def _body(request: Request, bytes_max: int, too_large: str) -> bytearray:
    """Read the body of a request. Raises HTTPException."""
    data, size = bytearray(), 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            # Browsers show no answer to a form that they cannot send to its end.
            if size > UNREAD_BYTES_MAX:
                break
            if size <= bytes_max:
                data += chunk
    except ClientDisconnect:
        raise HTTPException(400, said("The form is incomplete.")) from None
    if size > bytes_max:
        raise HTTPException(413, too_large)
    return data


def link(path: str, /, **query: object) -> str:
    """Return a URL with those parameters that are not empty."""
    pairs = {name: str(value) for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(pairs)}" if pairs else path


def quoted(name: str) -> str:
    """Return a name as one part of a path."""
    return quote(name, safe="")


def moved(path: str, /, **query: object) -> Response:
    """Answer a change: the browser loads a page, and a reload does not repeat the change."""
    return RedirectResponse(link(path, **query), 303)
