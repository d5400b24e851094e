"""The parts of a broker instance, as `build.py` builds them. Immutable.

Only the composition root (this folder, `client_port.py`, `lifecycle.py`, `classic/port.py`), tests
and benchmarks see these collections. Every class takes exactly the parts that it uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.parts import Core
from ..delay.build import Delays
from ..pop.build import Pops

if TYPE_CHECKING:
    from ..access.key_source import KeySource
    from ..access.quota_admin import QuotaAdmin
    from ..access.user_admin import UserAdmin
    from ..clients.telemetry_forward import TelemetryForward
    from ..journal.service import JournalService
    from ..lite.fanout import LiteFanout
    from ..lite.receive_service import ReceiveService
    from ..lite.service import LiteService
    from ..maintenance.progress import ConsumerProgress
    from ..maintenance.removal import Removal
    from ..maintenance.status import BrokerStatus
    from ..maintenance.store_maintenance import StoreMaintenance
    from ..pop.ack import AckService
    from ..pop.failover.roles import PopRoles
    from ..pull.service import PullService
    from ..sending.sender import Sender
    from ..trace.service import TraceService
    from ..trace.spans import DeliveryTraces
    from ..transactions.service import Transactions


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Sending(Delays):
    """The producer side."""

    sender: Sender
    trace: TraceService | None
    #: Of the services that trace deliveries; None if there is none.
    delivery_traces: DeliveryTraces | None
    #: The provider of the spans, to be shut down.
    span_provider: Any
    transactions: Transactions


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Consumption(Pops):
    """The consumer side."""

    journal: JournalService
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
