"""`cometmq store retention`: verdicts of a directory, offline, as the broker would give them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cometmq.cli.root import cli
from cometmq.store.format.disk import Disk, Space
from cometmq.store.retention.archive_watermark import ArchiveWatermark
from cometmq.tests.store.kit import SEGMENT, Kit, filled

HOUR_S = 3_600


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How full the disk says it is, in percent."""
    percent = [10]
    monkeypatch.setattr(
        Disk, "space", lambda _disk, _path: Space(100 << 30, *[(100 - percent[0]) << 30] * 2)
    )
    return percent


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Five segments: the first two were written 100 hours ago, the last two just now."""
    kit = Kit(tmp_path / "store")
    kit.open()
    filled(kit, 60)
    kit.close()
    for path, hours in zip(kit.segment_paths(), (100, 100, 20, 0, 0), strict=True):
        seconds = path.stat().st_mtime - hours * HOUR_S
        os.utime(path, (seconds, seconds))
    return kit.root


def explain(store: Path, *options: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["store", "retention", str(store), "-o", "json", *options])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def reasons(document: dict[str, Any]) -> list[str]:
    return [row["reason"] for row in document["segments"]]


def test_every_segment_has_its_reason(store: Path) -> None:
    document = explain(store, "--hour", "5")
    assert reasons(document) == ["hour", "hour", "young", "young", "last"]
    assert [row["start"] for row in document["segments"]] == [n * SEGMENT for n in range(5)]
    assert document["segments"][0]["file"] == f"commitlog/{0:020d}"
    document = explain(store, "--hour", "4")
    assert reasons(document) == ["expired", "expired", "young", "young", "last"]
    assert [row["verdict"] for row in document["segments"]] == ["delete"] * 2 + ["keep"] * 3


def test_the_settings_of_a_file_and_the_watermark_are_applied(store: Path, tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("fileReservedTime=10\ndeleteWhen=03;05\narchiveGate=true\n")
    ArchiveWatermark(store, Disk()).set(SEGMENT)
    document = explain(store, "-c", str(config), "--hour", "5")
    assert reasons(document) == ["expired", "archive", "archive", "young", "last"]
    assert (document["archive_gate"], document["archive_watermark"]) == (True, SEGMENT)
    assert document["delete_when"] == [3, 5]


def test_a_full_disk_overrides_the_reserved_time(store: Path, roomy: list[int]) -> None:
    roomy[0] = 86
    document = explain(store, "--hour", "5")
    # One at a time: the disk use is measured before the next.
    assert reasons(document) == ["expired", "batch", "behind", "behind", "last"]
    assert (document["disk_use"], document["pressure"]) == (86, "forced")


def test_preallocated_files_are_not_segments(store: Path) -> None:
    (store / "commitlog" / f"{5 * SEGMENT:020d}").write_bytes(bytes(SEGMENT))
    document = explain(store, "--hour", "5")
    assert reasons(document)[-1] == "last"
    assert document["made_ahead"] == [f"commitlog/{5 * SEGMENT:020d}"]


def test_the_table_is_printed_and_no_file_changes(store: Path) -> None:
    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in store.rglob("*") if path.is_file()}

    before = content()
    result = CliRunner().invoke(cli, ["store", "retention", str(store), "--hour", "5"])
    assert result.exit_code == 0
    assert "fileReservedTime 72 h, deleteWhen 04, it is hour 05" in result.stdout
    assert "it is the last one" in result.stdout
    assert content() == before


def test_a_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["store", "retention", str(tmp_path)])
    assert result.exit_code != 0
