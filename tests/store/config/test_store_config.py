"""The store's configuration refuses what cannot work, with a sentence."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.config.store_config import StoreConfig


def test_every_option_has_a_help_text() -> None:
    for option in fields(StoreConfig):
        assert option.metadata["help"], option.name


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"store_path_root_dir": ""}, "storePathRootDir is empty"),
        ({"flush_disk_type": "sync"}, "use ASYNC_FLUSH or SYNC_FLUSH"),
        ({"mapped_file_size_commit_log": 100}, "at least 512 bytes"),
        ({"mapped_file_size_consume_queue": 19}, "one unit of 20 bytes"),
        ({"max_message_size": 0}, "maxMessageSize is 0"),
        ({"flush_interval_commit_log": 0}, "flushIntervalCommitLog is 0"),
        ({"open_queue_files_max": -1}, "openQueueFilesMax is -1"),
        ({"sync_flush_gather_max": -1}, "syncFlushGatherMax is negative"),
        *(
            ({"store_file_mode": mode}, "storeFileMode is")
            for mode in ("0400", "0602", "0700", "0611", "rw", "600000", "")
        ),
    ],
)
def test_refusals(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        StoreConfig(**options)


def test_derived_values() -> None:
    config = StoreConfig("/data", mapped_file_size_consume_queue=2001)
    assert config.consume_queue_file_bytes == 2020
    assert config.commit_log_directory == Path("/data/commitlog")
    assert StoreConfig("/d", store_path_commit_log="/e").commit_log_directory == Path("/e")
    assert not config.sync_flush
    for mode, umask in (("0600", 0o077), ("640", 0o027), ("0660", 0o007), ("0644", 0o022)):
        assert StoreConfig("/d", store_file_mode=mode).umask == umask
    assert StoreConfig("/d", flush_disk_type="SYNC_FLUSH").sync_flush
