"""The rows of `cometmq doctor` and its commands."""

from collections.abc import Iterable
from dataclasses import dataclass

from ...operations.errors import Exit


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `verdict`: good, note (works, but limited) or bad."""

    what: str
    found: str
    verdict: str = "good"
    advice: str = ""


def code_of(findings: Iterable[Finding]) -> Exit:
    """Return the exit code of a command with these findings."""
    bad = any(finding.verdict == "bad" for finding in findings)
    return Exit.PROBLEMS if bad else Exit.DONE
