"""Structure rules of the repository, checked on the source text.

The import table, the floors of `broker/`, circles of imports, the purity of `ha/core`, the modules
that may read a clock, module docstrings, field comments, function length, folder size, the folders
of the wheel, and paths of developers.
"""

import ast
import fnmatch
import gc
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

EVERYTHING = frozenset({"*"})

# The packages that each package may import, besides itself. See docs/design/layers.md.
MAY_IMPORT = {
    "proto": frozenset[str](),
    "nodes": frozenset[str](),
    "store": frozenset[str](),
    "ha/core": frozenset[str](),
    "ha": frozenset({"ha/core", "front", "store", "nodes", "proto"}),
    "front": frozenset({"nodes", "proto"}),
    "remoting": frozenset({"front", "nodes", "proto"}),
    "nameserver": frozenset({"auth", "front", "remoting", "ha", "nodes", "proto"}),
    "auth": frozenset({"proto"}),
    "broker": frozenset({"auth", "front", "remoting", "store", "ha", "nodes", "proto"}),
    "client": frozenset({"proto"}),
    "pipeline": frozenset({"client", "nodes", "proto", "store/format", "store/scan"}),
    "mirror": frozenset({"auth", "remoting", "store/format"}),
    "operations": frozenset({"auth", "client", "nodes", "proto", "store/format"}),
    "console": EVERYTHING,
    "drills": EVERYTHING,
    "cli": EVERYTHING,
    "": EVERYTHING,  # the root: the public API, loaded lazily
}
# The floors of `broker/`, and the folders of each, from the ground to the root (`broker/*.py`). A
# folder may import those before it. See docs/design/layers.md.
BROKER_FLOORS = {
    "ground": ("base", "visible"),
    "data": (
        *("sql", "messages", "metadata", "offsets", "names", "clients", "access", "cold", "trace"),
        "core",
    ),
    "services": (
        *("sending", "delay", "transactions"),
        *("pop/fifo", "pop", "journal", "pop/failover", "pull", "lite"),
    ),
    "operation": ("routing", "maintenance", "assembly"),
    "doors": (
        *("metrics", "admin", "classic/base", "classic/admin", "classic"),
        *("proxy/base", "proxy/classic", "proxy"),
    ),
    "root": ("",),
}
ENTRY_POINTS = {"console", "cli"}
PACKAGE_FOLDERS = {name.split("/")[0] for name in MAY_IMPORT} - {""}
OTHER_FOLDERS = {
    *("native", "scripts", "tests", "docs", "deploy", "examples", ".ci", ".github"),
}

# Modules that a pure core may not import: clocks, randomness, threads, event loops, network, disk.
IMPURE = {
    *("time", "datetime", "random", "secrets", "uuid", "threading", "multiprocessing"),
    *("concurrent", "asyncio", "socket", "grpc", "mmap", "os", "subprocess", "pathlib", "io"),
}
CLOCK_FUNCTIONS = {"now", "utcnow", "today"}
MAY_READ_A_CLOCK = ("front/clock.py", "client/clock.py", "operations/", "cli/", "drills/")

FUNCTION_LINES = 70
FOLDER_FILES = 25
CATCH_ALL_NAMES = {"utils", "util", "common", "helpers", "misc"}

# Split, so that this file itself passes the test.
MACHINE_PATHS = [b"/wo" + b"rk/", b"/ro" + b"ot/", b"/tmp/" + b"setup"]


@cache
def tree() -> tuple[str, ...]:
    """Return every file that git tracks or would track, relative to the root."""
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return tuple(sorted(walk()))
    if done.returncode != 0:  # not a clone: an unpacked archive
        return tuple(sorted(walk()))
    names = done.stdout.decode().split("\0")
    return tuple(sorted(name for name in names if name and (ROOT / name).is_file()))


def walk() -> Iterator[str]:
    """Return the same without git: all files that .gitignore does not match (names and globs)."""
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    ignored = [line.strip("/") for line in lines] + [".git"]

    def is_ignored(path: str) -> bool:
        name = path.rsplit("/", 1)[-1]
        return any(fnmatch.fnmatch(name, i) or fnmatch.fnmatch(path, i) for i in ignored)

    for folder, folders, files in os.walk(ROOT):
        here = Path(folder).relative_to(ROOT).as_posix()
        prefix = "" if here == "." else f"{here}/"
        folders[:] = [name for name in folders if not is_ignored(prefix + name)]
        yield from (prefix + name for name in files if not is_ignored(prefix + name))


