"""Limits of a process: read from the system, compared with what a server needs, told in a
sentence."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.cli.server.process import _sentence
from cometmq.front.errors import AddressError
from cometmq.front.limits import (
    MIB,
    NEEDS,
    UNLIMITED,
    Limits,
    lack,
    lack_for_segments,
    limits_of_process,
)

GIB = 1 << 30


@pytest.mark.parametrize("name", NEEDS)
@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("memory_bytes", "its cgroup allows"),
        ("address_bytes", "ulimit -v"),
        ("data_bytes", "ulimit -d"),
        ("descriptors", "ulimit -n"),
        ("threads", "TasksMax"),
    ],
)
def test_a_limit_below_the_minimum_is_named_with_its_remedy(
    name: str, field: str, words: str
) -> None:
    needs = NEEDS[name]
    least = needs.address_bytes if field == "data_bytes" else getattr(needs, field)
    sentence = lack(name, Limits(**{field: least - 1}), needs)
    assert sentence.startswith(f"The {name} needs ")
    assert words in sentence
    assert lack(name, Limits(**{field: least}), needs) == ""


def test_no_limit_is_no_lack() -> None:
    assert lack("broker", Limits(), NEEDS["broker"]) == ""
    assert lack_for_segments(Limits(), GIB, 500, 5 * GIB) == ""


def test_segments_and_locked_memory_must_fit() -> None:
    told = lack_for_segments(Limits(address_bytes=3 * GIB), GIB, 1, 0)
    assert "3840 MiB of address space" in told
    assert "3 segments of 1024 MiB (mappedFileSizeCommitLog)" in told
    assert lack_for_segments(Limits(address_bytes=3 * GIB), MIB, 100, 0) == ""
    told = lack_for_segments(Limits(memory_bytes=GIB), GIB, 1, 5 * GIB)
    assert "transientStorePoolSize" in told
    assert lack_for_segments(Limits(memory_bytes=GIB), GIB, 50, 0) == "", "mapped files may go"


@pytest.mark.parametrize(
    ("cgroup", "files", "memory", "threads"),
    [
        ("0::/a/b\n", {"a/memory.max": "67108864", "a/b/memory.max": "max"}, 64 * MIB, UNLIMITED),
        ("0::/host/path\n", {"memory.max": "134217728", "pids.max": "9"}, 128 * MIB, 9),
        ("4:memory:/x\n8:pids:/\n0::/\n", {"memory/x/memory.limit_in_bytes": "1048576"}, MIB, None),
        ("4:cpu,memory:/x\n", {}, UNLIMITED, UNLIMITED),
        ("", {"memory.max": "5"}, UNLIMITED, UNLIMITED),
    ],
    ids=["nested", "in a container", "v1", "unreadable", "no cgroup"],
)
def test_the_lowest_limit_of_the_cgroups_counts(
    tmp_path: Path, cgroup: str, files: dict[str, str], memory: int, threads: int | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    limits = limits_of_process(tmp_path)
    assert limits.memory_bytes == memory
    assert limits.threads == (UNLIMITED if threads is None else threads)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "--memory"),
        (MemoryError(), "ulimit -v"),
        (RuntimeError("can't start new thread"), "TasksMax"),
    ],
)
def test_a_start_that_gets_no_thread_map_or_descriptor_ends_with_its_reason(
    error: Exception, words: str
) -> None:
    sentence = _sentence("broker", error, ())
    assert sentence.startswith("The broker cannot run: the process ")
    assert words in sentence
    if isinstance(error, OSError):
        told = str(AddressError("127.0.0.1", 80, error))
        assert words in told
        assert "1023" not in told


def test_a_forbidden_port_is_told_as_such() -> None:
    assert "above 1023" in str(AddressError("127.0.0.1", 80, OSError(errno.EACCES, "denied")))


@pytest.mark.real_start
@pytest.mark.parametrize(
    ("kind", "limit", "words"),
    [
        (resource.RLIMIT_NOFILE, 64, "The broker needs 160 open files, and may have 64"),
        (resource.RLIMIT_AS, 400 * MIB, "and the limit of its address space is 400 MiB"),
        (resource.RLIMIT_AS, 2 * GIB, "2 segments of 1024 MiB (mappedFileSizeCommitLog)"),
    ],
)
def test_a_broker_below_its_minimum_does_not_start(
    tmp_path: Path, kind: int, limit: int, words: str
) -> None:
    command = [sys.executable, "-P", "-m", "cometmq.cli.main", "broker"]
    environment = {**os.environ, "COMETMQ_BIND_ADDRESS": "127.0.0.1"}
    environment["COMETMQ_STORE_PATH_ROOT_DIR"] = str(tmp_path / "store")
    done = subprocess.run(
        command,
        preexec_fn=lambda: resource.setrlimit(kind, (limit, limit)),
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "store/commitlog").exists()


@pytest.mark.real_start
def test_a_console_below_its_minimum_does_not_start() -> None:
    command = [sys.executable, "-P", "-m", "cometmq.cli.main", "console", "--port", "0"]
    done = subprocess.run(
        command,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "The console needs 80 open files, and may have 20" in done.stderr
