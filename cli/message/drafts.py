"""The messages of `cometmq message send`: repeated, or one for each line of stdin, with places."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import repeat

from ...operations.errors import CliError, Exit
from ...operations.sending import Draft


def drafts_of(draft: Draft, body: str, count: int | None, *, lines: bool) -> Iterable[Draft]:
    """Return the messages. `{{n}}` and `{{time}}` are places with --count and --lines only, and
    not in what comes from stdin. Raises CliError without a body."""
    if lines:
        return (
            replace(_filled(draft, number), body=line.rstrip(b"\r\n"))
            for number, line in enumerate(sys.stdin.buffer, 1)
        )
    if body == "-":
        draft, text = replace(draft, body=sys.stdin.buffer.read()), None
    else:
        draft, text = replace(draft, body=body.encode("utf-8", "surrogateescape")), body
    if not draft.body:
        raise CliError("There is no body: give BODY, or pipe it into the command.", Exit.USAGE)
    return [draft] if count is None else _repeated(draft, text, count)


def _repeated(draft: Draft, text: str | None, count: int) -> Iterator[Draft]:
    for number, each in enumerate(repeat(draft, count), 1):
        filled = _filled(each, number)
        if text is not None:
            filled = replace(filled, body=_fill(text, number).encode("utf-8", "surrogateescape"))
        yield filled


def _filled(draft: Draft, number: int) -> Draft:
    return replace(
        draft,
        keys=tuple(_fill(key, number) for key in draft.keys),
        tag=draft.tag and _fill(draft.tag, number),
        properties={name: _fill(text, number) for name, text in draft.properties.items()},
        group=draft.group and _fill(draft.group, number),
    )


def _fill(text: str, number: int) -> str:
    if "{{" not in text:
        return text
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return text.replace("{{n}}", str(number)).replace("{{time}}", now)
