"""The journal of a repair; all changes of a repair go through it.

    DIR/repair-<time>/journal.jsonl     one object per line, flushed before the step it announces
    DIR/repair-<time>/originals/...     the previous files, under their own paths
    DIR/repair-<time>/new/...           new files until they are complete

A folder or file is replaced by two renames: the old one to `originals`, the new one to its path.
The journal names all three paths first, so that the next repair completes one that was killed
between the two (`finish_interrupted`), and the journal shows its progress.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..format.disk import Disk
from .layout import REPAIR_PREFIX

_NAME: Final = "journal.jsonl"


class Journal:
    """One repair."""

    def __init__(self, root: Path, stamp: str, disk: Disk) -> None:
        """Create the folder. Raises OSError."""
        self.root = root
        self.folder = root / f"{REPAIR_PREFIX}{stamp}"
        self._disk = disk
        self.folder.mkdir()
        disk.sync_directory(str(root))
        self._file = open(self.folder / _NAME, "a", encoding="utf-8")  # noqa: SIM115

    def write(self, event: str, /, **fields: Any) -> None:
        """Append one line; durable on return."""
        append(self._file, self._disk, event, **fields)

    def close(self) -> None:
        self._file.close()

    def name(self, path: Path) -> str:
        """Return the path as in the journal: relative to the directory, which may be moved."""
        return os.path.relpath(path, self.root)

    def original(self, path: Path) -> Path:
        """Return where the previous file of `path` is kept."""
        return self._kept("originals", path)

    def new(self, path: Path) -> Path:
        """Return where the new file of `path` is built."""
        return self._kept("new", path)

    def _kept(self, kind: str, path: Path) -> Path:
        name = Path(os.path.relpath(path, self.root))
        if name.parts[0] == "..":  # a log directory outside of the store's root
            name = Path("outside", *path.resolve().parts[1:])
        place = self.folder / kind / name
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def replace(self, target: Path) -> None:
        """Rename `new(target)`, which is complete, to `target`, and the previous one to the
        originals."""
        new, original = self.new(target), self.original(target)
        sync_tree(new, self._disk)
        paths = {"target": target, "new": new, "original": original}
        self.write("replace", **{name: self.name(path) for name, path in paths.items()})
        if target.exists():
            os.rename(target, original)
            self._sync(original.parent, target.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(new, target)
        self._sync(target.parent, new.parent)
        self.write("replaced", target=self.name(target))

    def keep_bytes(self, path: Path, begin: int, end: int) -> Path:
        """Copy bytes of a file that are about to be overwritten; return the copy's path."""
        place = self.original(path).with_name(f"{path.name}.{begin}-{end}")
        with open(path, "rb") as source, open(place, "wb") as kept:
            source.seek(begin)
            left = end - begin
            while left and (part := source.read(min(left, 1 << 20))):
                kept.write(part)
                left -= len(part)
            kept.flush()
            self._disk.fsync(kept.fileno())
        self._sync(place.parent)
        return place

    def _sync(self, *folders: Path) -> None:
        for folder in folders:
            self._disk.sync_directory(str(folder))


def append(file: Any, disk: Disk, event: str, /, **fields: Any) -> None:
    """Append one line to a journal."""
    file.write(json.dumps({"event": event, **fields}, ensure_ascii=False) + "\n")
    file.flush()
    disk.fsync(file.fileno())


def sync_tree(path: Path, disk: Disk) -> None:
    """Flush everything below a path."""
    folders = [path] if path.is_dir() else []
    files = [] if path.is_dir() else [path]
    for folder, names, below in os.walk(path):
        folders += [Path(folder, name) for name in names]
        files += [Path(folder, name) for name in below]
    for file in files:
        descriptor = disk.open(str(file), os.O_RDWR)
        try:
            disk.fsync(descriptor)
        finally:
            disk.close(descriptor)
    for one in reversed(folders):
        disk.sync_directory(str(one))
    disk.sync_directory(str(path.parent))


def events_of(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a journal, without an incomplete last one."""
    events = []
    try:
        text = (folder / _NAME).read_text("utf-8", "replace")
    except FileNotFoundError:
        return []
    for line in text.splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            continue
    return events


def interrupted(root: Path) -> Iterator[Path]:
    """Yield the folders of incomplete repairs."""
    for folder in sorted(root.glob(f"{REPAIR_PREFIX}*")):
        events = events_of(folder)
        if folder.is_dir() and not any(e.get("event") == "finished" for e in events):
            yield folder


def finish_interrupted(root: Path, disk: Disk) -> list[str]:
    """Complete repairs that were killed; return sentences about what was done. Steps that they had
    not begun are found again by the next plan. Raises OSError."""
    said = []
    for folder in interrupted(root):
        for event in events_of(folder):
            if event.get("event") == "replace":
                said += _finish_replace(root, event, disk)
        shutil.rmtree(folder / "new", ignore_errors=True)
        with open(folder / _NAME, "a", encoding="utf-8") as file:
            file.write("\n")  # the last line may be incomplete
            append(file, disk, "finished", by="a later repair")
        said.append(f"The repair {folder.name} was interrupted; it is complete now.")
    return said


def _finish_replace(root: Path, event: dict[str, Any], disk: Disk) -> list[str]:
    target, new, original = (root / event[name] for name in ("target", "new", "original"))
    if target.exists():
        return []  # not begun, or done
    source = new if new.exists() else original
    if not source.exists():
        return []
    os.rename(source, target)
    disk.sync_directory(str(target.parent))
    which = "the new one" if source == new else "the original"
    return [f"{target}: {which} was put in its place."]
