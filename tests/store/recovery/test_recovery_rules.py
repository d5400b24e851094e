"""The decision table of recovery: complete, and every combination made real on a disk."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cometmq.store.format.checkpoint import Checkpoint
from cometmq.store.format.errors import CorruptLogError
from cometmq.store.recovery import (
    rules as recovery_rules,
)
from cometmq.store.recovery.rules import (
    ROWS,
    SECTOR_BYTES,
    Finding,
    StopKind,
    Verdict,
    all_findings,
    flushed_beyond,
    judge,
    rows_for,
)
from cometmq.tests.store.kit import Kit

BODY = 2000
COUNT = 20


def test_every_finding_has_exactly_one_row() -> None:
    findings = all_findings()
    assert len(set(findings)) == 2 * 2 * 2 * 2
    assert all(len(rows_for(finding)) == 1 for finding in findings)
    assert {judge(finding) for finding in findings} == set(Verdict)
    for finding in findings:
        if finding.durable:
            assert judge(finding) is Verdict.CORRUPT, "what was on the disk is never cut"
        elif finding.record_behind:
            lost = judge(finding) is Verdict.LOST_PAGES
            assert lost == finding.bytes_missing, "records are cut for one reason only"


def test_the_table_in_the_docstring_equals_the_rules() -> None:
    text = recovery_rules.__doc__ or ""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if re.match(r"\| (nothing|damaged|-) ", line)
    ]
    words = {None: "-", True: "yes", False: "no"}
    verdicts = {
        Verdict.END: "the log's end",
        Verdict.TORN_TAIL: "torn tail: cut",
        Verdict.LOST_PAGES: "lost pages: cut",
        Verdict.CORRUPT: "corrupt: refuse",
    }
    expected = [
        [kind.value if kind else "-", words[behind], words[durable], words[missing], verdicts[v]]
        for kind, behind, durable, missing, v in ROWS
    ]
    assert sorted(rows) == sorted(expected)


def damage(kit: Kit, begin: int, kind: StopKind, missing: bool) -> None:
    """Hurt the record at `begin` so that its kind is as it should be."""
    sector = -(-(begin + 200) // SECTOR_BYTES) * SECTOR_BYTES  # a whole one inside of the body
    if missing and kind is StopKind.NOTHING:
        kit.change(begin, bytes(sector + SECTOR_BYTES - begin))
    elif missing:
        kit.change(sector, bytes(SECTOR_BYTES))
    elif kind is StopKind.NOTHING:
        kit.change(begin, bytes(8))
    else:
        kit.flip_byte(begin + 300)


@pytest.mark.parametrize("finding", all_findings(), ids=str)
def test_every_finding_on_a_disk(tmp_path: Path, finding: Finding) -> None:
    kit = Kit(tmp_path / "store", mapped_file_size_commit_log=64 << 10)
    kit.open()
    ends = [
        kit.write(f"{index}".encode().ljust(BODY, b"."), queue_id=0).end for index in range(COUNT)
    ]
    kit.dispatch()
    if finding.durable:
        kit.reopen()
    kit.kill()
    number = 12 if finding.record_behind else COUNT - 1
    damage(kit, ends[number - 1], finding.kind, finding.bytes_missing)
    before = kit.all_files()
    verdict = judge(finding)
    if verdict is Verdict.CORRUPT:
        with pytest.raises(CorruptLogError) as caught:
            kit.open()
        assert caught.value.offset == ends[number - 1]
        assert kit.all_files() == before
        return
    report = kit.open()
    assert report.log_end == ends[number - 1]
    assert len(kit.bodies()) == number
    assert report.verdict == verdict.value
    assert bool(report.lost_records) == (verdict is Verdict.LOST_PAGES)
    assert not kit.log_bytes()[ends[number - 1] :].strip(b"\0")
    kit.close()


def known(flushed_end: int, time_ms: int) -> Checkpoint:
    return Checkpoint(physic_msg_timestamp_ms=time_ms, flushed_end=flushed_end)


@pytest.mark.parametrize(
    ("checkpoint", "following_ms", "expected"),
    [
        (known(101, 50), None, True),
        (known(100, 50), None, False),
        (known(100, 50), 49, False),  # the clock was set back behind the flush
        (known(100, 50), 50, False),
        (known(100, 50), 51, False),
        (known(0, 0), 7, False),  # a new store: nothing was flushed, and that is known
        (known(-1, 50), 49, True),
        (known(-1, 50), 50, True),
        (known(-1, 50), 51, False),
        (known(-1, 0), 51, True),  # nothing is known
        (known(-1, 0), None, False),
    ],
)
def test_what_the_checkpoint_confirms(
    checkpoint: Checkpoint, following_ms: int | None, expected: bool
) -> None:
    assert flushed_beyond(checkpoint, 100, following_ms) is expected
