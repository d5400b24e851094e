"""Client port of one broker instance: services, access control, access point and door.

Every call passes the guard (with authentication), the access point, which forwards what another
node owns (docs/design/access-point.md), the audit log (if there is one) and the quotas.
"""

from __future__ import annotations

import asyncio
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..auth.bearer import BearerRules, BearerVerifier
from ..front.access_point import AccessPoint
from ..front.door import choose_door
from ..front.shared.handover import Handover
from ..front.suspendable_door import SuspendableDoor
from ..remoting.ports import shares_port
from . import services
from .access.audit import AuditFile, AuditLog
from .access.audit_topic import AuditTopic
from .access.guard import Guard
from .access.identities import Identities
from .access.rechecks import Rechecks
from .admin.build import build_admin
from .admin.fault_service import FaultService
from .admin.live_settings import BROKER, STORE, Live, LiveSettings
from .admin.message_queries import MessageQueries
from .admin.read_log import LogReads
from .admin.replication import ReplicationAdmin
from .admin.service import Admin, addressed
from .clients.connected import GrpcClients
from .clients.relay import Relay
from .clients.sessions import Sessions
from .clients.stacks import ClientStacks
from .clients.telemetry import TelemetryService
from .cold.cold_reads import ColdReads
from .delay.timer_list import TimerList
from .maintenance.store_view import StoreView
from .routing.request_router import RequestRouter
from .routing.routes import Routes
from .transactions.listing import TransactionList

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AsyncExitStack

    from joserfc.jwk import KeySet

    from ..front.access_point import Locate, ServesAll, Unreachable
    from ..front.config import DoorConfig
    from ..front.faults import FaultTable
    from ..front.service import Method
    from ..nodes.node_links import NodeLinks
    from .assembly.parts import Broker
    from .base.config import BrokerConfig
    from .role import LeaderListener


