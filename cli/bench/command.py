"""`cometmq bench`: measure throughput, latency and CPU time of a cluster."""

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...operations.errors import CliError, Exit
from ..options import endpoint_option, output_option
from ..output import show_document, show_rows
from ..times import duration

if TYPE_CHECKING:
    import asyncio

    from .latency import Point
    from .names import Target
    from .running import Measurement
    from .workloads import Workload

# The names, and below the least size, of workloads.py, which needs the SDK; help does not.
NAMES = ("send", "receive", "end-to-end", "fifo", "delay", "transaction", "sql")
_SIZE_MIN, _SIZE_MAX = 24, 4 << 20
_BATCH_SENDS_MAX = 1_000
_RECEIVE_BATCH_MAX = 32
# Sends in flight of an open loop that --in-flight does not limit further.
_OPEN_LOOP_IN_FLIGHT = 1_024
_CLOSED_LOOP_IN_FLIGHT = 64
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@click.command()
@click.argument("workloads", nargs=-1, required=True, type=click.Choice((*NAMES, "all")))
@click.option(
    "--size",
    type=click.IntRange(_SIZE_MIN, _SIZE_MAX),
    default=1_024,
    show_default=True,
    help="Bytes of a body.",
)
@click.option(
    "--rate",
    type=click.IntRange(1, 1_000_000),
    help="Open loop: messages due in each second [default: end-to-end and sql 1000, fifo 500;"
    " others: closed loop].",
)
@click.option("--closed-loop", is_flag=True, help="Closed loop for every workload.")
@click.option(
    "--in-flight",
    type=click.IntRange(1, 10_000),
    help=f"Sends in flight [default: closed loop {_CLOSED_LOOP_IN_FLIGHT}, open loop at most"
    f" {_OPEN_LOOP_IN_FLIGHT}].",
)
@click.option(
    "--batch",
    type=click.IntRange(1, _BATCH_SENDS_MAX),
    default=1,
    show_default=True,
    help="Messages of one send (send, receive).",
)
@click.option(
    "--receive-batch",
    type=click.IntRange(1, _RECEIVE_BATCH_MAX),
    default=_RECEIVE_BATCH_MAX,
    show_default=True,
    help="Most messages of one receive.",
)
@click.option(
    "--receivers",
    type=click.IntRange(1, 256),
    default=4,
    show_default=True,
    help="Receives in flight.",
)
@click.option(
    "--messages",
    type=click.IntRange(1, 10_000_000),
    help="Messages of the workloads receive and delay [default: 50000, 5000].",
)
@click.option(
    "--seconds",
    "duration_ms",
    type=duration("s", least="1s", most="1h"),
    default="10s",
    show_default=True,
    metavar="DURATION",
    help="Time of the other workloads.",
)
@click.option(
    "--warm-up",
    "warm_up_ms",
    type=duration("s", most="10m"),
    default="1s",
    show_default=True,
    metavar="DURATION",
    help="Time of sends that are not measured.",
)
@click.option("--topic", help="An existing topic, for servers without CometMQ's Admin service.")
@click.option("--group", help="An existing consumer group, with --topic.")
@click.option("--keep", is_flag=True, help="Do not delete the topic and the group of a run.")
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results to this file, with percentiles and curves.",
)
@click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a page with the curves to this file.",
)
@endpoint_option
@output_option
def bench(
    *,
    workloads: tuple[str, ...],
    topic: str | None,
    group: str | None,
    keep: bool,
    json_file: Path | None,
    html_file: Path | None,
    endpoint: str,
    output: str,
    **settings: Any,
) -> int:
    """Measure WORKLOADs: throughput, latency, CPU time, lost and duplicated messages.

    \b
    send          time of a send; also in batches
    receive       time of a receive with its acknowledgement
    end-to-end    time from send to reception
    fifo          the same in message groups; counts messages out of order
    delay         lateness of messages that are all due at the same time
    transaction   time of a half message with its commit
    sql           end-to-end with a filter that passes half of the messages
    all           each of them

    In an open loop a latency counts from the time at which the send was due. After each run all
    acknowledged messages are received: those that do not arrive are lost. Server CPU is that of the
    brokers on this machine. The exit code is 1 if messages were lost, out of order or refused.

    \b
    cometmq bench send --in-flight 64 --seconds 30
    cometmq bench end-to-end --rate 4000 --html bench.html
    """
    try:
        from . import names, report
    except ModuleNotFoundError as error:
        if error.name != "hdrh":
            raise
        raise CliError("The benchmark requires: pip install 'cometmq[bench]'.") from None
    chosen = NAMES if "all" in workloads else tuple(dict.fromkeys(workloads))
    if (topic or group) and len(chosen) > 1:
        raise CliError("--topic and --group are for one workload.", Exit.USAGE)
    target = names.Target(endpoint, topic, group, keep)
    documents: list[dict[str, Any]] = []
    # One loop for all runs: gRPC does not survive the end of its event loop.
    import asyncio

    from ...front.process import loop_factory

    with _interruption() as interruption, asyncio.Runner(loop_factory=loop_factory()) as runner:
        for name in chosen:
            document = _run(runner, name, settings, target, interruption)
            if document is None:
                break
            documents.append(document)
            _write(documents, json_file, html_file)
    if output == "json":
        show_document(documents)
    elif documents:
        show_rows([report.row_of(each) for each in documents], output, empty="")
        for document in documents:
            _tell_errors(document)
    if interruption.signal is not None:
        click.echo(f"cometmq: Interrupted. Finished: {len(documents)} workloads.", err=True)
        return 128 + interruption.signal
    return Exit.FAILED if any(map(report.is_wrong, documents)) else Exit.DONE


