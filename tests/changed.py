"""Test files that a change can affect (`scripts/test --changed`): prints their paths for pytest.

    python -m cometmq.tests.changed [BASE]

The change is what the working tree, with new files, differs in from BASE. The default is the merge
base with `main`; on `main` itself the last commit, or what is not yet committed.

A test file is affected if it imports a changed module, directly or through others (read from the
sources; a module that is named in a string for a later import counts, too), or if it names a
changed file that is no module, or lies in the folder of its subject (`BESIDE`). Files that import
the change directly or through one module come first, then those whose names share words with it,
then the rest by distance, until `BUDGET_S` of every core is full: the composition root imports the
whole broker, so most changes reach more than a hundred files. What is left out is printed; the gate
(`scripts/test`) runs it.

Tests that start processes import nothing of what runs in them, and what the harness of processes
imports does not count: `SMOKE` stands for all of them.
"""

import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from cometmq.tests import durations, fast_lane

ROOT = Path(__file__).parent.parent
KEPT = ROOT / ".cache" / "imports.json"
#: Runs always: rules about all sources.
ALWAYS = ("tests/test_tidy.py",)
#: Real processes: a cluster from start to stop, with the official client and the SDK.
SMOKE = ("tests/interop/test_python_client_transactions.py",)
#: Files that are no modules -> the tests of their subject.
BESIDE = {
    r"docs/|[A-Z]+\.md$|mkdocs\.yml$": "tests/docs/",
    r"console/(templates|static)/": "tests/console/test_pages.py",
    r"deploy/": "tests/deploy/",
    r"native/": r"tests/\w+/test_(\w+_)?native(_\w+)?\.py",
    r"proto/.*\.proto$": "tests/proto/",
}
BUDGET_S = 60.0  # of each core
NEAR = 2  # imports between a test and a change that it is about
_UNKNOWN_S = {True: 1.0, False: 8.0}  # a file of the fast lane, another one
_BY_NAME = re.compile(r"import_module|Lazy")  # modules that import others by their names
_STARTS_PROCESSES = re.compile(r"tests/(harness/|conftest\.py)")
_MODULE_NAME = re.compile(r"\.*[a-z_]\w*(\.\w+)*")


class Facts(NamedTuple):
    """What one source imports, as it is written there."""

    imports: list[tuple[int, str, list[str]]]  # level, module, names; no names: `import module`
    public: list[tuple[int, str, list[str]]]  # the same, with imports for type checkers
    by_name: list[str]  # strings that may name modules


def facts_of(file: str) -> Facts:
    """Read a source."""
    text = (ROOT / file).read_text()
    by_name = bool(_BY_NAME.search(text))
    found = Facts([], [], [])
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(text), True)]
    while waiting:
        node, runs = waiting.pop()
        if isinstance(node, ast.ImportFrom):
            row = (node.level, node.module or "", [alias.name for alias in node.names])
            found.public.append(row)
            if runs:
                found.imports.append(row)
        elif isinstance(node, ast.Import) and runs:
            found.imports.extend((0, alias.name, []) for alias in node.names)
        elif by_name and isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.by_name.extend([node.value] if _MODULE_NAME.fullmatch(node.value) else [])
        types_only = isinstance(node, ast.If) and _is_type_checking(node.test)
        waiting += [(child, runs and not types_only) for child in ast.iter_child_nodes(node)]
    return found


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def all_facts(files: Iterable[str]) -> dict[str, Facts]:
    """Read all sources; those that were read before and did not change, from `KEPT`."""
    try:
        kept = json.loads(KEPT.read_text())
    except (OSError, ValueError):  # none yet, or a broken one
        kept = {}
    now = {}
    for file in files:
        state = (ROOT / file).stat()
        stamp, row = f"{state.st_mtime_ns} {state.st_size}", kept.get(file)
        now[file] = row if row and row[0] == stamp else (stamp, facts_of(file))
    KEPT.parent.mkdir(exist_ok=True)
    partial = KEPT.with_name(f"{KEPT.name}.{os.getpid()}")
    partial.write_text(json.dumps(kept | now))
    partial.replace(KEPT)
    return {file: Facts(*row[1]) for file, row in now.items()}


class Graph:
    """Which module imports which."""

    def __init__(self, facts: dict[str, Facts]) -> None:
        """`facts`: of each Python source, by its path relative to the root."""
        self._file_of = {_module_of(file): file for file in facts}
        self._users: dict[str, set[str]] = defaultdict(set)
        self._public = {
            _module_of(file): {
                name: f"{_base(file, level, module)}.{name}"
                for level, module, names in of_file.public
                for name in names
            }
            for file, of_file in facts.items()
            if file.endswith("__init__.py")
        }
        for file, of_file in facts.items():
            for used in self._imports(file, of_file):
                if not (_STARTS_PROCESSES.match(file) and ".tests." not in used):
                    self._users[used].add(_module_of(file))
            if is_test(file):
                for folder in Path(file).parents:
                    self._users[_module_of(str(folder / "conftest.py"))].add(_module_of(file))

    def distances(self, changed: Iterable[str]) -> dict[str, int]:
        """Return the files that import one of `changed` -> the number of imports between."""
        found = {_module_of(file): 0 for file in changed}
        reached = list(found)
        for name in reached:
            for user in self._users[name]:
                if user not in found:
                    found[user] = found[name] + 1
                    reached.append(user)
        return {self._file_of[name]: at for name, at in found.items() if name in self._file_of}

    def _imports(self, file: str, facts: Facts) -> Iterator[str]:
        for level, module, names in facts.imports:
            base = _base(file, level, module)
            for name in names:
                public = self._public.get(base, {}).get(name)
                yield from self._existing(public or f"{base}.{name}")
            if not names:
                yield from self._existing(base)
        for text in facts.by_name:
            bare = text.lstrip(".")
            for found in (bare, f"{_base(file, 1, bare)}", f"cometmq.{bare}"):
                if found in self._file_of:
                    yield found

    def _existing(self, name: str) -> Iterator[str]:
        """Yield the module that a dotted name is or lies in, if it is ours."""
        while name and name not in self._file_of:
            name = name.rpartition(".")[0]
        if name:
            yield name


