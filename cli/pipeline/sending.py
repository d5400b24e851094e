"""`cometmq pipeline replay` and `dlq`: sending stored messages again."""

import re
import time
from typing import Any

import click
from click.core import ParameterSource

from ...operations.errors import CliError, Exit
from ..confirm import go_on, plan_options
from ..links import links
from ..options import (
    DEFAULT_ENDPOINT,
    address_option,
    data_option,
    output_option,
    tls_options,
)
from ..times import TIME_FORMS, moment
from .lake import FORMATS, cluster_options, table_session
from .session import (
    SessionOptions,
    require_directories,
    show_report,
    spark_options,
    spark_session,
)

_target = address_option(
    "--endpoint",
    kind="endpoints",
    default=DEFAULT_ENDPOINT,
    envvar="COMETMQ_ENDPOINT",
    metavar="HOST:PORT",
    what="Target cluster.",
)

#: What a replay of a table does not know: parameter -> what is typed.
_NOT_OF_TABLES = {"directory": "STORE", "identity": "--id", "dry_run": "--dry-run"} | {
    name: f"--{name}" for name in ("store", "archive", "broker", "queue", "start", "end", "rate")
}


@click.command()
@click.argument("directory", metavar="[STORE]", default="")
@click.option("--archive", default="", metavar="DIR", help="Replay from this archive.")
@click.option("--table", default="", help="Replay from this Delta or Iceberg table.")
@click.option("--format", "form", type=FORMATS, help="Format of the table.")
@click.option("--store", default="", metavar="DIR", help="Replay from this store (same as STORE).")
@click.option("--topic", required=True, help="Topic of the messages.")
@click.option("--to", required=True, metavar="TOPIC", help="Target topic.")
@_target
@data_option
@tls_options
@click.option("--broker", default="", help="Only messages of this broker.")
@click.option("--queue", type=click.IntRange(0), help="Only messages of this queue.")
@click.option(
    "--start", type=moment, metavar="TIME", help=f"Only messages stored from here on: {TIME_FORMS}."
)
@click.option("--end", type=moment, metavar="TIME", help="Only messages stored before this time.")
@click.option("--rate", type=float, default=0, help="Maximum messages per second; 0: no limit.")
@click.option(
    "--keep-order", is_flag=True, help="One task for each queue: keeps the order of message groups."
)
@click.option(
    "--id",
    "identity",
    default="",
    help="Id of this replay; messages of the same id are sent only once.",
)
@click.option("--dry-run", is_flag=True, help="Count messages without sending them.")
@spark_options
@output_option
def replay(master: str, memory: str, settings: tuple[str, ...], **said: Any) -> int:
    """Send messages of STORE, of an archive (--archive) or of a table (--table) to a topic.

    Properties of the sent messages name their origin.

    \b
    cometmq pipeline replay --archive archive --topic orders --to orders-again --dry-run
    """
    from ...pipeline.archive.reading import NO_TIME
    from ...pipeline.jobs.replay import ReplayPlan
    from ...pipeline.jobs.replay import replay as run

    start, end = said["start"], said["end"]
    if said["table"] or said["form"]:
        return _replay_table(SessionOptions(master, memory, settings), said)
    _one_source(said)
    plan = ReplayPlan(
        said["topic"],
        said["to"],
        said["endpoint"],
        archive=said["archive"],
        store=said["store"],
        broker=said["broker"],
        queue_id=-1 if said["queue"] is None else said["queue"],
        start_ms=start or 0,
        end_ms=NO_TIME if end is None else end,
        rate=said["rate"],
        keep_order=said["keep_order"],
        identity=said["identity"],
        **links().keys(said["endpoint"]),
        tls=links().tls(said["endpoint"]),
    )
    with spark_session("replay", SessionOptions(master, memory, settings)) as spark:
        tasks = spark.sparkContext.defaultParallelism
        return show_report(run(spark, plan, dry_run=said["dry_run"], tasks=tasks), said["output"])


