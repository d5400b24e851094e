"""docs/configuration.md matches the dataclasses; links between the pages have targets."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.cli.config.loader import schema
from cometmq.cli.config.rocketmq_keys import IGNORED
from cometmq.cli.config.sources import broker_owners, namesrv_owners, proxy_owners

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("examples/*.md"), *(ROOT / "docs").rglob("*.md")])
#: The settings of the pipeline's page are options of Spark.
GUIDES = [page for page in PAGES if page.parent.name == "docs" and page.name != "pipeline.md"]
#: `name=value` in the text, and lines of a file; a setting has a capital letter in its name.
SETTING = re.compile(r"(?:`|^)([a-z]+[A-Z]\w*)=", re.MULTILINE)
#: Written as settings are: an option of Spark, and a key of Apache's that its stores decide by.
OTHERS = {"security.md": {"tlsServerName"}, "migration.md": {"storeType"}}


def test_the_configuration_page_is_current() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "gen_docs"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_have_targets(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_the_settings_of_a_guide_exist(page: Path) -> None:
    known = schema([*broker_owners(), *namesrv_owners(), *proxy_owners()])
    named = set(SETTING.findall(page.read_text())) - OTHERS.get(page.name, set())
    assert named <= {*known, *IGNORED}
