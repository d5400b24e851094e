"""A hook of MkDocs: pages from outside docs/, and links out of it.

README.md and others become pages of the site. Links in all pages are rewritten from the places of
the files in the repository to those in the site. A link to a file that is no page keeps its text
only. A page of docs/ without an entry in the navigation gets one at the end of the guides.
Attributes of code blocks, which tests read (`python notest`), are removed.
"""

import os
import posixpath
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

#: File in the repository -> page of the site.
OUTSIDE = {
    "README.md": "index.md",
    "README.zh-CN.md": "zh/index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
    "examples/README.md": "examples.md",
    "store/README.md": "folders/store.md",
    "ha/README.md": "folders/ha.md",
}
LINK = re.compile(r"(?<!`)(!?)\[([^\]]*)\]\((?!\w+:)([^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(\s*```\w+) [\w ]+$", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add pages without an entry to the guides."""
    guides = next(it["How-to guides"] for it in config["nav"] if "How-to guides" in it)
    listed = str(config["nav"])
    for name in sorted(os.listdir(config["docs_dir"])):
        if name.endswith(".md") and f"'{name}'" not in listed:
            guides.append(name)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside."""
    root = posixpath.dirname(config["config_file_path"].replace("\\", "/"))
    for source, page in OUTSIDE.items():
        with open(posixpath.join(root, source), encoding="utf-8") as file:
            files.append(File.generated(config, page, content=file.read()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of one page."""
    here = page.file.src_uri
    source = {page: file for file, page in OUTSIDE.items()}.get(here, f"docs/{here}")

    def rewritten(link: re.Match[str]) -> str:
        mark, text, target, anchor = link[1], link[2], link[3], link[4] or ""
        if not target:
            return link[0]
        place = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        found = OUTSIDE.get(place, place.removeprefix("docs/"))
        if place not in OUTSIDE and not place.startswith("docs/"):
            return text
        return f"{mark}[{text}]({posixpath.relpath(found, posixpath.dirname(here) or '.')}{anchor})"

    return FENCE.sub(r"\1", LINK.sub(rewritten, markdown))
