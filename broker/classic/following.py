"""Requests at a follower: it serves them, passes them on to the leader, or refuses them.

A follower serves pulls from its copy of the log, up to the confirm offset, and enters heartbeats,
so that it has the members of groups when it leads. Every other request belongs to the leader: it is
passed on once, as the gRPC port forwards calls. Without a leader a follower serves what only reads,
too, and refuses the rest with SERVICE_NOT_AVAILABLE: producers try another broker then. A
follower whose log is not a copy of the leader's serves no reads.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ...remoting.admin_codes import Admin
from ...remoting.codes import Reply, Request
from ...remoting.command import PASSED_ON
from ...remoting.connection import RemotingError
from .base.errors import with_codes

if TYPE_CHECKING:
    from ...ha.engine import Replication
    from ...remoting.command import Command
    from ...remoting.connection import Connection, Handler
    from ..base.leadership import Leadership
    from .leader_link import LeaderLink

#: About this replica, or of its own connections.
OWN = frozenset(
    (
        Request.HEART_BEAT,
        Request.UNREGISTER_CLIENT,
        Request.CHECK_CLIENT_CONFIG,
        Admin.GET_BROKER_CONFIG,
        Admin.UPDATE_BROKER_CONFIG,
        Admin.GET_BROKER_RUNTIME_INFO,
        Admin.GET_BROKER_HA_STATUS,
        Admin.CLEAN_EXPIRED_CONSUMEQUEUE,
        Admin.CLEAN_UNUSED_TOPIC,
        Admin.DELETE_EXPIRED_COMMITLOG,
    )
)
PULLS = frozenset((Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE))
#: Served from the copy while there is no leader.
READS = PULLS | {
    Request.QUERY_MESSAGE,
    Request.VIEW_MESSAGE_BY_ID,
    Request.QUERY_CONSUMER_OFFSET,
    Request.SEARCH_OFFSET_BY_TIMESTAMP,
    Request.GET_MAX_OFFSET,
    Request.GET_MIN_OFFSET,
    Request.GET_EARLIEST_MSG_STORETIME,
    Request.GET_CONSUMER_LIST_BY_GROUP,
}


class Following:
    """Decides for every request of a remoting port by the role of the replica."""

    def __init__(self, leadership: Leadership, replication: Replication, link: LeaderLink) -> None:
        self._leadership = leadership
        self._replication = replication
        self._link = link
        self._leader_was_alive = False

    def deciding(self, handler: Handler) -> Handler:
        """Return a handler that serves, passes on or refuses, and whose errors have response
        codes."""

        def handle(command: Command, peer: Connection) -> Any:
            if not self.passes_on(command):
                return with_codes(lambda: handler(command, peer))
            return asyncio.get_running_loop().create_task(self._link.pass_on(command))

        return handle

    def passes_on(self, command: Command) -> bool:
        """Return whether a request goes to the leader. Raises RemotingError."""
        return not (self._leadership.is_leader or self._serves(command))

    def _serves(self, command: Command) -> bool:
        """Return whether this follower serves a request; False: pass it on. Raises
        RemotingError."""
        code, alone = command.code, self._is_alone()
        if code in OWN:
            return True
        if code in PULLS or (code in READS and alone):
            if self._replication.diverged is None:
                return True
            raise _refusal("its log is not a copy of the leader's")
        if command.flag & PASSED_ON:
            raise _refusal("its leader serves requests")
        return False

    def _is_alone(self) -> bool:
        """Return whether replication has lost the leader; false if it never had one."""
        replication = self._replication
        if replication.leader_alive:
            self._leader_was_alive = True
            return False
        return self._leader_was_alive and replication.refused is None


def _refusal(reason: str) -> RemotingError:
    return RemotingError(Reply.SERVICE_NOT_AVAILABLE, f"this replica follows, and {reason}")
