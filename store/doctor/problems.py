"""Findings of the doctor: byte ranges of files with a severity.

A *problem* is an error that no start of a broker repairs. A *note* is what a killed or running
broker leaves and its next start repairs (a torn tail, queues that are behind the log), or other
useful information.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

PROBLEM: Final = "problem"
NOTE: Final = "note"
#: A store that is damaged all over gives one finding per record; more than this are only counted.
FINDINGS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Finding:
    """Bytes [begin, end) of `file` (relative to the store's directory) and a description."""

    file: str
    begin: int
    end: int
    what: str
    kind: str
    severity: str = PROBLEM
    record: int = -1  #: physical offset of the record that disagrees with derived data

    def document(self) -> dict[str, Any]:
        document = asdict(self)
        del document["record"]
        return document


class Findings:
    """A bounded list; findings beyond the limit are counted."""

    def __init__(self) -> None:
        self.problems: list[Finding] = []
        self.notes: list[Finding] = []
        self.left_out = 0

    def add(
        self,
        file: str,
        begin: int,
        end: int,
        what: str,
        kind: str,
        *,
        severity: str = PROBLEM,
        record: int = -1,
    ) -> None:
        listed = self.problems if severity == PROBLEM else self.notes
        if len(listed) >= FINDINGS_MAX:
            self.left_out += 1
            return
        listed.append(Finding(file, begin, end, what, kind, severity, record))

    def demote(self, applies: Callable[[Finding], bool]) -> None:
        """Turn the problems for which `applies` is true into notes."""
        stay: list[Finding] = []
        for finding in self.problems:
            if applies(finding):
                self.notes.append(replace(finding, severity=NOTE))
            else:
                stay.append(finding)
        self.problems = stay


def span(noun: str, first: int, end: int, plural: str = "") -> str:
    """Return `unit 7`, or `units 7 to 9` for [first, end)."""
    if end == first + 1:
        return f"{noun} {first}"
    return f"{plural or noun + 's'} {first} to {end - 1}"
