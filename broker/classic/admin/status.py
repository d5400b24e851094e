"""State of the broker for classic tools: settings, figures, replicas, store, rates.

Source: docs/formats/remoting.md, section 16.2. Tools of RocketMQ fail on names that are missing in
the run-time figures, so all that they read are there; what this broker does not have (thread pools,
yesterday's totals) is 0. Clean-ups that tools ask for run by themselves all the time: the answer is
success.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from ....proto import v1
from ....remoting import properties
from ....remoting.admin_codes import Admin
from ....remoting.admin_headers import ConsumeQueue, ViewStats
from ....remoting.bare_json import dumps
from ....remoting.codes import Reply
from ....remoting.command import Command, reply
from ....remoting.connection import RemotingError
from ....remoting.header_fields import read
from ....store.format.properties import tags_code
from ....store.format.record import decode
from ...admin.live_settings import CHANGES_MAX
from ..base.errors import known_topic
from .runtime_figures import runtime_figures
from .tables import data_version, document, in_task

if TYPE_CHECKING:
    from ....front.clock import Clock
    from ....remoting.connection import Handler
    from ....store.message_store import MessageStore
    from ...admin.live_settings import LiveSettings
    from ...maintenance.status import BrokerStatus
    from ...metadata.tables import Metadata
    from ...visible.dispatch_pump import DispatchPump
    from .rates import Rates, StoreRates

#: Units of a consume queue in one answer; each reads a record.
_UNITS_MAX = 100


class ToolStatus:
    """Handlers for the state of the broker."""

    def __init__(
        self,
        *,
        clock: Clock,
        store: MessageStore,
        metadata: Metadata,
        status: BrokerStatus,
        pump: DispatchPump,
        rates: StoreRates,
        settings: LiveSettings,
    ) -> None:
        self._clock = clock
        self._started_ms = clock.wall_ms()
        self._store = store
        self._metadata = metadata
        self._status = status
        self._pump = pump
        self._rates = rates
        self._settings = settings

    def handlers(self) -> dict[int, Handler]:
        """Return the table of request codes."""
        table = {
            Admin.GET_BROKER_CONFIG: self.config,
            Admin.UPDATE_BROKER_CONFIG: self.change_config,
            Admin.GET_BROKER_RUNTIME_INFO: self.figures,
            Admin.GET_BROKER_HA_STATUS: self.replicas,
            Admin.VIEW_BROKER_STATS_DATA: self.rates,
            Admin.QUERY_CONSUME_QUEUE: self.units,
            Admin.CLEAN_EXPIRED_CONSUMEQUEUE: self.done,
            Admin.CLEAN_UNUSED_TOPIC: self.done,
            Admin.DELETE_EXPIRED_COMMITLOG: self.done,
        }
        return {code: in_task(handler) for code, handler in table.items()}

    async def config(self, command: Command) -> Command:
        """Answer GET_BROKER_CONFIG; secrets are masked."""
        values = {key: value for key, (value, _) in self._settings.settings.items()}
        version = dumps(data_version(self._metadata, self._started_ms)).decode()
        return reply(Reply.SUCCESS, fields={"version": version}, body=properties.dumps(values))

    async def change_config(self, command: Command) -> Command:
        """Answer UPDATE_BROKER_CONFIG: all settings of the body are changed, or none."""
        try:
            values = properties.loads(command.body, CHANGES_MAX)
        except ValueError as error:
            raise RemotingError(Reply.SYSTEM_ERROR, str(error)) from None
        self._settings.change(values)
        return reply(Reply.SUCCESS)

    async def figures(self, command: Command) -> Command:
        """Answer GET_BROKER_RUNTIME_INFO."""
        self._pump.catch_up()
        first_ms = self._first_ms()
        stats = self._store.stats()
        disk = shutil.disk_usage(self._store.config.root)
        return document(
            {
                "table": runtime_figures(
                    stats,
                    started_ms=self._started_ms,
                    now_ms=self._clock.wall_ms(),
                    first_ms=first_ms,
                    disk_bytes=disk.total,
                    free_bytes=disk.free,
                )
            }
        )

    def _first_ms(self) -> int:
        """Return the store time of the first record of the log; 0 if there is none."""
        store = self._store
        if store.log_end <= store.log_start:
            return 0
        return decode(store.record_at(store.log_start), check_crc=False).store_timestamp_ms

    async def replicas(self, command: Command) -> Command:
        """Answer GET_BROKER_HA_STATUS."""
        followers = [row for row in self._status.members() if row.role == v1.FOLLOWER and row.alive]
        idle = ("lastReadTimestamp", "lastWriteTimestamp", "masterFlushOffset", "maxOffset")
        return document(
            {
                "haClientRuntimeInfo": dict.fromkeys((*idle, "transferredByteInSecond"), 0),
                "haConnectionInfo": [
                    {
                        "addr": row.addresses.ha,
                        "diff": row.behind,
                        "inSync": row.in_sync,
                        "slaveAckOffset": row.log_end,
                        "transferFromWhere": row.log_end,
                        "transferredByteInSecond": 0,
                    }
                    for row in followers
                ],
                "inSyncSlaveNums": sum(row.in_sync for row in followers),
                "master": True,
                "masterCommitLogMaxOffset": self._store.log_end,
            }
        )

    async def rates(self, command: Command) -> Command:
        """Answer VIEW_BROKER_STATS_DATA."""
        header = read(ViewStats, command.fields)
        measured = await self._found_rates(header.name, header.key)
        if measured is None:
            remark = f"The stats <{header.name}> <{header.key}> not exist"
            raise RemotingError(Reply.SYSTEM_ERROR, remark)
        return document(
            {
                "statsDay": measured.day.document(),
                "statsHour": measured.hour.document(),
                "statsMinute": measured.minute.document(),
            }
        )

    async def _found_rates(self, name: str, key: str) -> Rates | None:
        if name in ("BROKER_PUT_NUMS", "BROKER_GET_NUMS"):
            # RocketMQ's key is the cluster's name.
            own = key in (self._status.broker, self._status.cluster)
            return self._rates.broker(reads=name == "BROKER_GET_NUMS") if own else None
        topic, _, group = key.partition("@")
        if self._metadata.topic(topic) is None:
            return None
        if name == "TOPIC_PUT_NUMS":
            return await self._rates.stored(topic)
        if name == "TOPIC_PUT_SIZE":
            return self._rates.stored_bytes(topic)
        if self._metadata.group(group) is None:
            return None
        found = {
            "GROUP_GET_NUMS": self._rates.consumed,
            "GROUP_GET_SIZE": self._rates.consumed_bytes,
            "SNDBCK_PUT_NUMS": self._rates.sent_back,
        }.get(name)
        return None if found is None else found(topic, group)

    async def units(self, command: Command) -> Command:
        """Answer QUERY_CONSUME_QUEUE: where records of a queue lie in the log."""
        header = read(ConsumeQueue, command.fields)
        topic = known_topic(self._metadata, header.topic)
        self._pump.catch_up()
        store, name, queue_id = self._store, topic.name, header.queue_id
        if not 0 <= queue_id < max(topic.read_queues, topic.write_queues):
            raise RemotingError(Reply.SYSTEM_ERROR, f"topic {name} has no queue {queue_id}")
        first, end = store.min_offset(name, queue_id), store.max_offset(name, queue_id)
        begin = min(max(header.index, first), end)
        until = min(begin + min(max(header.count, 1), _UNITS_MAX), end)
        units = [self._unit(name, queue_id, offset) for offset in range(begin, until)]
        return document({"maxQueueIndex": end, "minQueueIndex": first, "queueData": units})

    def _unit(self, topic: str, queue_id: int, offset: int) -> dict[str, Any]:
        location = self._store.reader.record_range(topic, queue_id, offset)
        if location is None:
            return {"eval": False, "physicOffset": -1, "physicSize": 0, "tagsCode": 0}
        position, size = location
        record = decode(self._store.record_at(position), check_crc=False)
        code = tags_code(topic, record.properties, record.store_timestamp_ms)
        return {"eval": False, "physicOffset": position, "physicSize": size, "tagsCode": code}

    async def done(self, command: Command) -> Command:
        """Answer requests for what the store does by itself."""
        return reply(Reply.SUCCESS)
