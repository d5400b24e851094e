"""Failed logins, counted by address and user name: a guesser gets some attempts a minute. Pure.

Clients at other addresses are not affected. The classic clients of a proxy share its address: they
are counted by connection. Lost with the process; forgotten when a user changes.
"""

from __future__ import annotations

import ipaddress

#: Time for which failures count, from the first one on.
_WINDOW_NS = 60_000_000_000
#: Pairs of address and name, about 300 bytes each; the oldest one gives way.
_PAIRS_MAX = 10_000
#: No user has a longer name.
_NAME_MAX = 64
#: The owner of an address of IPv6 has all of its network.
_PREFIX = 64


class Attempts:
    """The failures of the last minute."""

    def __init__(self, failures_max: int) -> None:
        """`failures_max` failures of a pair close its window; 0: no limit."""
        self._failures_max = failures_max
        #: Number, and steady time of the first one.
        self._failures: dict[tuple[str, str], tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def are_spent(self, source: str, user: str, now_ns: int) -> bool:
        """Return whether a login must be refused without a look at its signature."""
        if not self._failures:
            return False
        number, since_ns = self._failures.get(_pair(source, user), (0, 0))
        return bool(number) and number >= self._failures_max and now_ns - since_ns <= _WINDOW_NS

    def failed(self, source: str, user: str, now_ns: int) -> None:
        """Count a failure."""
        if not self._failures_max:
            return
        pair = _pair(source, user)
        number, since_ns = self._failures.pop(pair, (0, now_ns))
        if now_ns - since_ns > _WINDOW_NS:
            number, since_ns = 0, now_ns
        elif not number and len(self._failures) >= _PAIRS_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[pair] = number + 1, since_ns

    def take_back(self, source: str, user: str) -> None:
        """Uncount a failure: of a login that was counted before its outcome was known."""
        pair = _pair(source, user)
        number, since_ns = self._failures.get(pair, (0, 0))
        if number > 1:
            self._failures[pair] = number - 1, since_ns
        else:
            self._failures.pop(pair, None)

    def clear(self) -> None:
        """Forget all failures."""
        self._failures.clear()


def _pair(source: str, user: str) -> tuple[str, str]:
    try:
        address = ipaddress.ip_address(source.partition("%")[0])
    except ValueError:  # HOST:PORT, or unknown
        return source, user[: _NAME_MAX + 1]
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        source = str(ipaddress.ip_network((int(address), _PREFIX), strict=False))
    return source, user[: _NAME_MAX + 1]
