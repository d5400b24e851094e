"""Language of the pages: texts of templates and sentences of the code, from a gettext catalogue.

The sources are in English. A template marks a text as `[[text]]`; a translation takes its place
when the template is compiled, so that a page costs the same in every language. The expressions of a
text are those of its translation. Code marks a sentence with `said`, which is English wherever
it is used as a text; a page in another language shows its translation.

`scripts/gen_messages` keeps the catalogue, `locale/zh.po`, and compiles it.
"""

import gettext
import re
from collections.abc import Callable
from contextvars import ContextVar
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape
from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from ..operations import words

#: The languages and their own names; the first one needs no catalogue.
LANGUAGES = {"en": "English", "zh": "中文"}
#: The cookie of a browser in which a person has chosen; console.js sets it.
COOKIE = "cometmq-console-language"
#: That of the request which is answered.
LANGUAGE: ContextVar[str] = ContextVar("language", default="en")
MARKED = re.compile(r"\[\[(.+?)\]\]")
_TAGS_MAX = 10
Gettext = Callable[[str], str]


class Said(str):
    """A sentence in English, with what it takes to say it in another language."""

    __slots__ = ("_english", "_given", "_key", "_text")
    _english: Markup
    _text: str
    _given: tuple[object, ...]
    _key: str

    def __new__(cls, text: str, given: tuple[object, ...] = (), key: str = "") -> "Said":
        """`key`: the message of the catalogue, if it is not the text."""
        found = super().__new__(cls, text.format(*given) if given else text)
        found._text, found._given, found._key = text, given, key or text
        return found

    def __str__(self) -> "Said":
        return self

    def __html__(self) -> Markup:
        if not hasattr(self, "_english"):  # names of sections and columns are shown often
            self._english = self.html()
        return self._english

    def html(self, translate: Gettext | None = None) -> Markup:
        """Return the sentence with its values escaped, in the language of `translate`."""
        text = escape(translate(self._key) if translate else self._text)
        if not self._given:
            return text
        values = [
            one.html(translate) if isinstance(one, Said) else escape(one) for one in self._given
        ]
        return Markup(str(text).format(*values))  # Markup.format takes three times as long


def said(text: str, /, *given: object) -> str:
    """Mark a sentence for translation; `given` are the values of its `{}`."""
    return Said(text, given)


def counted(value: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun; the catalogue has one text for all numbers."""
    text = "{} " + (noun if value == 1 else plural or f"{noun}s")
    return Said(text, (words.number(value),), f"{{}} {noun}")


def catalogue(language: str) -> gettext.NullTranslations:
    """Return the translations of a language."""
    if language == next(iter(LANGUAGES)):
        return gettext.NullTranslations()
    with files(__package__).joinpath("locale", f"{language}.mo").open("rb") as file:
        return gettext.GNUTranslations(file)


def chosen(headers: Headers) -> str:
    """Return the language of a request: that of the cookie, or the first that its browser names."""
    wanted = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
    tags = headers.get("accept-language", "").split(",")[:_TAGS_MAX]
    # Browsers send them in order; the weights say the same.
    names = [wanted, *(re.split("[-;]", tag.strip().lower())[0] for tag in tags)]
    return next((name for name in names if name in LANGUAGES), next(iter(LANGUAGES)))


class _Loader(PackageLoader):
    """The templates with their texts in a language."""

    def __init__(self, translate: Gettext) -> None:
        super().__init__(__package__, "templates")
        self._translate = translate

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Any]:
        source, name, is_current = super().get_source(environment, template)
        return MARKED.sub(lambda found: self._translate(found[1]), source), name, is_current


class Templates:
    """The templates in every language; a render takes that of the request."""

    def __init__(self, **options: Any) -> None:
        """`options` are those of Jinja's environment."""
        self.filters: dict[str, Any] = {}
        self.globals: dict[str, Any] = {}
        self._options = options
        self._made: dict[str, Environment] = {}

    def render(self, template: str, *values: Any, **more: Any) -> str:
        """Render a template."""
        return self.environment(LANGUAGE.get()).get_template(template).render(*values, **more)

    def environment(self, language: str) -> Environment:
        """Return the templates in a language."""
        if language not in self._made:
            self._made[language] = self._make(language)
        return self._made[language]

    def _make(self, language: str) -> Environment:
        translate = catalogue(language).gettext
        found = Environment(loader=_Loader(translate), **self._options)
        if language != next(iter(LANGUAGES)):
            found.finalize = lambda value: (
                value.html(translate) if isinstance(value, Said) else value
            )
        found.filters |= self.filters
        found.globals |= {**self.globals, "language": language}
        return found
