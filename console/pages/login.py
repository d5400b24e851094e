"""The login of a console: the page, and the gate that serves no request without a session.

A wrong login has one answer. After `_FAILURES_MAX` of them for one name and address in a minute the
console asks the cluster no more for a minute; brokers count them as well.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...auth.attempts import Attempts
from ...operations.connection import Connection
from ...operations.credentials import Credentials
from ...operations.errors import CliError, ForbiddenError
from ...proto import paths, v1
from ..cluster import CALL_S
from ..inputs import bad
from ..language import Templates, said
from ..security import is_own_page, is_token
from ..sessions import CURRENT, BearerToken, Session, Sessions, owner_of
from ..views import Form, read_form

_COOKIE = "cometmq-session"
#: What an open page asks for by itself.
_BY_PAGES = ("/state", "/live", "/ha/live")
_FAILURES_MAX = 5
_NAME_MAX, _SECRET_MAX, _TOKEN_MAX = 64, 128, 8 << 10
_WRONG = said(
    "The cluster does not accept this login. Check the name and the secret key, or get a new token."
)
_TOO_MANY = said("There were too many wrong logins of this user. Try again in a minute.")


class Gate:
    """Serves requests of sessions, the login, and the files of the console."""

    def __init__(
        self,
        app: ASGIApp,
        connection: Connection,
        templates: Templates,
        steady_ns: Callable[[], int],
    ) -> None:
        """`connection` makes its calls as the user of the session."""
        self._app = app
        self._connection = connection
        self._templates = templates
        self._steady_ns = steady_ns
        self._sessions = Sessions(steady_ns)
        self._attempts = Attempts(_FAILURES_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["path"].startswith("/static/"):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        path, method = scope["path"], scope["method"]
        try:
            if path == "/login":
                to = request.query_params.get("to", "/")
                answer = await self._login(request) if method == "POST" else self._page(to)
            elif (session := await self._session(request, is_used=path not in _BY_PAGES)) is None:
                answer = _to_login(request)
            elif path == "/logout" and method == "POST":
                answer = await self._logout(request, session)
            else:
                CURRENT.set(session)
                await self._app(scope, receive, partial(self._pass_on, request, send))
                return
        except HTTPException as error:
            answer = PlainTextResponse(f"{error.detail}\n", error.status_code)
        await answer(scope, receive, send)

    async def _pass_on(self, request: Request, send: Send, message: Message) -> None:
        """Send a part of an answer; the session of a stream is checked as that of a request."""
        if message.get("more_body"):
            await self._session(request, is_used=False)
        await send(message)

    async def _session(self, request: Request, *, is_used: bool) -> Session | None:
        """Return the session of a request; one whose user is refused ends."""
        cookie = request.cookies.get(_COOKIE, "")
        session = self._sessions.find(cookie, is_used=is_used)
        if session is not None and self._sessions.is_due(session):
            try:
                session.may_watch = await run_in_threadpool(self._may_watch, session)
            except CliError as error:
                if "UNAUTHORIZED" in str(error):
                    self._sessions.close(cookie)
                    return None
                session.may_watch = False  # the cluster does not answer
        return session

    def _page(self, to: str, problem: str = "", status: int = 200, user: str = "") -> Response:
        """Return the page; `to` is the path after a login, `user` the name that was given."""
        text = self._templates.render("login.html", to=to, problem=problem, user=user, base="")
        return HTMLResponse(text, status)

    async def _login(self, request: Request) -> Response:
        form = await read_form(request)
        own = is_token(str(self._templates.globals["token"]), form.text("token"))
        if not own or not is_own_page(request.headers):
            raise HTTPException(
                403, said("The form is from another page, or the console has restarted.")
            )
        again = partial(self._page, form.text("to"), user=form.text("user")[:_NAME_MAX])
        try:
            credentials = _credentials(form)
        except CliError as error:
            return again(str(error), 400)
        source = request.client.host if request.client else ""
        name, now_ns = owner_of(credentials), self._steady_ns()
        if self._attempts.are_spent(source, name, now_ns):
            return again(_TOO_MANY, 429)
        session = Session(credentials, "", now_ns, now_ns, now_ns, may_watch=False)
        self._attempts.failed(source, name, now_ns)  # so logins at the same time count, too
        try:
            await run_in_threadpool(self._check_authentication)
            may_watch = await run_in_threadpool(self._may_watch, session)
        except CliError as error:
            if "UNAUTHORIZED" in str(error):
                return again(_WRONG, 403)
            self._attempts.take_back(source, name)
            return again(str(error), 502)
        self._attempts.take_back(source, name)
        answer = RedirectResponse(own_path(form.text("to")), 303)
        answer.set_cookie(
            _COOKIE,
            self._sessions.open(credentials, may_watch=may_watch),
            httponly=True,
            samesite="strict",
            secure=request.headers.get("x-forwarded-proto") == "https",
        )
        return answer

    async def _logout(self, request: Request, session: Session) -> Response:
        form = await read_form(request)
        if not is_own_page(request.headers) or not is_token(session.token, form.text("token")):
            raise HTTPException(403, "The form is from another page.")
        self._sessions.close(request.cookies.get(_COOKIE, ""))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(_COOKIE, httponly=True, samesite="strict")
        return answer

    def _may_watch(self, session: Session) -> bool:
        """Return whether the user may read the cluster. Raises CliError if it cannot log in."""
        CURRENT.set(session)  # of this thread's copy of the context
        try:
            self._connection.call(
                paths.DESCRIBE_CLUSTER,
                v1.DescribeClusterRequest(),
                v1.DescribeClusterResponse,
                CALL_S,
            )
        except ForbiddenError:
            return False
        return True

    def _check_authentication(self) -> None:
        """Raise CliError if the cluster accepts anyone."""
        stranger = Credentials(f"stranger-{secrets.token_hex(8)}", secrets.token_hex(16))
        try:
            self._may_watch(Session(stranger, "", 0, 0, 0, may_watch=False))
        except CliError as error:
            if "UNAUTHORIZED" in str(error):
                return
            raise
        raise CliError(
            said(
                "This cluster checks no users (authenticationEnabled=false): start the "
                "console without --login."
            )
        )


def _credentials(form: Form) -> Credentials | BearerToken:
    """Return what a login form has. Raises CliError."""
    name, secret, bearer = form.text("user"), form.text("secret"), form.text("bearer")
    if bearer and bearer.isascii() and bearer.isprintable() and len(bearer) <= _TOKEN_MAX:
        return BearerToken(bearer)
    usable = name and secret and (name + secret).isascii() and (name + secret).isprintable()
    if bearer or not usable or len(name) > _NAME_MAX or len(secret) > _SECRET_MAX:
        raise bad("Give the name and the secret key of a user, or a bearer token.")
    return Credentials(name, secret)


def _to_login(request: Request) -> Response:
    """Lead to the login, and back to the page afterwards."""
    if Headers(scope=request.scope).get("hx-request"):
        return Response(status_code=401, headers={"HX-Redirect": "/login"})
    if request.method == "POST":
        return PlainTextResponse("The session has ended. Log in, and send the form again.\n", 401)
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"/login?to={quote(path, safe='')}", 303)


def own_path(path: str) -> str:
    """Return a path of this console; "/" for anything else."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_own else "/"
