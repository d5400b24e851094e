"""Every command of Apache's mqadmin 5.5.0, with arguments and what its output has.

In arguments and outputs `{broker}` and `{namesrv}` are addresses, `{unique_id}` and `{offset_id}`
are ids of a message, `{half_id}` and the like of one that waits, `{files}` is a folder. The order
matters: commands use what earlier ones made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

CLUSTER = ("-c", "DefaultCluster")
TOPIC = ("-t", "admin-topic")
GROUP = ("-g", "admin-group")
BROKER = ("-b", "{broker}")
BY_NAME = ("-b", "broker-a")
CONTROLLER = ("-a", "{namesrv}")


@dataclass(frozen=True)
class Case:
    """One run of a command."""

    name: str
    arguments: tuple[str, ...]
    #: A regular expression that the output matches.
    output: str
    #: False: the command is refused, and the output has the reason.
    works: bool = True
    #: The command does not end by itself.
    endless: bool = False


def works(name: str, *arguments: str, output: str, endless: bool = False) -> Case:
    return Case(name, arguments, output, endless=endless)


def refused(name: str, *arguments: str, reason: str) -> Case:
    return Case(name, arguments, reason, works=False)


CASES = (
    # -- topics ---------------------------------------------------------------------------------
    works(
        "updateTopic", *TOPIC, *CLUSTER, "-r", "4", "-w", "4", output="create topic to .* success"
    ),
    works("updateTopicList", "-f", "{files}/topics.json", *CLUSTER, output="submit batch of topic"),
    works("updateTopicPerm", *TOPIC, "-p", "6", *CLUSTER, output="(?i)perm|success"),
    works("topicList", "-c", output="admin-topic"),
    works("topicRoute", *TOPIC, output="broker-a"),
    works("topicClusterList", *TOPIC, output="DefaultCluster"),
    works("updateOrderConf", "-m", "put", *TOPIC, "-v", "broker-a:4", output="success"),
    works("allocateMQ", *TOPIC, "-i", "10.0.0.1,10.0.0.2", output="10.0.0.1"),
    # -- messages -------------------------------------------------------------------------------
    works("sendMessage", *TOPIC, "-p", "hello", "-k", "key-1", "-c", "TagA", output="SEND_OK"),
    works("topicStatus", *TOPIC, output="broker-a"),
    works("queryMsgById", *TOPIC, "-i", "{unique_id}", output="admin-topic"),
    works("queryMsgById", *TOPIC, "-i", "{offset_id}", output="admin-topic"),
    works("queryMsgById", *TOPIC, "-i", "{half_id}", output="RMQ_SYS_TRANS_HALF_TOPIC"),
    works("queryMsgById", *TOPIC, "-i", "{level_id}", output="SCHEDULE_TOPIC_XXXX"),
    works("queryMsgById", *TOPIC, "-i", "{timer_id}", output="rmq_sys_wheel_timer"),
    works("queryMsgByKey", *TOPIC, "-k", "key-0", output="{unique_id}"),
    works("queryMsgByKey", "-t", "RMQ_SYS_TRANS_HALF_TOPIC", "-k", "key-half", output="half"),
    works("queryMsgByUniqueKey", *TOPIC, "-i", "{unique_id}", output="admin-topic"),
    works("queryMsgByOffset", *TOPIC, *BY_NAME, "-i", "0", "-o", "0", output="admin-topic"),
    works("queryMsgTraceById", "-i", "{unique_id}", "-t", "trace-topic", output="Pub"),
    # The broker has traced it, for a client of the gRPC protocol.
    works("queryMsgTraceById", "-i", "{traced_id}", output="Pub"),
    works("printMsg", *TOPIC, output="key-0"),
    works("printMsgByQueue", *TOPIC, "-a", "broker-a", "-i", "0", "-p", "true", output="key-0"),
    works("consumeMessage", *TOPIC, "-c", "1", output="Consume ok|MSGID"),
    works("queryCq", *TOPIC, "-q", "0", "-i", "0", *BROKER, output="physicOffset|Subscription"),
    # The command sends to a topic with the name of the broker.
    refused("sendMsgStatus", *BY_NAME, "-c", "1", reason="No route info of this topic: broker-a"),
    works("checkMsgSendRT", *TOPIC, "-a", "2", output="Avg RT"),
    works("statsAll", *TOPIC, output="admin-topic"),
    # -- groups ---------------------------------------------------------------------------------
    works("updateSubGroup", *GROUP, *CLUSTER, output="create subscription group to .* success"),
    works("updateSubGroupList", "-f", "{files}/groups.json", *CLUSTER, output="submit batch of"),
    works("getConsumerConfig", *GROUP, output="retryMaxTimes"),
    works("setConsumeMode", *TOPIC, *GROUP, "-m", "PULL", *CLUSTER, output="success"),
    works("consumerConnection", *GROUP, output="admin-client"),
    works("consumerStatus", *GROUP, output="admin-client"),
    works("consumerProgress", *GROUP, output="admin-topic"),
    # Without the topic that the group has left.
    works(
        "consumerProgress", "-g", "left-group", output=r"(?s)\A(?!.*traced-).*admin-topic.*Total"
    ),
    works("producerConnection", *TOPIC, "-g", "admin-producers", output="admin-client"),
    works("producer", *BROKER, output="admin-producers"),
    works("brokerConsumeStats", *BROKER, output="admin-topic"),
    works("resetOffsetByTime", *GROUP, *TOPIC, "-s", "0", output="admin-topic|broker-a"),
    works("skipAccumulatedMessage", *GROUP, *TOPIC, output="admin-topic|broker-a"),
    works("cloneGroupOffset", "-s", "admin-group", "-d", "listed-group", *TOPIC, output="success"),
    # -- cluster --------------------------------------------------------------------------------
    works("clusterList", output="broker-a"),
    works("brokerStatus", *BROKER, output="brokerVersionDesc"),
    works("haStatus", *BROKER, output="MasterAddr|masterCommitLogMaxOffset|HA"),
    works("getBrokerConfig", *BROKER, output="brokerName"),
    works("updateBrokerConfig", *BROKER, "-k", "fileReservedTime", "-v", "48", output="success"),
    works("cleanExpiredCQ", *BROKER, output="success"),
    works("cleanUnusedTopic", *BROKER, output="success"),
    works("deleteExpiredCommitLog", *BROKER, output="success"),
    works("wipeWritePerm", *BY_NAME, output="OK, [1-9]"),
    works("addWritePerm", *BY_NAME, output="OK, [1-9]"),
    works("getNamesrvConfig", output="bindAddress"),
    refused("updateNamesrvConfig", "-k", "a", "-v", "b", reason="namesrv.conf"),
    works("updateKvConfig", "-s", "space", "-k", "key", "-v", "value", output="success"),
    works("deleteKvConfig", "-s", "space", "-k", "key", output="success"),
    works("exportMetadata", *CLUSTER, "-f", "{files}", output="success"),
    works("exportConfigs", *CLUSTER, "-f", "{files}", output="success"),
    works("exportMetrics", *CLUSTER, "-f", "{files}", output="success"),
    # -- users ----------------------------------------------------------------------------------
    works("createUser", *CLUSTER, "-u", "ann", "-p", "secret-of-ann", output="success"),
    works("updateUser", *CLUSTER, "-u", "ann", "-s", "disable", output="success"),
    works("getUser", *CLUSTER, "-u", "ann", output="ann"),
    works("listUser", *CLUSTER, output="ann"),
    works(
        *("createAcl", *CLUSTER, "-s", "User:ann", "-r", "Topic:*", "-a", "Pub", "-d", "Allow"),
        output="success",
    ),
    works(
        *("updateAcl", *CLUSTER, "-s", "User:ann", "-r", "Topic:*", "-a", "Sub", "-d", "Allow"),
        output="success",
    ),
    works("getAcl", *CLUSTER, "-s", "User:ann", output="Topic:\\*"),
    works("listAcl", *CLUSTER, output="Topic:\\*"),
    works("copyAcl", "-f", "{broker}", "-t", "{broker}", "-s", "User:ann", output="success"),
    works("deleteAcl", *CLUSTER, "-s", "User:ann", output="success"),
    works("copyUser", "-f", "{broker}", "-t", "{broker}", "-u", "ann", output="success"),
    works("deleteUser", *CLUSTER, "-u", "ann", output="success"),
    # -- removal --------------------------------------------------------------------------------
    works("deleteSubGroup", "-g", "listed-group", *CLUSTER, output="success"),
    works("deleteTopic", "-t", "listed-topic", *CLUSTER, output="success"),
    # -- not served -----------------------------------------------------------------------------
    refused(
        "updateStaticTopic", "-t", "static", "-qn", "2", *CLUSTER, reason="there are no static"
    ),
    refused("remappingStaticTopic", "-t", "static", *CLUSTER, reason="(?s).*"),
    refused("addBroker", "-b", "/a", "-c", "{broker}", reason="no broker container"),
    refused("removeBroker", "-b", "c:b:1", "-c", "{broker}", reason="no broker container"),
    refused("resetMasterFlushOffset", *BROKER, "-o", "0", reason="from the leader"),
    refused("getBrokerEpoch", *BY_NAME, reason="cometmq ha status"),
    refused("getSyncStateSet", *CONTROLLER, *BY_NAME, reason="cometmq ha"),
    refused("getControllerMetaData", *CONTROLLER, reason="cometmq ha"),
    refused("getControllerConfig", *CONTROLLER, reason="cometmq ha"),
    refused("updateControllerConfig", *CONTROLLER, "-k", "a", "-v", "b", reason="cometmq ha"),
    refused(
        *("electMaster", *CONTROLLER, *CLUSTER, "-bn", "broker-a", "-b", "1"), reason="cometmq ha"
    ),
    refused("cleanBrokerMetadata", *CONTROLLER, "-bn", "broker-a", *CLUSTER, reason="cometmq ha"),
    refused("getColdDataFlowCtrInfo", *BROKER, reason="by group"),
    refused("updateColdDataFlowCtrGroupConfig", *BROKER, *GROUP, "-v", "1", reason="by group"),
    refused("removeColdDataFlowCtrGroupConfig", *BROKER, *GROUP, reason="by group"),
    refused("setCommitLogReadAheadMode", *BROKER, "-m", "0", reason="at run time"),
    refused("switchTimerEngine", *BROKER, "-e", "F", reason="no RocksDB"),
    refused("exportPopRecord", *BROKER, reason="no RocksDB"),
    refused("rocksDBConfigToJson", *CLUSTER, reason="no RocksDB"),
    refused("checkRocksdbCqWriteProgress", *CLUSTER, reason="no RocksDB"),
    refused("exportMetadataInRocksDB", "-p", "{files}/none", "-t", "topics", reason="(?s).*"),
    refused("dumpCompactionLog", "-f", "{files}/none", reason="(?s).*"),
    # Five of the six print `error` without the broker's reason.
    refused("getBrokerLiteInfo", *BROKER, reason="gRPC only"),
    refused("getParentTopicInfo", "-p", "admin-topic", reason="broker-a.* error"),
    refused("getLiteTopicInfo", "-p", "admin-topic", "-l", "x", reason="broker-a.* error"),
    refused("getLiteClientInfo", "-p", "admin-topic", *GROUP, "-c", "x", reason="broker-a.* error"),
    refused("getLiteGroupInfo", "-p", "admin-topic", *GROUP, reason="broker-a.* error"),
    refused("triggerLiteDispatch", "-p", "admin-topic", *GROUP, reason="broker-a.* error"),
    # -- commands that go on after they have begun -----------------------------------------------
    works("startMonitoring", output="^$"),
    # It sends to a topic with the name of the cluster.
    Case("clusterRT", ("-a", "1", "-i", "1"), "broker-a .* 0 +1", works=False, endless=True),
)

#: They change nameservers: a proxy refuses them.
OF_NAMESERVERS = (
    *("updateOrderConf", "wipeWritePerm", "addWritePerm", "updateKvConfig", "deleteKvConfig"),
)
NO_CHANGES = "a proxy passes no changes on to nameservers"


def through_a_proxy(case: Case) -> Case:
    """Return the case with the output that it has when a proxy is the only address."""
    if case.name in OF_NAMESERVERS:
        return replace(case, output=NO_CHANGES, works=False)
    if case.name == "deleteSubGroup":
        # The group is deleted; then the command deletes settings of ordered topics.
        return replace(case, output=f"(?s)success.*{NO_CHANGES}", works=False)
    return case
