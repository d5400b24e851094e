"""Identity of the machine's current boot: the page cache survives a process, not a power loss.

Linux names every boot in /proc/sys/kernel/random/boot_id. Containers share their host's, and a
drill that simulates a power loss must be able to change it: `<store>/ha/boot_id.override` takes
precedence. Other systems use the time of the boot (docs/formats/ha.md, section 6.5).
"""

from pathlib import Path
from typing import Final

OVERRIDE_NAME: Final = "boot_id.override"
_KERNEL_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def boot_id(directory: Path) -> str:
    """Return the boot id; `directory` is `<store>/ha`."""
    for path in (directory / OVERRIDE_NAME, _KERNEL_BOOT_ID):
        try:
            return path.read_text().strip()
        except OSError:
            continue
    import psutil

    return f"boot-{int(psutil.boot_time())}"
