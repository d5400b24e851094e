"""RocketMQ's `mqadmin` commands for the state of a cluster, with their names and options.

Hidden aliases of our own commands, like those of `messaging.py`.
"""

from pathlib import Path
from typing import Any

import click

from .. import client as clients
from .. import group as groups
from .. import offset as offsets
from .. import topic as topics
from ..cluster import command as clusters
from ..cluster import definition_files
from ..cluster.draining import drain
from ..config import show as settings
from ..confirm import plan_options
from ..ha import command as ha
from ..options import output_option
from ..top import command as tops
from .messaging import CLUSTER, NAMESERVER, alias, call, common, ignored, options_of

_CONSUMERS = click.option("-g", "--consumerGroup", "name", required=True, help="Consumer group.")
_BROKER_GROUP = (
    click.option("-b", "--brokerName", "name", required=True, help="Broker group."),
    plan_options,
)
_NEITHER = options_of(NAMESERVER, brokers=False)

topic_route = alias(
    "topicRoute",
    topics.describe,
    "Show the queues of a topic in each broker group (`topic describe`).",
    click.option("-t", "--topic", "name", required=True, help="Topic."),
    ignored("-l", "--list", is_flag=True),
)
cluster_list = alias(
    "clusterList",
    clusters.describe,
    "Show broker groups and their members (`cluster describe`).",
    ignored("-m", "--moreStats", is_flag=True),
    ignored("-i", "--interval"),
)
stats_all = alias(
    "statsAll",
    tops.top,
    "Show rates and lag once (`top --once`).",
    ignored("-a", "--activeTopic", is_flag=True),
    ignored("-t", "--topic"),
    once=True,
)
get_broker_config = alias(
    "getBrokerConfig", settings.show, "Show the settings of a broker (`config show`)."
)


@click.command("updateBrokerConfig")
@click.option("-k", "--key", required=True, help="Setting.")
@click.option("-v", "--value", required=True, help="Value.")
@plan_options
@common
def update_broker_config(key: str, value: str, **options: Any) -> None:
    """Change a setting of the broker that is called, until it ends (`config set`)."""
    call(settings.change, assignments=(f"{key}={value}",), **options)


consumer_connection = alias(
    "consumerConnection",
    groups.describe,
    "Show the connected consumers of a group (`group describe`).",
    _CONSUMERS,
)
producer_connection = alias(
    "producerConnection",
    clients.list_clients,
    "Show the connected producers of a group (`client list --producers --group`).",
    click.option("-g", "--producerGroup", "group", required=True, help="Producer group."),
    ignored("-t", "--topic"),
    producers=True,
)
producer = alias(
    "producer",
    clients.list_clients,
    "Show all connected producers (`client list --producers`).",
    producers=True,
)
consumer_status = alias(
    "consumerStatus",
    groups.describe,
    "Show the queues and consumers of a group (`group describe`).",
    _CONSUMERS,
    ignored("-i", "--clientId"),
    ignored("-s", "--jstack"),
)


@click.command("haStatus")
@click.option("-n", "--namesrvAddr", "given", default="", help="Nameservers.")
@ignored("-c", "--clusterName")
@ignored("-b", "--brokerAddr")
@ignored("-i", "--interval")
@ha.where_options
@output_option
def ha_status(given: str, namesrv: str, **values: Any) -> Any:
    """Show the replicas of each broker group (`ha status`)."""
    return call(ha.status, namesrv=given or namesrv, **values)


broker_consume_stats = alias(
    "brokerConsumeStats",
    groups.list_groups,
    "Show the lag of all groups (`group list`).",
    ignored("-l", "--level"),
    ignored("-o", "--order"),
    ignored("-t", "--timeoutMillis"),
)
clone_group_offset = alias(
    "cloneGroupOffset",
    offsets.reset,
    "Set the offsets of a group to those of another one (`offset reset --like`).",
    click.option("-s", "--srcGroup", "like", required=True, help="Group whose offsets are copied."),
    click.option("-d", "--destGroup", "group", required=True, help="Group that gets them."),
    click.option("-t", "--topic", required=True, help="Topic."),
    ignored("-o", "--offline"),
    plan_options,
    when="",
)


@click.command("exportMetadata")
@click.option(
    "-f",
    "--filePath",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    default="/tmp/rocketmq/export",
    help="Folder of metadata.json.",
)
@options_of(NAMESERVER, CLUSTER)
def export_metadata(folder: Path, endpoint: str, **_: Any) -> None:
    """Write topics, groups, users and quotas to a file (`cluster export`)."""
    folder.mkdir(parents=True, exist_ok=True)
    call(definition_files.export, file=folder / "metadata.json", endpoint=endpoint)


wipe_write_perm = alias(
    "wipeWritePerm",
    drain,
    "Let producers leave a broker group (`cluster drain`).",
    *_BROKER_GROUP,
    shared=_NEITHER,
)
add_write_perm = alias(
    "addWritePerm",
    drain,
    "Let producers use a broker group again (`cluster drain --undo`).",
    *_BROKER_GROUP,
    shared=_NEITHER,
    undo=True,
)