def is_generated(name: str) -> bool:
    return name.endswith(("_pb2.py", "_pb2.pyi"))


def is_python(name: str) -> bool:
    if name.endswith(".py"):
        return True
    if "." in name.rsplit("/", 1)[-1] or not name.startswith(("scripts/", ".ci/")):
        return False
    first = (ROOT / name).read_bytes()[:80].split(b"\n")[0]
    return first.startswith(b"#!") and b"python" in first


@cache
def sources() -> dict[str, ast.Module]:
    """Return every Python file that is not generated, by its name: package, scripts and tests."""
    names = [name for name in tree() if is_python(name) and not is_generated(name)]
    gc.disable()  # a million nodes without a cycle
    try:
        return {name: ast.parse((ROOT / name).read_text(encoding="utf-8"), name) for name in names}
    finally:
        gc.freeze()
        gc.enable()


@cache
def package() -> dict[str, ast.Module]:
    """Return the sources that are part of `import cometmq`."""
    return {
        name: module
        for name, module in sources().items()
        if name.split("/")[0] in PACKAGE_FOLDERS or "/" not in name
    }


@cache
def statements(module: ast.Module) -> list[ast.stmt]:
    """Return the statements of a module, at any depth: a tenth of what `ast.walk` visits."""
    found: list[ast.stmt] = []
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            found.append(node)
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, ())
            if isinstance(inner, list):
                waiting += inner
    return found


def part_of(name: str) -> str:
    """Return the row of the import table that a file belongs to."""
    if name.startswith("ha/core/"):
        return "ha/core"
    return name.split("/", 1)[0] if "/" in name else ""


def absolute_imports(module: ast.Module) -> Iterator[tuple[int, str]]:
    for node in statements(module):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module


@cache
def modules() -> frozenset[str]:
    """Return the modules and folders of the package: `store`, `store/format/record`."""
    names = {name.removesuffix(".py").removesuffix("/__init__") for name in package()}
    return frozenset(names - {"__init__"})


def relative_imports(name: str, module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, target) of every relative import: `store/record`, or `` for the root.

    Imports for types and in functions are included.
    """
    here = name.split("/")[:-1]
    for node in statements(module):
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        base = here[: len(here) - (node.level - 1)]
        target = base + (node.module.split(".") if node.module else [])
        for alias in node.names:  # the names of a folder may be modules
            inner = "/".join([*target, alias.name])
            whole = node.module is None or inner in modules()
            yield node.lineno, inner if whole else "/".join(target)


def may_import(part: str, target: str) -> bool:
    """Return whether a file of `part` may import `target`."""
    allowed = MAY_IMPORT[part] | {part}
    top = target.split("/", 1)[0]
    if top not in PACKAGE_FOLDERS:  # a name of the root itself, like __version__
        return True
    if top in ENTRY_POINTS and part not in (top, ""):
        # `console/command.py` is a command: it takes its options from `cli`.
        return part == "console" and target in ("cli/links", "cli/options")
    if "*" in allowed:
        return True
    if target == "ha/core" or target.startswith("ha/core/"):
        return "ha/core" in allowed or "ha" in allowed
    if part == "ha/core":
        return False
    return top in allowed or any(target == a or target.startswith(a + "/") for a in allowed - {""})


def test_the_import_table_holds() -> None:
    wrong = [
        f"{name}:{line} imports {target}"
        for name, module in package().items()
        for line, target in relative_imports(name, module)
        if not may_import(part_of(name), target)
    ]
    assert not wrong, "\n".join(wrong)


def folder_of(name: str) -> str:
    """Return the folder of a module of `broker/`, or of a folder's own names."""
    is_folder = f"{name}/__init__.py" in package()
    return (name if is_folder else name.rsplit("/", 1)[0]).removeprefix("broker").strip("/")


def test_the_floors_of_the_broker_hold() -> None:
    order = [folder for floor in BROKER_FLOORS.values() for folder in floor]
    files = [name for name in package() if name.startswith("broker/")]
    folders = {folder_of(name.removesuffix(".py")) for name in files}
    assert folders == set(order), "a folder of broker/ has no floor, or a floor no folder"
    wrong = [
        f"{name}:{line} imports {target}, which stands above it"
        for name in files
        for line, target in relative_imports(name, package()[name])
        if target.startswith("broker/")
        and order.index(folder_of(target)) > order.index(folder_of(name.removesuffix(".py")))
    ]
    assert not wrong, "\n".join(wrong)


