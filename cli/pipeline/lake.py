"""`cometmq pipeline lake`: writes topics to a Delta or Iceberg table, and maintains it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from ...operations.errors import CliError, Exit
from ..links import links
from ..options import address_option, data_option, output_option, tls_options
from ..times import duration, present_ms
from .session import (
    SessionOptions,
    require_directories,
    show_report,
    spark_options,
    spark_session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...pipeline.lake_tables import BodyFormat, Table

FORMATS: Final = click.Choice(["delta", "iceberg"])


@contextmanager
def table_session(
    job: str, place: str, form: str | None, options: SessionOptions, body: BodyFormat = ""
) -> Iterator[tuple[SparkSession, Table]]:
    """Open a session with the packages of a table's format. Raises CliError."""
    if not place or not form:
        raise CliError("Use --table TABLE and --format delta|iceberg together.", Exit.USAGE)
    try:
        import pyspark

        from ...pipeline.errors import OptionError
        from ...pipeline.lake_tables import Table, session_settings
    except ImportError as error:
        from .session import MISSING

        raise CliError(f"{MISSING} ({error})") from None
    table = Table(form, place)  # type: ignore[arg-type]
    try:
        settings = session_settings(table, body, pyspark.__version__, options.settings)
    except OptionError as error:
        raise CliError(str(error)) from None
    chosen = SessionOptions(options.master, options.memory, settings)
    with spark_session(job, chosen) as spark:
        yield spark, table


def cluster_options(endpoint: str) -> dict[str, str]:
    """Return the options of source and sink for a cluster. Raises CliError."""
    keys, chosen = links().keys(endpoint), links().options_for(endpoint)
    found = {"endpoints": endpoint}
    if keys["access_key"]:
        found |= {"accessKey": keys["access_key"], "secretKey": keys["secret_key"]}
    tls = links().tls(endpoint)
    if tls is not None:
        files = {
            "tlsCa": chosen.tls_ca,
            "tlsCertificate": chosen.tls_certificate,
            "tlsKey": chosen.tls_key,
        }
        found |= {"tls": "true", "tlsServerName": tls.name}
        found |= {name: str(path) for name, path in files.items() if path}
    return found


@click.command()
@click.argument("store", metavar="[STORE]", default="")
@address_option(
    "--endpoint",
    kind="endpoints",
    default="",
    envvar="COMETMQ_ENDPOINT",
    metavar="HOST:PORT",
    what="Without STORE: read from this cluster.",
)
@click.option("--format", "form", type=FORMATS, required=True, help="Format of the table.")
@click.option(
    "--table",
    required=True,
    help="A path (Iceberg: WAREHOUSE/NAMESPACE/NAME), or a name of a catalog set with --conf.",
)
@click.option("--topic", "topics", multiple=True, help="Topic to write; repeatable [default: all].")
@click.option(
    "--partition",
    type=click.Choice(["day", "hour", "none"]),
    default="day",
    show_default=True,
    help="Partition by the store time.",
)
@click.option(
    "--body",
    type=click.Choice(["json", "avro", "protobuf"]),
    help="Decode the body to the column `value`, with --schema.",
)
@click.option(
    "--schema",
    "schema_file",
    default="",
    metavar="FILE",
    help="Schema of --body: Spark's DDL or JSON (json), .avsc (avro), descriptor set (protobuf).",
)
@click.option("--message", default="", metavar="NAME", help="Message of the descriptor set.")
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="COLUMN",
    help="Keep the latest message of each key, as value.id; repeatable.",
)
@click.option("--checkpoint", default="", metavar="DIR", help="[default: TABLE.checkpoint]")
@click.option("--batch", is_flag=True, help="Write what the log has, without a checkpoint.")
@click.option(
    "--follow", type=duration("s", least="1s"), metavar="DURATION", help="Write at this interval."
)
@click.option("--compact", is_flag=True, help="Merge small files of the table; write nothing.")
@click.option(
    "--expire",
    type=duration("h", least="1h"),
    metavar="DURATION",
    help="Remove versions of the table older than this; write nothing.",
)
@data_option
@tls_options
@spark_options
@output_option
def lake(master: str, memory: str, settings: tuple[str, ...], **said: Any) -> int:
    """Write topics of STORE, or of a cluster, to a Delta or Iceberg table: each message once.

    \b
    cometmq pipeline lake data/master/store --topic orders --format delta --table /lake/orders
    cometmq pipeline lake --format delta --table /lake/orders --compact
    """
    options = SessionOptions(master, memory, settings)
    body: BodyFormat = said["body"] or ""
    if said["compact"] or said["expire"]:
        return _maintain(options, said)
    if not said["store"] and not said["endpoint"]:
        raise CliError("Give STORE or --endpoint HOST:PORT.", Exit.USAGE)
    if bool(body) != bool(said["schema_file"]):
        raise CliError("Use --body and --schema together.", Exit.USAGE)
    if said["batch"] and said["follow"]:
        raise CliError("Use either --batch or --follow.", Exit.USAGE)
    require_directories(store=said["store"])
    source = {"path": said["store"]} if said["store"] else cluster_options(said["endpoint"])
    source |= {"subscribe": ",".join(said["topics"])} if said["topics"] else {}
    with table_session("lake", said["table"], said["form"], options, body) as (spark, table):
        from ...pipeline.jobs.lake import LakePlan
        from ...pipeline.jobs.lake import lake as run

        plan = LakePlan(
            table,
            source,
            "" if said["partition"] == "none" else said["partition"],
            body,
            said["schema_file"],
            said["message"],
            said["keys"],
            said["checkpoint"],
        )
        every = f"{said['follow']} milliseconds" if said["follow"] else ""
        return show_report(run(spark, plan, batch=said["batch"], every=every), said["output"])


def _maintain(options: SessionOptions, said: dict[str, Any]) -> int:
    with table_session("lake", said["table"], said["form"], options) as (spark, table):
        from ...pipeline.jobs.lake import compact, expire

        report = compact(spark, table) if said["compact"] else None
        if said["expire"]:
            report = expire(spark, table, said["expire"], present_ms())
        assert report is not None
        return show_report(report, said["output"])
