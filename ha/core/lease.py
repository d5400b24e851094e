"""Lease: how long a leader may write without answers from controller and followers (rule R4).

A leader may write while one of these permissions holds:

    controller   a controller's lease, counted from the time at which the answered heartbeat was
                 *sent*
    peers        every other member of the effective in-sync set echoed a time stamp of this leader
                 that is younger than the lease less a margin. The time stamp counts, not the
                 arrival of the echo, because a suspended process reads old acknowledgements late
    alone        no other replica can be elected: the in-sync set is this replica, and none is
                 eligible

and never before `write_after_ns`: the former leader's permission must have ended. The safety of
synchronous groups does not depend on leases (rule R5); they bound the loss of an asynchronous
group.

Times are steady nanoseconds of one process; the margin covers a rate error of 1 % between two
machines. See docs/formats/ha.md, rule R4.
"""

from msgspec import Struct

#: Larger than any time.
FOREVER_NS = 1 << 62
#: Divisor of the margin: an echo must be younger than the lease less a tenth, because clocks of two
#: machines drift and the frame needs time.
MARGIN_PART = 10


class Lease(Struct):
    lease_ns: int
    write_after_ns: int = 0
    controller_until_ns: int = 0
    peers_until_ns: int = 0
    alone: bool = False
    is_needed: bool = True  #: False: a static group, whose leader is appointed and not leased

    @property
    def margin_ns(self) -> int:
        return self.lease_ns // MARGIN_PART

    def renew(self, sent_ns: int, lease_ns: int) -> None:
        """Renew by a controller's answer to the heartbeat sent at `sent_ns`."""
        self.controller_until_ns = max(self.controller_until_ns, sent_ns + lease_ns)

    def renew_by_peers(self, oldest_ns: int | None, *, alone: bool) -> None:
        """Renew by echoes. `oldest_ns`: the oldest of the newest echoes of all other members; None:
        there is no other member, or one never echoed. `alone`: no other replica can be elected."""
        self.peers_until_ns = 0 if oldest_ns is None else oldest_ns + self.lease_ns - self.margin_ns
        self.alone = alone

    def end(self) -> None:
        """Drop every permission: this replica no longer leads."""
        self.controller_until_ns = self.peers_until_ns = 0
        self.alone = False

    @property
    def until_ns(self) -> int:
        """The end of the permission to write as known now."""
        if self.alone or not self.is_needed:
            return FOREVER_NS
        return max(self.controller_until_ns, self.peers_until_ns)

    def may_write(self, now_ns: int) -> bool:
        return self.write_after_ns <= now_ns < self.until_ns

    def validate(self) -> None:
        assert self.lease_ns > 0
        assert self.margin_ns * 2 < self.lease_ns
