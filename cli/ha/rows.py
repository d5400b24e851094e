"""The groups of `cometmq ha status`, as a controller or the replicas report them."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ...operations.errors import CliError
from ...operations.replication import HEALTHY, GroupView, Replica, health
from ...proto import paths, v1
from .parallel import Calls
from .replicas import (
    CALL_S,
    Nameservers,
    decides,
    find,
    from_report,
    members,
    newest_only,
    newest_reports,
    what_failed,
)

#: Each of the two steps (nameservers, replicas) waits this long for the others after the first
#: answer: status takes less than a second beside nodes that do not answer.
STATUS_S = 0.4
_POLL_S = 0.2


def states(namesrv: str, group: str, named: Sequence[str]) -> list[GroupView]:
    """Return the selected groups with the status of each replica. Raises CliError."""
    if named:
        replicas, _ = find(namesrv, group, named)
        return [
            GroupView(name, [one for one in replicas if one.group == name], None)
            for name in sorted({one.group for one in replicas})
        ]
    servers = Nameservers(namesrv).addresses
    with ExitStack() as stack:
        request = v1.GetGroupRequest(group=group)
        reports = stack.enter_context(Calls(servers, paths.GET_GROUPS, request, v1.GroupsResponse))
        routes = stack.enter_context(
            Calls(servers, paths.GET_CLUSTER, v1.GetClusterRequest(), v1.GetClusterResponse)
        )
        limit_s = reports.first(CALL_S) + STATUS_S
        reports.wait(limit_s, decides)
        routes.wait(limit_s, lambda _: True)
        found = _views(reports, routes, group)
        _refresh([one for view in found for one in view.replicas])
        routes.wait(limit_s)  # of those nameservers that no answer was needed from
    for view in found:
        view.silent_nameservers = [address for address in servers if address in routes.errors]
    return found


def settled(look: Callable[[], list[GroupView]], wait_s: float) -> list[GroupView]:
    """Return the groups once all are healthy, or as they are after `wait_s`.

    Errors (no nameserver answers) count as not healthy until then.
    """
    end_s = time.monotonic() + wait_s
    while True:
        is_last = time.monotonic() >= end_s
        try:
            found = look()
        except CliError:
            if is_last:
                raise
        else:
            if is_last or (found and all(health(view)[0] == HEALTHY for view in found)):
                return found
        time.sleep(_POLL_S)


def _views(reports: Calls, routes: Calls, group: str) -> list[GroupView]:
    """Return the groups of the controllers' reports, then those that only the routes have."""
    best = [r for r in newest_reports(reports.answers, group) if r.state.version > 0]
    found = [GroupView(r.state.group, from_report(r), r) for r in best]
    if not routes.answers and not found:
        raise routes.why_none()
    led = {view.group for view in found}
    error = reports.failed()
    unreported = "" if error is None else str(error)
    for address, answer in list(routes.answers.items())[:1]:
        replicas = newest_only(members(address, answer, group))
        absent = {name for name in answer.absent_groups if group in ("", name)}
        for name in sorted({*absent, *(one.group for one in replicas)} - led):
            own = [one for one in replicas if one.group == name]
            found.append(GroupView(name, own, None, unreported=unreported))
    return found


def _refresh(replicas: list[Replica]) -> None:
    """Read the status of all replicas at the same time."""
    request = v1.StatusRequest()
    addresses = [one.ha for one in replicas]
    with Calls(addresses, paths.REPLICA_STATUS, request, v1.ReplicaStatus) as calls:
        calls.wait(calls.first(CALL_S) + STATUS_S)
        for one in replicas:
            if one.ha in calls.answers:
                one.take(calls.answers[one.ha])
            else:
                one.error = what_failed(calls.errors[one.ha])
