"""`cometmq pipeline verify`, `rebuild`, `reconcile` and `insights`: jobs that only read a store."""

import click

from ...operations.errors import CliError, Exit
from ..options import output_option
from .lake import FORMATS, table_session
from .session import (
    SessionOptions,
    require_directories,
    show_report,
    spark_options,
    spark_session,
)


@click.command()
@click.argument("store", metavar="STORE")
@click.option(
    "--crc/--no-crc", default=True, show_default=True, help="Check the checksums of bodies."
)
@click.option("--queues/--no-queues", default=True, show_default=True, help="Check the queues.")
@click.option("--table", default="", help="Compare this table with the log instead.")
@click.option("--format", "form", type=FORMATS, help="Format of the table.")
@click.option("--topic", "topics", multiple=True, help="Topic of the table; repeatable.")
@spark_options
@output_option
def verify(
    *,
    store: str,
    crc: bool,
    queues: bool,
    table: str,
    form: str | None,
    topics: tuple[str, ...],
    master: str,
    memory: str,
    settings: tuple[str, ...],
    output: str,
) -> int:
    """Check the log of STORE in parallel, and its queues. Exit code 5 for problems.

    With --table: compare a Delta or Iceberg table with the log.

    \b
    cometmq pipeline verify data/master/store
    cometmq pipeline verify data/master/store --table /lake/bronze/orders --format delta
    """
    from ...pipeline.jobs.verify import verify as run

    if topics and not (table or form):
        text = "--topic is for --table: without a table the whole log is verified."
        raise CliError(text, Exit.USAGE)
    require_directories(store=store)
    if table or form:
        options = SessionOptions(master, memory, settings)
        with table_session("verify", table, form, options) as (spark, named):
            from ...pipeline.jobs.lake import verify_table

            source = {"path": store} | ({"subscribe": ",".join(topics)} if topics else {})
            return show_report(verify_table(spark, named, source), output)
    with spark_session("verify", SessionOptions(master, memory, settings)) as spark:
        return show_report(run(spark, store, crc=crc, queues=queues), output)


@click.command()
@click.argument("store", metavar="STORE")
@click.argument("out", metavar="DIR")
@click.option("--queues/--no-queues", default=True, show_default=True, help="Rebuild the queues.")
@click.option("--index/--no-index", default=True, show_default=True, help="Rebuild the index.")
@click.option(
    "--queue-file-bytes", type=click.IntRange(20), default=None, help="Size of a queue file."
)
@click.option("--index-slots", type=click.IntRange(1), help="maxHashSlotNum of the index files.")
@click.option("--index-entries", type=click.IntRange(2), help="maxIndexNum of the index files.")
@spark_options
@output_option
def rebuild(
    *,
    store: str,
    out: str,
    queues: bool,
    index: bool,
    queue_file_bytes: int | None,
    index_slots: int | None,
    index_entries: int | None,
    master: str,
    memory: str,
    settings: tuple[str, ...],
    output: str,
) -> int:
    """Rebuild queues and index of STORE in DIR from its log. STORE is not changed.

    \b
    cometmq pipeline rebuild data/master/store rebuilt
    """
    from ...pipeline.jobs.rebuild import RebuildPlan
    from ...pipeline.jobs.rebuild import rebuild as run

    plan = RebuildPlan(
        store,
        out,
        queues,
        index,
        queue_file_bytes=queue_file_bytes or 0,
        index_slots=index_slots or 0,
        index_entries=index_entries or 0,
    )
    require_directories(store=store)
    with spark_session("rebuild", SessionOptions(master, memory, settings)) as spark:
        return show_report(run(spark, plan), output)


@click.command()
@click.argument("store", metavar="STORE")
@click.option("--with", "other", default="", metavar="STORE", help="Another replica's store.")
@click.option("--archive", default="", metavar="DIR", help="An archive of this store.")
@click.option("--broker", default="", help="Name of the store's broker in the archive.")
@spark_options
@output_option
def reconcile(
    *,
    store: str,
    other: str,
    archive: str,
    broker: str,
    master: str,
    memory: str,
    settings: tuple[str, ...],
    output: str,
) -> int:
    """Compare STORE with another replica's store or an archive. Exit code 5 for differences.

    \b
    cometmq pipeline reconcile data/master/store --with data/slave/store
    """
    from ...pipeline.jobs.reconcile import reconcile_archive, reconcile_stores

    if bool(other) == bool(archive):
        raise CliError("Give either --with STORE or --archive DIR.", Exit.USAGE)
    require_directories(store=store, archive=archive)
    require_directories(store=other)
    with spark_session("reconcile", SessionOptions(master, memory, settings)) as spark:
        if other:
            report = reconcile_stores(spark, store, other)
        else:
            report = reconcile_archive(spark, store, archive, broker=broker)
        return show_report(report, output)


@click.command()
@click.argument("store", metavar="STORE")
@click.argument("out", metavar="DIR")
@click.option("--system", is_flag=True, help="Include system topics.")
@spark_options
@output_option
def insights(
    *,
    store: str,
    out: str,
    system: bool,
    master: str,
    memory: str,
    settings: tuple[str, ...],
    output: str,
) -> int:
    """Analyse the traffic in STORE: DIR/report.html and one Parquet table for each question.

    \b
    cometmq pipeline insights data/master/store insights
    """
    from ...pipeline.jobs.insights import insights as run

    require_directories(store=store)
    with spark_session("insights", SessionOptions(master, memory, settings)) as spark:
        return show_report(run(spark, store, out, include_system=system), output)
