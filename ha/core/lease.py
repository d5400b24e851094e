"""How long a leader may go on writing without hearing from anyone (HA note, rule R4).

A leader may write while one of these stands:

    controller   a controller's lease, counted from the moment the beat that it answers was *sent*
    peers        every other member of the effective in-sync set has echoed a time stamp of ours that is younger
                 than the lease less a margin: the echo counts, not its arrival, because a process that was
                 stopped reads old acknowledgements as if they were fresh
    alone        nobody else can be elected: the in-sync set is this replica, and nobody is eligible beside it

and never before `write_after_ns`: the former leader's permission must have ended first. Safety of synchronous
groups does not rest on any of it (rule R5); it bounds what an asynchronous group can lose.

Times are one process's steady nanoseconds; a rate error of 1 % between two machines is inside the margin.
"""

from dataclasses import dataclass

#: "Without end": larger than any time.
FOREVER_NS = 1 << 62
#: An echo may be this much younger than the lease only: clocks of two machines run apart a little, and the
#: frame needs time. A tenth of the lease.
MARGIN_PART = 10


@dataclass(slots=True)
class Lease:
    lease_ns: int
    write_after_ns: int = 0
    controller_until_ns: int = 0
    peers_until_ns: int = 0
    alone: bool = False
    is_needed: bool = True  #: False: a static group, whose leader is appointed and not leased

    @property
    def margin_ns(self) -> int:
        return self.lease_ns // MARGIN_PART

    def renewed(self, sent_ns: int, lease_ns: int) -> None:
        """A controller answered the beat that we sent at `sent_ns`."""
        self.controller_until_ns = max(self.controller_until_ns, sent_ns + lease_ns)

    def peers_echoed(self, oldest_ns: int | None, *, alone: bool) -> None:
        """`oldest_ns`: the oldest of the newest echoes of every other member; None: there is no other
        member, or one never echoed. `alone`: nobody else could be elected."""
        self.peers_until_ns = 0 if oldest_ns is None else oldest_ns + self.lease_ns - self.margin_ns
        self.alone = alone

    def ended(self) -> None:
        """We do not lead any more: nothing of this lease counts for the next time."""
        self.controller_until_ns = self.peers_until_ns = 0
        self.alone = False

    @property
    def until_ns(self) -> int:
        """Until when writing is permitted as far as is known now."""
        if self.alone or not self.is_needed:
            return FOREVER_NS
        return max(self.controller_until_ns, self.peers_until_ns)

    def may_write(self, now_ns: int) -> bool:
        return self.write_after_ns <= now_ns < self.until_ns

    def validate(self) -> None:
        assert self.lease_ns > 0
        assert self.margin_ns * 2 < self.lease_ns
