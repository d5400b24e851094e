"""Why a consumer group lags, in sentences with what to do: for alarms and its own page. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..operations import words
from ..proto import v1
from .language import counted, said
from .overview import BAD, WARNING, Alarm
from .views import quoted

#: Messages by which a lag must grow to be told; less is the noise of a busy group.
_GROWTH_MIN = 100
# A producer is asked for an outcome each minute; later it has gone, or does not know.
_OLD_TRANSACTION_MS = 600_000
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
    #: How long ago it had a client; 0: it is not known.
    absent_ms: int = 0

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
        if (why_not := _why_not_consumed(one)) is not None:
            alarms.append(Alarm(WARNING, *why_not, href=href))
        if one.dead_letters:
            gave_up = counted(one.dead_letters, "message")
            text = said("Group {} gave up {}: they are dead letters.", one.name, gave_up)
            cure = said("Read the reasons, then send them again.")
            alarms.append(Alarm(WARNING, text, cure, f"/dead-letters/{quoted(one.name)}"))
    return alarms[:ALARMS_MAX]


def old_transactions(count: int, age_ms: int) -> list[Alarm]:
    """Return an alarm if the oldest of the transactions without an outcome is old."""
    if not count or age_ms < _OLD_TRANSACTION_MS:
        return []
    text = said(
        "{} without an outcome, the oldest for {}.",
        counted(count, "transaction"),
        words.span(age_ms),
    )
    cure = said("Start the producer that can tell the outcome, or decide here.")
    return [Alarm(WARNING, text, cure, "/timers#transactions")]


def _why_not_consumed(one: Facts) -> tuple[str, str] | None:
    """Return what is wrong with a group, and its cure; None if nothing is."""
    count = counted(one.lag, "message")
    waits = said("{} waits", count) if one.lag == 1 else said("{} wait", count)
    if one.paused and one.lag:
        return said("Group {} is paused: {}.", one.name, waits), said("Resume it.")
    if not one.clients and one.lag:
        text = said("Group {} has no consumer: {}.", one.name, waits)
        if one.absent_ms:
            text = said("{} Its last client was seen {} ago.", text, words.span(one.absent_ms))
        return text, said("Start its application, or delete the group.")
    if one.fails:
        retries = words.number(one.retries)
        text = said("Group {} fails: {} of {} in retry.", one.name, retries, waits)
        return text, said("Look at the log of its consumers.")
    if one.grown:
        text = said(
            "Group {} falls behind: its lag grew by {} in {} to {}.",
            one.name,
            words.number(one.grown),
            words.span(one.over_ms),
            words.number(one.lag),
        )
        return text, said("Add consumers, or look at what they wait for.")
    return None


def why(
    one: Facts, held: Sequence[v1.GroupDelivery], now_ms: int, oldest_ms: int = 0
) -> tuple[str, str]:
    """Return the level of an alarm, and a sentence: why the group lags, or that it has no lag.

    `held` are its messages in flight, those held longest first; `oldest_ms` is the time at which
    the oldest message that waits was stored, 0 if it is not known.
    """
    why_not = _why_not_consumed(one)
    if why_not is not None:
        level = BAD if not one.clients or one.fails else WARNING
        text = said("{} {}", *why_not)
    elif not one.lag:
        text = said("The group has consumed everything.")
        if one.dead_letters:
            letters = counted(one.dead_letters, "dead letter")
            text = said("The group has consumed everything but {}.", letters)
        return "ok", text
    else:
        level, text = WARNING, _held(one, held, now_ms)
    if oldest_ms:
        age = words.span(now_ms - oldest_ms)
        text = said("{} {}", text, said("The oldest message waits for {}.", age))
    return level, text


def _held(one: Facts, held: Sequence[v1.GroupDelivery], now_ms: int) -> str:
    """Return who holds the messages of a group that consumes."""
    if not (one.in_flight and held):
        clients = counted(one.clients, "client")
        return said("{} to consume by {}.", counted(one.lag, "message"), clients)
    holders = len({each.client_id for each in held if each.client_id}) or one.clients
    values = (
        counted(holders, "client"),
        counted(one.in_flight, "message"),
        words.span(max(0, now_ms - held[0].delivered_ms)),
    )
    if holders == 1:
        return said(
            "{} holds {}, the oldest for {}: they are delivered and not acknowledged yet.", *values
        )
    return said(
        "{} hold {}, the oldest for {}: they are delivered and not acknowledged yet.", *values
    )
