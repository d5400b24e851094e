"""What `scripts/release` and `scripts/quickstart` decide; the build itself is in the slow lane."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import tomllib
import zipfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def script(name: str) -> ModuleType:
    """Return a script as a module."""
    loader = SourceFileLoader(name, str(ROOT / "scripts" / name))
    module = module_from_spec(spec_from_loader(name, loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def release() -> ModuleType:
    return script("release")


@pytest.fixture(scope="module")
def version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def made_wheel(folder: Path, name: str, version: str, tags: str = "py3-none-any") -> Path:
    """Write a wheel that has only metadata."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}-{version}-{tags}.whl"
    place = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        archive.writestr(f"{place}/METADATA", f"{metadata}Requires-Python: >=3.11\n")
        archive.writestr(f"{place}/WHEEL", f"Wheel-Version: 1.0\nTag: {tags}\n")
        archive.writestr(f"{place}/RECORD", "")
    return file


@pytest.mark.parametrize(
    ("platform", "machine", "implementation", "required"),
    [
        ("linux", "x86_64", "cpython", True),
        ("linux", "aarch64", "cpython", True),
        ("linux", "x86_64", "pypy", False),
        ("linux", "s390x", "cpython", False),
        ("linux", "i686", "cpython", False),
        ("darwin", "arm64", "cpython", False),
        ("win32", "AMD64", "cpython", False),
    ],
)
def test_a_release_requires_the_crate_where_it_has_a_wheel_and_a_clone_does_not(
    release: ModuleType, platform: str, machine: str, implementation: str, required: bool
) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    before = tomllib.loads(text)["project"]
    after = tomllib.loads(release.with_crate(text))["project"]
    (added,) = set(after["dependencies"]) - set(before["dependencies"])
    assert not [one for one in before["dependencies"] if "cometmq-native" in one]
    requirement = Requirement(added)
    assert requirement.marker is not None
    assert str(requirement).startswith(before["optional-dependencies"]["native"][0])
    environment = {
        "sys_platform": platform,
        "platform_machine": machine,
        "implementation_name": implementation,
    }
    assert requirement.marker.evaluate(environment) is required


def test_a_tag_has_the_version_of_every_place_and_a_section_of_the_changelog(
    release: ModuleType, version: str, tmp_path: Path
) -> None:
    assert set(release.versions(ROOT).values()) == {version}
    for name in (*("pyproject.toml", "__init__.py", "CHANGELOG.md"), "proto/native.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / "native").mkdir()
    for name in ("native/Cargo.toml", "native/pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    with pytest.raises(SystemExit, match="is not of version"):
        release.check_versions(tmp_path, "v99.0.0")
    with pytest.raises(SystemExit, match="CHANGELOG"):
        (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n")
        release.check_versions(tmp_path, f"v{version}")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## [{version}] - 2026-12-01\n")
    release.check_versions(tmp_path, f"v{version}")
    (tmp_path / "__init__.py").write_text('__version__ = "0.0.9"\n')
    with pytest.raises(SystemExit, match="versions differ"):
        release.check_versions(tmp_path)


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        ("manylinux_2_28_aarch64", True),
        ("manylinux_2_17_aarch64", True),
        ("manylinux_2_34_aarch64", False),
        ("manylinux_2_28_x86_64", False),
        ("musllinux_1_2_aarch64", False),
        ("linux_aarch64", False),
    ],
)
def test_a_wheel_may_promise_what_auditwheel_finds(
    release: ModuleType, found: str, kept: bool
) -> None:
    shown = f'X is consistent with the following platform tag: "{found}". More text.'
    assert release.keeps("manylinux_2_28_aarch64", shown) is kept


def test_pip_installs_what_suits_the_machine_from_the_index(tmp_path: Path) -> None:
    index = script("release_index.py")
    folder = tmp_path / "dist"
    with pytest.raises(SystemExit, match="run scripts/release first"):
        index.write(folder)
    made_wheel(folder, "cometmq_native", "0.1.0")
    made_wheel(folder, "cometmq_native", "0.2.0", "cp311-abi3-win_amd64")
    (folder / "cometmq-0.1.0.tar.gz").write_bytes(b"an sdist")
    index.write(folder)
    assert re.findall(r'href="(.+?)"', (folder / "simple" / "index.html").read_text()) == [
        "cometmq/",
        "cometmq-native/",
    ]
    page = (folder / "simple" / "cometmq-native" / "index.html").read_text()
    assert page.count("sha256=") == 4  # of each wheel and of its metadata
    assert 'data-requires-python="&gt;=3.11"' in page

    with index.server(folder) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{listening.server_port}/simple"
        words = ("--isolated", "install", "--no-deps", "--no-cache-dir", "--index-url", url)
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                *words,
                "--target",
                str(tmp_path / "to"),
                "cometmq-native",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        listening.shutdown()
    assert "Successfully installed cometmq-native-0.1.0" in done.stdout, done.stderr


def test_the_quickstart_takes_a_wheel_of_its_version_from_the_folder_or_the_index(
    version: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    quickstart = script("quickstart")
    calls: list[tuple[str, ...]] = []
    url = "http://localhost/simple"
    places: dict[str, int] = {}

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(tuple(command))
        code = next((code for place, code in places.items() if place in command), 0)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(quickstart.subprocess, "run", run)
    monkeypatch.setattr(quickstart, "VENV", tmp_path)
    monkeypatch.setattr(quickstart, "WHEELS", tmp_path / "wheels")
    monkeypatch.setattr(quickstart.shutil, "which", lambda *_, **__: "/usr/bin/cargo")

    def printed(index: str | None) -> str:
        quickstart.native_door(index)
        return capsys.readouterr().out

    assert printed(None).startswith("Native door: no wheel in wheels, built with Rust")
    (tmp_path / "wheels").mkdir()
    folder = str(tmp_path / "wheels")
    assert printed(url) == f"Native door: the wheel of {folder}\n"
    assert f"cometmq-native=={version}" in calls[-1]
    assert "--only-binary :all:" in " ".join(calls[-1])
    places[folder] = 1
    assert printed(url) == f"Native door: the wheel of {url}\n"
    places[url] = 1
    monkeypatch.setattr(quickstart.shutil, "which", lambda *_, **__: None)
    assert printed(url).endswith("no Rust, calls go through grpcio\n")
    (tmp_path / "lib" / "python3.11" / "site-packages" / "cometmq_native").mkdir(parents=True)
    assert printed(None) == "Native door: installed\n"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_release_is_the_same_twice_and_installs_from_its_index() -> None:
    """Takes minutes for each target, and needs the package index and rustup's targets."""
    for command in (("scripts/release", "--twice"), ("scripts/release_trial",)):
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
