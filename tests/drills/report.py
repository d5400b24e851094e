"""Verdicts for people and for machines: a table, JSON, JUnit, and the page docs/drills.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .verdict import Check, Verdict


def as_json(found: Sequence[Verdict]) -> str:
    """One document."""
    rows = [{**asdict(one), "passed": one.passed, "broken": one.broken()} for one in found]
    return json.dumps({"passed": all(one.passed for one in found), "drills": rows}, indent=1)


def from_json(text: str) -> list[Verdict]:
    """The verdicts of such a document."""
    names = {field.name for field in fields(Verdict)}
    found = []
    for row_ in json.loads(text)["drills"]:
        known = {key: value for key, value in row_.items() if key in names}
        known["checks"] = [Check(**check) for check in known["checks"]]
        found.append(Verdict(**known))
    return found


def as_junit(found: Sequence[Verdict]) -> str:
    """One test case a drill."""
    suite = ElementTree.Element(
        "testsuite",
        name="drills",
        tests=str(len(found)),
        failures=str(sum(not one.passed for one in found)),
        time=f"{sum(one.seconds for one in found):.1f}",
    )
    for one in found:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname="drills",
            name=f"{one.drill} {one.mode} {one.title}".strip(),
            time=f"{one.seconds:.1f}",
        )
        if not one.passed:
            failure = ElementTree.SubElement(case, "failure", message=one.broken()[0][:300])
            failure.text = "\n".join(one.broken())
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def row(one: Verdict) -> dict[str, Any]:
    """What a table shows."""
    return {
        "drill": one.drill,
        "mode": one.mode,
        "result": "passed" if one.passed else "FAILED",
        "acked": one.acknowledged,
        "unknown": one.unknown,
        "lost": len(one.lost),
        "archived": len(one.archived),
        "replayed": one.replayed,
        "duplicated": len(one.duplicated),
        "reordered": len(one.reordered),
        "phantom": len(one.phantom),
        "divergent_bytes": one.divergent_bytes,
        "rto_ms": max(one.rto_ms, default=0.0),
        "gap_ms": one.max_gap_ms,
        "official": f"{one.official_gap_ms:.0f} ms, {one.official_errors}",
        "s": round(one.seconds, 1),
    }


def show(found: Iterable[Verdict]) -> None:
    """A table on the terminal, and a sentence for every broken promise."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=190)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    done = list(found)
    for name, value in row(done[0]).items():
        number = isinstance(value, int | float)
        table.add_column(name.replace("_", " "), justify="right" if number else "left")
    for one in done:
        style = "" if one.passed else "red"
        table.add_row(*(str(value) for value in row(one).values()), style=style)
    console.print(table)
    for one in done:
        for sentence in one.broken():
            console.print(f"{one.drill} {one.mode}: {sentence}", style="red", markup=False)


def as_page(found: Sequence[Verdict], rows: Sequence[tuple[str, str, str]], how: str) -> str:
    """docs/drills.md: every drill with its expectation and its last results."""
    lines = [
        "# Failover drills",
        "",
        "Written by `scripts/drill --all --report docs/drills.md`; do not edit by hand. Each drill starts real "
        "processes",
        "whose every connection runs through a TCP proxy, loads them through raw stubs and the official Python "
        "client, does what its",
        "row says, heals, drains, and lets a separate checker compare the clients' histories with the logs of all "
        "replicas.",
        "",
        "* `scripts/drill --list` names them, `scripts/drill --only 5` runs one, `scripts/drill --seed 7 --faults "
        "kill,pause,cut`",
        "  runs a random one, `scripts/drill --kills 50` measures recovery times, `scripts/drill --compose` uses "
        "containers.",
        "* *lost*: answered OK and in no log in the end. *archived*: answered OK by an asynchronous leader, cut off, "
        "kept in an archive",
        "  (then *replayed*). *gap*: longest time without any OK. *official*: the longest time without an OK, and the "
        "errors, that the official",
        "  Python client saw.",
        "",
        how,
        "",
        "| drill | what | expected |",
        "| --- | --- | --- |",
        *(f"| {number} | {title} | {expected} |" for number, title, expected in rows),
        "",
        "## Last results",
        "",
    ]
    if found:
        names = list(row(found[0]))
        lines.append("| " + " | ".join(name.replace("_", " ") for name in names) + " |")
        lines.append("| " + " | ".join("---" for _ in names) + " |")
        lines += ["| " + " | ".join(str(v) for v in row(one).values()) + " |" for one in found]
        broken = [(one, sentence) for one in found for sentence in one.broken()]
        if broken:
            lines += ["", "Broken:", ""]
            lines += [
                f"* {one.drill} {one.mode}: {s.splitlines()[0][:200]}" for one, s in broken if s
            ]
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """Create or replace a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
