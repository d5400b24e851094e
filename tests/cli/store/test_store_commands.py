"""`cometmq store` as a shell sees it: what it prints, its exit codes, and that looking changes
nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cometmq.store.format.disk import Disk
from cometmq.store.store_lock import StoreLock
from cometmq.tests.formats.cases import digests, manifest, unpack
from cometmq.tests.store.damage import Site, zero

COMMAND = [sys.executable, "-P", "-m", "cometmq.cli.main", "store"]


def store(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        check=False,
    )


def lines(*arguments: str | Path) -> list[dict[str, Any]]:
    done = store(*arguments, "-o", "jsonl")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def normal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Only to be read."""
    return unpack("normal", tmp_path_factory.mktemp("golden"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return unpack("normal", tmp_path)


def test_retention_names_the_verdict_of_each_segment(normal: Path) -> None:
    done = subprocess.run(
        [*COMMAND[:-1], "store", "retention", str(normal), "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    verdicts = {row["verdict"] for row in json.loads(done.stdout)["segments"]}
    assert verdicts <= {"keep", "delete"}
    assert verdicts


def test_read_only_commands_change_no_file(root: Path, tmp_path: Path) -> None:
    other = unpack("killed", tmp_path)
    before = digests(root), digests(other)
    for arguments in (
        ("ls", root),
        ("dump", root),
        ("query", root, "--topic", "TopicNormal", "--key", "user-2"),
        ("verify", root),
        ("verify", other),
        ("repair", root, "--dry-run"),
        ("repair", root),
        ("diff", root, other),
        ("export", root, "--topic", "TopicNormal"),
    ):
        assert "Traceback" not in store(*arguments).stderr
    assert (digests(root), digests(other)) == before


def test_ls_lists_the_parts_of_a_store(normal: Path) -> None:
    done = store("ls", normal)
    assert done.returncode == 0
    for word in ("stopped cleanly", "segments", "TopicUnicode", "index/", "compaction/"):
        assert word in done.stdout
    document = json.loads(store("ls", normal, "-o", "json").stdout)
    assert [row["end"] for row in document["segments"]] == [131_072, 262_144, 345_789]
    assert document["foreign"] == ["compaction/"]


def test_dump_prints_one_object_for_each_message(normal: Path) -> None:
    rows = lines("dump", normal)
    assert len(rows) == 241
    assert [row["physical_offset"] for row in rows] == sorted(r["physical_offset"] for r in rows)
    units = {
        (topic, int(queue_id), unit["queue_offset"]): unit
        for topic, queues in manifest("normal")["queues"].items()
        for queue_id, queue in queues.items()
        for unit in queue["units"]
    }
    for row in rows:
        unit = units[row["topic"], row["queue_id"], row["queue_offset"]]
        assert row["stored_body_b64"] == row["body_b64"] == unit["stored_body_b64"]
        assert row["properties"] == unit["properties"]


@pytest.mark.parametrize(
    ("what", "count"),
    [("queues", 241), ("index", 676), ("timers", 0), ("checkpoint", 1), ("config", 8)],
)
def test_dump_prints_the_derived_files(normal: Path, what: str, count: int) -> None:
    rows = lines("dump", normal, "--what", what)
    assert len(rows) == count
    assert json.loads(store("dump", normal, "--what", what, "-o", "json").stdout) == rows
    assert store("dump", normal, "--what", what).returncode == 0


def test_query_prints_offsets(normal: Path) -> None:
    for asked in manifest("normal")["key_queries"]:
        arguments = ("query", normal, "--topic", asked["topic"], "--key", asked["key"])
        done = store(*arguments)
        assert done.returncode == 0
        assert sorted(map(int, done.stdout.split())) == sorted(asked["physical_offsets"])
    done = store("query", normal, "--topic", "TopicNormal", "--key", "absent")
    assert (done.returncode, done.stdout) == (0, "")
    assert "No index entry for 'absent' in topic TopicNormal." in done.stderr
    tagged = store(
        "query", normal, "--topic", "TopicNormal", "--key", "TagA", "--type", "T", "-o", "json"
    )
    assert len(json.loads(tagged.stdout)) > 10


def test_verify_reports_no_problem_for_a_sound_store(normal: Path) -> None:
    done = store("verify", normal, "-o", "json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document == {"problems": [], "notes": [], "messages": 241, "bytes": 345_789}
    assert "no problem" in store("verify", normal).stdout


def test_verify_and_repair_of_a_damaged_queue(root: Path) -> None:
    whole = digests(root)
    unit = Site(root).unit("TopicNormal", 1, 30)
    zero(unit)
    done = store("verify", root, "-o", "json")
    assert done.returncode == 5
    (problem,) = json.loads(done.stdout)["problems"]
    assert problem["file"] == str(unit.file.relative_to(root))
    assert (problem["begin"], problem["end"]) == (600, 620)
    assert problem["severity"] == "problem"
    table = store("verify", root)
    assert table.returncode == 5
    assert "consumequeue/TopicNormal/1" in table.stdout
    planned = store("repair", root, "--dry-run")
    assert planned.returncode == 0
    assert "rebuild the queue" in planned.stdout
    assert store("verify", root).returncode == 5, "a dry run changes nothing"
    repaired = store("repair", root, "-o", "json")
    assert repaired.returncode == 0
    assert json.loads(repaired.stdout)["problems"] == []
    assert store("verify", root).returncode == 0
    after = digests(root)
    assert {name: after[name] for name in whole} == whole
    assert store("repair", root).stdout == "Nothing to repair.\n"


def test_a_damaged_log_is_reported_and_not_changed(root: Path) -> None:
    zero(Site(root).record(40).field(0, 60))
    before = digests(root)
    for arguments in (("repair", root, "--dry-run"), ("repair", root)):
        done = store(*arguments)
        assert done.returncode == 5
        assert "restore from another replica" in done.stdout
    assert digests(root) == before
    dumped = store("dump", root, "-o", "jsonl")
    assert dumped.returncode == 5
    assert len(dumped.stdout.splitlines()) == 240
    assert "skipped offsets" in dumped.stderr


def test_a_store_in_use_is_not_repaired(root: Path) -> None:
    zero(Site(root).unit("TopicNormal", 1, 30))
    owner = StoreLock(root, Disk())
    owner.acquire()
    try:
        done = store("repair", root)
        assert done.returncode == 1
        assert "in use by another process" in done.stderr
        notes = json.loads(store("verify", root, "-o", "json").stdout)["notes"]
        assert [note["kind"] for note in notes] == ["in_use"]
        assert json.loads(store("ls", root, "-o", "json").stdout)["in_use"]
    finally:
        owner.release()


def test_diff_finds_the_first_difference(root: Path, normal: Path) -> None:
    assert store("diff", root, normal).returncode == 0
    record = Site(root).record(100)
    zero(record.body)
    done = store("diff", root, normal, "-o", "json")
    assert done.returncode == 5
    (found,) = json.loads(done.stdout)
    assert found["where"] == "log"
    assert record.offset <= found["at"] < record.offset + 2000
    assert store("diff", root, normal).returncode == 5


def test_export_writes_a_topic(normal: Path, tmp_path: Path) -> None:
    out, bodies = tmp_path / "out.jsonl", tmp_path / "bodies"
    chosen = ("export", normal, "--topic", "TopicNormal", "--queue", "3", "--to", "7")
    done = store(*chosen, "--out", out, "--bodies", bodies)
    assert done.returncode == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["queue_offset"] for row in rows] == list(range(7))
    assert len(list(bodies.iterdir())) == 7
    assert not list(tmp_path.glob("*.part"))
    printed = lines(*chosen)
    assert [row["body_b64"] for row in printed] == [row["body_b64"] for row in rows]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["ls", "nowhere"], 4, "is not a directory"),
        (["ls", "/"], 4, "is not a store directory"),
        (["ls"], 2, "Missing argument"),
        (["dump", "x", "--what", "nonsense"], 2, "Invalid value"),
        (["query", "x", "--topic", "t"], 2, "Missing option"),
        (["verify", "x", "--index-slots", "0"], 2, "Invalid value"),
        (["verify", "x", "-c", "missing.conf"], 2, "Cannot read missing.conf"),
        (["nonsense"], 2, "No such command"),
    ],
)
def test_errors_have_a_sentence_and_an_exit_code(
    arguments: list[str], code: int, sentence: str
) -> None:
    done = store(*arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_topic_is_exit_code_4(normal: Path) -> None:
    assert store("export", normal, "--topic", "Nothing").returncode == 4


def test_sizes_are_read_from_a_broker_conf(root: Path) -> None:
    """Without a whole index file nothing tells how many slots the damaged one has."""
    site = Site(root)
    site.index(1).unlink()
    site.index().write_bytes(site.index().read_bytes()[:300])
    conf = root.parent / "broker.conf"
    conf.write_text("maxHashSlotNum=100\nmaxIndexNum=400\nmappedFileSizeConsumeQueue=1990\n")
    assert store("repair", root).returncode == 1
    assert store("repair", root, "--config", conf).returncode == 0
    assert store("verify", root).returncode == 0


def test_an_empty_export_keeps_an_existing_file(normal: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    target.write_text("of yesterday")
    done = store("export", normal, "--topic", "Nothing", "--out", target)
    assert done.returncode == 4
    assert target.read_text() == "of yesterday"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("command", ["verify", "repair", "ls", "dump"])
def test_a_store_without_its_log_is_refused(root: Path, tmp_path: Path, command: str) -> None:
    """Of a log that lies elsewhere nothing was found, so all that is derived from it looked
    wrong."""
    (root / "commitlog").rename(tmp_path / "elsewhere")
    before = digests(root)
    done = store(command, root)
    assert done.returncode == 2
    assert "--config" in done.stderr
    assert digests(root) == before
    conf = tmp_path / "broker.conf"
    conf.write_text(f"storePathCommitLog={tmp_path / 'elsewhere'}\n")
    assert store(command, root, "--config", conf).returncode == 0


def test_a_missing_configuration_is_an_error_sentence(normal: Path) -> None:
    done = store("verify", normal, "--config", "nowhere.conf")
    assert done.returncode == 2
    said = "cometmq: Cannot read nowhere.conf: No such file or directory."
    assert done.stderr == f"{said} See `cometmq store verify --help`.\n"


def test_a_file_in_place_of_the_log_folder_is_refused(root: Path) -> None:
    shutil.rmtree(root / "commitlog")
    (root / "commitlog").write_bytes(b"")
    done = store("verify", root)
    assert done.returncode == 1
    assert (
        done.stderr
        == f"cometmq: {root}/commitlog is a file, but must be a folder of the commit log.\n"
    )
