"""RocketMQ configuration keys that are not used here: ignored with the reason, or refused.

A file written for the Apache broker is accepted: keys that change nothing that a user relies on get
a notice, not a warning. A key that protects or replicates in Apache's broker, set to a value that
does so, is refused: the broker would be less safe than the file says. The error names the
replacement.
A key of our own dataclasses is never looked up here. Names: RocketMQ 4's and 5's broker, store and
nameserver configuration.
"""

_REMOTING = "the remoting protocol of 4.x clients has remotingListenPort; it is off by default"
_BOTH = "retry topics of both names are read while they hold messages"
_JAVA = "it configures threads and buffers of the Java broker"
_CONTROLLERS = "the nameservers of namesrvAddr that run with controller=true elect leaders"
_REGISTERED = "the replicas of a group are those that register"
_NOT_YET = "the feature is not supported; the default behaviour applies"
_ELSEWHERE = "this broker works without this setting"

_BY_REASON: dict[str, tuple[str, ...]] = {
    _CONTROLLERS: (
        "controllerAddr",
        "fetchControllerAddrByDnsLookup",
    ),
    _REGISTERED: ("totalReplicas",),
    _BOTH: ("retrieveMessageFromPopRetryTopicV1",),
    _REMOTING: (
        "listenPort",
        "fastListenPort",
        "enableRemotingLocalProxyGrpc",
        "orderMessageEnable",
    ),
    _JAVA: (
        "sendMessageThreadPoolNums",
        "pullMessageThreadPoolNums",
        "queryMessageThreadPoolNums",
        "adminBrokerThreadPoolNums",
        "clientManageThreadPoolNums",
        "consumerManageThreadPoolNums",
        "heartbeatThreadPoolNums",
        "endTransactionThreadPoolNums",
        "ackMessageThreadPoolNums",
        "serverWorkerThreads",
        "serverCallbackExecutorThreads",
        "serverSelectorThreads",
        "serverOnewaySemaphoreValue",
        "serverAsyncSemaphoreValue",
        "serverSocketSndBufSize",
        "serverSocketRcvBufSize",
        "serverPooledByteBufAllocatorEnable",
        "useEpollNativeSelector",
        "useReentrantLockWhenPutMessage",
        "useABSLock",
        "rocketmqHome",
        "topicQueueLockNum",
        "recoverThreadPoolNums",
    ),
    _ELSEWHERE: (
        "haSendHeartbeatInterval",
        "haHousekeepingInterval",
        "haMaxGapNotInSync",
        "haMaxTimeSlaveNotCatchup",
        "registerNameServerPeriod",
        "forceRegister",
        "brokerNotActiveTimeoutMillis",
        "notifyMinBrokerIdChanged",
        "compressedRegister",
        "fetchNamesrvAddrByAddressServer",
        "flushCommitLogTimed",
        "travelCqFileNumWhenGetMessage",
        "putConsumeQueueDataByFileChannel",
        "mapperFileSizeBatchConsumeQueue",
        "searchBcqByCacheEnable",
        "enablePopBufferMerge",
        "popCkStayBufferTime",
        "popCkStayBufferTimeOut",
        "metricsExporterType",
        "configRocksDB",
        "clusterTest",
        "needWaitForService",
        "kvConfigPath",
        "configStorePath",
    ),
    _NOT_YET: (
        "deleteConsumeQueueFilesInterval",
        "redeleteHangedFileInterval",
        "messageDelayLevel",
        "timerFlushIntervalMs",
        "transactionTimeOut",
        "transactionCheckMax",
        "transactionCheckInterval",
        "enablePropertyFilter",
        "enableCalcFilterBitMap",
        "bitMapLengthConsumeQueueExt",
        "enableControllerMode",
        "enableSlaveActingMaster",
        "enableAutoInSyncReplicas",
        "offsetCheckInSlave",
        "traceTopicEnable",
        "authenticationEnabled",
        "authorizationEnabled",
        "brokerIP2",
        "zoneName",
        "zoneMode",
        "longPollingEnable",
        "shortPollingTimeMills",
        "reviveQueueNum",
        "reviveInterval",
        "maxDelayTime",
        "putMsgIndexHightWater",
        "waitTimeMillsInSendQueue",
        "storePathConsumeQueue",
        "storePathIndex",
        "storeCheckpoint",
        "abortFile",
    ),
}

_ACL = (
    "the ACL of RocketMQ 4 (plain_acl.yml) is not read; set authenticationEnabled=true and "
    "authorizationEnabled=true, and create users and policies (docs/security.md)"
)
_CONTROLLER = "set enableControllerMode=true, with nameservers that run with controller=true"
_IN_SYNC = "set minInSyncReplicas to the number of replicas that must have a message"
_TLS = "set tlsMode=enforcing, with tlsCertificate and tlsKey"
#: Key -> the values that change nothing here, and what replaces the others.
REFUSED: dict[str, tuple[frozenset[str], str]] = {
    "aclEnable": (frozenset(("false",)), _ACL),
    "migrateAuthFromV1Enabled": (frozenset(("false",)), _ACL),
    "enableDLegerCommitLog": (frozenset(("false",)), _CONTROLLER),
    "duplicationEnable": (frozenset(("false",)), _CONTROLLER),
    "allAckInSyncStateSet": (frozenset(("false",)), _IN_SYNC),
    "inSyncReplicas": (frozenset(("1",)), _IN_SYNC),
    "asyncLearner": (frozenset(("false",)), "every replica of a group can become its leader"),
    **{
        key: (frozenset(("false", "disabled", "permissive")), _TLS)
        for key in ("useTLS", "tlsEnable", "tls.enable", "tls.server.mode")
    },
    "brokerPermission": (
        frozenset(("6", "7")),
        "set the permission of each topic (cometmq topic alter TOPIC --perm)",
    ),
    "rejectTransactionMessage": (
        frozenset(("false",)),
        "create topics of another type: only topics of type TRANSACTION take half messages",
    ),
}

#: Key -> why it is ignored.
IGNORED: dict[str, str] = {key: reason for reason, keys in _BY_REASON.items() for key in keys}
