"""Why a consumer group lags, in sentences with what to do: for alarms and its own page. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..operations import words
from ..proto import v1
from .overview import BAD, WARNING, Alarm
from .views import quoted

#: Messages by which a lag must grow to be told; less is the noise of a busy group.
_GROWTH_MIN = 100
#: Alarms of groups that an overview shows, the worst first.
ALARMS_MAX = 12


@dataclass(slots=True)
class Facts:
    """The progress of one consumer group in all broker groups."""

    name: str
    paused: bool = False
    lag: int = 0
    in_flight: int = 0
    retries: int = 0
    dead_letters: int = 0
    clients: int = 0
    #: Messages by which the lag grew in the last `over_ms`; 0: it did not, or it is not known.
    grown: int = 0
    over_ms: int = 0

    def add(self, progress: v1.GroupProgress) -> None:
        """Add the progress in one broker group; a client is connected to several of them."""
        self.lag += progress.lag
        self.in_flight += progress.in_flight
        self.retries += progress.retries
        self.dead_letters += progress.dead_letters
        self.clients = max(self.clients, progress.clients)

    @property
    def fails(self) -> bool:
        """Whether all that waits was delivered and failed before."""
        return 0 < self.lag <= self.retries + self.in_flight and self.retries > self.in_flight


def grew(now: int, before: int) -> int:
    """Return by how much a lag grew; 0 if that is no more than the noise."""
    grown = now - before
    return grown if grown > max(_GROWTH_MIN, before // 10) else 0


def alarms_of(found: Iterable[Facts]) -> list[Alarm]:
    """Return the alarms of consumer groups, the largest lag first."""
    alarms = []
    for one in sorted(found, key=lambda each: -each.lag):
        href = f"/groups/{quoted(one.name)}"
        if (said := _why_not_consumed(one)) is not None:
            alarms.append(Alarm(WARNING, *said, href=href))
        if one.dead_letters:
            alarms.append(
                Alarm(
                    WARNING,
                    f"Group {one.name} gave up {words.counted(one.dead_letters, 'message')}:"
                    " they are dead letters.",
                    "Read the reasons, then send them again.",
                    href=f"/dead-letters/{quoted(one.name)}",
                )
            )
    return alarms[:ALARMS_MAX]


def _why_not_consumed(one: Facts) -> tuple[str, str] | None:
    """Return what is wrong with a group, and its cure; None if nothing is."""
    waits = f"{words.counted(one.lag, 'message')} wait{'s' * (one.lag == 1)}"
    if one.paused and one.lag:
        return f"Group {one.name} is paused: {waits}.", "Resume it."
    if not one.clients and one.lag:
        return (
            f"Group {one.name} has no consumer: {waits}.",
            "Start its application, or delete the group.",
        )
    if one.fails:
        return (
            f"Group {one.name} fails: {words.number(one.retries)} of {waits} in retry.",
            "Look at the log of its consumers.",
        )
    if one.grown:
        return (
            f"Group {one.name} falls behind: its lag grew by {words.number(one.grown)} in"
            f" {words.span(one.over_ms)} to {words.number(one.lag)}.",
            "Add consumers, or look at what they wait for.",
        )
    return None


def why(
    one: Facts, held: Sequence[v1.GroupDelivery], now_ms: int, oldest_ms: int = 0
) -> tuple[str, str]:
    """Return the level of an alarm, and a sentence: why the group lags, or that it has no lag.

    `held` are its messages in flight, those held longest first; `oldest_ms` is the time at which
    the oldest message that waits was stored, 0 if it is not known.
    """
    age = f" The oldest message waits for {words.span(now_ms - oldest_ms)}." if oldest_ms else ""
    said = _why_not_consumed(one)
    if said is not None:
        return (BAD if not one.clients or one.fails else WARNING), f"{' '.join(said)}{age}"
    if not one.lag:
        but = f" but {words.counted(one.dead_letters, 'dead letter')}" if one.dead_letters else ""
        return "ok", f"The group has consumed everything{but}."
    if one.in_flight and held:
        since = words.span(max(0, now_ms - held[0].delivered_ms))
        holders = {each.client_id for each in held if each.client_id}
        who = words.counted(len(holders) or one.clients, "client")
        verb = "holds" if (len(holders) or one.clients) == 1 else "hold"
        return WARNING, (
            f"{who} {verb} {words.counted(one.in_flight, 'message')}, the oldest for {since}:"
            f" they are delivered and not acknowledged yet.{age}"
        )
    clients = words.counted(one.clients, "client")
    return WARNING, f"{words.counted(one.lag, 'message')} to consume by {clients}.{age}"
