"""Jobs on a standalone cluster of two workers that have only the packed environment.

In the slow lane, and with `scripts/spark_cluster`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from cometmq.tests.formats.cases import contents
from cometmq.tests.harness.cluster import cometmq_command
from cometmq.tests.pipeline.jobs.spark_cluster import SparkCluster
from cometmq.tests.pipeline.written import sent, write_store

# Two minutes; test_pipeline_commands.py tests the packed environment without a cluster.
pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("spark-cluster")) as one:
        yield one


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "env.tar.gz"
    command = [*cometmq_command(), "pipeline", "pack", str(out)]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    return out


def test_spark_submit_with_a_packed_environment(
    cluster: SparkCluster, packed: Path, tmp_path: Path
) -> None:
    messages = [sent(f"t{n % 3}", n, body=b"x" * 500) for n in range(3000)]
    store = write_store(tmp_path / "broker-a", messages, segment=256 << 10)
    out = tmp_path / "archive"
    words = ("archive", str(store), str(out), "--live", "--split-bytes", "131072", "-o", "json")
    done = cluster.submit(packed, *words)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout[done.stdout.index("{") :])["rows_written"] == 3000
    offsets = ds.dataset(out, partitioning="hive").to_table()["physicalOffset"].to_pylist()
    assert len(offsets) == len(set(offsets)) == 3000
    logs = [path.read_text(errors="replace") for path in cluster.folder.glob("work*/app*/*/stderr")]
    assert len(logs) >= 2, "only one of the workers had something to do"


def test_the_command_itself_with_a_master(
    cluster: SparkCluster, packed: Path, tmp_path: Path
) -> None:
    store = write_store(tmp_path / "broker-a", [sent("t", n) for n in range(2000)])
    settings = {
        "spark.archives": f"{packed}#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.executor.memory": "512m",
    }
    words = [f"--conf={key}={value}" for key, value in settings.items()]
    again = tmp_path / "again"
    done = subprocess.run(
        [
            *(*cometmq_command(), "pipeline", "rebuild", str(store), str(again), "-o", "json"),
            *("--master", cluster.url, "--driver-memory", "512m", *words),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=cluster.environment(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["units"] == 2000
    for folder in ("consumequeue", "index"):
        assert contents(again, folder) == contents(store, folder)
