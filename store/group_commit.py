"""Group commit: two lists of requests, one that gathers while the disk works for the other.

The writer adds a request for every append; the flush thread swaps the lists, makes one fdatasync for
all that the taken one asks for, and settles it. Log order makes one number, the flushed offset, an
answer for everybody: senders of the broker wait on that number (`broker/sending/durability.py`, together with
the confirm offset of the replicas and the timeouts), so their requests only say how large a group is.
A caller without an event loop waits on the request itself (`MessageStore.append_and_wait`).

Pure but for the events; the flusher's lock guards all calls.
"""

import threading
from dataclasses import dataclass


@dataclass(slots=True)
class FlushRequest:
    """One append that should reach the disk."""

    end: int  #: log offset behind its last record
    records: int
    #: Set when it is on the disk, or when it never will be.
    settled: threading.Event | None = None


class GroupCommit:
    """The two lists. Bounded by what senders may have in flight (`sendThreadPoolQueueCapacity`)."""

    __slots__ = ("_flushing", "_gathering", "pending")

    def __init__(self) -> None:
        self.pending = 0  #: records that gather
        self._gathering: list[FlushRequest] = []
        self._flushing: list[FlushRequest] = []

    def add(self, request: FlushRequest) -> None:
        self.pending += request.records
        self._gathering.append(request)

    def swap(self) -> int:
        """What gathered is the next group; returns its records."""
        assert not self._flushing, "settle comes first"
        self._gathering, self._flushing = self._flushing, self._gathering
        records, self.pending = self.pending, 0
        return records

    def settle(self) -> None:
        """The group is on the disk."""
        for request in self._flushing:
            if request.settled is not None:
                request.settled.set()
        self._flushing.clear()

    def give_up(self) -> None:
        """Nothing reaches the disk any more: let all go; the flushed offset says who came too late."""
        self.settle()
        self.swap()
        self.settle()
