"""A simple index (PEP 503, with the metadata of PEP 658) of a folder of wheels and sdists.

    python scripts/release_index.py FOLDER [--port N]

writes FOLDER/simple and serves FOLDER on loopback: `pip install --index-url
http://127.0.0.1:N/simple cometmq`. The links are relative, so any static server can serve it.
"""

import argparse
import hashlib
import html
import re
import shutil
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def project(file: str) -> str:
    """Return the normalized name of the project of a file."""
    name = file.split("-", 1)[0] if file.endswith(".whl") else file.rsplit("-", 1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def write(folder: Path) -> None:
    """Write the pages of all wheels and sdists of a folder to `simple` in it."""
    pages = folder / "simple"
    shutil.rmtree(pages, ignore_errors=True)
    files = sorted((*folder.glob("*.whl"), *folder.glob("*.tar.gz")))
    if not files:
        raise SystemExit(f"{folder} has no wheel and no sdist: run scripts/release first")
    found: dict[str, list[str]] = {}
    for file in files:
        found.setdefault(project(file.name), []).append(_link(file))
    for name, links in found.items():
        _page(pages / name, links)
    _page(pages, [f'<a href="{name}/">{name}</a>' for name in sorted(found)])


def _page(folder: Path, links: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = "<!DOCTYPE html>\n" + "".join(f"{link}<br>\n" for link in links)
    (folder / "index.html").write_text(text, encoding="utf-8")


def _link(file: Path) -> str:
    attributes = ""
    if file.suffix == ".whl":
        metadata = _metadata(file)
        file.with_name(f"{file.name}.metadata").write_bytes(metadata)
        attributes = f' data-core-metadata="sha256={hashlib.sha256(metadata).hexdigest()}"'
        python = re.search(r"^Requires-Python: (.+)$", metadata.decode(), re.MULTILINE)
        if python:
            attributes += f' data-requires-python="{html.escape(python[1].strip())}"'
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return f'<a href="../../{file.name}#sha256={digest}"{attributes}>{file.name}</a>'


def _metadata(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return archive.read(name)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing for a request."""


def server(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of a folder on loopback, which listens; `serve_forever` runs it."""
    return ThreadingHTTPServer(("127.0.0.1", port), partial(_Quiet, directory=str(folder)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    write(options.folder)
    with server(options.folder, options.port) as listening:
        print(f"http://127.0.0.1:{listening.server_port}/simple", flush=True)
        listening.serve_forever()


if __name__ == "__main__":
    main()