@dataclass(slots=True)
class _Interruption:
    """Ctrl-C or SIGTERM: ends the run, and the command after it has removed its topic.

    The signals do not raise KeyboardInterrupt: that would end grpcio's code at any line.
    """

    signal: int | None = None
    task: "asyncio.Task[Measurement] | None" = None

    def note(self, number: int, _frame: object = None) -> None:
        """Handle a signal."""
        self.signal = number
        if self.task is not None:
            self.task.cancel()

    async def guard(self, work: Coroutine[Any, Any, "Measurement"]) -> "Measurement | None":
        """Return the result, or None if a signal ended the work."""
        import asyncio

        loop = asyncio.get_running_loop()
        self.task = asyncio.create_task(work)
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.note, number)
        if self.signal is not None:  # it came before the task existed
            self.task.cancel()
        try:
            return await self.task
        except asyncio.CancelledError:
            if self.signal is None:
                raise
            return None
        finally:
            self.task = None
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
                signal.signal(number, self.note)


@contextlib.contextmanager
def _interruption() -> Iterator[_Interruption]:
    """Note signals while the command runs."""
    interruption = _Interruption()
    before = {number: signal.signal(number, interruption.note) for number in _SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(
    runner: "asyncio.Runner",
    name: str,
    settings: Mapping[str, Any],
    target: "Target",
    interruption: _Interruption,
) -> dict[str, Any] | None:
    """Return the document of a run, or None if a signal ended it. Raises CliError."""
    from ...client.errors import CometError
    from ..sdk import sdk_options
    from .names import names_of, servers_of
    from .report import document_of
    from .running import Run
    from .workloads import WORKLOADS

    workload = WORKLOADS[name]
    load = _load(workload, settings)
    endpoint = target.endpoint
    with names_of(target, workload) as names:
        run = Run(
            workload,
            load,
            endpoints=endpoint,
            topic=names.topic,
            group=names.group,
            servers=servers_of(endpoint, names.topic),
            options=sdk_options(endpoint),
            progress=_progress(name),
        )
        try:
            found = runner.run(interruption.guard(run.measure()))
        except* (CometError, CliError) as errors:
            raise CliError(f"{name}: {_first(errors)}") from None
    return None if found is None else document_of(name, workload, load, endpoint, found)


def _first(errors: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _load(workload: "Workload", settings: Mapping[str, Any]) -> Any:
    from .running import Load
    from .workloads import Measured

    counted = workload.messages is not None
    rate = None if settings["closed_loop"] or counted else settings["rate"] or workload.rate
    usual = _CLOSED_LOOP_IN_FLIGHT if rate is None else _OPEN_LOOP_IN_FLIGHT
    is_batched = workload.topic_type == "normal" and workload.step == 1
    batch = settings["batch"] if is_batched else 1
    if workload.measured is Measured.RECEIVE:
        batch = max(batch, _RECEIVE_BATCH_MAX)  # the sends are not measured
    return Load(
        size_bytes=settings["size"],
        in_flight=settings["in_flight"] or usual,
        send_batch=batch,
        receive_batch=settings["receive_batch"],
        rate=rate,
        seconds=settings["duration_ms"] / 1_000,
        messages=(settings["messages"] or workload.messages) if counted else None,
        warm_up_s=settings["warm_up_ms"] / 1_000,
        receivers=settings["receivers"],
    )


def _progress(name: str) -> "Callable[[str, Point | None], None]":
    """Return a function that prints phases and seconds on a terminal."""
    if not sys.stderr.isatty():
        return lambda _phase, _point: None

    def show(phase: str, point: "Point | None") -> None:
        if point is None:
            click.echo(f"{name}: {phase}", err=True)
        else:
            latency = "" if point.p50_ms is None else f"  p50 {point.p50_ms} ms"
            latency += "" if point.p99_ms is None else f"  p99 {point.p99_ms} ms"
            click.echo(f"  {point.second:>4} s  {point.messages:>9,} messages{latency}", err=True)

    return show


def _tell_errors(document: Mapping[str, Any]) -> None:
    name = document["workload"]
    for what in ("out_of_order", "not_selected"):
        if document[what]:
            click.echo(f"cometmq: {name}: {document[what]} {what.replace('_', ' ')}", err=True)
    for error, count in document["errors"].items():
        click.echo(f"cometmq: {name}: {count} times: {error}", err=True)


def _write(documents: list[dict[str, Any]], json_file: Path | None, html_file: Path | None) -> None:
    """Write the results so far; a later failure loses none."""
    from .page import page

    if json_file is not None:
        json_file.write_text(json.dumps(documents, indent=2) + "\n")
    if html_file is not None:
        html_file.write_text(page(documents))
