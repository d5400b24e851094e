"""`cometmq doctor`: checks of this machine and of the installation.

One row for each check: result, verdict and advice. Exit code 5 if a check is bad. With `--endpoint`
the front door of a running node is reported, too.
"""

import os
import platform
import resource
import sys
from dataclasses import asdict
from pathlib import Path

import click

from ...front.limits import NEEDS, Limits, lack, limits_of_process, sized
from ...operations.errors import CliError, Exit
from ...proto import paths, v1
from ..links import connect as connected
from ..options import output_option
from ..output import show_rows
from .connect import connect
from .finding import Finding, code_of
from .security import security
from .version import version_of

_SEGMENT_BYTES = 1 << 30  # the default of mappedFileSizeCommitLog
#: A broker keeps segments, queue files and one socket for each client open.
_DESCRIPTORS_MIN = 4096


@click.group(invoke_without_command=True)
@click.option("--endpoint", help="Also check the front door of this node (HOST:PORT).")
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    help="Also check that a broker can start on this store directory.",
)
@click.option(
    "--segment",
    type=int,
    default=_SEGMENT_BYTES,
    show_default=True,
    help="With --store: bytes of a segment (mappedFileSizeCommitLog) of a new store.",
)
@output_option
@click.pass_context
def doctor(
    ctx: click.Context, *, endpoint: str | None, store: Path | None, segment: int, output: str
) -> int:
    """Check this machine and the installation; `connect` checks the way to a broker, `security`
    what is open.

    \b
    cometmq doctor
    cometmq doctor --store data/master/store
    cometmq doctor --endpoint 127.0.0.1:8081 -o json
    """
    if ctx.invoked_subcommand is not None:
        return Exit.DONE
    findings = [_python(), _grpcio(), _door(), _loop(), _descriptors(), _memory()]
    findings.append(_locked_memory())
    if store is not None:
        findings += _store(store.expanduser(), segment)
    if endpoint:
        findings.append(_serving(endpoint))
    show_rows([asdict(finding) for finding in findings], output, empty="")
    return code_of(findings)


doctor.add_command(connect)
doctor.add_command(security)


def _python() -> Finding:
    good = sys.version_info >= (3, 11)
    found = f"{platform.python_version()} on {platform.system()}"
    return Finding("Python", found, "good" if good else "bad", "" if good else "use 3.11 or newer")


def _grpcio() -> Finding:
    return Finding("grpcio", version_of("grpcio"))


def _door() -> Finding:
    version = version_of("cometmq-native")
    if version:
        return Finding("front door", f"native (cometmq-native {version})")
    advice = (
        "install cometmq[native], or run scripts/native_door in a clone: a tenth of the CPU per"
        " call, and TLS"
    )
    return Finding("front door", "grpcio, plaintext only", "note", advice)


def _loop() -> Finding:
    version = version_of("uvloop")
    if version:
        return Finding("event loop", f"uvloop {version}")
    return Finding("event loop", "asyncio", "note", "pip install uvloop for a faster event loop")


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= _DESCRIPTORS_MIN or soft == resource.RLIM_INFINITY:
        return Finding("open files", str(soft))
    advice = f"set ulimit -n {_DESCRIPTORS_MIN} or more (hard limit: {hard})"
    return Finding("open files", str(soft), "bad", advice)


def _memory() -> Finding:
    limits, needs = limits_of_process(), NEEDS["broker"]
    found = f"cgroup {sized(limits.memory_bytes)}, address space "
    found += sized(limits.address_bytes)
    only_memory = Limits(limits.memory_bytes, limits.address_bytes, limits.data_bytes)
    sentence = lack("broker", only_memory, needs)
    return Finding("memory", found, "bad" if sentence else "good", sentence)


def _locked_memory() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Finding("locked memory", "unlimited")
    found = f"{soft >> 10} KiB"
    if os.geteuid() == 0:
        return Finding("locked memory", f"{found}, not enforced for root")
    advice = "to lock segments in memory, set ulimit -l unlimited"
    return Finding("locked memory", found, "note", advice)


def _store(root: Path, segment: int) -> list[Finding]:
    from ...store.format.disk import Disk, existing, full_disk
    from ...store.log.room import holds_next_segment, lack_of_room
    from ...store.recovery import other_engines

    what = f"store {root}"
    if other := other_engines.found(root):
        return [Finding(what, "not a file store", "bad", other)]
    folder = existing(str(root))
    free, total = Disk().free_bytes(folder), Disk().space(folder).total
    log = root / "commitlog"
    segment = max((path.stat().st_size for path in log.glob("[0-9]*")), default=segment)
    segments = sorted(str(path) for path in log.glob("[0-9]*") if path.stat().st_size == segment)
    found = f"{free >> 20} of {total >> 20} MiB free"
    if lack := lack_of_room(Disk(), [str(log)], segment, segments[-1] if segments else ""):
        return [Finding(what, found, "bad", lack)]
    if not holds_next_segment(Disk(), [folder], segment):
        needs = f"a log needs two segments of {segment} bytes (mappedFileSizeCommitLog)"
        return [Finding(what, found, "bad", full_disk(folder, needs))]
    if free >= segment:
        return [Finding(what, found)]
    needs = f"the next segment of the commit log needs {segment} bytes (mappedFileSizeCommitLog)"
    return [Finding(what, found, "note", full_disk(folder, needs))]


def _serving(endpoint: str) -> Finding:
    try:
        with connected(endpoint) as connection:
            answer = connection.call(
                paths.DESCRIBE_CLUSTER, v1.DescribeClusterRequest(), v1.DescribeClusterResponse
            )
    except CliError as error:
        return Finding(
            f"node {endpoint}",
            str(error),
            "bad",
            "check that it is running and that the port is right",
        )
    return Finding(f"node {endpoint}", f"serving, {answer.door} door")
