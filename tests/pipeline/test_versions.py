"""Every supported PySpark, and real tables of Delta and Iceberg: programs in their environments."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLES = "4.1.4"  # Delta and Iceberg have releases for it

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def run(*arguments: str) -> str:
    """Run scripts/spark_matrix; return what it prints."""
    done = subprocess.run(
        [str(ROOT / "scripts" / "spark_matrix"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=3000,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4_000:]
    return done.stdout


@pytest.mark.parametrize("version", ["4.0.5", "4.1.4", "4.2.1", "4.3.0"])
def test_reads_streams_and_sinks_work_with_this_pyspark(version: str) -> None:
    assert f"PySpark {version}: 3 checks held" in run(version)


@pytest.mark.parametrize("form", ["delta", "iceberg"])
@pytest.mark.parametrize(("driver", "checks"), [("lake_driver", 6), ("lake_commands", 2)])
def test_a_table_has_each_message_once(driver: str, checks: int, form: str, tmp_path: Path) -> None:
    module = f"cometmq.tests.pipeline.jobs.{driver}"
    assert run(TABLES, "--run", module, form, str(tmp_path)).count("held: ") == checks
