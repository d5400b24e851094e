"""The record of what the services stand on, as `build.py` makes it. Immutable.

Only functions that build parts take it. Every class takes exactly the parts that it uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...ha.engine import Replication
    from ...store.message_store import MessageStore
    from ..access.quotas import Quotas
    from ..base.cluster_view import ClusterView
    from ..base.leadership import Leadership
    from ..base.runtime import Runtime
    from ..clients.registry import ClientRegistry
    from ..metadata.auto_topics import AutoTopics
    from ..metadata.changes import MetadataChanges
    from ..metadata.files import MetaFiles
    from ..metadata.log import MetaLog
    from ..metadata.system_topics import SystemTopics
    from ..metadata.tables import Metadata
    from ..offsets.consumer_offsets import ConsumerOffsets
    from ..offsets.resets import OffsetResets
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
