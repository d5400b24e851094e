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
from .messaging import CLUSTER, NAMESERVER, F, call, common, options_of


@click.command("topicRoute")
@click.option("-t", "--topic", "name", required=True, help="Topic.")
@click.option("-l", "--list", is_flag=True, expose_value=False, hidden=True)
@common
def topic_route(name: str, endpoint: str, output: str) -> None:
    """Show the queues of a topic in each broker group (`topic describe`)."""
    call(topics.describe, name=name, endpoint=endpoint, output=output)


@click.command("clusterList")
@click.option("-m", "--moreStats", is_flag=True, expose_value=False, hidden=True)
@click.option("-i", "--interval", expose_value=False, hidden=True)
@common
def cluster_list(endpoint: str, output: str) -> None:
    """Show broker groups and their members (`cluster describe`)."""
    call(clusters.describe, endpoint=endpoint, output=output)


@click.command("statsAll")
@click.option("-a", "--activeTopic", is_flag=True, expose_value=False, hidden=True)
@click.option("-t", "--topic", expose_value=False, hidden=True)
@common
def stats_all(endpoint: str, output: str) -> None:
    """Show rates and lag once (`top --once`)."""
    call(tops.top, once=True, endpoint=endpoint, output=output)


@click.command("getBrokerConfig")
@common
def get_broker_config(endpoint: str, output: str) -> None:
    """Show the settings of a broker (`config show`)."""
    call(settings.show, endpoint=endpoint, output=output)


@click.command("updateBrokerConfig")
@click.option("-k", "--key", required=True, help="Setting.")
@click.option("-v", "--value", required=True, help="Value.")
@plan_options
@common
def update_broker_config(key: str, value: str, **options: Any) -> None:
    """Change a setting of the broker that is called, until it ends (`config set`)."""
    call(settings.change, assignments=(f"{key}={value}",), **options)


@click.command("consumerConnection")
@click.option("-g", "--consumerGroup", "name", required=True, help="Consumer group.")
@common
def consumer_connection(name: str, endpoint: str, output: str) -> None:
    """Show the connected consumers of a group (`group describe`)."""
    call(groups.describe, name=name, endpoint=endpoint, output=output)


@click.command("producerConnection")
@click.option("-g", "--producerGroup", "group", required=True, help="Producer group.")
@click.option("-t", "--topic", expose_value=False, hidden=True)
@common
def producer_connection(group: str, endpoint: str, output: str) -> None:
    """Show the connected producers of a group (`client list --producers --group`)."""
    call(clients.list_clients, producers=True, group=group, endpoint=endpoint, output=output)


@click.command("producer")
@common
def producer(endpoint: str, output: str) -> None:
    """Show all connected producers (`client list --producers`)."""
    call(clients.list_clients, producers=True, endpoint=endpoint, output=output)


@click.command("consumerStatus")
@click.option("-g", "--consumerGroup", "name", required=True, help="Consumer group.")
@click.option("-i", "--clientId", expose_value=False, hidden=True)
@click.option("-s", "--jstack", expose_value=False, hidden=True)
@common
def consumer_status(name: str, endpoint: str, output: str) -> None:
    """Show the queues and consumers of a group (`group describe`)."""
    call(groups.describe, name=name, endpoint=endpoint, output=output)


@click.command("haStatus")
@click.option("-n", "--namesrvAddr", "given", default="", help="Nameservers.")
@click.option("-c", "--clusterName", expose_value=False, hidden=True)
@click.option("-b", "--brokerAddr", expose_value=False, hidden=True)
@click.option("-i", "--interval", expose_value=False, hidden=True)
@ha.where_options
@output_option
def ha_status(given: str, namesrv: str, **values: Any) -> Any:
    """Show the replicas of each broker group (`ha status`)."""
    return call(ha.status, namesrv=given or namesrv, **values)


@click.command("brokerConsumeStats")
@click.option("-l", "--level", expose_value=False, hidden=True)
@click.option("-o", "--order", expose_value=False, hidden=True)
@click.option("-t", "--timeoutMillis", expose_value=False, hidden=True)
@common
def broker_consume_stats(endpoint: str, output: str) -> None:
    """Show the lag of all groups (`group list`)."""
    call(groups.list_groups, endpoint=endpoint, output=output)


@click.command("cloneGroupOffset")
@click.option("-s", "--srcGroup", "like", required=True, help="Group whose offsets are copied.")
@click.option("-d", "--destGroup", "group", required=True, help="Group that gets them.")
@click.option("-t", "--topic", required=True, help="Topic.")
@click.option("-o", "--offline", expose_value=False, hidden=True)
@plan_options
@common
def clone_group_offset(**values: Any) -> None:
    """Set the offsets of a group to those of another one (`offset reset --like`)."""
    call(offsets.reset, when="", **values)


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


def _group(command: F) -> F:
    name = click.option("-b", "--brokerName", "name", required=True, help="Broker group.")
    return name(plan_options(options_of(NAMESERVER, brokers=False)(command)))


@click.command("wipeWritePerm")
@_group
def wipe_write_perm(**values: Any) -> None:
    """Let producers leave a broker group (`cluster drain`)."""
    call(drain, **values)


@click.command("addWritePerm")
@_group
def add_write_perm(**values: Any) -> None:
    """Let producers use a broker group again (`cluster drain --undo`)."""
    call(drain, undo=True, **values)
