"""Rules for requests: which hosts, origins and sizes are accepted; headers of every answer.

* The Host header must name this console, so that a foreign name that resolves to 127.0.0.1 cannot
  read it (DNS rebinding).
* A change must come from a page of this console: it carries the token of the process, and neither
  `Origin` nor `Sec-Fetch-Site` may contradict. This holds for uploads too.
* The content security policy allows scripts and styles from files of the console only.
"""

import hmac
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .language import LANGUAGE, chosen

#: Names by which a browser on this machine reaches the console.
LOCAL_NAMES = frozenset(("127.0.0.1", "localhost", "::1"))
#: Name of the form field with the token.
TOKEN_FIELD = "token"
#: Bytes of a form: a test message that a person types and its properties, or a small file.
FORM_BYTES_MAX = 1 << 20
FORM_FIELDS_MAX = 200
#: Fields of a form with a file, and bytes of each: a token, and the place of a message.
FILE_FORM_FIELDS_MAX, FILE_FORM_FIELD_BYTES_MAX = 15, 4 << 10
#: Bytes of a form that is too large which are read before the refusal.
UNREAD_BYTES_MAX = 32 << 20

_METHODS = ("GET", "HEAD", "POST")
#: Headers of every answer.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Not "no-referrer": with it, browsers send `Origin: null` with the console's own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


def host_name(header: str) -> str:
    """Return the name of a Host header without its port, in lower case; "" for a malformed one."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _place(origin: str) -> str:
    """Return host and port of an Origin header, in lower case; "" for a malformed one."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def is_own_page(headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from a page of the same origin, as far as it tells."""
    site = headers.get("sec-fetch-site")
    if site not in (None, "same-origin"):
        return False
    origin = headers.get("origin")
    return origin is None or _place(origin) == headers.get("host", "").lower()


def is_token(expected: str, given: str) -> bool:
    """Compare tokens in constant time."""
    return hmac.compare_digest(expected.encode(), given.encode("utf-8", "replace"))


class Guard:
    """Refuses foreign hosts and unknown methods, and adds the headers to every answer."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        """`names` are the hosts by which the console is reached, besides those of loopback."""
        self._app = app
        self._names = LOCAL_NAMES | {name.lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        LANGUAGE.set(chosen(Headers(scope=scope)))

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await (self._refusal(scope) or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if host_name(headers.get("host", "")) not in self._names:
            text = "This host name is not one of the console. Add it with --allow-host.\n"
            return PlainTextResponse(text, 421)
        if scope["method"] not in _METHODS:
            return PlainTextResponse("Method not allowed.\n", 405, {"Allow": ", ".join(_METHODS)})
        return None
