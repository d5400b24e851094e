"""`pyspark_rocketmq`: found by name, light to import, independent of other packages."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cometmq

CODE = """
import json, pkgutil, sys
names = [one.name for one in pkgutil.iter_modules() if one.name.startswith("pyspark_rocketmq")]
import pyspark_rocketmq
source = pyspark_rocketmq.DefaultSource
heavy = [name for name in ("numpy", "grpc", "cometmq.store.scan.walk") if name in sys.modules]
print(json.dumps([names, source.name(), heavy]))
"""


def test_spark_finds_the_source_by_the_name_of_its_package(tmp_path: Path) -> None:
    """Spark imports every such package at each lookup, so the import must be light."""
    folder = Path(cometmq.__file__).parent / "pipeline"
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    names, name, heavy = json.loads(done.stdout)
    assert "pyspark_rocketmq" in names
    assert name == "rocketmq"
    assert "grpc" not in heavy
    assert "cometmq.store.scan.walk" not in heavy


def test_an_old_spark_is_refused_with_the_version_that_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """3.5 has no Python data sources."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.datasource", None)
    monkeypatch.delitem(sys.modules, "cometmq.pipeline.source.data_source", raising=False)
    with pytest.raises(ImportError, match=r"The data sources of CometMQ need PySpark 4.0 or newer"):
        importlib.import_module("cometmq.pipeline.source.data_source")
