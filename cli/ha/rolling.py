"""Shell script of a rolling restart: `cometmq ha rolling-restart`.

The script consists of commands that an operator could type: the restarts, `ha switchover`, and
`ha status --wait`, which ends when the group is healthy. `sh -e` stops it at the first failure, so
never more than one replica is down because of it.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...nodes.addresses import host_of, is_host
from ...operations.errors import CliError, Exit
from ...operations.replication import GroupView
from ...proto import v1
from ..links import links
from .replicas import Nameservers, one_group
from .rows import states

BROKER_COMMAND = "ssh -- {host} sudo systemctl restart cometmq-broker"
NAMESERVER_COMMAND = "ssh -- {host} sudo systemctl restart cometmq-namesrv"


@dataclass(frozen=True, slots=True)
class RestartCommands:
    """The commands; `{host}` and, for a broker, `{id}` are replaced."""

    broker: str
    nameserver: str
    wait_s: float


def restart_script(namesrv: str, group: str, commands: RestartCommands) -> str:
    """Return the script for a group with a controller. Raises CliError."""
    found = states(namesrv, group, ())
    name = one_group(group, [view.group for view in found])
    view = next((one for one in found if one.group == name), None)
    if view is None or view.report is None:
        raise CliError(
            f"Group {name or '(any)'} has no controller: restart its slave, run `ha switchover`, "
            "restart the other.",
            Exit.NOT_FOUND,
        )
    if len(view.replicas) < 2:
        raise CliError(f"Group {name} has one replica: its restart interrupts the service.")
    servers = Nameservers(namesrv).addresses
    lines = [
        "#!/bin/sh -e",
        f"# Rolling restart of group {name}.",
        *_lines(view, servers, commands),
    ]
    return "\n".join(lines) + "\n"


def _lines(view: GroupView, servers: list[str], commands: RestartCommands) -> Iterator[str]:
    assert view.report is not None
    where = f"--namesrv {shlex.quote(';'.join(servers))} --group {shlex.quote(view.group)}"
    whole = f"--replicas {len(view.replicas)}"
    wait = f"cometmq ha status --wait {commands.wait_s:g} {whole} {where}"
    leader = view.leader()
    followers = [one for one in view.replicas if one is not leader]
    yield wait
    for one in followers:
        yield f"# broker {one.broker_id}, a follower"
        yield _command(commands.broker, one.client or one.ha, one.broker_id)
        yield wait
    if leader is not None:
        yield f"# broker {leader.broker_id}, the leader, hands over first"
        yield f"cometmq ha switchover {where} --to {followers[0].broker_id}"
        yield wait
        yield _command(commands.broker, leader.client or leader.ha, leader.broker_id)
        yield wait
    if not commands.nameserver:
        return
    for address in sorted(servers, key=lambda address: _decides(view.report, address)):
        yield f"# nameserver {address}" + ", which decides" * _decides(view.report, address)
        yield _command(commands.nameserver, address, 0)
        yield wait


def _decides(report: v1.GroupReport | None, address: str) -> bool:
    return report is not None and report.active and report.controller == address


def _command(template: str, address: str, broker_id: int) -> str:
    """Return a command for the machine of a replica. Raises CliError."""
    host = host_of(address)
    if not is_host(host):  # a nameserver of an earlier version accepts any text
        raise CliError(
            f"{address!r} of broker {broker_id} is not HOST:PORT with an address or a host name: "
            "no command is run with it. Set brokerIP1 of this broker, and restart it by hand."
        )
    return template.replace("{host}", shlex.quote(host)).replace("{id}", str(broker_id))


def runnable(script: str, namesrv: str) -> str:
    """Return the script with what its commands need to reach the nodes as this one does."""
    variables = links().file_variables(namesrv)
    if set(variables) == {"COMETMQ_NAMESRV_ADDR"}:
        return script
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    first, _, rest = script.partition("\n")
    return "\n".join([first, *exports, rest])


def run_script(script: str, namesrv: str) -> int:
    """Run the script, with this installation's `cometmq`; return its exit code."""
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}:{os.environ.get('PATH', '')}"}
    environment |= links().variables(namesrv)
    environment.pop("COMETMQ_CONTEXT", None)
    return subprocess.run(["sh", "-exc", script], env=environment, check=False).returncode
