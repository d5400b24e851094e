"""What push consumers were given last, by attempt: an answer that never arrived can be asked for again.

A client takes a new attempt id when messages came, and keeps it when its call failed (gRPC API, section
7.4). An attempt that asks again has therefore lost its answer: somewhere between here and there a process
died that had taken it. Nobody would acknowledge those messages, and while the client lives they would be
renewed for hours. FIFO groups have their own memory of attempts, in the lock. Pure, in memory, bounded:
what is forgotten comes back at the end of its renewals.
"""

from __future__ import annotations

from collections import OrderedDict

from .delivery import Key

OF_CLIENT_MAX = 8
"""Answers remembered for one client: it has a few calls under way, one for each broker and topic."""
CLIENTS_MAX = 4_096
"""With eight answers of 32 messages each, about 160 MB at the very worst."""

Given = dict[Key, list[tuple[int, int]]]
"""By queue: offsets and pop times."""


class Attempts:
    """The last answers of each client; the client heard of longest ago is forgotten first."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, OrderedDict[str, Given]] = OrderedDict()

    def give(self, client_id: str, attempt_id: str, given: Given) -> None:
        """An attempt was answered with messages."""
        answers = self._clients.get(client_id)
        if answers is None:
            answers = self._clients[client_id] = OrderedDict()
            if len(self._clients) > CLIENTS_MAX:
                self._clients.popitem(last=False)
        else:
            self._clients.move_to_end(client_id)
        answers[attempt_id] = given
        if len(answers) > OF_CLIENT_MAX:
            answers.popitem(last=False)

    def ask(self, client_id: str, attempt_id: str) -> Given | None:
        """An attempt asks for messages: what it was given before, and has not seen."""
        answers = self._clients.get(client_id)
        return answers.pop(attempt_id, None) if answers else None

    def forget(self, client_id: str) -> None:
        """The client has left."""
        self._clients.pop(client_id, None)

    def clear(self) -> None:
        """Forget everybody."""
        self._clients.clear()
