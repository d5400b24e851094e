"""Calls of `cometmq ha` to nameservers (controllers) and to the replicas' replication ports.

Nameservers are called at the same time; only the active controller's answer is authoritative, so
calls to others end when it has answered. A group without a controller is static: its replicas come
from the nameservers' routes (or `--replica`), and `static_groups.py` changes its leader
(docs/formats/ha.md, section 6.3).
"""

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from ...operations.errors import CliError, Exit
from ...operations.replication import Replica
from ...proto import paths, v1
from ..links import connect, links
from .parallel import Calls

#: Timeout of a call: short, because a paused or disconnected replica delays the others.
CALL_S = 3.0
_DIAL_S = 1.0


def call(
    one: Replica, path: str, request: object, answer: type[Any], timeout_s: float = CALL_S
) -> Any:
    """Call a replica. Raises CliError."""
    with connect(one.ha) as connection:
        return connection.call(path, request, answer, timeout_s)


def refresh(one: Replica) -> None:
    """Read the status of a replica; set `error` if it does not answer."""
    one.status, one.error, one.is_gone = None, "", False
    try:
        status = call(one, paths.REPLICA_STATUS, v1.StatusRequest(), v1.ReplicaStatus)
    except CliError as error:
        one.error = what_failed(error)
        one.is_gone = all(refuses(address) for address in (one.ha, one.client) if address)
        return
    one.take(status)


def what_failed(error: CliError) -> str:
    """Return the first sentence: the remedy after it is for a command without a cluster."""
    return str(error).partition(". ")[0].rstrip(".")


