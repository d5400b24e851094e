"""`cometmq pipeline pack`: this environment as one archive for the workers of a Spark cluster.

    cometmq pipeline pack env.tar.gz
    spark-submit --archives env.tar.gz#environment \\
        --conf spark.pyspark.python=./environment/bin/python ...

The archive is a virtual environment: this package, and the distributions that its jobs import on a
worker (PyArrow, NumPy, gRPC, ...) with their dependencies. It contains neither Spark, which workers
have, nor packages of servers and consoles. As with venv-pack the interpreter is not included: every
node needs the same Python at the same path.
"""

import io
import os
import re
import sys
import tarfile
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import click

from ...operations.errors import CliError

#: Distributions imported on workers; their dependencies are added.
_ROOTS = (
    *("pyarrow", "numpy", "pandas", "grpcio", "protobuf"),
    *("msgspec", "tenacity", "lz4"),
    *(("backports-zstd",) if sys.version_info < (3, 14) else ()),
)
#: Folders of the package that tasks do not import.
_LEFT_OUT = frozenset(("tests", "docs", "scripts", "native", "__pycache__", "node_modules"))
_SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


@click.command()
@click.argument("out", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--level",
    type=click.IntRange(1, 9),
    default=1,
    show_default=True,
    help="Compression level (gzip).",
)
def pack(*, out: Path, level: int) -> None:
    """Write this environment to FILE (.tar.gz) for the workers of a Spark cluster.

    \b
    cometmq pipeline pack env.tar.gz
    """
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with tarfile.open(draft, "w:gz", compresslevel=level) as archive:
            files = _fill(archive)
        os.replace(draft, out)
    finally:
        draft.unlink(missing_ok=True)
    click.echo(f"{out}: {files} files, {out.stat().st_size >> 20} MiB")
    click.echo(f"main file for spark-submit: {Path(__file__).with_name('submit.py')}")


def _fill(archive: tarfile.TarFile) -> int:
    _environment(archive)
    files = 0
    for found in distributions():
        for path in found.files or ():
            place = Path(str(found.locate_file(path)))
            if ".." not in path.parts and path.suffix != ".pyc" and place.is_file():
                archive.add(place, f"{_SITE}/{path}", recursive=False)
                files += 1
    root = Path(import_module("cometmq").__path__[0]).resolve()
    for place in _package(root):
        archive.add(place, f"{_SITE}/cometmq/{place.relative_to(root)}", recursive=False)
        files += 1
    for name in ("pyspark_rocketmq", "pyspark_rocketmq_archive"):
        for place in sorted((root / "pipeline" / name).glob("*.py")):
            archive.add(place, f"{_SITE}/{name}/{place.name}", recursive=False)
    return files


def _environment(archive: tarfile.TarFile) -> None:
    """Add the files that make the folder a virtual environment."""
    base = Path(sys._base_executable)  # type: ignore[attr-defined]
    text = (
        f"home = {base.parent}\ninclude-system-site-packages = false\n"
        f"version = {sys.version.split()[0]}\n"
    )
    info = tarfile.TarInfo("pyvenv.cfg")
    info.size = len(text)
    archive.addfile(info, io.BytesIO(text.encode()))
    for name in ("python", "python3"):
        link = tarfile.TarInfo(f"bin/{name}")
        link.type = tarfile.SYMTYPE
        link.linkname = str(base.resolve())
        archive.addfile(link)


def _package(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if name not in _LEFT_OUT
            and not name.startswith(".")
            and (here / name / "__init__.py").exists()
        )
        yield from (here / name for name in sorted(names) if name.endswith((".py", ".lark")))


def distributions() -> list[Distribution]:
    """Return the distributions to pack, each once. Raises CliError if one is not installed."""
    found: dict[str, Distribution] = {}
    waiting = list(_ROOTS)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            raise CliError(f"{name} is not installed: pip install 'cometmq[spark]'.") from None
        waiting += _required(found[name])
    return list(found.values())


def _required(one: Distribution) -> Iterator[str]:
    """Yield the names of unconditional requirements, without those of extras and platforms."""
    for line in one.requires or ():
        requirement, _, marker = line.partition(";")
        if marker.strip() and ("extra" in marker or "platform" in marker):
            continue
        if "python_version" in marker and "<" in marker:
            continue
        yield re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0]
