"""Remoting requests of tools to the nameserver: key-value entries, write permission, settings.

Source: docs/formats/remoting.md, section 8. Brokers of this system register by gRPC: the codes of
RocketMQ's brokers and of its controller are refused with the reason. The protocol carries no
cluster token: with `clusterToken` changes are accepted from this machine alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...nodes.addresses import host_of, is_loopback
from ...remoting import properties
from ...remoting.admin_codes import Admin
from ...remoting.admin_headers import BrokerName, KvEntry, KvKey, KvNamespace, TopicName
from ...remoting.bare_json import dumps
from ...remoting.codes import Reply
from ...remoting.command import Command, reply
from ...remoting.connection import RemotingError
from ...remoting.header_fields import read
from ...remoting.refusals import refusing
from .kv import KvRefusedError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from ...remoting.connection import Connection, Handler
    from ..routes import RouteTable
    from .kv import KvConfig

_REFUSED = {
    "the settings of a nameserver are read when it starts: change namesrv.conf and restart it": (
        318,
    ),
    "brokers register over gRPC (cometmq.v1.NameServer), not over remoting": (
        *(103, 104, 217, 322, 901, 904),
    ),
    "the controller is reached over gRPC: use `cometmq ha`": (
        *(1001, 1002, 1003, 1004, 1005, 1006, 1009, 1010, 1011, 1012, 1013),
        *(1014, 1015, 1016, 1017, 1018),
    ),
}


class ClassicAdmin:
    """Handlers of the requests of tools."""

    def __init__(
        self,
        table: Callable[[], RouteTable],
        kv: KvConfig,
        settings: Mapping[str, tuple[str, str]],
        *,
        local_changes: bool,
    ) -> None:
        """`table` returns the current tables; `settings` maps keys to value and origin.

        `local_changes`: refuse changes of other machines.
        """
        self._table = table
        self._kv = kv
        self._settings = settings
        self._local_changes = local_changes

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        return {
            Admin.PUT_KV_CONFIG: self._changing(self.put),
            Admin.GET_KV_CONFIG: self.get,
            Admin.DELETE_KV_CONFIG: self._changing(self.delete),
            Admin.GET_KVLIST_BY_NAMESPACE: self.namespace,
            Admin.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            Admin.WIPE_WRITE_PERM_OF_BROKER: self._changing(self.wipe_write),
            Admin.ADD_WRITE_PERM_OF_BROKER: self._changing(self.add_write),
            Admin.GET_NAMESRV_CONFIG: self.config,
            Admin.GET_UNIT_TOPIC_LIST: self.no_topics,
            Admin.GET_HAS_UNIT_SUB_TOPIC_LIST: self.no_topics,
            Admin.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self.no_topics,
            **refusing(_REFUSED),
        }

    def _changing(self, handler: Handler) -> Handler:
        """Return the handler of a change: it refuses other machines if the settings say so."""

        def check(command: Command, peer: Connection) -> Any:
            if self._local_changes and not is_loopback(host_of(peer.peer)):
                raise RemotingError(
                    Reply.NO_PERMISSION,
                    "this nameserver has a clusterToken, which remoting requests do not carry: "
                    "send this request from the nameserver's machine",
                )
            return handler(command, peer)

        return check

    def put(self, command: Command, _: Connection) -> asyncio.Task[Command]:
        """Answer PUT_KV_CONFIG."""
        header = read(KvEntry, command.fields)
        return _changed(self._kv.put(header.namespace, header.key, header.value))

    def get(self, command: Command, _: Connection) -> Command:
        """Answer GET_KV_CONFIG."""
        header = read(KvKey, command.fields)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return reply(Reply.QUERY_NOT_FOUND, remark)
        return reply(Reply.SUCCESS, fields={"value": value})

    def delete(self, command: Command, _: Connection) -> asyncio.Task[Command]:
        """Answer DELETE_KV_CONFIG."""
        header = read(KvKey, command.fields)
        return _changed(self._kv.delete(header.namespace, header.key))

    def namespace(self, command: Command, _: Connection) -> Command:
        """Answer GET_KVLIST_BY_NAMESPACE."""
        name = read(KvNamespace, command.fields).namespace
        values = self._kv.namespace(name)
        if not values:
            return reply(Reply.QUERY_NOT_FOUND, f"No config item, Namespace: {name}")
        return reply(Reply.SUCCESS, body=dumps({"table": values}))

    def delete_topic(self, command: Command, _: Connection) -> Command:
        """Answer DELETE_TOPIC_IN_NAMESRV: the topic has left the routes with the broker's topic."""
        read(TopicName, command.fields)
        return reply(Reply.SUCCESS)

    def wipe_write(self, command: Command, _: Connection) -> Command:
        """Answer WIPE_WRITE_PERM_OF_BROKER."""
        name = read(BrokerName, command.fields).broker
        count = self._table().allow_writes(name, allowed=False)
        return reply(Reply.SUCCESS, fields={"wipeTopicCount": str(count)})

    def add_write(self, command: Command, _: Connection) -> Command:
        """Answer ADD_WRITE_PERM_OF_BROKER."""
        name = read(BrokerName, command.fields).broker
        count = self._table().allow_writes(name, allowed=True)
        return reply(Reply.SUCCESS, fields={"addTopicCount": str(count)})

    def config(self, command: Command, _: Connection) -> Command:
        """Answer GET_NAMESRV_CONFIG; secrets are masked."""
        values = {key: value for key, (value, _) in self._settings.items()}
        return reply(Reply.SUCCESS, body=properties.dumps(values))

    def no_topics(self, command: Command, _: Connection) -> Command:
        """Answer the requests for topics of units: there are none."""
        return reply(Reply.SUCCESS, body=dumps({"topicList": []}))


def _changed(change: Coroutine[None, None, None]) -> asyncio.Task[Command]:
    async def run() -> Command:
        try:
            await change
        except KvRefusedError as error:
            raise RemotingError(Reply.INVALID_PARAMETER, str(error)) from None
        return reply(Reply.SUCCESS)

    return asyncio.get_running_loop().create_task(run())
