"""Attempts: the last responses to push consumers, by attempt id, for requests whose response was
lost. Pure.

A client chooses a new attempt id after it received messages and keeps the id if its call failed
(docs/formats/grpc-api.md, section 7.4). A request that repeats an id has therefore lost its
response, because a process on the path ended. Those messages would never be acknowledged, and their
invisible time would be renewed for hours while the client runs. FIFO groups store attempts in their
queue lock. In memory, bounded: messages of a dropped response come back at the end of their
renewals.
"""

from __future__ import annotations

from collections import OrderedDict

from ..names.delivery import Key

#: Responses remembered per client: it has few open calls, one per broker and topic.
OF_CLIENT_MAX = 8
#: With eight responses of 32 messages each, about 160 MB in the worst case.
CLIENTS_MAX = 4_096

#: By queue: offsets and pop times.
Given = dict[Key, list[tuple[int, int]]]


class Attempts:
    """The last responses of each client; the least recently active client is removed first."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, OrderedDict[str, Given]] = OrderedDict()

    def give(self, client_id: str, attempt_id: str, given: Given) -> None:
        """Record the messages delivered to an attempt."""
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
        """Return what the same attempt was given before and has not received."""
        answers = self._clients.get(client_id)
        return answers.pop(attempt_id, None) if answers else None

    def forget(self, client_id: str) -> None:
        """Remove a client."""
        self._clients.pop(client_id, None)

    def clear(self) -> None:
        """Remove all clients."""
        self._clients.clear()
