"""Broker settings: identity, ports, clients, topics and advertised addresses.

One frozen dataclass is the only place of name, type, default, unit and help; an invalid value
raises ValueError with a sentence. Keys and defaults are RocketMQ's where it has them
(docs/formats/broker-semantics.md, sections 8 and 11; docs/formats/grpc-api.md, section 4.1).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from ...auth.model import check_secret, check_user_name
from ...nodes.addresses import check_host, host_port, is_ip

_NAME = re.compile(r"^[%|a-zA-Z0-9_-]{1,127}$")
_MAX_PORT = 65_535


def _setting(default: Any, help_text: str, **more: str) -> Any:
    return field(default=default, metadata={"help": help_text, **more})


def split_addresses(text: str, separators: str = ";,") -> list[tuple[str, int]]:
    """Parse a list of `host:port` pairs; brackets around IPv6 addresses are removed. Raises
    ValueError.
    """
    found = []
    for part in re.split(f"[{separators}]", text):
        item = part.strip()
        if not item:
            continue
        host, colon, port = item.rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) <= _MAX_PORT:
            raise ValueError(f"'{item}' is not an address: use HOST:PORT.")
        found.append((host.removeprefix("[").removesuffix("]"), int(port)))
    return found


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Settings of `broker.conf` for the broker; store, replication and front door have their own
    classes.
    """

    broker_cluster_name: str = _setting("DefaultCluster", "Cluster that this broker belongs to.")
    broker_name: str = _setting("broker-a", "Name of the replica group; clients see it in routes.")
    broker_id: int = _setting(
        0, "Number of the replica in its group: 0 is the first leader, others are followers."
    )
    broker_ip1: str = _setting(
        "127.0.0.1", "Address that clients and other nodes dial for this broker.", key="brokerIP1"
    )
    bind_address: str = _setting("0.0.0.0", "Address that the servers of this process bind.")
    namesrv_addr: str = _setting("", "Nameservers, HOST:PORT separated by semicolons.")
    grpc_server_port: int = _setting(
        8081, "Port of the gRPC service for clients; 0: chosen by the OS."
    )
    remoting_listen_port: int = _setting(
        0,
        "Port of the remoting protocol for classic clients (4.x); 0: off; -1: chosen by the OS; "
        "the value of grpcServerPort: one port for both protocols. With tlsCertificate it speaks "
        "TLS, and plaintext unless tlsMode=enforcing.",
    )
    remoting_advertise: str = _setting(
        "",
        "HOST:PORT that routes of classic clients name for this broker, if NAT or a container maps "
        "its port. Empty: remotingListenPort at the host of the first address in the list of "
        "advertise (with one port for both protocols: that address), or at brokerIP1 without one.",
    )
    allow_mixed_protocols: bool = _setting(
        False,
        "Let clients of the gRPC and of the remoting protocol consume in one group at once. They "
        "have different progress: each message is delivered to both.",
    )
    metrics_prom_exporter_port: int = _setting(
        5557, "Port of /metrics, /livez and /readyz; 0: chosen by the OS."
    )
    metrics_bearer_token_file: str = _setting(
        "",
        "File with the token that a scrape of /metrics needs (Authorization: Bearer TOKEN): mode "
        "0600, at least 16 bytes, read at start. /livez and /readyz stay open. Empty: no token.",
    )
    auto_create_topic_enable: bool = _setting(
        False,
        "Create a topic (NORMAL, 4 queues) when a client first asks for its route or sends to it. "
        "Off by default, as in Apache's proxy, where gRPC clients never create topics.",
    )
    auto_create_subscription_group: bool = _setting(
        True, "Create a consumer group when a client first uses it."
    )
    enable_mixed_message_type: bool = _setting(
        True, "Allow topics of type MIXED, which accept every message type."
    )
    default_topic_queue_nums: int = _setting(
        8, "Number of queues of a new topic if the request has none."
    )
    advertise: str = _setting(
        "auto",
        "Endpoints in routes: auto, replicas, echo, or a list HOST:PORT,...",
    )
    register_broker_period: int = _setting(
        1000, "Interval of registrations with each nameserver.", unit="ms"
    )
    register_broker_timeout: int = _setting(3000, "Timeout of one registration.", unit="ms")
    channel_expired_timeout: int = _setting(
        120_000, "A client without a request for this long is removed.", unit="ms"
    )
    max_clients: int = _setting(
        100_000, "Maximum number of clients; beyond it the least recently active one is removed."
    )
    region_id: str = _setting("DefaultRegion", "Region name stored with every message.")
    send_thread_pool_queue_capacity: int = _setting(
        10_000, "Maximum number of sends waiting for an append; others get TOO_MANY_REQUESTS."
    )
    broker_fast_failure_enable: bool = _setting(
        True,
        "Refuse sends (TOO_MANY_REQUESTS) that waited too long or wait behind a stalled write.",
    )
    wait_time_mills_in_send_queue: int = _setting(
        200,
        "Maximum time that a send waits for the log before it is refused as overload.",
        unit="ms",
    )
    message_deduplication_enable: bool = _setting(
        False,
        "Answer a repeated message (same id and topic within the window) with the first answer, "
        "instead of storing it again.",
    )
    message_deduplication_window_ms: int = _setting(
        60_000, "Deduplication window: how long the id of a sent message is stored.", unit="ms"
    )
    message_deduplication_max_messages: int = _setting(
        100_000,
        "Maximum number of stored message ids, about 450 bytes each; the oldest are removed first.",
    )
    reject_transaction_message: bool = _setting(False, "Refuse transactional messages (FORBIDDEN).")
    transaction_time_out: int = _setting(
        6_000, "Age of a half message before its first transaction check.", unit="ms"
    )
    transaction_check_interval: int = _setting(
        30_000, "Interval of transaction check rounds.", unit="ms"
    )
    transaction_check_max: int = _setting(
        15, "Checks of one half message before it is moved to TRANS_CHECK_MAX_TIME_TOPIC."
    )
    transaction_op_msg_max_size: int = _setting(
        4_096,
        "Size of a batch of transaction ends that is written without waiting further.",
        unit="bytes",
    )
    transaction_op_batch_interval: int = _setting(
        3_000,
        "How long the end of a transaction waits to be written with others.",
        unit="ms",
    )
    transaction_metric_flush_interval: int = _setting(
        10_000, "Interval of writes of config/transactionMetrics.", unit="ms"
    )
    trace_topic_enable: bool = _setting(
        False, "Write a trace of every send, delivery and acknowledgement to RMQ_SYS_TRACE_TOPIC."
    )
    trace_spans_enable: bool = _setting(
        False,
        "Export OpenTelemetry spans of messages whose producer sent a sampled trace context. Needs "
        "cometmq[otel]; OTEL_EXPORTER_OTLP_ENDPOINT has the collector.",
    )
    pop_polling_size: int = _setting(
        100_000, "Maximum number of waiting long polls; others get TOO_MANY_REQUESTS."
    )
    pop_inflight_message_threshold: int = _setting(
        20_000,
        "Maximum messages in flight per group and queue; at the limit no new ones are delivered.",
    )
    pop_ck_stay_buffer_time: int = _setting(
        1_000,
        "How long a batch of popped messages waits in memory for acknowledgements before its "
        "unacknowledged messages are written to the revive topic.",
        unit="ms",
    )
    pop_ck_stay_buffer_time_out: int = _setting(
        3_000,
        "Write the batch at once if its invisible time ends within this plus popCkStayBufferTime.",
        unit="ms",
    )
    pop_ck_max_buffer_size: int = _setting(
        200_000, "Maximum number of waiting batches; beyond it the oldest are written early."
    )
    revive_queue_num: int = _setting(
        8, "Queues of the revive topic, which stores the state of popped messages."
    )
    enable_retry_topic_v2: bool = _setting(
        False,
        "Name retry topics %RETRY%group+topic, which is never ambiguous, instead of "
        "%RETRY%group_topic.",
    )
    pop_from_retry_probability: int = _setting(
        20, "Share of receives that read the retry topic before the topic itself.", unit="%"
    )
    pop_from_retry_probability_for_priority: int = _setting(
        0,
        "The same share for topics with priorities, where a retried message may be less urgent.",
        unit="%",
    )
    priority_order_asc: bool = _setting(
        True, "Larger priorities are more urgent; if off, smaller ones are."
    )
    max_delay_time_mills: int = _setting(
        86_400_000,
        "Maximum delay of a delayed message; 0: the value of timerMaxDelaySec.",
        unit="ms",
    )
    slave_read_enable: bool = _setting(
        True,
        "Let in-sync slaves serve reads of old messages, further behind the log end than "
        "accessMessageInMemoryMaxRatio of the memory.",
    )
    recall_message_enable: bool = _setting(True, "Let producers recall delayed messages.")
    append_topic_for_timer_delete_key: bool = _setting(
        False, "Write the topic into recall records, as Apache before 5.5 did."
    )
    flush_consumer_offset_interval: int = _setting(
        5_000, "Interval of writes of consumerOffset.json.", unit="ms"
    )
    max_topics: int = _setting(100_000, "Maximum number of topics.")
    max_groups: int = _setting(100_000, "Maximum number of consumer groups.")
    max_lite_subscription_count: int = _setting(
        100_000, "Maximum number of lite topic subscriptions of all clients together."
    )
    authentication_enabled: bool = _setting(
        False,
        "Accept only calls that are signed with the secret key of an enabled user. Health and "
        "reflection stay open.",
    )
    allow_anonymous: bool = _setting(
        False,
        "Serve addresses other than loopback although authenticationEnabled is off: everyone who "
        "reaches the ports may read and change everything.",
    )
    authorization_enabled: bool = _setting(
        False,
        "Check the user's policies before every call; needs authenticationEnabled. Users of type "
        "Super may do everything.",
    )
    init_authentication_user: str = _setting(
        "",
        'First user, of type Super, as JSON: {"username":"NAME","password":"SECRET KEY"}. The '
        "leader creates it if it does not exist.",
        secret="yes",
    )
    authentication_key_file: str = _setting(
        "",
        "File with the key that encrypts the users' secret keys in the log: mode 0600, the same "
        "content on every replica. Empty: clusterToken is the key; without a token, a key is "
        "generated in config/auth.key (for a group with one replica).",
    )
    authentication_clock_skew: int = _setting(
        300_000,
        "Maximum difference between the time that a gRPC client signs (x-mq-date-time) and this "
        "node's clock; 0: not checked, as in RocketMQ.",
        unit="ms",
    )
    authentication_local_times: bool = _setting(
        True,
        "Java, Python, Go and C# clients sign their local time without its zone: accept it in any "
        "time zone. A signature that was captured is accepted again when it fits another zone, "
        "for at most 26 hours. false: they need the time zone UTC.",
    )
    authentication_max_failures: int = _setting(
        20,
        "Wrong signatures of one user name from one address in a minute; further ones are refused "
        "without a look at them, also right ones. Other addresses are not affected. Classic "
        "clients are counted by connection. 0: no limit.",
    )
    oidc_issuer: str = _setting(
        "",
        "Issuer (`iss`) of the bearer tokens of an OpenID Connect provider that gRPC clients may "
        "send in place of a signature, over TLS or from this machine; needs `cometmq[oidc]`. "
        "Empty: none.",
    )
    oidc_jwks: str = _setting(
        "",
        "Key set (JWKS) of the provider: a file, read again when it changes, or an https URL, read "
        "every 5 minutes. Tokens are verified without the provider.",
    )
    oidc_audience: str = _setting("", "Audience (`aud`) that a token must name.")
    oidc_user_claim: str = _setting(
        "sub", "Claim of a token with the name of the user, who exists in the cluster."
    )
    audit_log_file: str = _setting(
        "",
        "File for a line of JSON about each administrative call and each denial: time, user, "
        "address, call, target, outcome. Rotated at 16 MiB, 6 files. Empty: no file.",
    )
    audit_reads: bool = _setting(
        False,
        "Lines in the audit log also for what tools read: messages by id, key or position, the "
        "log, settings, users, clients.",
    )
    audit_topic_enable: bool = _setting(
        False,
        "Write the lines of the audit log to rmq_sys_COMETMQ_AUDIT as well (the leader): at most "
        "100 served and 10 refused calls a second.",
    )
    test_hooks: bool = _setting(
        False, "Serve cometmq.v1.Test (clock, faults); for tests only, never in production."
    )

    def __post_init__(self) -> None:
        """Raise ValueError for an invalid value."""
        self._check_names()
        self._check_numbers()
        check_host("brokerIP1", self.broker_ip1)
        check_host("bindAddress", self.bind_address)
        split_addresses(self.namesrv_addr)
        self._check_access()
        if self.advertise not in ("auto", "replicas", "echo"):
            if not self.advertise_list():
                raise ValueError("advertise is empty: use auto, replicas, echo or HOST:PORT,...")
            _check_one_family(self.advertise_list())
        if len(split_addresses(self.remoting_advertise)) > 1:
            raise ValueError(
                "remotingAdvertise names several addresses, but classic clients take one for each "
                "broker: use HOST:PORT."
            )

    def _check_access(self) -> None:
        if self.authorization_enabled and not self.authentication_enabled:
            raise ValueError(
                "authorizationEnabled=true needs authenticationEnabled=true: without a signature "
                "there is no user to check."
            )
        if self.authentication_clock_skew < 0:
            raise ValueError(
                f"authenticationClockSkew={self.authentication_clock_skew} is below 0."
            )
        if self.authentication_max_failures < 0:
            raise ValueError(
                f"authenticationMaxFailures={self.authentication_max_failures} is below 0."
            )
        oidc = (self.oidc_issuer, self.oidc_jwks, self.oidc_audience, self.oidc_user_claim)
        if any(oidc[:3]) and not (all(oidc) and self.authentication_enabled):
            raise ValueError(
                "Bearer tokens need all of oidcIssuer, oidcJwks, oidcAudience, oidcUserClaim and "
                "authenticationEnabled=true."
            )
        self.first_user()

    def first_user(self) -> tuple[str, str] | None:
        """Return name and secret key of `initAuthenticationUser`. Raises ValueError."""
        if not self.init_authentication_user:
            return None
        try:
            bean = json.loads(self.init_authentication_user)
            name, secret = str(bean["username"]), str(bean["password"])
            check_user_name(name)
            check_secret(secret)
        except (ValueError, KeyError, TypeError) as error:
            # Not the text itself: it holds a secret.
            reason = "not a JSON object with username and password"
            if type(error) is ValueError:
                reason = str(error)
            raise ValueError(f"initAuthenticationUser is invalid: {reason}.") from None
        return name, secret

    def _check_names(self) -> None:
        for key, value in (
            ("brokerClusterName", self.broker_cluster_name),
            ("brokerName", self.broker_name),
        ):
            if not _NAME.match(value):
                raise ValueError(f"{key}='{value}' is invalid: use 1-127 letters, digits, _ - % |.")

    def _check_numbers(self) -> None:
        if self.broker_id < 0:
            raise ValueError(f"brokerId={self.broker_id} is negative.")
        for key, port in (
            ("grpcServerPort", self.grpc_server_port),
            ("metricsPromExporterPort", self.metrics_prom_exporter_port),
        ):
            if not 0 <= port <= _MAX_PORT:
                raise ValueError(f"{key}={port} is not a port.")
        for key, value in (
            ("defaultTopicQueueNums", self.default_topic_queue_nums),
            ("registerBrokerPeriod", self.register_broker_period),
            ("registerBrokerTimeout", self.register_broker_timeout),
            ("channelExpiredTimeout", self.channel_expired_timeout),
            ("maxClients", self.max_clients),
            ("maxTopics", self.max_topics),
            ("maxGroups", self.max_groups),
            ("maxLiteSubscriptionCount", self.max_lite_subscription_count),
            ("sendThreadPoolQueueCapacity", self.send_thread_pool_queue_capacity),
            ("waitTimeMillsInSendQueue", self.wait_time_mills_in_send_queue),
            ("messageDeduplicationWindowMs", self.message_deduplication_window_ms),
            ("messageDeduplicationMaxMessages", self.message_deduplication_max_messages),
            ("transactionTimeOut", self.transaction_time_out),
            ("transactionCheckInterval", self.transaction_check_interval),
            ("transactionCheckMax", self.transaction_check_max),
            ("transactionOpMsgMaxSize", self.transaction_op_msg_max_size),
            ("transactionOpBatchInterval", self.transaction_op_batch_interval),
            ("transactionMetricFlushInterval", self.transaction_metric_flush_interval),
            ("popPollingSize", self.pop_polling_size),
            ("popCkStayBufferTime", self.pop_ck_stay_buffer_time),
            ("popCkStayBufferTimeOut", self.pop_ck_stay_buffer_time_out),
            ("popCkMaxBufferSize", self.pop_ck_max_buffer_size),
            ("reviveQueueNum", self.revive_queue_num),
            ("popInflightMessageThreshold", self.pop_inflight_message_threshold),
            ("flushConsumerOffsetInterval", self.flush_consumer_offset_interval),
        ):
            if value <= 0:
                raise ValueError(f"{key}={value} must be above 0.")
        for key, value in (
            ("popFromRetryProbability", self.pop_from_retry_probability),
            (
                "popFromRetryProbabilityForPriority",
                self.pop_from_retry_probability_for_priority,
            ),
        ):
            if not 0 <= value <= 100:
                raise ValueError(f"{key}={value} is not between 0 and 100.")

    def namesrv_addresses(self) -> list[tuple[str, int]]:
        """Return the nameservers to register with."""
        return split_addresses(self.namesrv_addr)

    def advertise_list(self) -> list[tuple[str, int]]:
        """Return the addresses listed in `advertise`; empty for `auto`, `replicas` and `echo`."""
        if self.advertise in ("auto", "replicas", "echo"):
            return []
        return split_addresses(self.advertise)

    def remoting_advertised(self, port: int) -> str:
        """Return the address of this broker in routes of classic clients, whose port is `port`."""
        if self.remoting_advertise:
            return host_port(*split_addresses(self.remoting_advertise)[0])
        listed = self.advertise_list()
        if not listed:
            return host_port(self.broker_ip1, port)
        host, mapped = listed[0]
        return host_port(host, mapped if port == self.grpc_server_port else port)


def _check_one_family(addresses: list[tuple[str, int]]) -> None:
    if len(addresses) > 1 and not all(is_ip(host) for host, _ in addresses):
        raise ValueError(
            "advertise names several addresses: all of them must be IP addresses, "
            "because clients refuse several host names in one endpoint."
        )
