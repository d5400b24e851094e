"""Stores of Apache's broker with RocksDB or DLedger are refused by what lies there."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cometmq.cli.root import cli
from cometmq.operations.errors import Exit
from cometmq.store.format.errors import UnsupportedLayoutError
from cometmq.tests.store.kit import Kit, filled

PLACES = [
    "consumequeue/CURRENT",
    "config/topics/CURRENT",
    "config/subscriptionGroups/CURRENT",
    "config/consumerOffsets/CURRENT",
    "config/rdb/CURRENT",
    "config/rdb/inner/CURRENT",
    "kvStore/CURRENT",
    "consumequeue/MANIFEST-000004",
    "config/rdb/000012.sst",
    "dledger-n0/data/00000000000000000000",
]


@pytest.mark.parametrize("place", PLACES)
def test_it_is_refused_and_left_as_it_is(tmp_path: Path, place: str) -> None:
    kit = Kit(tmp_path)
    kit.open()
    filled(kit)
    kit.close()
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("MANIFEST-000005\n")
    before = kit.all_files()
    found = str(tmp_path / "/".join(place.split("/")[: 1 if "/data/" in place else -1]))
    folder = found.removesuffix("/inner")
    with pytest.raises(UnsupportedLayoutError, match=f"^{folder} is .*Nothing was changed"):
        kit.open()
    runner = CliRunner()
    for words in (["store", "verify", str(tmp_path)], ["doctor", "--store", str(tmp_path)]):
        result = runner.invoke(cli, words, standalone_mode=False)
        assert result.exception is not None or result.return_value == Exit.PROBLEMS
        assert folder in result.output.replace("\n", "") + str(result.exception)
    assert kit.all_files() == before


def test_a_topic_with_the_name_of_the_file_is_no_database(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    kit.open()
    kit.write(topic="CURRENT")
    kit.dispatch()
    kit.reopen()
    kit.close()