def _replay_table(options: SessionOptions, said: dict[str, Any]) -> int:
    """Send the messages of a table. Raises CliError."""
    given = click.get_current_context().get_parameter_source
    other = [name for name in _NOT_OF_TABLES if given(name) is ParameterSource.COMMANDLINE]
    if other:
        text = f"--table cannot be used with {_NOT_OF_TABLES[other[0]]}: it sends the whole topic."
        raise CliError(text, Exit.USAGE)
    target = cluster_options(said["endpoint"])
    with table_session("replay", said["table"], said["form"], options) as (spark, table):
        from ...pipeline.jobs.lake import replay_table

        report = replay_table(spark, table, said["topic"], said["to"], target)
        return show_report(report, said["output"])


def _one_source(said: dict[str, Any]) -> None:
    """Accept the store as argument or as option. Raises CliError."""
    stores = [name for name in (said["directory"], said["store"]) if name]
    if len(stores) + bool(said["archive"]) != 1:
        text = "Give exactly one source: a store (STORE or --store DIR) or --archive DIR."
        raise CliError(text, Exit.USAGE)
    said["store"] = "".join(stores)
    require_directories(store=said["store"], archive=said["archive"])


@click.command()
@click.argument("directory", metavar="[STORE]", default="")
@click.option("--store", default="", metavar="DIR", help="Search this store (same as STORE).")
@click.option("--archive", default="", metavar="DIR", help="Search this archive.")
@click.option("--group", default="", help="Only dead letters of this consumer group.")
@click.option(
    "--origin", default="", metavar="TOPIC", help="Only messages originally sent to this topic."
)
@click.option("--reason", default="", metavar="REGEX", help="Only messages whose reason matches.")
@click.option(
    "--reason-property",
    multiple=True,
    metavar="NAME",
    help="Property that holds the reason; repeatable.",
)
@click.option(
    "--start", type=moment, metavar="TIME", help=f"Only messages stored from here on: {TIME_FORMS}."
)
@click.option("--end", type=moment, metavar="TIME", help="Only messages stored before this time.")
@click.option("--resend", is_flag=True, help="Send the messages again to their original topic.")
@click.option(
    "--to",
    default="",
    metavar="TOPIC",
    help="With --resend: target topic instead of the original one.",
)
@_target
@data_option
@tls_options
@click.option("--rate", type=float, default=0, help="Maximum messages per second; 0: no limit.")
@plan_options
@spark_options
@output_option
def dlq(master: str, memory: str, settings: tuple[str, ...], **said: Any) -> int:
    """Group dead letters by consumer group, origin, reason and age; send selected ones again.

    Dead letters are read from STORE, or from an archive (--archive).

    \b
    cometmq pipeline dlq data/master/store --group billing --resend --dry-run
    """
    from ...pipeline.archive.reading import NO_TIME
    from ...pipeline.jobs.dlq import REASONS, DlqPlan
    from ...pipeline.jobs.dlq import dlq as run

    if said["to"] and not said["resend"]:
        raise CliError("--to requires --resend.", Exit.USAGE)
    try:
        re.compile(said["reason"])
    except re.error as error:
        text = f"--reason is not a valid regular expression: {error}."
        raise CliError(text, Exit.USAGE) from None
    _one_source(said)
    if said["resend"] and not said["dry_run"] and said["output"] != "json":
        shown = {name: said[name] or "any" for name in ("group", "origin", "reason")}
        shown |= {"to": said["to"] or "original topic", "endpoint": said["endpoint"]}
        go_on(shown, "Send these dead letters again?", "table", dry_run=False, yes=said["yes"])
    start, end = said["start"], said["end"]
    plan = DlqPlan(
        said["store"],
        said["archive"],
        said["group"],
        said["origin"],
        said["reason"],
        start or 0,
        NO_TIME if end is None else end,
        tuple(said["reason_property"]) or REASONS,
        said["resend"],
        said["endpoint"],
        said["to"],
        said["rate"],
        **links().keys(said["endpoint"]),
        tls=links().tls(said["endpoint"]),
    )
    now_ms = time.time_ns() // 1_000_000
    with spark_session("dlq", SessionOptions(master, memory, settings)) as spark:
        tasks = spark.sparkContext.defaultParallelism
        report = run(spark, plan, now_ms, dry_run=said["dry_run"], tasks=tasks)
        return show_report(report, said["output"])
