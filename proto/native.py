"""The native crate (`cometmq_native`): loaded if it is installed, unless COMETMQ_NATIVE=off.

Everything that the crate does is also done without it: the grpcio door serves, and Python encodes
and decodes. With COMETMQ_NATIVE=off a process behaves as if the crate were not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any, Final

MODULE: Final = "cometmq_native"
#: The environment variable that switches the crate off.
SWITCH: Final = "COMETMQ_NATIVE"


def is_available() -> bool:
    """Return whether the crate is installed and not switched off."""
    if os.environ.get(SWITCH, "").lower() == "off":
        return False
    return importlib.util.find_spec(MODULE) is not None


def part(name: str) -> Any | None:
    """Return a part of the crate; None if the crate, or this part of it, is not available."""
    if not is_available():
        return None
    return getattr(importlib.import_module(MODULE), name, None)
