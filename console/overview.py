"""The content of the overview: alarms, figures, a picture of each broker group. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..operations import words
from ..proto import v1
from .forecast import Outlook
from .language import said

# Percent of the fuller disk. RocketMQ's retention deletes at any hour from 75 and refuses writes
# at 90.
_DISK_WARNING, _DISK_BAD = 75, 85
# A queue or index this many bytes behind the log delays deliveries by a noticeable time.
_DISPATCH_BEHIND = 64 << 20
_PRESSURE = {
    "any_hour": said("The disk fills: expired segments are deleted at any hour."),
    "forced": said("The disk is nearly full: segments are deleted before their time."),
    "stop": said("The disk is full: writes are refused."),
}

_DISK_CURE = said("Lower fileReservedTime, or use a larger disk.")

OK, WARNING, BAD = "ok", "warning", "bad"


@dataclass(frozen=True, slots=True)
class Alarm:
    """One sentence about a state that an operator should know."""

    level: str
    text: str
    #: What to do about it.
    cure: str = ""
    href: str = ""


@dataclass(frozen=True, slots=True)
class GroupState:
    """One broker group: the answer of its leader or of a follower.

    With an `error` the group does not answer now, and the answer is an older one, if there is one.
    """

    name: str
    answer: v1.DescribeClusterResponse | None = None
    error: str = ""

    @property
    def title(self) -> str:
        """The name of the group; the only group of a cluster is called by its members' name."""
        if self.name or self.answer is None:
            return self.name or said("broker group")
        return next((one.replica.group for one in self.answer.members), said("broker group"))


@dataclass(frozen=True, slots=True)
class Backlog:
    """The progress of all consumer groups, and the groups with the largest lag."""

    at_ms: int = 0
    lag: int = 0
    in_flight: int = 0
    retries: int = 0
    dead_letters: int = 0
    groups: int = 0
    largest: Sequence[tuple[str, int]] = ()
    #: What is wrong with groups.
    alarms: Sequence[Alarm] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at a time."""

    at_ms: int
    groups: Sequence[GroupState] = ()
    backlog: Backlog = field(default_factory=Backlog)
    #: Client addresses that refuse connections from this console, or do so no longer answer.
    unreachable: frozenset[str] = frozenset()
    error: str = ""
    #: By name of the broker group.
    forecasts: Mapping[str, Outlook] = field(default_factory=dict)

    def stores(self) -> Iterable[v1.StoreStatus]:
        """Return the store of each leader that answered."""
        return [one.answer.store for one in self.groups if one.answer and not one.error]

    def rates(self) -> tuple[float, float] | None:
        """Return messages in and out per second; None unless every group answered."""
        stores = list(self.stores())
        if not stores or len(stores) < len(self.groups):
            return None
        return sum(one.put_tps for one in stores), sum(one.get_tps for one in stores)

    def disk_use(self) -> int:
        """Return percent of the fullest disk; -1 unless every group answered."""
        if any(one.error for one in self.groups):
            return -1
        return max((one.disk_use for one in self.stores()), default=-1)


def state_of(member: v1.MemberStatus, unreachable: frozenset[str]) -> str:
    """Return the level of a replica: reachable and in sync, behind, or gone."""
    if not member.alive or member.addresses.client in unreachable:
        return BAD
    return OK if member.in_sync and not member.diverged else WARNING


def keep_known(new: Sequence[GroupState], old: Sequence[GroupState]) -> list[GroupState]:
    """Return the new states; a group that does not answer keeps its last answer."""
    known = {one.name: one.answer for one in old}
    return [
        one if one.answer is not None else GroupState(one.name, known.get(one.name), one.error)
        for one in new
    ]


def alarms(snapshot: Snapshot, lag_alert: int = 0) -> list[Alarm]:
    """Return the alarms of a snapshot, the worst first; `lag_alert`: the lag of a group from which
    there is one, 0: none."""
    found = [Alarm(BAD, snapshot.error)] if snapshot.error else []
    for group in snapshot.groups:
        found += _of_group(group, snapshot.unreachable)
    backlog = snapshot.backlog
    if backlog.error:
        found.append(Alarm(WARNING, said("The consumer groups cannot be read: {}", backlog.error)))
    found += [
        Alarm(WARNING, said("Consumer group {} lags: {} messages.", name, words.number(lag)))
        for name, lag in backlog.largest
        if 0 < lag_alert <= lag
    ]
    found += backlog.alarms
    found += [
        Alarm(WARNING, f"{name}: {outlook.disk.sentence}", _DISK_CURE, "/store")
        for name, outlook in snapshot.forecasts.items()
        if outlook.disk.is_bad
    ]
    return sorted(found, key=lambda one: one.level != BAD)


def _of_group(group: GroupState, unreachable: frozenset[str]) -> Iterable[Alarm]:
    answer, title = group.answer, group.title
    if group.error:
        yield Alarm(BAD, f"{title}: {group.error}")
    if answer is None:
        return
    if answer.write_refusal:
        yield Alarm(BAD, said("{} refuses writes: {}", title, answer.write_refusal), href="/ha")
    for member in answer.members:
        yield from _of_member(title, member, unreachable)
    store = answer.store
    if store.disk_use >= _DISK_WARNING:
        level = BAD if store.disk_use >= _DISK_BAD else WARNING
        yield Alarm(
            level, said("{}: the disk is {} % full.", title, store.disk_use), _DISK_CURE, "/store"
        )
    if store.pressure in _PRESSURE:
        level = BAD if store.pressure == "stop" else WARNING
        yield Alarm(level, f"{title}: {_PRESSURE[store.pressure]}")
    if store.dispatch_behind > _DISPATCH_BEHIND:
        behind = words.size(store.dispatch_behind)
        yield Alarm(
            WARNING, said("{}: queues are {} behind the log; deliveries are late.", title, behind)
        )


def _of_member(title: str, member: v1.MemberStatus, unreachable: frozenset[str]) -> Iterable[Alarm]:
    role = said("leader") if member.role == v1.LEADER else said("follower")
    name = said(
        "{}: broker {} ({}, {})", title, member.replica.broker_id, role, member.addresses.client
    )
    if not member.alive:
        yield Alarm(
            BAD, said("{} is not alive.", name), said("Start it, or look at its log."), "/ha"
        )
    elif member.addresses.client in unreachable:
        yield Alarm(
            BAD, said("{} does not accept connections.", name), said("Look at its log."), "/ha"
        )
    elif member.diverged:
        yield Alarm(BAD, said("{} is refused by the leader: {}", name, member.diverged))
    elif not member.in_sync:
        behind = said(", {} behind", words.size(member.behind)) if member.behind else ""
        yield Alarm(WARNING, said("{} is not in sync{}.", name, behind), href="/ha")


@dataclass(frozen=True, slots=True)
class Box:
    """A replica in the picture; positions and sizes are in units of the view box."""

    x: int
    y: int
    state: str
    title: str
    lines: tuple[str, ...]
    is_leader: bool


@dataclass(frozen=True, slots=True)
class Link:
    """The line from the leader to a follower, with what it misses."""

    x1: int
    y1: int
    x2: int
    y2: int
    state: str
    label: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A broker group as boxes and lines: the leader at the left, its followers at the right."""

    title: str
    height: int
    boxes: Sequence[Box]
    links: Sequence[Link]
    #: The same in words, for readers of the screen.
    text: str


