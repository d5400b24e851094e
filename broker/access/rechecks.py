"""Rechecks: what is open ends when its user has lost the right, within a second of the change.

Waiting polls are answered without messages, all of them: their clients poll again, and the new poll
is checked. Telemetry streams are checked one by one. Only a change of users or policies costs more
than a comparison. The end of a token ends no polls: with many clients one ends every second, and a
poll lasts for seconds only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

_LOOK_S = 0.5
#: Streams checked in one turn of the loop: a few milliseconds.
_STREAMS_A_TURN = 1_000


class Rechecks:
    """Looks for changes from `start` on."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        version: Callable[[], object],
        lapses: Callable[[], object],
        end_polls: Callable[[], None],
        streams: Callable[[], Iterator[None]],
    ) -> None:
        """`version` changes with users, policies, revoked certificates and the keys of tokens,
        `lapses` when a token has ended; `streams` checks one stream at each step."""
        self._loop = loop
        self._version = version
        self._end_polls = end_polls
        self._streams = streams
        self._lapses = lapses
        self._seen = version(), lapses()
        self._checking: Iterator[None] | None = None
        self._timer: asyncio.Handle | None = None

    def start(self) -> None:
        """Look now, and every half a second."""
        self._timer = self._loop.call_later(_LOOK_S, self.start)
        seen = self._version(), self._lapses()
        if seen != self._seen:
            if seen[0] != self._seen[0]:
                self._end_polls()
            self._seen = seen
            begun, self._checking = self._checking, self._streams()
            if begun is None:
                self._check()

    def close(self) -> None:
        """Stop."""
        self._checking = None
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        checking = self._checking
        for _ in range(_STREAMS_A_TURN):
            if checking is None or next(checking, self) is self:
                self._checking = None
                return
        self._loop.call_soon(self._check)
