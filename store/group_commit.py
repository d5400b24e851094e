"""Group commit: two request lists; one collects while the other is flushed.

The writer adds a request for every append; the flush thread swaps the lists, runs one fdatasync for
the swapped list and settles it. As the log is ordered, the flushed offset answers all requests: the
broker's senders wait for that number (`broker/visible/durability.py`, together with the confirm
offset and the timeouts), and their requests only count records. A caller without an event loop
waits for the request's event (`StoreWriter.append_and_wait`).

The flusher's lock guards all calls.
"""

import threading

from msgspec import Struct


class FlushRequest(Struct):
    """One append to be flushed."""

    end: int  #: log offset behind its last record
    records: int
    #: Set when it is durable, or when no flush will happen any more.
    settled: threading.Event | None = None


class GroupCommit:
    """The two lists. `sendThreadPoolQueueCapacity` bounds them."""

    __slots__ = ("_flushing", "_gathering", "pending")

    def __init__(self) -> None:
        self.pending = 0  #: records in the collecting list
        self._gathering: list[FlushRequest] = []
        self._flushing: list[FlushRequest] = []

    def add(self, request: FlushRequest) -> None:
        self.pending += request.records
        self._gathering.append(request)

    def swap(self) -> int:
        """Make the collected requests the current group; return its records."""
        assert not self._flushing, "settle comes first"
        self._gathering, self._flushing = self._flushing, self._gathering
        records, self.pending = self.pending, 0
        return records

    def settle(self) -> None:
        """Settle the current group: it is durable."""
        for request in self._flushing:
            if request.settled is not None:
                request.settled.set()
        self._flushing.clear()

    def give_up(self) -> None:
        """Settle all requests after a failed flush; callers compare their end with the flushed
        offset."""
        self.settle()
        self.swap()
        self.settle()