class ClientPort:
    """Everything between the parts and the network; `open` builds it and listens, once."""

    #: Set by `open`.
    access: AccessPoint
    door: SuspendableDoor
    admin: Admin
    #: With authentication.
    guard: Guard | None = None
    #: Connections of classic clients, if they share the port.
    handover: Handover | None = None

    def __init__(
        self,
        broker: Broker,
        *,
        links: NodeLinks,
        door_config: DoorConfig,
        settings: Mapping[str, tuple[str, str]],
        settings_changed: Callable[[Any, Mapping[str, Any]], None],
        faults: FaultTable | None,
    ) -> None:
        """`settings` maps keys to value and origin; `faults` is None without test hooks."""
        self._broker = broker
        self._config = broker.runtime.config
        self._max_message_size = broker.store.config.max_message_size
        self._links = links
        self._door_config = door_config
        self._clock = broker.runtime.clock
        self._settings = settings
        self._settings_changed = settings_changed
        self._faults = faults

    async def open(
        self,
        stack: AsyncExitStack,
        on_leader_gone: Callable[[LeaderListener], None],
    ) -> int:
        """Build the services, listen, and return the port.

        `stack` closes everything but the door, which must be drained first. `on_leader_gone`
        registers a listener for leaders that have gone. Raises DoorError,
        ValueError, OSError.
        """
        broker, clock, faults = self._broker, self._clock, self._faults
        relay = Relay(broker.leadership.leader_client, self._links)
        stack.push_async_callback(relay.close)
        methods = list(map(broker.quotas.watching, self._methods(relay)))
        locate, unreachable, serves_all = self._routing()
        audit = self.audit = self._open_audit(stack)
        if audit is not None:
            methods = list(map(audit.watching, methods))
        if self._config.authentication_enabled:
            identities = await self._identities(stack)
            guard = self.guard = self._guard(audit, identities)
            broker.quotas.identify(guard.user_of)
            broker.clients.user_of, broker.clients.may = guard.user_of, guard.allows
            methods = list(map(guard.watching, methods))
            locate = guard.locating(locate)
            rechecks = Rechecks(
                asyncio.get_running_loop(),
                lambda: (
                    broker.metadata.users_version,
                    self._links.revoked,
                    identities.key_changes,
                ),
                identities.lapses,
                broker.receiving.end_polls,
                guard.recheck_streams,
            )
            rechecks.start()
            stack.callback(rechecks.close)
        access = self.access = AccessPoint(
            services.table(methods),
            self._door_config,
            clock,
            locate,
            unreachable,
            links=self._links,
            serves_all=serves_all,
        )
        stack.push_async_callback(access.close)
        stack.callback(broker.sender.close)
        on_leader_gone(access.owner_gone)
        largest = self._max_message_size + services.AROUND_BODY_BYTES
        config = self._config
        if shares_port(config.remoting_listen_port, config.grpc_server_port):
            self.handover = Handover()
        make = choose_door(self._door_config.accepting(largest), self._links, self.handover)
        self.door = SuspendableDoor(lambda: make(access.services, clock, faults))
        together = self.door.together
        broker.sender.connect(access.hold, linger=not self.door.batches, together=together)
        broker.durability.connect(together)
        try:
            return await self.door.start(config.bind_address, config.grpc_server_port)
        except BaseException:
            await self.door.drain(0)
            raise

    def _live_settings(self) -> LiveSettings:
        broker = self._broker

        def use(config: BrokerConfig) -> None:
            broker.metadata.set_limits(
                auto_create_group=config.auto_create_subscription_group,
                max_topics=config.max_topics,
                max_groups=config.max_groups,
            )
            broker.sender.set_wait(config.wait_time_mills_in_send_queue)

        store = broker.store
        parts = (
            Live(self._config, BROKER, use),
            Live(store.config, STORE, store.retention.configure),
        )
        return LiveSettings(self._settings, parts, self._settings_changed)

    def _open_audit(self, stack: AsyncExitStack) -> AuditLog | None:
        """Open the audit log, if there is one. Raises OSError."""
        config, broker = self._config, self._broker
        writers = []
        if config.audit_log_file:
            file = AuditFile(Path(config.audit_log_file))
            stack.callback(file.close)
            writers.append(file.write)
        if config.audit_topic_enable:
            topic = AuditTopic(
                clock=self._clock,
                leadership=broker.leadership,
                system_topics=broker.system_topics,
                appender=broker.sender,
                dropped=broker.runtime.counters.audit_dropped,
            )
            writers.append(topic.write)
        if not writers:
            return None
        authentication = config.authentication_enabled
        return AuditLog(
            writers,
            self._clock,
            authentication=authentication,
            reads=config.audit_reads,
            dropped=broker.runtime.counters.audit_dropped,
        )

    async def _identities(self, stack: AsyncExitStack) -> Identities:
        """Derive the keys and return what finds the user of a call. Raises ValueError, OSError."""
        broker, config = self._broker, self._config
        bearers = self._bearers()
        sealed = [user.secret for user in broker.metadata.users.values()]
        await asyncio.to_thread(lambda: broker.keys.key.prepare(sealed))
        identities = Identities(
            metadata=broker.metadata,
            keys=broker.keys,
            wall_ms=self._clock.machine_ms,
            clock_skew_ms=config.authentication_clock_skew,
            refused=broker.runtime.counters.refused_calls,
            local_times=config.authentication_local_times,
            steady_ns=self._clock.steady_ns,
            failures_max=config.authentication_max_failures,
            bearers=bearers,
        )
        if bearers is not None:
            await self._follow_keys(bearers, identities.forget_tokens, stack)
        return identities

    def _bearers(self) -> BearerVerifier | None:
        """Return what verifies bearer tokens, if there is an issuer. Raises ValueError."""
        config = self._config
        if not config.oidc_issuer:
            return None
        if find_spec("joserfc") is None:
            raise ValueError("oidcIssuer needs joserfc: pip install 'cometmq[oidc]'")
        rules = BearerRules(config.oidc_issuer, config.oidc_audience, config.oidc_user_claim)
        return BearerVerifier(rules, self._clock.machine_ms)

    async def _follow_keys(
        self, bearers: BearerVerifier, changed: Callable[[], None], stack: AsyncExitStack
    ) -> None:
        """Keep the provider's keys current. Raises ValueError, OSError."""
        from .access.key_set import KeySetReader  # for brokers with an issuer only

        def use(keys: KeySet) -> None:
            bearers.keys = keys
            changed()

        reader = KeySetReader(self._config.oidc_jwks, use, self._links.kept)
        bearers.on_unknown_key = reader.want
        stack.push_async_callback(reader.close)
        await reader.start()

    def _guard(self, audit: AuditLog | None, identities: Identities) -> Guard:
        """Return the check of every call."""
        broker = self._broker
        return Guard(
            identities=identities,
            metadata=broker.metadata,
            cluster=self._config.broker_cluster_name,
            authorize=self._config.authorization_enabled,
            refused=broker.runtime.counters.refused_calls,
            audit=audit,
            clients=broker.clients,
            steady_ns=self._clock.steady_ns,
            user_of_certificate=self._links.user_of,
        )

    def _methods(self, relay: Relay) -> list[Method]:
        broker, faults = self._broker, self._faults
        stacks = ClientStacks()
        self.admin = build_admin(
            broker,
            GrpcClients(self._clock, broker.clients, stacks),
            lambda: self.door.name,
            self._live_settings(),
        )
        routes = Routes(self._config, broker.metadata, broker.cluster, broker.auto_topics)
        sessions = Sessions(
            clock=self._clock,
            metadata=broker.metadata,
            clients=broker.clients,
            leadership=broker.leadership,
            client_gone=broker.receiving.client_gone,
            relay=relay.send,
        )
        telemetry = TelemetryService(
            self._clock,
            broker.metadata,
            broker.clients,
            self._max_message_size,
            forward=broker.telemetry_forward,
            stacks=stacks,
        )
        queries = MessageQueries(broker.store, broker.metadata, broker.pump)
        reads = LogReads(
            self._config.broker_name,
            self._clock,
            broker.store,
            broker.cluster,
            broker.pump,
            offsets=broker.offsets,
        )
        administration = services.administration(
            admin=self.admin,
            sender=broker.sender,
            maintenance=broker.maintenance,
            queries=queries,
            timers=TimerList(broker.timers, broker.store, self._config.broker_name),
            transactions=TransactionList(broker.transactions, self._config),
            store=StoreView(broker.store, broker.replication, self._clock),
            replication=ReplicationAdmin(self._config, self._links, broker.cluster),
            users=broker.users,
            quotas=broker.quota_admin,
        )
        methods = [
            *services.messaging(broker, routes, sessions, telemetry, self._max_message_size),
            *map(partial(addressed, self._config.broker_name), administration),
            *services.reading(reads),
        ]
        if faults is not None:
            tests = FaultService(broker.runtime, broker.store.disk, faults, routes.name_stale)
            methods += services.testing(tests)
        return methods

    def _routing(self) -> tuple[Locate, Unreachable, ServesAll | None]:
        broker = self._broker
        router = RequestRouter(
            leadership=broker.leadership,
            replication=broker.replication,
            metadata=broker.metadata,
            cluster=broker.cluster,
            cold_reads=ColdReads(broker.runtime, broker.store, broker.replication, broker.cluster),
            lite_fanout=broker.lite_fanout,
        )
        return router.locate, router.unreachable, router.serves_all
