"""Limits of this process (ulimit, cgroup), and what a server needs of them to start.

A limit that is too low shows late and in strange places: the kernel kills a process without a word,
a thread or a map fails somewhere in a library, a connection waits for a descriptor. So each server
compares the limits with its minimum before it loads anything large.
"""

import resource
from pathlib import Path
from typing import Final

from msgspec import Struct

MIB: Final = 1 << 20
#: No limit.
UNLIMITED: Final = 1 << 62


class Limits(Struct, frozen=True):
    """What this process may use."""

    memory_bytes: int = UNLIMITED  #: of its cgroup
    address_bytes: int = UNLIMITED  #: RLIMIT_AS
    data_bytes: int = UNLIMITED  #: RLIMIT_DATA
    descriptors: int = UNLIMITED  #: RLIMIT_NOFILE
    threads: int = UNLIMITED  #: of its cgroup (pids.max)


class Needs(Struct, frozen=True):
    """What a server needs to start and to serve some clients; an idle one uses half to two
    thirds."""

    memory_bytes: int
    descriptors: int
    address_bytes: int = 768 * MIB
    threads: int = 48


#: By the name of the process.
NEEDS: Final = {
    "broker": Needs(128 * MIB, 160),
    "single": Needs(160 * MIB, 200),
    "namesrv": Needs(80 * MIB, 80, 256 * MIB, 24),
    "proxy": Needs(96 * MIB, 120, 512 * MIB, 32),
    "console": Needs(80 * MIB, 80, 1024 * MIB, 24),
}


def limits_of_process(root: Path = Path("/")) -> Limits:
    """Return the limits; what cannot be read is unlimited. `root` has proc and sys."""
    return Limits(
        memory_bytes=_cgroup_limit(root, "memory", ("memory.max", "memory.limit_in_bytes")),
        address_bytes=_soft(resource.RLIMIT_AS),
        data_bytes=_soft(resource.RLIMIT_DATA),
        descriptors=_soft(resource.RLIMIT_NOFILE),
        threads=_cgroup_limit(root, "pids", ("pids.max",)),
    )


def lack(name: str, limits: Limits, needs: Needs) -> str:
    """Return the sentence for a limit below what the server needs, or "". Pure."""
    if limits.memory_bytes < needs.memory_bytes:
        return (
            f"The {name} needs {sized(needs.memory_bytes)} of memory, and its cgroup allows "
            f"{sized(limits.memory_bytes)}: the kernel would kill it. Raise the limit "
            "(docker run --memory, mem_limit of compose, MemoryMax of systemd)."
        )
    for allowed, what, how in (
        (limits.address_bytes, "address space", "ulimit -v"),
        (limits.data_bytes, "data segment", "ulimit -d"),
    ):
        if allowed < needs.address_bytes:
            return (
                f"The {name} needs {sized(needs.address_bytes)} of address space, and the limit "
                f"of its {what} is {sized(allowed)}: set {how} unlimited."
            )
    if limits.descriptors < needs.descriptors:
        return (
            f"The {name} needs {needs.descriptors} open files, and may have {limits.descriptors}: "
            "raise the limit (ulimit -n 65536, LimitNOFILE of systemd, docker run --ulimit nofile)."
        )
    if limits.threads < needs.threads:
        return (
            f"The {name} needs {needs.threads} threads, and its cgroup allows {limits.threads}: "
            "raise the limit (docker run --pids-limit, TasksMax of systemd)."
        )
    return ""


def lack_for_segments(limits: Limits, segment_bytes: int, segments: int, locked_bytes: int) -> str:
    """Return the sentence for a store that does not fit the limits, or "". Pure.

    A log of `segments` maps each of them, and the next two. `locked_bytes` stay in memory: the
    transient pool, and locked segments.
    """
    base = NEEDS["broker"]
    address = base.address_bytes + (segments + 2) * segment_bytes
    if limits.address_bytes < address:
        return (
            f"The broker needs {sized(address)} of address space, for itself and "
            f"{segments + 2} segments of {sized(segment_bytes)} (mappedFileSizeCommitLog), and "
            f"ulimit -v allows {sized(limits.address_bytes)}: raise it, or set it to unlimited."
        )
    memory = base.memory_bytes + locked_bytes
    if limits.memory_bytes < memory:
        return (
            f"The broker needs {sized(memory)} of memory, {sized(locked_bytes)} of them for the "
            "transient pool (transientStorePoolSize) and segments (lockMapedFileEnable), and its "
            f"cgroup allows {sized(limits.memory_bytes)}: raise the limit or lower the settings."
        )
    return ""


def _soft(kind: int) -> int:
    soft, _ = resource.getrlimit(kind)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def _cgroup_limit(root: Path, controller: str, files: tuple[str, ...]) -> int:
    """Return the lowest limit of this process's cgroups and those above them."""
    lowest = UNLIMITED
    for folder in _cgroups(root, controller):
        for name in files:
            try:
                text = (folder / name).read_text().strip()
            except OSError:
                continue
            if text.isdigit():
                lowest = min(lowest, int(text))
    return lowest


def _cgroups(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's cgroups of a controller (v2 and v1), up to the root."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    mount = root / "sys/fs/cgroup"
    folders = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        top = mount / controller if controllers else mount
        inner = top / path.lstrip("/")
        folders += [inner, *(up for up in inner.parents if up == top or top in up.parents)]
        folders.append(top)  # in a container the path is the host's, and the top is its own
    return folders


def told(limit: int) -> str:
    """Return a limit as text."""
    return "unlimited" if limit >= UNLIMITED else str(limit)


def sized(limit: int) -> str:
    """Return a limit in bytes as text."""
    return "unlimited" if limit >= UNLIMITED else f"{limit / MIB:.0f} MiB"