def refuses(address: str) -> bool:
    """Return True if a connection is refused; a timeout does not count."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _DIAL_S):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


class Nameservers:
    """The nameservers of `--namesrv`, in order; of a single one also those that elect with it."""

    def __init__(self, addresses: str) -> None:
        self._given = [part.strip() for part in addresses.split(";") if part.strip()]
        if not self._given:
            raise CliError("--namesrv must be HOST:PORT of a nameserver.", Exit.USAGE)

    @cached_property
    def addresses(self) -> list[str]:
        """The addresses to call. A command beside one nameserver, as in its container, is about
        the cluster: that one names the others."""
        if len(self._given) > 1:
            return self._given
        (only,) = self._given
        request = v1.GetGroupRequest()
        with Calls(self._given, paths.GET_GROUPS, request, v1.GroupsResponse) as calls:
            calls.wait(CALL_S)
            peers = list(calls.answers[only].peers) if only in calls.answers else []
        links().list_addresses(only, peers)
        return [only, *peers]

    def groups(self, group: str = "") -> list[v1.GroupReport]:
        """Return the controllers' reports: for each group the active one's, or else the newest.

        Raises CliError if no nameserver answered. An empty list: no group has a controller.
        """
        with self._asked(group) as calls:
            error = calls.failed()
            if error is not None:
                raise error
            return newest_reports(calls.answers, group)

    def active(self, group: str) -> str:
        """Return the nameserver with the active controller. Raises CliError."""
        inactive = []
        for address, answer in self._reports(group):
            if any(report.active for report in answer.groups):
                return address
            inactive.append(address)
        raise CliError(
            f"No active controller for group {group} among {', '.join(self.addresses)}"
            + (f" ({', '.join(inactive)} are not active)." if inactive else "."),
            Exit.UNHEALTHY,
        )

    def decide(self, path: str, request: Any, timeout_s: float) -> v1.GroupsResponse:
        """Call the active controller. Raises CliError."""
        address = self.active(request.group)
        with connect(address) as connection:
            answer: v1.GroupsResponse = connection.call(path, request, v1.GroupsResponse, timeout_s)
            return answer

    def replicas(self, group: str = "") -> list[Replica]:
        """Return the members known to the first nameserver that answers. Raises CliError."""
        request = v1.GetClusterRequest()
        with Calls(self.addresses, paths.GET_CLUSTER, request, v1.GetClusterResponse) as calls:
            calls.wait(CALL_S, lambda _: True)
            for address, answer in calls.answers.items():
                return newest_only(members(address, answer, group))
            raise calls.why_none()

    def last_set(self, group: str) -> tuple[v1.InSyncSet | None, str]:
        """Return the in-sync set that the leader of a static group registered last; or None, and
        why it is not known.

        A leader acts on a set when a majority has it, so enough others to meet one must answer.
        """
        request = v1.GetClusterRequest()
        with Calls(self.addresses, paths.GET_CLUSTER, request, v1.GetClusterResponse) as calls:
            calls.wait(CALL_S)
            routes = [route for answer in calls.answers.values() for route in answer.groups]
        found = [one.in_sync for one in routes if one.group == group and one.HasField("in_sync")]
        if not found:
            return None, "no nameserver that answers has it"
        newest = max(found, key=lambda one: (one.epoch, one.incarnation, one.revision))
        needed = (newest.nameservers + 1) // 2
        if len(found) < needed:
            return None, (
                f"{len(found)} of the {newest.nameservers} nameservers of the group answered with"
                f" it, and {needed} must: name them all with --namesrv"
            )
        return newest, ""

    def notify(self, path: str, request: object, answer: type[Any]) -> None:
        """Call every nameserver; errors are ignored."""
        import grpc

        for address in self.addresses:
            with connect(address) as connection, suppress(grpc.RpcError):
                connection.method(path, answer)(
                    request, timeout=CALL_S, metadata=connection.metadata
                )

    def _reports(self, group: str) -> Iterator[tuple[str, v1.GroupsResponse]]:
        """Yield the answers of controllers: of all that answered before the active one did."""
        with self._asked(group) as calls:
            yield from calls.answers.items()

    def _asked(self, group: str) -> Calls:
        """Ask all controllers; return when the active one has answered, or all have."""
        request = v1.GetGroupRequest(group=group)
        calls = Calls(self.addresses, paths.GET_GROUPS, request, v1.GroupsResponse)
        calls.wait(CALL_S, decides)
        return calls


def decides(answer: v1.GroupsResponse) -> bool:
    """Return whether an answer is that of the active controller."""
    return any(report.active for report in answer.groups)


def newest_reports(answers: dict[str, v1.GroupsResponse], group: str) -> list[v1.GroupReport]:
    """Return the best report of each group, with the address that sent it as its controller."""
    best: dict[str, v1.GroupReport] = {}
    for address, answer in answers.items():
        for report in answer.groups:
            name = report.state.group
            old = best.get(name)
            if old is None or _weight(report) > _weight(old):
                report.controller = address
                best[name] = report
    return [best[name] for name in sorted(best) if group in ("", name)]


def _weight(report: v1.GroupReport) -> tuple[bool, int]:
    return report.active, report.state.version


def members(address: str, answer: v1.GetClusterResponse, group: str) -> Iterator[Replica]:
    """Yield the replicas of the routes of the nameserver at an address."""
    for route in answer.groups:
        if group not in ("", route.group):
            continue
        links().list_addresses(address, (member.addresses.ha for member in route.members))
        for member in route.members:
            yield Replica(
                group=route.group,
                broker_id=int(member.replica.broker_id),
                ha=member.addresses.ha,
                client=member.addresses.client,
                uuid=member.replica.replica_uuid,
                incarnation=int(member.replica.incarnation),
                known_leader=member.role == v1.LEADER,
                known_end=int(member.log_end),
                known_confirm=int(member.confirm),
                known_epoch=int(member.epoch),
            )


def newest_only(replicas: Iterable[Replica]) -> list[Replica]:
    """Return one entry for each replica: after a change of its broker id, the routes have its
    former one for a while."""
    newest: list[Replica] = []
    for one in replicas:
        same = [at for at, other in enumerate(newest) if _is_same(one, other)]
        if not same:
            newest.append(one)
        elif one.incarnation >= newest[same[0]].incarnation:
            newest[same[0]] = one
    return sorted(newest, key=lambda one: (one.group, one.broker_id))


def _is_same(one: Replica, other: Replica) -> bool:
    return (bool(one.ha) and one.ha == other.ha) or (bool(one.uuid) and one.uuid == other.uuid)


def from_report(report: v1.GroupReport) -> list[Replica]:
    """Return the replicas of a report of `newest_reports`."""
    links().list_addresses(report.controller, (one.addresses.ha for one in report.replicas))
    return [
        Replica(
            group=report.state.group,
            broker_id=int(one.replica.broker_id),
            ha=one.addresses.ha,
            client=one.addresses.client,
            uuid=one.replica.replica_uuid,
            incarnation=int(one.replica.incarnation),
            heartbeat_age_ms=int(one.silent_ms) if report.active else None,
            overdue=one.overdue,
        )
        for one in report.replicas
    ]


def most_advanced(report: v1.GroupReport) -> int:
    """Return the broker id of the connected in-sync replica with the longest log, not the leader.

    Raises CliError.
    """
    state = report.state
    candidates = [
        row
        for row in report.replicas
        if row.connected and row.in_sync and row.replica.broker_id != state.leader.broker_id
    ]
    if not candidates:
        raise CliError(
            f"No in-sync replica of {state.group} but its leader is connected: start one, or name"
            " the next leader with --to (`cometmq ha status`)."
        )
    best = max(candidates, key=lambda row: (row.beat.last_epoch, row.beat.log_end))
    return best.replica.broker_id


def find(
    namesrv: str, group: str, named: Sequence[str]
) -> tuple[list[Replica], v1.GroupReport | None]:
    """Return the replicas of a group and its controller's report; None for a static group."""
    if named:
        found = [Replica(group=group, broker_id=-1, ha=address) for address in named]
        for one in found:
            refresh(one)
        return found, None
    servers = Nameservers(namesrv)
    reports = servers.groups(group)
    group = one_group(group, [report.state.group for report in reports])
    for report in reports:
        if report.state.group == group and report.state.version > 0:
            return from_report(report), report
    found = servers.replicas(group)
    group = one_group(group, [replica.group for replica in found])
    found = [replica for replica in found if replica.group == group]
    if not found:
        raise CliError(f"Group {group or '(any)'} is unknown to the nameservers.", Exit.NOT_FOUND)
    return found, None


def last_set(
    namesrv: str, replicas: Sequence[Replica], named: Sequence[str]
) -> Callable[[], tuple[v1.InSyncSet | None, str]]:
    """Return the call of `Nameservers.last_set` for these replicas, unless they are named without
    a nameserver."""
    if named:
        return lambda: (None, "no nameserver was asked (--replica)")
    return lambda: Nameservers(namesrv).last_set(replicas[0].group)


def one_group(group: str, known: Sequence[str]) -> str:
    """Return the named group, or the only one. Raises CliError."""
    names = sorted(set(known))
    if group or not names:
        return group
    if len(names) > 1:
        raise CliError(
            f"There are several groups. Choose one with --group: {', '.join(names)}.", Exit.USAGE
        )
    return names[0]
