"""Each block of eight pages is run as printed: here, or by another test that is named.

Only addresses, ports and directories are those of the test.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.cli.config.loader import load
from cometmq.cli.config.sources import broker_owners
from cometmq.tests.harness.cluster import Cluster, temporary

_ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
GUIDE, INSTALL, SECURITY = "docs/getting-started.md", "docs/install.md", "docs/security.md"
BACKUP, MIGRATION, PIPELINE = "docs/backup.md", "docs/migration.md", "docs/pipeline.md"
#: Of docs/production.md `test_production_guide.py` counts and runs all.
PAGES = ("README.md", GUIDE, INSTALL, BACKUP, MIGRATION, SECURITY, PIPELINE)
_FIRST_HOUR, _INSTALL = "docs/test_first_hour.py", "docs/test_install.py"
_TAKE_OVER, _COMPOSE = "interop/apache/test_take_over.py", "containers/test_compose.py"
_EXAMPLE, _SPARK = "pipeline/test_worked_example.py", "pipeline/jobs/spark_cluster.py"
#: Page and first line of a block -> the test that runs it, and a part of its text.
ELSEWHERE = {
    ("README.md", "scripts/quickstart"): ("interop/test_quickstart.py", "quickstart_run.py"),
    ("README.md", ".venv/bin/cometmq up"): (_FIRST_HOUR, "temporary("),
    ("README.md", ". .venv/bin/activate"): (_FIRST_HOUR, "topic create orders --queues 8"),
    ("README.md", "from rocketmq import"): (_FIRST_HOUR, "_PROGRAMS"),
    ("README.md", "import cometmq"): (_FIRST_HOUR, "_PROGRAMS"),
    (GUIDE, "python3 -m venv .venv"): (_INSTALL, "From a clone"),
    (GUIDE, "cometmq topic create NAME"): (_FIRST_HOUR, "group create NAME --order"),
    (GUIDE, "cometmq topic create chats"): (_FIRST_HOUR, "topic create chats --type lite"),
    (GUIDE, "cometmq up --groups 2"): ("interop/test_broker_groups.py", '"--groups", "2"'),
    (GUIDE, "$ cometmq topic create orders"): (
        "cli/cluster/test_broker_groups.py",
        "To finish, run",
    ),
    (GUIDE, "scripts/secrets"): (_COMPOSE, "scripts/secrets"),
    (GUIDE, "export COMPOSE_FILE="): (_COMPOSE, "docker-compose.secure.yml"),
    (GUIDE, "cometmq ha status"): (_FIRST_HOUR, "ha policy --sync --min-in-sync 2"),
    (INSTALL, "python3 -m venv .venv"): (_INSTALL, "From a clone"),
    (INSTALL, "scripts/wheels"): (_INSTALL, "From the wheel"),
    (INSTALL, "python3 scripts/release_index.py"): ("deploy/test_release.py", "release_index.py"),
    (MIGRATION, "cometmq doctor --store"): (_TAKE_OVER, "Take over a directory"),
    (MIGRATION, "bindAddress="): (_TAKE_OVER, "Take over a directory"),
    (MIGRATION, "brokerClusterName="): (_TAKE_OVER, "Take over a directory"),
    (MIGRATION, "cometmq namesrv -c"): (_TAKE_OVER, "Take over a directory"),
    (MIGRATION, "cometmq healthcheck"): (_TAKE_OVER, "Take over a directory"),
    (MIGRATION, "cometmq store verify"): (_TAKE_OVER, "Take over a directory"),
    (MIGRATION, "cometmq mirror run"): ("interop/apache/test_mirror.py", "Mirror a running"),
    (SECURITY, "scrape_configs:"): ("deploy/prometheus.py", "scrape_configs"),
    (PIPELINE, "cometmq pipeline lake"): ("pipeline/jobs/lake_commands.py", '"lake"'),
    (PIPELINE, "from cometmq.pipeline.jobs.lake"): (
        "pipeline/jobs/lake_driver.py",
        "bronze",
    ),
    (PIPELINE, "cometmq pipeline pack"): (_SPARK, "spark-submit"),
    (PIPELINE, "ENDPOINT ="): (_EXAMPLE, "DOCUMENT"),
    (PIPELINE, "import json"): (_EXAMPLE, "DOCUMENT"),
    (PIPELINE, "from pyspark.sql"): (_EXAMPLE, "DOCUMENT"),
    (PIPELINE, "from cometmq.pipeline.jobs.archive"): (_EXAMPLE, "DOCUMENT"),
    (PIPELINE, "from cometmq.pipeline.jobs.replay"): (_EXAMPLE, "DOCUMENT"),
}
#: What no test runs, and why. `test_documented_commands.py` checks the options of their commands.
NOT_RUN = {
    (GUIDE, "docker-compose exec ns0"): "needs Compose 1; the hosts of the production guide run it",
    (SECURITY, "docker pull"): "pulls images from a registry",
    (PIPELINE, "broker's store  --path"): "a picture",
    (PIPELINE, "ARCHIVE/topic="): "names of files",
    (PIPELINE, "query = ("): "a part of a program; pipeline/test_archive_sink.py has a whole one",
    (PIPELINE, "spark-submit --master yarn"): "needs YARN",
    (PIPELINE, "spark-submit --master k8s"): "needs Kubernetes",
}
_CONTEXTS = (GUIDE, "cometmq context add")
_COMPLETION = (GUIDE, 'eval "$(cometmq')
_DEFINITIONS = (GUIDE, "version: 1")
_FILES = (
    (GUIDE, "brokerName=broker-a"),
    (SECURITY, "# of broker.conf and proxy.conf"),
    (SECURITY, "# broker.conf, on every replica"),
    (SECURITY, "tlsMode=enforcing"),
)
_DOCTOR, _USERS = (SECURITY, "cometmq doctor security"), (SECURITY, "cometmq up --auth")
_AUTHORITY, _AUDIT = (SECURITY, "cometmq auth dev-ca"), (SECURITY, "cometmq message query")
_QUOTAS = (SECURITY, "cometmq quota set")
_SAVE, _RESTORE = (BACKUP, "cometmq backup create"), (BACKUP, "cometmq backup restore")
_HERE = (
    *(_CONTEXTS, _COMPLETION, _DEFINITIONS, *_FILES, _DOCTOR, _USERS, _AUTHORITY, _AUDIT),
    *(_QUOTAS, _SAVE, _RESTORE),
)


def blocks(page: str) -> list[str]:
    return _BLOCK.findall((_ROOT / page).read_text())


def printed(key: tuple[str, str], number: int = 0) -> str:
    """Return a block by its page and first line."""
    page, start = key
    return [block for block in blocks(page) if block.startswith(start)][number]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_by_a_test(page: str) -> None:
    known = [start for name, start in (*ELSEWHERE, *NOT_RUN, *_HERE) if name == page]
    for block in blocks(page):
        assert any(block.startswith(start) for start in known), block
    for start in known:
        assert any(block.startswith(start) for block in blocks(page)), start


@pytest.mark.parametrize("key", ELSEWHERE, ids=": ".join)
def test_the_other_test_is_there(key: tuple[str, str]) -> None:
    file, text = ELSEWHERE[key]
    assert text in (_ROOT / "tests" / file).read_text()


@pytest.mark.parametrize("key", _FILES, ids=": ".join)
def test_a_printed_configuration_file_is_valid(key: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    # The page asks for a token of one's own, and has users.
    own = printed(key).replace("replace-this-secret", "a-token-of-this-test")
    users = "authenticationEnabled=true\n"
    file.write_text(users + own.replace(users, ""))
    load(broker_owners(), file=file, strict=True)


class Place:
    """A cluster with authentication in ./data, and a shell beside it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.folder = cluster.data.parent
        self._instead = {
            "10.0.0.11:8081": cluster.address("master"),
            "/etc/cometmq/": f"{cluster.data}/namesrv/",
            "/var/lib/cometmq/": f"{self.folder}/var/",
        }

    def run(self, text: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run lines of a page; return what they print."""
        for place, own in self._instead.items():
            text = text.replace(place, own)
        kept = {name: value for name, value in os.environ.items() if "COMETMQ" not in name}
        done = subprocess.run(
            ["bash", "-ec", text],
            cwd=self.folder,
            env={
                **kept,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "XDG_CONFIG_HOME": str(self.folder / "configuration"),
            },
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode in codes, (text, done.stdout, done.stderr)
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with temporary("--auth", "--controller") as cluster:
        place = Place(cluster)
        start, _, rest = printed(_USERS).partition("\n")
        assert start.partition("#")[0].split() == ["cometmq", "up", "--auth"]
        told = place.run(rest)
        assert "accessKey=admin" in told
        assert "secret" in told
        yield place


@pytest.mark.real_start
def test_the_commands_of_the_page_of_security(place: Place) -> None:
    for line in printed(_DOCTOR).splitlines():
        assert "verdict" in place.run(line, codes=(0, 5))  # 5: something is open
    place.run(printed(_AUTHORITY))
    assert (place.folder / "tls" / "ca.pem").exists()
    place.run("cometmq topic create gone --queues 1; cometmq topic delete gone --yes")
    assert "DeleteTopic" in place.run(printed(_AUDIT))
    assert "Deleted the quota of User:orders-service." in place.run(printed(_QUOTAS))


@pytest.mark.real_start
def test_the_contexts_the_completion_and_the_definitions_of_getting_started(place: Place) -> None:
    for name in ("ca.pem", "token"):
        (place.folder / name).write_text("x")
        (place.folder / name).chmod(0o600)
    assert "prod" in place.run(printed(_CONTEXTS) + "cometmq context use dev")
    assert "cometmq" in place.run(printed(_COMPLETION) + "complete -p cometmq")
    (place.folder / "definitions.yaml").write_text(printed(_DEFINITIONS))
    place.run("cometmq cluster apply definitions.yaml --yes")
    assert "has all definitions" in place.run("cometmq cluster apply definitions.yaml")


@pytest.mark.real_start
def test_a_backup_is_made_checked_and_restored(place: Place) -> None:
    place.run("cometmq topic create kept --queues 1; cometmq message send kept saved")
    assert "Every file has its checksum." in place.run(printed(_SAVE))
    restore, start = printed(_RESTORE).splitlines()
    assert start == "cometmq up --data restored"
    assert f"Start the cluster: {start}" in place.run(restore)
    restored = Cluster(place.folder / "restored", segment_size=None).start()
    try:
        at = ("--endpoint", restored.address("master"))
        assert "saved" in restored.run("message", "get", "kept", "0", "0", *at).stdout
    finally:
        restored.stop()
    place.run(printed(_RESTORE, 1))
    assert (place.folder / "var" / "store" / "commitlog").is_dir()
