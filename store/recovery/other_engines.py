"""Stores of Apache's broker that are no file stores: RocksDB and DLedger, found by what lies there.

`found` names what was found and the way out. Such a directory has no queues, topics or offsets in
the files that this store reads (docs/formats/store-format.md, section 1): it would be opened as an
empty one, and writing into it damages it for Apache.
"""

import os
import re
from pathlib import Path
from typing import Final

#: Files of a RocksDB. The first names the newest of the second, and a copy that was cut short may
#: lack it.
_FILES: Final = re.compile(r"CURRENT|MANIFEST-\d+|.*\.sst")
_QUEUES: Final = (
    "is a RocksDB with the queues of an Apache broker (storeType=defaultRocksDB). Leave the "
    "directory to Apache's broker, and copy its topics over the network (`cometmq mirror`)"
)
_CONFIG: Final = (
    "is a RocksDB with topics, groups or offsets of an Apache broker. Let Apache's tools write "
    "them as JSON (`mqadmin rocksDBConfigToJson`), start Apache's broker once with these files and "
    "without its RocksDB configuration, stop it, and move the RocksDB away; or leave the "
    "directory to Apache's broker and copy its topics over the network (`cometmq mirror`)"
)
_POP: Final = (
    "is a RocksDB with popped messages of an Apache broker (popConsumerKVServiceEnable). Let its "
    "consumers acknowledge what they have, disable the setting, stop the broker, and move the "
    "folder away"
)
_DLEDGER: Final = (
    "is the log of an Apache broker with DLedger, whose entries have another form. Leave the "
    "directory to Apache's broker, and copy its topics over the network (`cometmq mirror`)"
)
_ROCKSDB: Final = {
    "consumequeue": _QUEUES,
    "config/topics": _CONFIG,
    "config/subscriptionGroups": _CONFIG,
    "config/consumerOffsets": _CONFIG,
    "config/rdb": _CONFIG,
    "kvStore": _POP,
}


def found(root: Path) -> str:
    """Return a sentence about what lies in the store directory and cannot be opened, or ""."""
    for name, what in _ROCKSDB.items():
        folder = root / name
        if any(_is_rocksdb(path) for path in (folder, *_folders(folder, name))):
            return f"{folder} {what}. Nothing was changed."
    for path in sorted(root.glob("dledger-*")):
        if path.is_dir():
            return f"{path} {_DLEDGER}. Nothing was changed."
    return ""


def _is_rocksdb(folder: Path) -> bool:
    """Return whether files of a RocksDB lie in the folder; one pass, as topics may be many."""
    try:
        with os.scandir(folder) as entries:
            return any(_FILES.fullmatch(entry.name) and entry.is_file() for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _folders(folder: Path, name: str) -> list[Path]:
    """Return the folders in which a RocksDB may lie one level deeper; of the queues' there may be
    thousands."""
    if name == "consumequeue" or not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.is_dir()]
