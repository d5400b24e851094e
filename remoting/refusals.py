"""Request codes that are refused with a reason in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from .codes import Reply
from .command import Command, reply

if TYPE_CHECKING:
    from .connection import Connection, Handler


def refusing(reasons: Mapping[str, Iterable[int]]) -> dict[int, Handler]:
    """Return handlers that answer REQUEST_CODE_NOT_SUPPORTED; `reasons` has the codes of each."""
    return {code: partial(_refuse, reason) for reason, codes in reasons.items() for code in codes}


def _refuse(reason: str, command: Command, _: Connection) -> Command:
    remark = f" request type {command.code} not supported: {reason}"
    return reply(Reply.REQUEST_CODE_NOT_SUPPORTED, remark)
