"""Check of one index file: chains, slots, and the counts of its header.

The header's last time is compared with the record of the last entry, if the log still has it
(docs/formats/store-format.md, section 4).
"""

from dataclasses import dataclass, field

import numpy as np

from ..format.index_file import (
    ENTRY,
    FIRST_OFFSET,
    LAST_MS,
    LAST_OFFSET,
    NEXT_NUMBER,
    PREVIOUS_AT,
    SLOTS_USED,
)
from .index_view import IndexView, broken_chains
from .problems import PROBLEM, Findings, span


@dataclass(slots=True)
class IndexFileState:
    """One index file and the state of its check."""

    view: IndexView
    name: str
    number: int = 1  #: the next entry to compare
    tags: bool | None = None  #: whether it has entries for tags; None: unknown
    seconds: bool = True  #: the header's first time is plausible
    last: tuple[int, int] = (-1, 0)  #: offset and store time of the last matching entry
    corrections: dict[int, int] = field(default_factory=dict)
    severity: str = PROBLEM  #: severity of its findings


def check_file(file: IndexFileState, findings: Findings) -> None:
    """Report errors of a file that do not depend on the log."""
    view, header = file.view, file.view.header
    if view.length != view.layout.file_bytes:
        return  # reported already; the rest cannot be right
    broken, slots = broken_chains(view, file.corrections)
    for number in broken:
        begin = view.layout.entry_at(number)
        what = f"Entry {number} does not name the one before it in its slot."
        place = begin + PREVIOUS_AT, begin + ENTRY.size
        findings.add(file.name, *place, what, "index_chain", severity=file.severity)
    for first, end in slots:
        what = f"Not the newest entry in {span('slot', first, end)}."
        place = view.layout.slot_range(first, end)
        findings.add(file.name, *place, what, "index_slot", severity=file.severity)
    if view.count <= 1:
        return
    used = int(np.count_nonzero(view.slots)) if not slots else header.slots_used
    checks = [
        (SLOTS_USED, used == header.slots_used, f"counts {header.slots_used} slots, not {used}"),
        (NEXT_NUMBER, view.count == header.count, f"counts {header.count}, not {view.count}"),
    ]
    first_offset = int(view.entries["offset"][1])
    if 1 not in file.corrections:
        same = header.begin_offset == first_offset
        checks.append((FIRST_OFFSET, same, f"begins at {header.begin_offset}, not {first_offset}"))
    last = view.count - 1
    if last not in file.corrections:
        last_offset = int(view.entries["offset"][last])
        same = header.end_offset == last_offset
        checks.append((LAST_OFFSET, same, f"ends at {header.end_offset}, not {last_offset}"))
        if file.last[0] == last_offset and file.last[1]:
            same = header.end_timestamp_ms == file.last[1]
            what = f"ends at time {header.end_timestamp_ms}, not {file.last[1]}"
            checks.append((LAST_MS, same, what))
    for place, same, what in checks:
        if not same:
            text = f"The index header {what}."
            findings.add(file.name, *place, text, "index_header", severity=file.severity)
