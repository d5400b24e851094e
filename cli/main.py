"""The `cometmq` command: the table of subcommands, and the way to them.

A subcommand's module is imported when it is called (see `lazy_group.py`), so the table holds the
help line of each command. Help is printed from a file (`help_texts.py`); for all else `root.py`
has the click group, which this module does not import before it is needed: click is half of the
time of a short command.
"""

import os
import sys

from .help_texts import help_of

#: Name -> (module of this package, or with a leading dot of `cometmq`, command in it, one line of
#: help).
COMMANDS: dict[str, tuple[str, str, str]] = {
    "up": ("cluster.up", "up", "Start a cluster on this machine: nameserver, master and slave."),
    "namesrv": ("server.command", "namesrv", "Run a nameserver."),
    "broker": ("server.command", "broker", "Run one replica of a broker group."),
    "single": ("server.command", "single", "Run a nameserver and a broker in one process."),
    "proxy": ("server.proxy", "proxy", "Run a proxy: one port for all brokers of a cluster."),
    "console": (".console.command", "console", "Serve the web console of a cluster."),
    "topic": ("topic", "topic", "Create, alter, delete, list and describe topics."),
    "group": ("group", "group", "Create, alter, delete, list and describe consumer groups."),
    "client": ("client", "client", "List the connected producers and consumers."),
    "offset": ("offset", "offset", "Show and reset the consumer offsets of a group."),
    "message": ("message.command", "message", "Send messages, follow a topic, find messages."),
    "top": ("top.command", "top", "Show rates, lag, roles and disk of a cluster, live."),
    "dlq": ("dlq.command", "dlq", "List dead letters, and send them again."),
    "timer": ("timer", "timer", "List delayed messages that wait, and recall one."),
    "consume": (
        "message.consume",
        "consume",
        "Receive the messages of a group, print and acknowledge them.",
    ),
    "bench": ("bench.command", "bench", "Measure throughput, latency and CPU time of a cluster."),
    "drill": ("drill", "drill", "Run failure drills on a cluster of its own, with verdicts."),
    "cluster": ("cluster.command", "cluster", "Describe the broker groups and their members."),
    "backup": ("backup.command", "backup", "Save a running cluster, check and restore a backup."),
    "mirror": ("mirror", "mirror", "Copy topics and groups of a running cluster."),
    "context": ("context", "context", "Name clusters that commands can address."),
    "user": ("access.user", "user", "Create, change, delete and list users."),
    "acl": ("access.acl", "acl", "Create, delete and list the policies of users."),
    "quota": ("access.quota", "quota", "Set, delete and list the quotas of users and topics."),
    "auth": ("access.auth", "auth", "Create the first user; explain a decision."),
    "ha": (
        "ha.command",
        "ha",
        "Show and change a group's leader; replay, reseed and compare replicas.",
    ),
    "cheat": ("cheat", "cheat", "Print the commands that people need most, by task."),
    "healthcheck": ("cluster.healthcheck", "healthcheck", "Check whether a node is serving."),
    "doctor": ("installation.doctor", "doctor", "Check this machine and the installation."),
    "store": (
        "store.command",
        "store",
        "Inspect, check and repair a store directory (offline).",
    ),
    "pipeline": (
        "pipeline.command",
        "pipeline",
        "Spark jobs: archive, replay, verify, rebuild, insights.",
    ),
    "config": ("config.show", "config", "Show settings and their origins; change some."),
    "help": ("installation.help", "show_help", "Show the help of a command."),
    "version": ("installation.version", "version", "Print versions."),
    "completion": ("installation.completion", "completion", "Print the script of a shell."),
}

#: Commands of RocketMQ's mqadmin; they work, but are not listed.
ALIASES: dict[str, tuple[str, str, str]] = {
    "updateTopic": ("mqadmin.messaging", "update_topic", ""),
    "updateTopicPerm": ("mqadmin.messaging", "update_topic_perm", ""),
    "deleteTopic": ("mqadmin.messaging", "delete_topic", ""),
    "topicList": ("mqadmin.messaging", "topic_list", ""),
    "topicStatus": ("mqadmin.messaging", "topic_status", ""),
    "updateSubGroup": ("mqadmin.messaging", "update_sub_group", ""),
    "deleteSubGroup": ("mqadmin.messaging", "delete_sub_group", ""),
    "getConsumerConfig": ("mqadmin.messaging", "get_consumer_config", ""),
    "consumerProgress": ("mqadmin.messaging", "consumer_progress", ""),
    "resetOffsetByTime": ("mqadmin.messaging", "reset_offset_by_time", ""),
    "createUser": ("mqadmin.access", "create_user", ""),
    "updateUser": ("mqadmin.access", "update_user", ""),
    "deleteUser": ("mqadmin.access", "delete_user", ""),
    "getUser": ("mqadmin.access", "get_user", ""),
    "listUser": ("mqadmin.access", "list_user", ""),
    "createAcl": ("mqadmin.access", "create_acl", ""),
    "updateAcl": ("mqadmin.access", "create_acl", ""),
    "deleteAcl": ("mqadmin.access", "delete_acl", ""),
    "getAcl": ("mqadmin.access", "get_acl", ""),
    "listAcl": ("mqadmin.access", "list_acl", ""),
    "skipAccumulatedMessage": ("mqadmin.messaging", "skip_accumulated_message", ""),
    "cloneGroupOffset": ("mqadmin.state", "clone_group_offset", ""),
    "sendMessage": ("mqadmin.messages", "send_message", ""),
    "queryMsgById": ("mqadmin.messages", "query_by_id", ""),
    "queryMsgByKey": ("mqadmin.messages", "query_by_key", ""),
    "queryMsgByUniqueKey": ("mqadmin.messages", "query_by_unique_key", ""),
    "queryMsgByOffset": ("mqadmin.messages", "query_by_offset", ""),
    "queryMsgTraceById": ("mqadmin.messages", "query_trace", ""),
    "printMsg": ("mqadmin.messages", "print_messages", ""),
    "consumeMessage": ("mqadmin.messages", "consume_message", ""),
    "topicRoute": ("mqadmin.state", "topic_route", ""),
    "topicClusterList": ("mqadmin.state", "topic_route", ""),
    "clusterList": ("mqadmin.state", "cluster_list", ""),
    "brokerStatus": ("mqadmin.state", "cluster_list", ""),
    "statsAll": ("mqadmin.state", "stats_all", ""),
    "getBrokerConfig": ("mqadmin.state", "get_broker_config", ""),
    "updateBrokerConfig": ("mqadmin.state", "update_broker_config", ""),
    "consumerConnection": ("mqadmin.state", "consumer_connection", ""),
    "producerConnection": ("mqadmin.state", "producer_connection", ""),
    "producer": ("mqadmin.state", "producer", ""),
    "consumerStatus": ("mqadmin.state", "consumer_status", ""),
    "haStatus": ("mqadmin.state", "ha_status", ""),
    "brokerConsumeStats": ("mqadmin.state", "broker_consume_stats", ""),
    "wipeWritePerm": ("mqadmin.state", "wipe_write_perm", ""),
    "addWritePerm": ("mqadmin.state", "add_write_perm", ""),
    "exportMetadata": ("mqadmin.state", "export_metadata", ""),
}


def main() -> None:
    """Run the command line and exit with its code."""
    text = help_of(sys.argv[1:])
    sys.exit(_run() if text is None else _print(text))


def _run() -> int:
    from .root import run

    return run()


def _print(text: str) -> int:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has exited (`| head`): suppress the message at interpreter exit, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    main()
