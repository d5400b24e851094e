"""Coverage of the feature table and the pitfalls by test marks.

The rows are those of the feature table (docs/formats/broker-semantics.md, section 13) and the
numbered pitfalls (docs/formats/grpc-api.md, section 12). A test anywhere below `tests/` declares
its rows by `@pytest.mark.feature("row", ...)` and `@pytest.mark.pitfall(n, ...)`; the marks are
read from the sources, so that skipped tests count as well.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SEMANTICS = ROOT / "docs/formats/broker-semantics.md"
GRPC_API = ROOT / "docs/formats/grpc-api.md"
PAGE = ROOT / "docs/features.md"
_MARKS = ("feature", "pitfall")


def rows_of(page: Path, heading: str) -> list[str]:
    """Return the first cells of the table below a heading."""
    text = page.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2]
    cells: list[str] = []
    for line in text.splitlines():
        if line.startswith("#") and cells:
            break
        if line.startswith("|"):
            cells.append(line.split("|")[1].strip())
    return cells[2:]  # without the head and the rule below it


def pitfalls_of(page: Path) -> list[int]:
    """Return the numbers of the pitfalls."""
    text = page.read_text(encoding="utf-8").partition("\n## 12. ")[2].partition("\n## ")[0]
    return [int(number) for number in re.findall(r"^(\d+)\. \*\*", text, re.MULTILINE)]


@cache
def marks() -> dict[str, dict[str | int, list[str]]]:
    """Return the marked names of each kind, with their tests."""
    found: dict[str, dict[str | int, list[str]]] = {kind: defaultdict(list) for kind in _MARKS}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if not any(f"pytest.mark.{kind}(" in text for kind in _MARKS):
            continue
        module = ast.parse(text, str(path))
        where = path.relative_to(ROOT).as_posix()
        for node in ast.walk(module):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for decorator in node.decorator_list:
                kind, names = _named(decorator)
                for name in names if node.name.startswith("test_") else ():
                    found[kind][name].append(f"{where}::{node.name}")
    return found


def _named(decorator: ast.expr) -> tuple[str, list[str | int]]:
    if not isinstance(decorator, ast.Call):
        return "", []
    match = re.fullmatch(r"pytest\.mark\.(\w+)", ast.unparse(decorator.func))
    if match is None or match[1] not in _MARKS:
        return "", []
    return match[1], [ast.literal_eval(argument) for argument in decorator.args]
