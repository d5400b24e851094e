"""`store repair`: runs a plan step by step, with a journal; every original is kept.

The lock is held from before the check to the end, so no broker can start meanwhile. New files are
complete and durable before they replace the old ones; a repair that was killed is continued by
running it again (`journal.py`).
"""

import os
import shutil
from pathlib import Path

from ..format.checkpoint import FILE_BYTES, Checkpoint
from ..format.disk import Disk
from ..format.errors import StoreError
from ..format.index_file import IndexLayout
from ..format.json_file import seal
from ..format.json_salvage import readable_part
from ..holdings import lowered, paths
from ..timer.wheel import FILE_BYTES as WHEEL_BYTES
from ..timer.wheel import SLOT, SLOT_BYTES
from .index_view import common_layout
from .journal import Journal
from .layout import Layout
from .problems import Findings
from .rebuild_index import rebuild_index
from .rebuild_queues import rebuild_queues
from .repair_plan import Action, Plan, Step
from .verify import Progress, Report
from .verify_timers import TimerCheck, expected_slots


class Repair:
    """One run of a plan. The caller holds the lock."""

    def __init__(self, layout: Layout, report: Report, journal: Journal, disk: Disk) -> None:
        self._layout = layout
        self._report = report
        self._journal = journal
        self._disk = disk

    def run(self, plan: Plan, now_ms: int, progress: Progress | None = None) -> None:
        """Run all steps. Raises OSError or StoreError; the steps before stay done."""
        self._journal.write(
            "begin",
            directory=str(self._layout.root),
            time_ms=now_ms,
            steps=[step.document() for step in plan.steps],
            refused=[finding.document() for finding in plan.refused],
        )
        queues = [step for step in plan.steps if step.action is Action.REBUILD_QUEUE]
        for step in plan.steps:
            if step.action is Action.REBUILD_QUEUE:
                if step is queues[0]:  # one walk for all
                    self._queues(queues, plan.doubted, progress)
                continue
            self._journal.write("step", action=step.action, target=step.target)
            if step.action is Action.CUT_TAIL:
                self._cut_tail(step)
            elif step.action is Action.REBUILD_INDEX:
                self._index(now_ms, progress)
            elif step.action is Action.RESET_CHECKPOINT:
                self._checkpoint()
            elif step.action is Action.LOWER_HOLDINGS:
                self._holdings()
            elif step.action is Action.REBUILD_SLOTS:
                self._slots()
            elif step.action is Action.RESTORE_BACKUP:
                self._backup(step)
            else:
                self._keep_readable(step)
            self._journal.write("done", action=step.action, target=step.target)
        shutil.rmtree(self._journal.folder / "new", ignore_errors=True)

    def _cut_tail(self, step: Step) -> None:
        """Zero the torn record; a copy of it is kept."""
        path = self._layout.root / step.target
        kept = self._journal.keep_bytes(path, step.begin, step.end)
        self._journal.write("kept", file=self._journal.name(kept), begin=step.begin, end=step.end)
        descriptor = self._disk.open(str(path), os.O_RDWR)
        try:
            for begin in range(step.begin, step.end, 1 << 20):
                zeros = bytes(min(1 << 20, step.end - begin))
                self._disk.write_log(descriptor, zeros, begin)
            self._disk.fsync(descriptor)
        finally:
            self._disk.close(descriptor)

    def _queues(
        self, steps: list[Step], doubted: frozenset[int], progress: Progress | None
    ) -> None:
        targets = {}
        for step in steps:
            topic, queue_id = step.target.split("/")[1:3]
            targets[topic, int(queue_id)] = self._layout.root / step.target
            self._journal.write("step", action=step.action, target=step.target)
        made = {key: self._journal.new(path) for key, path in targets.items()}
        lost = self._report.verdict.lost
        counts = rebuild_queues(
            self._layout, made, lost, self._disk, doubted=doubted, progress=progress
        )
        for key, path in targets.items():
            name = self._layout.name(path)
            if not counts[key]:
                # Its offsets must not restart at 0: only its own files hold them.
                self._journal.write("skipped", target=name, why="the log has no record of it")
                continue
            self._journal.replace(path)
            self._journal.write("done", target=name, units=counts[key])

    def _index(self, now_ms: int, progress: Progress | None) -> None:
        sizes = self._layout.sizes
        known = common_layout(self._layout)
        if known is None and sizes.index_slots and sizes.index_entries:
            known = IndexLayout(sizes.index_slots, sizes.index_entries)
        if known is None:
            raise StoreError(
                "The sizes of the index files are unknown: give --index-slots and "
                "--index-entries, or the store's broker.conf with --config."
            )
        target = self._layout.root / "index"
        new = self._journal.new(target)
        rebuild_index(self._layout, known, new, now_ms, self._disk, progress=progress)
        self._journal.replace(target)

    def _checkpoint(self) -> None:
        """Write an empty checkpoint: the next start then checks everything."""
        target = self._layout.root / "checkpoint"
        data = Checkpoint().encode().ljust(FILE_BYTES, b"\0")
        self._write_new(target, data)
        self._journal.replace(target)

    def _holdings(self) -> None:
        data = lowered(self._layout.root, self._report.verdict.end)
        for target in paths(self._layout.root):
            self._write_new(target, data)
            self._journal.replace(target)

    def _write_new(self, target: Path, data: bytes) -> None:
        self._journal.new(target).write_bytes(data)

    def _slots(self) -> None:
        """Write the slots that follow from the timer log; keep other plausible ones."""
        target = self._layout.root / "timerwheel"
        check = TimerCheck(self._layout, Findings())
        precision_ms = self._layout.sizes.timer_precision_ms
        expected = expected_slots(check.found, precision_ms)
        wrong = [
            finding.begin // SLOT_BYTES
            for finding in self._report.findings.problems
            if finding.kind == "timer_slot"
        ]
        new = self._journal.new(target)
        if target.exists():
            shutil.copyfile(target, new)
        with open(new, "r+b" if target.exists() else "w+b") as file:
            file.truncate(WHEEL_BYTES)
            slots = expected if len(wrong) == 0 else {at: expected.get(at) for at in wrong}
            for at, slot in slots.items():
                file.seek(at * SLOT_BYTES)
                file.write(SLOT.pack(*slot, 0) if slot else bytes(SLOT_BYTES))
        self._journal.replace(target)

    def _backup(self, step: Step) -> None:
        target = self._layout.root / step.target
        backup = target.with_name(f"{target.name}.bak")
        self._write_new(target, backup.read_bytes())
        self._journal.replace(target)

    def _keep_readable(self, step: Step) -> None:
        target = self._layout.root / step.target
        self._write_new(target, seal(readable_part(target)).encode())
        self._journal.replace(target)
