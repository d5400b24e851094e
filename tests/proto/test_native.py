"""The boundary to the native crate: the version that the program and its crate agree on."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.front.config import DoorConfig
from cometmq.front.door import choose_door
from cometmq.front.errors import DoorMissingError
from cometmq.proto import native

ROOT = Path(__file__).parents[2]


def test_the_program_its_extra_and_the_crate_name_one_version() -> None:
    crate = tomllib.loads((ROOT / "native" / "Cargo.toml").read_text())["package"]
    wheel = tomllib.loads((ROOT / "native" / "pyproject.toml").read_text())["project"]
    program: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert crate["version"] == wheel["version"] == native.VERSION
    assert program["optional-dependencies"]["native"] == [f"cometmq-native=={native.VERSION}"]


@pytest.mark.parametrize("found", [{"__version__": "0.0.9"}, {}], ids=["other", "before"])
def test_a_crate_of_another_version_is_refused_with_its_remedy(
    found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, native.MODULE, SimpleNamespace(**found))
    monkeypatch.setattr(native, "is_available", lambda: True)
    monkeypatch.setattr(native, "_loaded", native.Native)
    remedy = re.escape(f"needs {native.VERSION}: install that version")
    with pytest.raises(native.NativeVersionError, match=remedy):
        native.load()
    with pytest.raises(DoorMissingError, match=remedy):
        choose_door(DoorConfig())
