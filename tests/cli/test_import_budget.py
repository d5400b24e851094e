"""What a process imports before it serves: no heavy module, no thread, and a bounded number.

Each module costs a start about a third of a millisecond; a thread would not survive the fork by
which `cometmq up` and the tests make processes.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

#: Of no process before it works: they compute, parse, draw, or belong to other processes.
_HEAVY = {
    *("cryptography", "docker", "jinja2", "lark", "lz4", "multiprocessing", "numpy", "psutil"),
    *("opentelemetry", "prometheus_client", "pyarrow", "pyspark", "rich", "starlette"),
    *("tenacity", "tempfile", "yaml", "backports.zstd", "compression.zstd"),
}
#: Of a server whose remoting port is off.
_CLASSIC = {
    "cometmq.broker.classic",
    "cometmq.broker.proxy.server",
    "cometmq.broker.stand_in",
    "cometmq.nameserver.classic.admin",
    "cometmq.remoting.server",
}
#: Server -> (statements, modules that must be absent, number of modules of the package and of all).
_STARTS = {
    "broker": ("import cometmq.broker.server", _HEAVY | _CLASSIC, 446, 720),
    "namesrv": ("import cometmq.nameserver.server", _HEAVY | _CLASSIC, 110, 390),
    "up": ("import cometmq.cli.cluster.up", _HEAVY | {"asyncio", "grpc"}, 40, 245),
    "command": ("import cometmq.cli.root", _HEAVY | {"asyncio", "grpc", "msgspec"}, 10, 135),
    "help": ("import cometmq.cli.main", _HEAVY | {"asyncio", "click", "grpc"}, 5, 95),
}
_PROGRAM = """
import json, os, sys
tasks = "/proc/self/task"
print(json.dumps([sorted(sys.modules), len(os.listdir(tasks)) if os.path.isdir(tasks) else 1]))
"""


@pytest.mark.parametrize("name", _STARTS)
def test_a_start_imports_what_it_needs_and_starts_no_thread(name: str) -> None:
    statement, absent, own_max, all_max = _STARTS[name]
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{statement}\n{_PROGRAM}"],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded, threads = json.loads(done.stdout)
    assert absent.intersection(loaded) == set()
    assert threads == 1
    own = [each for each in loaded if each.startswith("cometmq.")]
    assert len(own) <= own_max, own
    assert len(loaded) <= all_max, loaded