def circles(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of modules that import each other, directly or through others."""
    rest = imports
    while True:
        kept = {name: targets & rest.keys() for name, targets in rest.items()}
        kept = {name: targets for name, targets in kept.items() if targets}
        if kept == rest:
            break
        rest = kept

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            new = rest[waiting.pop()] - found
            found |= new
            waiting += new
        return found

    reach = {name: reached(name) for name in rest}
    return {
        frozenset(other for other in targets if name in reach[other])
        for name, targets in reach.items()
        if name in targets
    }


def test_a_circle_of_imports_is_found() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert circles(imports) == {frozenset("abc"), frozenset("de")}


def test_no_more_than_two_modules_import_each_other() -> None:
    imports = {
        name.removesuffix(".py").removesuffix("/__init__"): {
            target for _, target in relative_imports(name, module) if target in modules()
        }
        for name, module in package().items()
    }
    wrong = [sorted(circle) for circle in circles(imports) if len(circle) > 2]
    assert not wrong, "hand in by constructor, or move down, what they share:\n" + "\n".join(
        map(str, wrong)
    )


def test_operations_have_no_command_line() -> None:
    wrong = [
        f"{name}:{line} imports {target}"
        for name, module in package().items()
        for line, target in absolute_imports(module)
        if part_of(name) == "operations" and target.split(".")[0] == "click"
    ]
    assert not wrong, "take what an option says as an argument:\n" + "\n".join(wrong)


def test_the_package_imports_itself_relatively() -> None:
    ours = PACKAGE_FOLDERS | {"cometmq"}
    wrong = [
        f"{name}:{line} imports {target}"
        for name, module in package().items()
        for line, target in absolute_imports(module)
        # Installed as a separate top-level package, which Spark imports.
        if target.split(".")[0] in ours and not name.startswith("pipeline/pyspark_rocketmq/")
    ]
    assert not wrong, "\n".join(wrong)


def test_no_folder_is_a_top_level_module(tmp_path: Path) -> None:
    code = "import cometmq, store"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "No module named 'store'" in done.stderr


def test_no_folder_of_the_tests_hides_an_installed_module() -> None:
    """Pytest puts `tests` on the path: `import docker` would find a folder of this name."""
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    hidden = folders & (set(packages_distributions()) | sys.stdlib_module_names) - PACKAGE_FOLDERS
    assert not hidden, hidden


def test_tests_and_scripts_import_by_the_name_of_the_package() -> None:
    wrong = [
        f"{name}:{line} imports {target}"
        for name, module in sources().items()
        if name.startswith(("tests/", "scripts/"))
        for line, target in absolute_imports(module)
        if target.split(".")[0] in PACKAGE_FOLDERS
    ]
    assert not wrong, "\n".join(wrong)


def test_the_cores_are_pure() -> None:
    wrong = []
    for name, module in package().items():
        if part_of(name) != "ha/core":
            continue
        for line, target in absolute_imports(module):
            if target.split(".")[0] in IMPURE:
                wrong.append(f"{name}:{line} imports {target}")
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("open", "print", "input"):
                wrong.append(f"{name}:{node.lineno} calls {ast.unparse(node.func)}")
    assert not wrong, "\n".join(wrong)


def test_one_module_reads_the_clock() -> None:
    wrong = []
    for name, module in package().items():
        if name.startswith(MAY_READ_A_CLOCK):
            continue
        for line, target in absolute_imports(module):
            if target == "time":
                wrong.append(f"{name}:{line} imports time")
        for node in ast.walk(module):
            if not isinstance(node, ast.Attribute) or node.attr not in CLOCK_FUNCTIONS:
                continue
            if ast.unparse(node.value).rsplit(".", 1)[-1] in ("datetime", "date"):
                wrong.append(f"{name}:{node.lineno} reads the clock: {ast.unparse(node)}")
    assert not wrong, "take the time from front/clock.py as an argument:\n" + "\n".join(wrong)


def test_every_module_has_a_docstring() -> None:
    wrong = []
    for name, module in sources().items():
        if not module.body and name.startswith("tests/") and name.endswith("__init__.py"):
            continue
        text = ast.get_docstring(module) or ""
        if len(text) < 20 or text.startswith("TODO"):
            wrong.append(name)
    assert not wrong, f"a module docstring is missing: {wrong}"


def test_fields_are_described_by_comments_before_them() -> None:
    wrong = []
    for name, module in sources().items():
        for node in (module, *statements(module)):
            if not isinstance(
                node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            ):
                continue
            for field, text in zip(node.body, node.body[1:], strict=False):
                if (
                    isinstance(field, ast.Assign | ast.AnnAssign)
                    and isinstance(text, ast.Expr)
                    and isinstance(text.value, ast.Constant)
                    and isinstance(text.value.value, str)
                ):
                    wrong.append(f"{name}:{text.lineno}")
    assert not wrong, "use `#:` comments:\n" + "\n".join(wrong)


def test_functions_are_short() -> None:
    wrong = []
    for name, module in sources().items():
        for node in statements(module):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                wrong.append(f"{name}:{node.lineno} {node.name} has {lines} lines")
    assert not wrong, "\n".join(wrong)


def test_folders_are_small() -> None:
    """Of the package, the tests and the native crate."""
    places = [name for name in sources() if name in package() or name.startswith("tests/")]
    places += [name for name in tree() if name.startswith("native/") and name.endswith(".rs")]
    counts = Counter(name.rsplit("/", 1)[0] for name in places if "/" in name)
    wrong = [
        f"{name} holds {count} files" for name, count in counts.items() if count > FOLDER_FILES
    ]
    assert not wrong, "\n".join(wrong)


def test_the_top_level_is_the_architecture() -> None:
    folders = {name.split("/")[0] for name in tree() if "/" in name}
    unlisted = folders - PACKAGE_FOLDERS - OTHER_FOLDERS
    assert not unlisted, f"not in the design's tree: {sorted(unlisted)}"


def test_no_module_has_a_catch_all_name() -> None:
    wrong = [
        name for name in package() if CATCH_ALL_NAMES & set(name.removesuffix(".py").split("/"))
    ]
    assert not wrong, f"use a name of the subject: {wrong}"


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def distributions(requirements: list[str]) -> set[str]:
    """Return the normalised names of requirements like `uvloop>=0.19; sys_platform == 'linux'`."""
    return {
        re.split(r"[^\w.-]", each, maxsplit=1)[0].lower().replace("_", "-") for each in requirements
    }


# Modules whose name is not that of their distribution, for environments without it; namespaces of
# several distributions, and the one that this project uses.
SHARED_NAMESPACES = {
    "backports": "backports-zstd",
    "compression": "backports-zstd",  # of the standard library from Python 3.14 on
    "google": "protobuf",
    "opentelemetry": "opentelemetry-api",
    "yaml": "pyyaml",
    # Of packages that a direct dependency brings, and whose types it hands out.
    "anyio": "starlette",
    "markupsafe": "jinja2",
}
# Extras that the core imports inside functions.
CORE_EXTRAS = ("oidc", "native", "tracing", "testing", "containers", "spark", "bench")


def imported_distributions(folders: set[str]) -> dict[str, str]:
    """Map each third-party distribution that the folders import to one importing line."""
    providers = packages_distributions()
    found = {}
    for name, module in package().items():
        if part_of(name).split("/")[0] not in folders:
            continue
        for line, target in absolute_imports(module):
            top = target.split(".")[0]
            if top in sys.stdlib_module_names:
                continue
            shared = SHARED_NAMESPACES.get(top)
            owners = [shared] if shared else providers.get(top, [top.replace("_", "-")])
            found[owners[0].lower().replace("_", "-")] = f"{name}:{line}"
    return found


def test_imports_of_the_core_equal_the_declared_dependencies() -> None:
    # Drills use Docker and the official client where they are installed.
    core = PACKAGE_FOLDERS - {"pipeline", "drills"} | {""}
    declared = distributions(pyproject()["project"]["dependencies"])
    used = imported_distributions(core)
    extras = pyproject()["project"]["optional-dependencies"]
    optional = distributions([each for name in CORE_EXTRAS for each in extras[name]])
    missing = {name: place for name, place in used.items() if name not in declared | optional}
    assert not missing, f"imported, but not a dependency: {missing}"
    unused = declared - used.keys() - {"python-multipart"}  # starlette's parser imports it
    assert not unused, f"a dependency without an import: {sorted(unused)}"


def of_tests(extras: dict[str, list[str]]) -> list[str]:
    """Return the requirements of the extras that `dev` includes."""
    return extras["spark"] + extras["java"] + extras["console"] + extras["docs"]


def test_the_pins_are_within_the_ranges() -> None:
    project = pyproject()["project"]
    extras = project["optional-dependencies"]
    direct = distributions(project["dependencies"] + extras["dev"] + of_tests(extras))
    direct.discard(project["name"])  # an extra that includes other extras
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert direct <= distributions(pins), "constraints.txt lacks a direct dependency"
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)


def locked(name: str) -> dict[str, str]:
    """Return the versions of a lock file; each must have a hash."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "://" not in text and "--index" not in text and "--find-links" not in text
    versions = {}
    for entry in re.split(r"^(?=[a-z])", text, flags=re.MULTILINE)[1:]:
        found = re.match(r"([\w.-]+)==([\w.]+)", entry)
        assert found, entry
        assert "--hash=sha256:" in entry, f"{found[1]} has no hash"
        versions[found[1]] = found[2]
    return versions


def test_the_lock_files_have_the_pins_with_hashes() -> None:
    project = pyproject()["project"]
    extras = project["optional-dependencies"]
    core = distributions(project["dependencies"])
    tests = core | distributions(extras["dev"] + of_tests(extras))
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    of_image = core | distributions(extras["oidc"])
    image, dev = locked("requirements.lock"), locked("requirements-dev.lock")
    for wanted, found in ((of_image, image), (tests - {project["name"]}, dev)):
        for name in wanted:
            assert found.get(name) == pins[name], f"{name} differs: run scripts/lock"
    assert image.items() <= dev.items(), "the lock files differ: run scripts/lock"


def test_the_wheel_has_every_folder_of_the_package() -> None:
    listed = pyproject()["tool"]["setuptools"]["packages"]
    folders = {name.rsplit("/", 1)[0] for name in package() if "/" in name}
    expected = {"cometmq", *(f"cometmq.{folder.replace('/', '.')}" for folder in folders)}
    # Two are top-level packages, too: those Spark imports.
    expected |= {name.rsplit("/", 1)[1] for name in folders if name.startswith("pipeline/pyspark_")}
    assert set(listed) == expected
    assert len(listed) == len(set(listed))
    missing = [folder for folder in sorted(folders) if f"{folder}/__init__.py" not in package()]
    assert not missing, f"no __init__.py: {missing}"


def test_no_file_contains_a_path_of_a_developer_machine() -> None:
    wrong = []
    for name in tree():
        data = (ROOT / name).read_bytes()
        wrong += [f"{name}: {path.decode()}" for path in MACHINE_PATHS if path in data]
    assert not wrong, "\n".join(wrong)


def test_the_product_and_its_manual_name_programs_instead_of_persons() -> None:
    words = re.compile(r"\b(anew|nobody|somebody|whoever|whom)\b", re.IGNORECASE)
    skipped = ("tests/", "docs/formats/", "LICENSE", "console/static/LICENSES.txt")
    wrong = []
    for name in tree():
        if name.startswith(skipped) or not name.endswith((".py", ".md", ".rs", ".proto", ".html")):
            continue
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        wrong += [f"{name}:{at}: {line}" for at, line in enumerate(lines, 1) if words.search(line)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("part", "target", "allowed"),
    [
        ("broker", "store/format/record", True),
        ("broker", "nameserver/routes", False),
        ("nameserver", "broker/lifecycle", False),
        ("nameserver", "store/format/record", False),
        ("nameserver", "ha/config", True),
        ("ha", "ha/core/confirm", True),
        ("ha/core", "ha/core/confirm", True),
        ("ha/core", "ha/engine", False),
        ("ha/core", "proto/v1", False),
        ("front", "proto/v2", True),
        ("front", "nodes/node_links", True),
        ("nodes", "proto/v2", False),
        ("store", "nodes/addresses", False),
        ("front", "store/disk", False),
        ("remoting", "front/clock", True),
        ("remoting", "broker/sending", False),
        ("store", "proto/v2", False),
        ("pipeline", "store/format/record", True),
        ("pipeline", "store/message_store", False),
        ("cli", "broker/server", True),
        ("console", "cli/main", False),
        ("console", "cli/options", True),
        ("console", "cli/output", False),
        ("console", "operations/connection", True),
        ("cli", "operations/connection", True),
        ("operations", "cli/options", False),
        ("operations", "store/message_store", False),
        ("broker", "operations/links", False),
        ("cli", "console/command", False),
        ("broker", "cli/main", False),
        ("broker", "__version__", True),
    ],
)
def test_may_import_follows_the_table(part: str, target: str, allowed: bool) -> None:
    assert may_import(part, target) is allowed
