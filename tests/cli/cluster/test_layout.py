"""The data directory: one supervisor at a time, one secret, files that stay their owner's."""

import stat
from pathlib import Path

import pytest

from cometmq.cli.cluster.layout import DataDirectory
from cometmq.operations.errors import CliError


def test_a_second_supervisor_is_refused_with_advice(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path / "data")
    with pytest.raises(CliError, match=r"\(process \d+\) is running on .* --data"):
        DataDirectory(tmp_path / "data")
    first.close()
    DataDirectory(tmp_path / "data").close()


def test_an_invalid_data_directory_is_an_error_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CliError, match=r"Cannot use .* as data directory"):
        DataDirectory(tmp_path / "file")


def test_the_token_is_generated_once_and_private(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path)
    token = data.token()
    assert len(token) == 48
    assert data.token() == token
    mode = stat.S_IMODE((tmp_path / "cluster-token").stat().st_mode)
    assert mode == 0o600


def test_a_new_file_has_every_key_and_is_private(tmp_path: Path) -> None:
    file = tmp_path / "master" / "broker.conf"
    said = DataDirectory(tmp_path).configure(file, {"brokerId": "0", "clusterToken": "t"}, "Title.")
    assert said == {"brokerId": "0", "clusterToken": "t"}
    assert file.read_text().splitlines() == [
        "# Title.",
        "# You can edit this file.",
        "brokerId=0",
        "clusterToken=t",
    ]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_an_edited_file_keeps_every_byte_and_gets_missing_keys(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    text = "! mine\nbrokerId : 7\nflushDiskType=SYNC_FLUSH"
    file.write_text(text)
    data = DataDirectory(tmp_path / "data")
    said = data.configure(file, {"brokerId": "0", "brokerName": "a"}, "Title.")
    assert said == {"brokerId": "7", "flushDiskType": "SYNC_FLUSH", "brokerName": "a"}
    assert file.read_text() == f"{text}\n# added by cometmq up\nbrokerName=a\n"
    data.configure(file, {"brokerId": "0", "brokerName": "a"}, "Title.")
    assert file.read_text().count("added by") == 1


def test_a_file_that_is_not_properties_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("a=\\uzzzz\n")
    with pytest.raises(CliError, match="line 1"):
        DataDirectory(tmp_path / "data").configure(file, {"a": "1"}, "Title.")


def test_a_planted_link_is_not_written(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    data = DataDirectory(tmp_path / "data")
    (tmp_path / "data" / "cluster-token.tmp").symlink_to(victim)
    data.token()
    assert victim.read_text() == "kept"
    data.close()
    (tmp_path / "data" / "up.lock").unlink()
    (tmp_path / "data" / "up.lock").symlink_to(victim)
    with pytest.raises(CliError, match="symbolic links"):
        DataDirectory(tmp_path / "data")
    assert victim.read_text() == "kept"
