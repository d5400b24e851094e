"""One owner a directory: the files `lock` and `abort` (docs/formats/store-format.md, sections 1
and 6.1)."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.store.format.errors import (
    DiskFullError,
    StoreClosedError,
    StoreError,
    StoreLockedError,
)
from cometmq.store.format.results import PutStatus
from cometmq.tests.store.kit import Kit, message

SENTENCE = "in use by another process.*Stop it, or give this one another storePathRootDir"


def test_a_second_store_is_refused_with_what_to_do(kit: Kit) -> None:
    second = Kit(kit.root)
    with pytest.raises(StoreLockedError, match=SENTENCE) as caught:
        second.open()
    assert f"(process {os.getpid()})" in str(caught.value)
    kit.write()
    kit.close()
    second.open()
    second.close()


def test_a_second_process_is_refused(kit: Kit) -> None:
    program = (
        "import sys\n"
        "from cometmq.store.config.store_config import StoreConfig\n"
        "from cometmq.store.format.errors import StoreLockedError\n"
        "from cometmq.store.message_store import MessageStore\n"
        "try:\n"
        "    MessageStore(StoreConfig(sys.argv[1]), lambda: 0).open()\n"
        "except StoreLockedError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(kit.root)], capture_output=True, text=True, check=True
    )
    assert "in use by another process" in done.stdout
    kit.write()


def test_the_lock_excludes_apache_brokers_both_ways(tmp_path: Path) -> None:
    """Apache locks byte 0 of `lock` with fcntl, and so do we."""
    program = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "try:\n"
        "    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
        "    print('locked', flush=True)\n"
        "    sys.stdin.read()\n"
        "except OSError:\n"
        "    print('refused', flush=True)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "lock")]
    kit = Kit(tmp_path)
    kit.open()
    done = subprocess.run(command, capture_output=True, text=True, check=True, input="")
    assert done.stdout == "refused\n"
    kit.close()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as apache:
        assert apache.stdout is not None
        assert apache.stdout.readline() == b"locked\n"
        with pytest.raises(StoreLockedError, match=SENTENCE):
            kit.open()
        apache.communicate()
    kit.open()
    kit.close()


def test_lock_and_abort_are_the_files_of_apache(kit: Kit) -> None:
    assert (kit.root / "lock").read_bytes() == b"lock"
    assert (kit.root / "abort").read_bytes() == str(os.getpid()).encode()
    kit.write()
    kit.dispatch()
    kit.close()
    assert not (kit.root / "abort").exists()
    assert (kit.root / "lock").read_bytes() == b"lock"
    with (kit.root / "lock").open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_abort_stays_while_records_wait_for_dispatch_and_the_stop_is_clean(kit: Kit) -> None:
    """Apache would otherwise take the queues for complete (docs/formats/store-format.md, section
    6.7)."""
    kit.write(b"seen")
    kit.dispatch()
    kit.write(b"not confirmed")
    kit.close()
    assert (kit.root / "abort").read_bytes() == b"stopped"
    report = kit.open()
    assert report.clean
    assert report.dispatched_offset < report.log_end
    assert (kit.root / "abort").read_bytes() == str(os.getpid()).encode()
    kit.dispatch()
    assert kit.reopen().clean
    assert not kit.reopen().torn_bytes


def test_a_store_is_opened_and_started_once(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    with pytest.raises(StoreClosedError):
        kit.store.start()
    kit.open()
    with pytest.raises(StoreClosedError):
        kit.store.open()
    with pytest.raises(StoreClosedError):
        kit.store.start()
    kit.close()


def test_a_failed_open_releases_the_directory(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    (tmp_path / "checkpoint").write_bytes(b"short")
    for _ in range(2):
        with pytest.raises(Exception, match="checkpoint"):
            kit.open()
    (tmp_path / "checkpoint").unlink()
    kit.open()
    kit.close()


@pytest.mark.parametrize(
    ("code", "error", "sentence"),
    [
        (errno.EACCES, StoreError, "Start as its owner"),
        (errno.EROFS, StoreError, "mounted for writing"),
        (errno.ENOSPC, DiskFullError, "free some space"),
    ],
)
def test_a_directory_that_cannot_be_used(
    tmp_path: Path, code: int, error: type[StoreError], sentence: str
) -> None:
    kit = Kit(tmp_path / "store")

    def fault(name: str) -> None:
        if name == "open":
            raise OSError(code, os.strerror(code))

    kit.disk.fault = fault
    with pytest.raises(error, match=sentence):
        kit.store.open()
    kit.open()  # nothing was left behind that would be in the way
    kit.close()
    kit.open_only()
    kit.disk.fault = fault
    with pytest.raises(error, match=sentence):
        kit.store.start()
    kit.store.close()


def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreError, match="cannot be used"):
        Kit(tmp_path / "file" / "store").store.open()


def test_a_store_on_a_full_disk_opens_and_is_readable(tmp_path: Path) -> None:
    """Every write finds the disk full from the start on, and room comes later."""
    kit = Kit(tmp_path)
    kit.open()
    kit.write_many(30)
    kit.close()
    kit.store = kit._new()

    def fault(name: str) -> None:
        if name in ("pwrite", "fallocate"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    kit.disk.fault = fault
    assert kit.store.open().clean
    assert len(kit.queue_bodies()) == 30
    kit.store.start()
    assert len(kit.queue_bodies()) == 30
    while kit.store.writer.append_many([message(b"x" * 500)])[0].status is PutStatus.PUT_OK:
        pass
    kit.disk.fault = None
    kit.write(b"there is room again")
    kit.dispatch()
    assert kit.queue_bodies()[-1] == b"there is room again"
    kit.close()