#: Units of a picture: 360 is the width of a phone, so that text is never scaled below its size.
WIDTH, BOX_WIDTH, BOX_HEIGHT = 360, 154, 74
_GAP = 14
_STATES: Mapping[str, str] = {
    OK: said("in sync"),
    WARNING: said("not in sync"),
    BAD: said("not reachable"),
}


def picture(group: GroupState, unreachable: frozenset[str]) -> Picture:
    """Return the picture of a group that answered."""
    assert group.answer is not None
    members = sorted(group.answer.members, key=lambda one: one.replica.broker_id)
    leader = next((one for one in members if one.role == v1.LEADER), None)
    others = [one for one in members if one is not leader]
    rows = max(1, len(others))
    height = rows * (BOX_HEIGHT + _GAP) - _GAP + 4
    boxes, links = [], []
    middle = (height - BOX_HEIGHT) // 2
    if leader is not None:
        boxes.append(_box(leader, 2, middle, unreachable))
    for row, one in enumerate(others):
        y = 2 + row * (BOX_HEIGHT + _GAP)
        box = _box(one, WIDTH - BOX_WIDTH - 2, y, unreachable)
        boxes.append(box)
        if leader is not None:
            label = words.size(one.behind) if one.behind and box.state != BAD else ""
            ends = BOX_WIDTH + 2, middle + BOX_HEIGHT // 2, box.x, y + BOX_HEIGHT // 2
            links.append(Link(*ends, box.state, label))
    text = "; ".join(f"{box.title} {_STATES[box.state]}" for box in boxes)
    return Picture(group.title, height, boxes, links, text)


def _box(member: v1.MemberStatus, x: int, y: int, unreachable: frozenset[str]) -> Box:
    state = state_of(member, unreachable)
    is_leader = member.role == v1.LEADER
    role = said("leader") if is_leader else said("follower")
    lines = (
        member.addresses.client or said("no address"),
        said("log {}", words.size(member.log_end)),
    )
    if state != OK:
        lines = (lines[0], _STATES[state])
    return Box(
        x, y, state, said("broker {} · {}", member.replica.broker_id, role), lines, is_leader
    )