def _base(file: str, level: int, module: str) -> str:
    """Return the full name of what `from ...module import` names in a file."""
    if not level:
        return module
    folders = ["cometmq", *Path(file).parts[:-1]]
    return ".".join([*folders[: len(folders) - level + 1], *([module] if module else [])])


def _module_of(file: str) -> str:
    parts = Path(file).with_suffix("").parts
    return ".".join(["cometmq", *(parts[:-1] if parts[-1] == "__init__" else parts)])


def is_test(file: str) -> bool:
    """Return whether pytest collects a file."""
    return file.startswith("tests/") and re.fullmatch(r"test_\w+\.py", Path(file).name) is not None


def affected(changed: Iterable[str], sources: Iterable[str]) -> list[str]:
    """Return the test files that `changed` affects, what is most likely to fail first."""
    changed, sources = list(changed), list(sources)
    modules = [file for file in changed if file.endswith(".py")]
    distances = Graph(all_facts(sources)).distances(modules)
    near = {file: at for file, at in distances.items() if is_test(file)}
    for file in set(changed) - set(modules):
        for test in sources:
            if is_test(test) and test not in near and _is_about(test, file):
                near[test] = 1
    words = {word for file in changed for word in _words(file)}

    def order(test: str) -> tuple[int, int, int, str]:
        at = near[test]
        return (0, at, 0, test) if at <= NEAR else (1, -_shared(words, _words(test)), at, test)

    return sorted(near, key=order)


def _is_about(test: str, file: str) -> bool:
    for pattern, tests in BESIDE.items():
        if re.match(pattern, file) and re.match(tests, test):
            return True
    name = Path(file).name
    return (name if re.search(r"\W|_", name) else file) in (ROOT / test).read_text()


def _words(file: str) -> set[str]:
    folders, name = Path(file).parts[1:-1], Path(file).stem
    return {word for part in (*folders, name) for word in part.split("_")} - {"test", "broker"}


def _shared(words: set[str], others: set[str]) -> int:
    """Return how many words are the same, or are as `send` and `sending`."""
    return sum(any(a[:4] == b[:4] and min(len(a), len(b)) > 2 for b in others) for a in words)


def within(budget_s: float, tests: Iterable[str]) -> tuple[list[str], list[str]]:
    """Divide test files into those that fit into a time, in this order, and the others."""
    recorded, cheap = durations.read(), set(fast_lane.paths())
    chosen: list[str] = []
    left_out: list[str] = []
    for test in tests:
        needed = recorded.get(test, _UNKNOWN_S[test in cheap])
        if needed <= budget_s:
            budget_s -= needed
            chosen.append(test)
        else:
            left_out.append(test)
    return chosen, left_out


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


def default_base() -> str:
    """Return the commit that a change starts from."""
    known = set(_git("for-each-ref", "--format=%(refname:short)"))
    main = next((name for name in ("main", "origin/main") if name in known), "HEAD")
    [base] = _git("merge-base", "HEAD", main)
    on_main = base == _git("rev-parse", "HEAD")[0]
    return "HEAD~1" if on_main and not _git("status", "--porcelain") else base


def main() -> None:
    """Print the files for pytest; print on standard error what is left out."""
    base = sys.argv[1] if len(sys.argv) > 1 else default_base()
    new = _git("ls-files", "--others", "--exclude-standard")
    changed = [*_git("diff", "--name-only", "--no-renames", base), *new]
    sources = [file for file in [*_git("ls-files", "*.py"), *new] if file.endswith(".py")]
    sources = sorted({file for file in sources if (ROOT / file).exists()})
    tests = [test for test in affected(changed, sources) if test not in ALWAYS]
    product = [file for file in changed if not file.startswith(("tests/", "docs/"))]
    first = [*ALWAYS, *(SMOKE if product else ())]
    chosen, left_out = within(
        BUDGET_S * (os.cpu_count() or 1), [*first, *(test for test in tests if test not in first)]
    )
    print(f"{len(changed)} changed files since {base}; {len(chosen)} test files", file=sys.stderr)
    if left_out:
        shown = ", ".join(left_out[:8]) + (", ..." if len(left_out) > 8 else "")
        print(f"left to scripts/test: {len(left_out)} test files: {shown}", file=sys.stderr)
    print("\n".join(chosen))


if __name__ == "__main__":
    main()
