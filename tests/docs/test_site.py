"""The manual as a site: it builds without a warning, and its generated pages are current."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _run(name: str, *arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(root / "scripts" / name), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_reference_of_commands_and_errors_is_current() -> None:
    done = _run("gen_reference", "--check")
    assert done.returncode == 0, done.stderr


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = _run("docs", str(tmp_path / "site"))
    assert done.returncode == 0, done.stdout + done.stderr
    for page in ("", "getting-started", "cli", "errors", "design", "formats/store-format"):
        assert (tmp_path / "site" / page / "index.html").exists(), page


@pytest.mark.parametrize("link", ["[a](nowhere.md)", "[b](sdk.md#nowhere)"])
def test_a_broken_link_or_anchor_ends_the_build(tmp_path: Path, link: str) -> None:
    for name in ("docs", "scripts", "examples", "store", "ha"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("mkdocs.yml", "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "README.md").write_text(f"# CometMQ\n\n{link.replace('(', '(docs/')}\n")
    # The script builds the tree in which it lies.
    (tmp_path / "scripts").unlink()
    (tmp_path / "scripts").mkdir()
    for name in ("docs", "docs_hook.py"):
        (tmp_path / "scripts" / name).write_bytes((ROOT / "scripts" / name).read_bytes())
    done = _run("docs", str(tmp_path / "site"), root=tmp_path)
    assert done.returncode != 0
    assert "nowhere" in done.stdout + done.stderr
