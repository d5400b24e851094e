"""Shared fixtures: a real cluster, the official client; and the rule for skips.

A test that needs something that this machine lacks calls `pytest.skip` with the reason. With
CI=true such a skip is a failure, so that everything that can be tested is tested. In the portable
lane (`COMETMQ_NATIVE=off`) the tests of the native crate are skipped, with CI=true too.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import HealthCheck, settings
from xdist.scheduler.loadscope import LoadScopeScheduling

from cometmq.broker import lifecycle
from cometmq.proto.native import SWITCH, is_available
from cometmq.tests import durations, example_budget
from cometmq.tests.harness import forked, jvm, pace
from cometmq.tests.harness.cluster import Cluster
from cometmq.tests.harness.official import Official

#: The native door is tested if it is installed; scripts/test builds it if a toolchain exists.
NATIVE_DOOR = is_available()
ON_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
PORTABLE_LANE = os.environ.get(SWITCH, "").lower() == "off"

# An example may take long on a slow machine; pytest's timeout ends a test that hangs.
settings.register_profile(
    "suite", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


#: Files that share a session of Spark: a second one would need half a minute of CPU to become fast.
SPARK_FILES = tuple(
    f"pipeline/test_{name}.py"
    for name in (
        *("gate", "golden", "pipeline_commands", "rebuild", "secured", "sink", "source", "stream"),
        *("wire", "worked_example"),
    )
)
#: Files that occupy a worker for a minute or more, longest first, so that none runs alone at the
#: end.
LONG_FILES = (
    "containers/test_compose.py",
    *SPARK_FILES,
    "front/test_native_soak.py",
    # The set-up of a new clone still builds: its disk and cores stall what has leases.
    "sim/test_seeds.py",
    "pipeline/test_kills.py",
    "pipeline/test_ending.py",
    "drills/test_table_network.py",
    "drills/test_random.py",
    "drills/test_table_controller.py",
    "drills/test_hosts.py",
    "drills/test_table_crashes.py",
    "drills/test_table_storage.py",
    "drills/test_table_power.py",
    "drills/test_table_messages.py",
    "interop/test_other_clients.py",
    "drills/test_kill9.py",
)
#: Files whose tests share no fixture and take seconds each.
INDEPENDENT_FILES = (
    "tests/sim/test_seeds.py",
    "tests/sim/test_planted_bugs.py",
    "tests/fuzz/test_fuzz.py",
)


#: The cluster that runs now for `shared_cluster`, if any, and the files whose tests use it.
_shared: list[Cluster] = []
_sharing: set[Path] = set()


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Sends the tests of a file, and all of `SPARK_FILES`, to one worker; tests of
    `INDEPENDENT_FILES` go to any worker."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        if file.endswith(INDEPENDENT_FILES):
            return nodeid
        return "spark" if file.removeprefix("tests/") in SPARK_FILES else file


def pytest_configure(config: pytest.Config) -> None:
    """Let processes under test end with Ctrl-C though the suite runs in a shell's background.

    Also record how long the files take.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    forked.install()
    jvm.install()
    # A broker collects garbage when it starts: of all that a worker has imported, half a second for
    # each of the thousands of brokers that run inside the tests.
    lifecycle._freeze_heap = lambda: None
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(durations.Recorder(), "cometmq-durations")
    else:
        # The size of a terminal that readline assumes, in every process that imports it.
        for name in ("COLUMNS", "LINES"):
            os.environ.pop(name, None)


def pytest_collection_finish() -> None:
    """Exclude modules and test items from garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    """State the factor of the test clusters' timers."""
    return f"pace of this machine: {pace.PACE:g}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Start processes as commands in tests that are marked `real_start`, and in their fixtures."""
    with forked.real_starts() if item.get_closest_marker("real_start") else nullcontext():
        yield


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Replace `--dist loadfile`. Groups (`loadgroup`) do not work with pytest 9.2 and xdist 3.8."""
    return FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the long files first, then those that share a cluster; keep the order of all others."""
    folder = Path(__file__).parent
    first = {folder / name: position for position, name in enumerate(LONG_FILES)}
    _sharing.update(item.path for item in items if "shared_cluster" in item.fixturenames)  # type: ignore[attr-defined]
    items.sort(key=lambda item: first.get(item.path, len(first) + (item.path not in _sharing)))
    example_budget.apply(items)


def _refuse_skip(report: Any) -> None:
    """Turn a skip into a failure; an expected failure (xfail) is not a skip."""
    if ON_CI and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        if PORTABLE_LANE and "native" in str(reason):
            return
        report.outcome = "failed"
        report.longrepr = f"{reason}\nWith CI=true a skip is a failure: provide what is missing."


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    """See the module's docstring."""
    outcome: Any = yield
    _refuse_skip(outcome.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Do the same for modules that skip themselves."""
    outcome: Any = yield
    _refuse_skip(outcome.get_result())


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with an authority (authority.pem) and its certificate for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    made = authority.issue_cert("127.0.0.1")
    made.cert_chain_pems[0].write_to_path(str(folder / "chain.pem"))
    made.private_key_pem.write_to_path(str(folder / "key.pem"))
    return folder


@pytest.fixture(scope="module")
def shared_cluster(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Provide one cluster of nameserver, master and slave for tests that do not change it.

    Behind the native door it has its own certificate, which clients can trust.
    """
    if not _shared:
        _shared.append(_started_cluster(certificates, tmp_path_factory.mktemp("cluster") / "data"))
    return _shared[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Stop the shared cluster when the next file does not use it: an idle one takes a twentieth of
    a core."""
    if _shared and (nextitem is None or nextitem.path not in _sharing):
        _shared.pop().stop()


def _started_cluster(certificates: Path, folder: Path) -> Cluster:
    # Transaction checks are sent within seconds, so that tests need not wait for half a minute.
    env = {
        "COMETMQ_TRANSACTION_TIME_OUT": "1500",
        "COMETMQ_TRANSACTION_CHECK_INTERVAL": "1000",
        "COMETMQ_TRANSACTION_OP_BATCH_INTERVAL": "200",
    }
    if NATIVE_DOOR:
        env["COMETMQ_FRONT_TLS_CERTIFICATE"] = str(certificates / "chain.pem")
        env["COMETMQ_FRONT_TLS_KEY"] = str(certificates / "key.pem")
    cluster = Cluster(folder, env=env)
    try:
        return cluster.start()
    except BaseException:
        cluster.stop()
        raise


@pytest.fixture
def new_cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Return a function that starts clusters for one test: `new_cluster("--single")`."""
    made: list[Cluster] = []

    def start(*options: str, **more: Any) -> Cluster:
        made.append(Cluster(tmp_path / f"cluster{len(made)}", *options, **more))
        return made[-1].start()

    try:
        yield start
    finally:
        for cluster in made:
            cluster.stop()


@pytest.fixture
def official(tmp_path: Path) -> Iterator[Callable[[str], Official]]:
    """Return a function that starts the official Python client: `official(endpoints)`."""
    made: list[Official] = []

    def start(endpoints: str) -> Official:
        made.append(Official(endpoints, tmp_path / f"home{len(made)}"))
        return made[-1]

    try:
        yield start
    finally:
        for client in made:
            client.close()
