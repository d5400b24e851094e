"""Prometheus's own programs, from the distribution: a server that scrapes a test, and promtool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "rules.yml"
_LISTENING = re.compile(r'"Listening on" address=127\.0\.0\.1:(\d+)')


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`; skip the test without it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name}: install the distribution's package prometheus")
    return found


@dataclass(frozen=True)
class Prometheus:
    """A running server; its log has the port that it listens on."""

    log: Path

    def api(self, path: str, **parameters: str) -> Any:
        """Call its HTTP interface; return `data`. Raises OSError while it starts."""
        port = _LISTENING.search(self.log.read_text())
        if port is None:
            raise ConnectionRefusedError("Prometheus does not listen yet")
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port[1]}/api/v1/{path}?{query}", timeout=60
        ) as answer:
            content = json.load(answer)
        assert content["status"] == "success", content
        return content["data"]

    def query(self, expression: str) -> list[Any]:
        """Evaluate an expression now; return its series."""
        found: list[Any] = self.api("query", query=expression)["result"]
        return found


@contextmanager
def prometheus(
    directory: Path, targets: list[str], rules: Path = RULES, every: str = "2s"
) -> Iterator[Prometheus]:
    """Run a server that scrapes `targets` and evaluates the rules at this interval."""
    directory.mkdir()
    config = directory / "prometheus.yml"
    jobs = [{"job_name": "cometmq", "static_configs": [{"targets": targets}]}]
    intervals = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), every)
    # JSON is YAML.
    config.write_text(
        json.dumps({"global": intervals, "rule_files": [str(rules)], "scrape_configs": jobs})
    )
    command = [
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        "--web.listen-address=127.0.0.1:0",
    ]
    log = directory / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield Prometheus(log)
    finally:
        process.terminate()
        process.wait(60)
