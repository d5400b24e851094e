"""The shape of a cluster of `cometmq up`: its nameservers, broker groups and replicas.

    namesrv, namesrv-2, namesrv-3    the nameservers
    master, slave, slave-2           the replicas of the first group, broker-a
    master-b, slave-b, slave-b-2     those of the second group, broker-b

The directories in DATA have these names, so they are the record of the shape. An existing cluster
can get more groups and more replicas. It keeps its nameservers: a majority of another number could
lack the states of the groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...operations.errors import CliError, Exit
from ...operations.local_cluster import TOKEN_FILE

#: Limits: each replica is a process of this machine.
GROUPS_MAX = 8
REPLICAS_MAX = 5
#: The numbers of nameservers with a majority when one fails, and one.
NAMESERVERS = (1, 3, 5)

_LETTERS = "abcdefgh"


@dataclass(frozen=True, slots=True)
class Member:
    """One broker process: a replica of a group."""

    name: str
    #: The brokerName of its group.
    group: str
    broker_id: int

    @property
    def role(self) -> str:
        """The role at the first start."""
        return "slave" if self.broker_id else "master"


@dataclass(frozen=True, slots=True)
class Shape:
    """Numbers of processes."""

    groups: int = 1
    replicas: int = 2
    nameservers: int = 1

    def members(self) -> Iterator[Member]:
        """Yield the broker processes, group by group."""
        for letter in _LETTERS[: self.groups]:
            for broker_id in range(self.replicas):
                yield Member(_broker_name(letter, broker_id), f"broker-{letter}", broker_id)

    def namesrv_names(self) -> list[str]:
        """Return the names of the nameserver processes."""
        return [_namesrv_name(index) for index in range(self.nameservers)]


def _broker_name(letter: str, broker_id: int) -> str:
    parts = ["slave" if broker_id else "master"]
    parts += [letter] if letter != "a" else []
    parts += [str(broker_id)] if broker_id > 1 else []
    return "-".join(parts)


def _namesrv_name(index: int) -> str:
    return f"namesrv-{index + 1}" if index else "namesrv"


def existing_shape(data: Path) -> Shape | None:
    """Return the shape of the cluster in a directory; None if it has none, or one of --single."""

    def count(names: Iterator[str], file: str) -> int:
        found = 0
        for name in names:
            if not (data / name / file).exists():
                break
            found += 1
        return found

    if not (data / TOKEN_FILE).exists():
        return None
    groups = count((_broker_name(letter, 0) for letter in _LETTERS), "broker.conf")
    if not groups:
        return None
    replicas = max(
        count((_broker_name(letter, number) for number in range(REPLICAS_MAX)), "broker.conf")
        for letter in _LETTERS[:groups]
    )
    names = map(_namesrv_name, range(max(NAMESERVERS)))
    return Shape(groups, replicas, max(1, count(names, "namesrv.conf")))


def chosen_shape(
    data: Path, groups: int | None, replicas: int | None, nameservers: int | None
) -> Shape:
    """Return the shape to run; an omitted number is that of the directory, or the default.

    Raises CliError if the cluster in the directory cannot have this shape.
    """
    here = existing_shape(data)
    base = here or Shape()
    wanted = Shape(
        groups or base.groups, replicas or base.replicas, nameservers or base.nameservers
    )
    if here is None:
        return wanted
    for what, option, has, asked in (
        ("broker groups", "--groups", here.groups, wanted.groups),
        ("replicas in a group", "--replicas", here.replicas, wanted.replicas),
    ):
        if asked < has:
            raise CliError(
                f"The cluster in {data} has {has} {what}: {option} can only add some. Give another"
                " directory with --data for a smaller cluster.",
                Exit.USAGE,
            )
    if wanted.nameservers != here.nameservers:
        raise CliError(
            f"The cluster in {data} has {here.nameservers} nameserver"
            f"{'s' * (here.nameservers != 1)}, and their number cannot change. Give another"
            " directory with --data.",
            Exit.USAGE,
        )
    return wanted
