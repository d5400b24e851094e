"""Calls of the console to nameservers: the state of replication groups, and switchovers.

They are those of `cometmq ha`, with the cluster token and TLS of the command line.
"""

import threading
from collections.abc import Sequence

import click

from ..cli.errors import CliError
from ..cli.ha.replicas import Nameservers
from ..cli.ha.rows import GroupView, states
from ..proto import paths, v1

# The next leader must catch up within this time; the controller's own steps take longer.
_CATCH_UP_MS, _SWITCH_S = 10_000, 25.0


class Controllers:
    """The nameservers of the cluster."""

    def __init__(self, addresses: str, command: click.Context) -> None:
        """`addresses` may be empty; `command` has the options of the command line."""
        self.addresses = addresses
        self._command = command
        # A context of click belongs to one thread at a time.
        self._lock = threading.Lock()

    def groups(self) -> Sequence[GroupView]:
        """Return the groups as `cometmq ha status` sees them. Raises CliError."""
        self._check()
        with self._lock, self._command.scope(cleanup=False):
            return states(self.addresses, "", ())

    def switchover(self, group: str, to: int, *, dry_run: bool) -> v1.GroupsResponse:
        """Change the leader of a group as planned; `to` is a broker id. Raises CliError."""
        self._check()
        request = v1.SwitchoverRequest(
            group=group, to=to, max_wait_ms=_CATCH_UP_MS, dry_run=dry_run
        )
        with self._lock, self._command.scope(cleanup=False):
            return Nameservers(self.addresses).decide(paths.SWITCHOVER, request, _SWITCH_S)

    def _check(self) -> None:
        if not self.addresses:
            raise CliError("This console knows no nameserver: start it with --namesrv.")
