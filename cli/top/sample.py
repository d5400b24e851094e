"""What `cometmq top` shows: one look at every broker group, and the rates between two looks."""

from dataclasses import dataclass, field
from typing import Any

from ...operations.broker_groups import BrokerGroups, Outcome
from ...proto import paths, v1

#: Rows of a table of `top`.
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One look; a group that does not answer has a row with its error."""

    steady_s: float
    brokers: Rows = field(default_factory=list)
    replicas: Rows = field(default_factory=list)
    consumers: Rows = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return the document of `-o json`."""
        return {
            "brokers": self.brokers,
            "replicas": self.replicas,
            "consumers": self.consumers,
        }


def look(groups: BrokerGroups, steady_s: float, before: Sample | None) -> Sample:
    """Ask every broker group; rates are those since the sample `before`.

    Raises CliError if no group answers.
    """
    described = groups.each(
        paths.DESCRIBE_CLUSTER, v1.DescribeClusterRequest(), v1.DescribeClusterResponse
    )
    errors = [one.error for one in described if one.error is not None]
    if len(errors) == len(described):
        raise errors[0]
    brokers = [_broker(one) for one in described]
    replicas = [
        _replica(member)
        for one in described
        if one.answer is not None
        for member in one.answer.members
    ]
    return Sample(steady_s, brokers, replicas, _consumers(groups, steady_s, before))


def _broker(one: Outcome[v1.DescribeClusterResponse]) -> dict[str, Any]:
    answer = one.answer
    if answer is None:
        return _broker_row(one.broker, str(one.error))
    store = answer.store
    name = one.broker or next((member.replica.group for member in answer.members), "")
    leader = next((m.replica.broker_id for m in answer.members if m.role == v1.LEADER), None)
    in_sync = sum(member.in_sync for member in answer.members)
    note = answer.write_refusal or ("" if store.pressure == "none" else f"disk: {store.pressure}")
    return _broker_row(
        name,
        note,
        leader=leader,
        in_sync=f"{in_sync} of {len(answer.members)}",
        sent_per_s=round(store.put_tps, 1),
        delivered_per_s=round(store.get_tps, 1),
        put_p99_us=store.put_p99_us if store.put_p99_us >= 0 else None,
        disk_percent=store.disk_use if store.disk_use >= 0 else None,
        log_bytes=store.log_end - store.log_start,
    )


def _broker_row(name: str, note: str, **values: Any) -> dict[str, Any]:
    names = ("leader", "in_sync", "sent_per_s", "delivered_per_s", "put_p99_us", "disk_percent")
    row = {"broker": name, **{each: values.get(each) for each in (*names, "log_bytes")}}
    return {**row, "note": note}


def _replica(member: v1.MemberStatus) -> dict[str, Any]:
    return {
        "broker": member.replica.group,
        "broker_id": member.replica.broker_id,
        "role": "leader" if member.role == v1.LEADER else "follower",
        "alive": member.alive,
        "in_sync": member.in_sync,
        "behind_bytes": member.behind,
        "address": member.addresses.client,
    }


def _consumers(groups: BrokerGroups, steady_s: float, before: Sample | None) -> Rows:
    """Return the consumer groups, those with the highest lag first."""
    request = v1.ListGroupsRequest()
    outcomes = groups.pages(paths.LIST_GROUPS, request, v1.ListGroupsResponse, "groups")
    totals: dict[str, v1.GroupProgress] = {}
    for one in outcomes:
        for page in one.answer or ():
            for config, progress in zip(page.groups, page.progress, strict=True):
                _add(totals.setdefault(config.name, v1.GroupProgress()), progress)
    earlier = {row["group"]: row["lag"] for row in before.consumers} if before else {}
    passed_s = steady_s - before.steady_s if before else 0.0
    rows = [
        {
            "group": name,
            "lag": total.lag,
            "lag_per_s": (
                round((total.lag - earlier[name]) / passed_s, 1)
                if name in earlier and passed_s > 0
                else None
            ),
            "in_flight": total.in_flight,
            "retries": total.retries,
            "dead_letters": total.dead_letters,
            "clients": total.clients,
        }
        for name, total in totals.items()
    ]
    return sorted(rows, key=lambda row: (-row["lag"], row["group"]))


def _add(total: v1.GroupProgress, progress: v1.GroupProgress) -> None:
    total.lag += progress.lag
    total.in_flight += progress.in_flight
    total.retries += progress.retries
    total.dead_letters += progress.dead_letters
    # A client is connected to several broker groups.
    total.clients = max(total.clients, progress.clients)
