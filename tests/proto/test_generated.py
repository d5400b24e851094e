"""The committed protobuf modules are what `scripts/gen_proto` makes of the `.proto` files."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"


def committed() -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in PROTO.glob("*_pb2.py*")}


def test_the_committed_modules_match_the_proto_files(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "gen_proto"
    subprocess.run([sys.executable, str(script), "--out", str(tmp_path)], check=True)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    ours = committed()
    assert made.keys() == ours.keys()
    stale = sorted(name for name, text in made.items() if text != ours[name])
    assert not stale, f"run scripts/gen_proto and commit: {stale}"


def test_every_source_has_a_module_and_a_stub() -> None:
    expected = {
        f"{source.stem}_pb2{suffix}"
        for source in PROTO.rglob("*.proto")
        for suffix in (".py", ".pyi")
    }
    assert committed().keys() == expected


def test_no_module_touches_the_default_pool() -> None:
    for name, text in committed().items():
        assert "descriptor_pool" not in text, name
        assert "import timestamp_pb2" not in text or name.endswith(".pyi"), name
