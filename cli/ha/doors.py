"""Whom `cometmq ha` talks to: the controllers among the nameservers, and every replica's control door.

Nameservers are asked one after the other; the active controller is the one whose word counts. A group that no
controller leads is static: its replicas are found in the nameservers' routes (or named with `--replica`), and
`static_groups.py` decides for them (HA note, 6.3).
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from ...proto import paths, v1
from ..connection import Connection, failure
from ..errors import CliError, Exit

#: A replica that is paused or cut off must not hold up the others for long.
ASK_S = 3.0
_DIAL_S = 1.0


@dataclass(slots=True)
class Replica:
    """One replica of a group: where it is, what the nameserver knows of it, what it says itself."""

    group: str
    broker_id: int
    ha: str
    client: str = ""
    uuid: str = ""
    incarnation: int = 0
    known_leader: bool = False  # so the routes say
    known_end: int = 0
    known_confirm: int = 0
    status: v1.ReplicaStatus | None = None
    why_silent: str = ""
    #: Nobody listens at its ports: the process is not there.
    is_gone: bool = False

    @property
    def name(self) -> str:
        return f"broker {self.broker_id} ({self.ha})"

    @property
    def leads(self) -> bool:
        """By its own word; by the routes' when it is silent."""
        return self.known_leader if self.status is None else self.status.role == "leader"

    def call(self, path: str, request: object, answer: type[Any], timeout_s: float = ASK_S) -> Any:
        """One call to its control door. Raises CliError."""
        with Connection(self.ha) as connection:
            return connection.call(path, request, answer, timeout_s)

    def ask(self) -> None:
        """Read its state; a replica that does not answer says why."""
        self.status, self.why_silent, self.is_gone = None, "", False
        try:
            self.status = self.call(paths.REPLICA_STATUS, v1.StatusRequest(), v1.ReplicaStatus)
        except CliError as error:
            self.why_silent = str(error)
            self.is_gone = all(refuses(address) for address in (self.ha, self.client) if address)
            return
        own = self.status.beat.replica
        self.broker_id, self.uuid = int(own.broker_id), own.replica_uuid
        self.incarnation = int(own.incarnation)
        self.group = own.group or self.group


def refuses(address: str) -> bool:
    """Whether the machine answers that nobody listens there. Silence is no answer."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _DIAL_S):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False


class Nameservers:
    """The nameservers of `--namesrv`, in order."""

    def __init__(self, addresses: str) -> None:
        self.addresses = [part.strip() for part in addresses.split(";") if part.strip()]
        if not self.addresses:
            raise CliError("--namesrv must name a nameserver, HOST:PORT.", Exit.USAGE)

    def groups(self, group: str = "") -> list[v1.GroupReport]:
        """What the controllers know; of each group the active one's word, or else the newest."""
        best: dict[str, v1.GroupReport] = {}
        for _, answer in self._each(paths.GET_GROUPS, v1.GetGroupRequest(group=group)):
            for report in answer.groups:
                name = report.state.group
                old = best.get(name)
                if old is None or _weight(report) > _weight(old):
                    best[name] = report
        return [best[name] for name in sorted(best) if group in ("", name)]

    def active(self, group: str) -> str:
        """The nameserver whose controller decides. Raises CliError when there is none."""
        silent = []
        for address, answer in self._each(paths.GET_GROUPS, v1.GetGroupRequest(group=group)):
            if any(report.active for report in answer.groups):
                return address
            silent.append(address)
        raise CliError(
            f"No active controller for group {group} among {', '.join(self.addresses)}"
            + (f" ({', '.join(silent)} do not decide at present)." if silent else "."),
            Exit.UNHEALTHY,
        )

    def decide(self, path: str, request: Any, timeout_s: float) -> v1.GroupsResponse:
        """An operator's call to the active controller. Raises CliError."""
        address = self.active(request.group)
        with Connection(address) as connection:
            answer: v1.GroupsResponse = connection.call(path, request, v1.GroupsResponse, timeout_s)
            return answer

    def replicas(self, group: str = "") -> list[Replica]:
        """Every member that the first nameserver that answers knows. Raises CliError."""
        failed: CliError | None = None
        for address in self.addresses:
            with Connection(address) as connection:
                method = connection.method(paths.GET_CLUSTER, v1.GetClusterResponse)
                try:
                    answer = method(
                        v1.GetClusterRequest(), timeout=ASK_S, metadata=connection.metadata
                    )
                except grpc.RpcError as error:
                    failed = failure(error, address)
                    continue
            return list(_members(answer, group))
        raise failed or CliError("No nameserver answers.")

    def tell(self, path: str, request: object, answer: type[Any]) -> None:
        """A message to every nameserver; one that is away cannot be told."""
        for address in self.addresses:
            with Connection(address) as connection, suppress(grpc.RpcError):
                connection.method(path, answer)(
                    request, timeout=ASK_S, metadata=connection.metadata
                )

    def _each(self, path: str, request: object) -> Iterator[tuple[str, v1.GroupsResponse]]:
        """Every nameserver that is a controller, with its answer."""
        for address in self.addresses:
            with Connection(address) as connection:
                try:
                    answer = connection.call(path, request, v1.GroupsResponse, ASK_S)
                except CliError:
                    continue  # it is away, or no controller: another one may be
            yield address, answer


def _weight(report: v1.GroupReport) -> tuple[bool, int]:
    return report.active, report.state.version


def _members(answer: v1.GetClusterResponse, group: str) -> Iterator[Replica]:
    for route in answer.groups:
        if group not in ("", route.group):
            continue
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
            )


def from_report(report: v1.GroupReport) -> list[Replica]:
    """The replicas that a controller knows."""
    return [
        Replica(
            group=report.state.group,
            broker_id=int(one.replica.broker_id),
            ha=one.addresses.ha,
            client=one.addresses.client,
            uuid=one.replica.replica_uuid,
            incarnation=int(one.replica.incarnation),
        )
        for one in report.replicas
    ]


def find(
    namesrv: str, group: str, named: Sequence[str]
) -> tuple[list[Replica], v1.GroupReport | None]:
    """The replicas of one group, and what its controller says of it; None: the group is static."""
    if named:
        found = [Replica(group=group, broker_id=-1, ha=address) for address in named]
        for one in found:
            one.ask()
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
        raise CliError(f"No nameserver knows group {group or '(any)'}.", Exit.NOT_FOUND)
    return found, None


def one_group(group: str, known: Sequence[str]) -> str:
    """The group that was named, or the only one there is. Raises CliError."""
    names = sorted(set(known))
    if group or not names:
        return group
    if len(names) > 1:
        raise CliError(f"Name one of the groups with --group: {', '.join(names)}.", Exit.USAGE)
    return names[0]
