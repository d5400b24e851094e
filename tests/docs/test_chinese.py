"""The Chinese pages of the manual follow the English ones: blocks, headings, tables, links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Chinese page and the English one.
PAGES = {
    ROOT / "README.zh-CN.md": ROOT / "README.md",
    **{page: page.parent.parent / page.name for page in (ROOT / "docs" / "zh").glob("*.md")},
}
_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def outline(text: str) -> list[str]:
    """Return the levels of the headings, and the first cells of tables that are code."""
    prose = _BLOCK.sub("", text)
    return re.findall(r"^#+ |^\| `[^|`]+`", prose, re.MULTILINE)


def test_there_are_chinese_pages() -> None:
    assert {page.name for page in PAGES} >= {"README.zh-CN.md", "getting-started.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_chinese_page_has_the_blocks_of_the_english_one(page: Path) -> None:
    chinese, english = page.read_text(), PAGES[page].read_text()
    assert _BLOCK.findall(chinese) == _BLOCK.findall(english)
    assert outline(chinese) == outline(english)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_chinese_page_lead_to_files(page: Path) -> None:
    targets = re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", _BLOCK.sub("", page.read_text()))
    assert [one for one in targets if not (page.parent / one).exists()] == []
