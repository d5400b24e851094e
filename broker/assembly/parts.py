"""The parts of a broker instance, as `build.py` builds them. Immutable.

Only the composition root (this folder, `client_port.py`, `lifecycle.py`, `classic/port.py`), tests
and benchmarks see these collections. Every class takes exactly the parts that it uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...ha.engine import Replication
    from ...store.message_store import MessageStore
    from ..access.key_source import KeySource
    from ..access.quota_admin import QuotaAdmin
    from ..access.quotas import Quotas
    from ..access.user_admin import UserAdmin
    from ..admin.progress import ConsumerProgress
    from ..admin.removal import Removal
    from ..admin.status import BrokerStatus
    from ..base.cluster_view import ClusterView
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..clients.registry import ClientRegistry
    from ..clients.telemetry_forward import TelemetryForward
    from ..delay.delayed import DelayedMessages
    from ..delay.levels import DelayLevels
    from ..delay.recall import Recalls
    from ..delay.timer_service import TimerService
    from ..journal.service import JournalService
    from ..lite.fanout import LiteFanout
    from ..lite.receive_service import ReceiveService
    from ..lite.service import LiteService
    from ..maintenance.store_maintenance import StoreMaintenance
    from ..metadata.auto_topics import AutoTopics
    from ..metadata.changes import MetadataChanges
    from ..metadata.files import MetaFiles
    from ..metadata.log import MetaLog
    from ..metadata.system_topics import SystemTopics
    from ..metadata.tables import Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..offsets.resets import OffsetResets
    from ..pop.ack import AckService
    from ..pop.dead_letter import DeadLetters, GroupTopics
    from ..pop.failover.roles import PopRoles
    from ..pop.receive import PopService
    from ..pull.service import PullService
    from ..sending.sender import Sender
    from ..trace.service import TraceService
    from ..trace.spans import DeliveryTraces
    from ..transactions.service import Transactions
    from ..visible.dispatch_pump import DispatchPump
    from ..visible.durability import DurabilityGate


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Core:
    """The store, its metadata and replication, and the parts that everything else needs."""

    runtime: Runtime
    store: MessageStore
    metadata: Metadata
    meta_log: MetaLog
    meta_files: MetaFiles
    clients: ClientRegistry
    cluster: ClusterView
    replication: Replication
    leadership: Leadership
    pump: DispatchPump
    offsets: ConsumerOffsets
    resets: OffsetResets
    durability: DurabilityGate
    changes: MetadataChanges
    system_topics: SystemTopics
    auto_topics: AutoTopics
    quotas: Quotas


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Sending:
    """The producer side."""

    sender: Sender
    trace: TraceService | None
    #: Of the services that trace deliveries; None if there is none.
    delivery_traces: DeliveryTraces | None
    #: The provider of the spans, to be shut down.
    span_provider: Any
    timers: TimerService
    levels: DelayLevels
    delayed: DelayedMessages
    recalls: Recalls
    transactions: Transactions


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Consumption:
    """The consumer side."""

    group_topics: GroupTopics
    dead_letters: DeadLetters
    journal: JournalService
    pop: PopService
    pop_roles: PopRoles
    acks: AckService
    pulls: PullService
    lite: LiteService
    lite_fanout: LiteFanout
    receiving: ReceiveService


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Broker(Core, Sending, Consumption):
    """All parts."""

    keys: KeySource
    users: UserAdmin
    quota_admin: QuotaAdmin
    removal: Removal
    maintenance: StoreMaintenance
    progress: ConsumerProgress
    status: BrokerStatus
    telemetry_forward: TelemetryForward
