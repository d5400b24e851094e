"""`scripts/fuzz TARGET --seconds N`: run one fuzz target, or all in turn.

The engine is atheris (guided by coverage) where it is installed, else hypothesis, which mutates the
seeds. A failing input is written to the folder of `--artifacts` and printed as a command. Each
target runs in its own process, because atheris ends the process.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from cometmq.tests.fuzz.target import CORPUS, GUIDES, TARGETS, Check, seeds

ROOT = Path(__file__).parents[2]
#: Larger inputs find the same and run slower.
INPUT_BYTES_MAX = 4096
#: One input may take this long under instrumentation; longer counts as a hang.
INPUT_S = 20
#: For the start on a loaded machine.
_SPARE_S = 300
_EXAMPLES = 2_000


def _load(name: str, instrumented: bool) -> None:
    """Import the modules of the targets up to the one that has this target."""
    for module, guides in GUIDES.items():
        if not instrumented:
            importlib.import_module(f"cometmq.tests.fuzz.{module}")
        else:
            import atheris

            with atheris.instrument_imports(["cometmq"], _other_modules(guides.split())):
                importlib.import_module(f"cometmq.tests.fuzz.{module}")
        if name in TARGETS:
            return


def _other_modules(guides: list[str]) -> list[str]:
    """Return the modules of the package outside of the guides: atheris cannot name what is in."""
    files = (file.relative_to(ROOT) for file in ROOT.glob("[a-z]*/**/*.py"))
    names_ = {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files}
    inside = tuple(f"{guide}." for guide in guides)
    return [f"cometmq.{name}" for name in names_ if not f"{name}.".startswith(inside)]


def _by_atheris(name: str, chosen: argparse.Namespace, folder: Path) -> None:
    """Fuzz until the time is over or the number of inputs is reached; ends the process."""
    import atheris

    with TARGETS[name](folder) as check:
        found = folder / "corpus"
        found.mkdir(exist_ok=True)
        options = [
            f"-max_total_time={chosen.seconds}",
            f"-runs={chosen.inputs or -1}",
            f"-seed={chosen.seed}",
            f"-max_len={INPUT_BYTES_MAX}",
            f"-timeout={INPUT_S}",
            f"-artifact_prefix={chosen.artifacts}/{name}-",
            "-print_final_stats=1",
        ]
        if chosen.seed:
            # The entropic schedule depends on the time of an input, so a run would not repeat.
            options += ["-entropic=0", "-reload=0"]
        atheris.Setup([name, *options, str(found), str(CORPUS / name)], check)
        atheris.Fuzz()


def _by_hypothesis(name: str, chosen: argparse.Namespace, folder: Path) -> None:
    """Fuzz mutated seeds until the time is over or the number of inputs is reached.

    Raises what the target raises."""
    began_s = time.monotonic()
    end_s = began_s + chosen.seconds
    known = seeds(name)
    artifact = Path(chosen.artifacts) / f"{name}-crash"
    chance = random.Random(chosen.seed or None)
    inputs = 0
    with TARGETS[name](folder) as check:
        while time.monotonic() < end_s and not 0 < chosen.inputs <= inputs:
            count = min(chosen.inputs - inputs, _EXAMPLES) if chosen.inputs else _EXAMPLES
            inputs += _round(check, known, chance.getrandbits(32), end_s, artifact, count=count)
    print(f"{name}: {inputs} inputs in {time.monotonic() - began_s:.0f} s by hypothesis")


def mutate_seeds(name: str, inputs: int, chosen_seed: int, folder: Path) -> None:
    """Check about `inputs` mutated seeds in this process; a failing input goes to `folder`.

    Raises what the target raises.
    """
    _load(name, instrumented=False)
    chosen = argparse.Namespace(
        seconds=_SPARE_S, inputs=inputs, seed=chosen_seed, artifacts=str(folder)
    )
    _by_hypothesis(name, chosen, folder)


def _round(
    check: Check,
    known: list[bytes],
    round_seed: int,
    end_s: float,
    artifact: Path,
    *,
    count: int,
) -> int:
    runs = 0

    @seed(round_seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(base=st.sampled_from(known), changes=st.integers(0, 1 << 64), noise=st.binary())
    def one(base: bytes, changes: int, noise: bytes) -> None:
        nonlocal runs
        if time.monotonic() > end_s:
            return
        runs += 1
        data = mutated(base, random.Random(changes ^ round_seed), noise)
        try:
            check(data)
        except BaseException:
            artifact.write_bytes(data)
            raise

    one()
    return runs


def mutated(data: bytes, chance: random.Random, noise: bytes) -> bytes:
    """Return the seed with a few bytes changed, inserted, removed or repeated."""
    made = bytearray(data)
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(made) + 1)
        size = chance.randrange(9)
        match chance.randrange(5):
            case 0:
                made[at : at + size] = chance.randbytes(size)
            case 1:
                made[at:at] = noise
            case 2:
                del made[at : at + size]
            case 3:
                made[at:at] = made[at : at + size] * chance.randrange(1, 50)
            case 4:
                made[at : at + size] = chance.choice((b"\xff", b"\x00", b"\x7f", b"\x80")) * size
    return bytes(made[:INPUT_BYTES_MAX])


def _child(name: str, chosen: argparse.Namespace, engine: str) -> int:
    """Run one target in its own process; return its exit code."""
    artifacts = Path(chosen.artifacts).absolute()
    artifacts.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cometmq-fuzz-") as folder:
        command = [sys.executable, "-P", "-m", "cometmq.tests.fuzz.run", name, "--child", folder]
        command += ["--engine", engine, "--seconds", str(chosen.seconds)]
        command += ["--artifacts", str(artifacts)]
        command += ["--inputs", str(chosen.inputs), "--seed", str(chosen.seed)]
        if chosen.input:
            command += ["--input", str(Path(chosen.input).absolute())]
        limit_s = chosen.seconds + INPUT_S + _SPARE_S
        environment = {**os.environ, "PYTHONHASHSEED": "0"} if chosen.seed else None
        return subprocess.run(command, timeout=limit_s, check=False, env=environment).returncode


def _children_cpu_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _run_here(name: str, chosen: argparse.Namespace) -> None:
    _load(name, chosen.engine == "atheris" and not chosen.input)
    folder = Path(chosen.child)
    if chosen.input:
        with TARGETS[name](folder) as check:
            check(Path(chosen.input).read_bytes())
    elif chosen.engine == "atheris":
        _by_atheris(name, chosen, folder)
    else:
        _by_hypothesis(name, chosen, folder)


def names() -> list[str]:
    """Return the names of all targets."""
    return sorted(folder.name for folder in CORPUS.iterdir() if folder.is_dir())


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("target", choices=[*names(), "all"])
    parser.add_argument("--seconds", type=int, default=60, help="time for each target [60]")
    parser.add_argument("--inputs", type=int, default=0, help="end after N inputs [0: no limit]")
    parser.add_argument("--seed", type=int, default=0, help="random seed [0: a new one]")
    parser.add_argument("--input", help="run the target once on this file")
    parser.add_argument("--artifacts", default=".cache/fuzz", help="folder of failing inputs")
    parser.add_argument("--engine", choices=["atheris", "hypothesis"])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        _run_here(chosen.target, chosen)
        return 0
    engine = chosen.engine or (
        "atheris" if importlib.util.find_spec("atheris") is not None else "hypothesis"
    )
    failed = []
    for name in names() if chosen.target == "all" else [chosen.target]:
        before_s = _children_cpu_s()
        if _child(name, chosen, engine):
            failed.append(name)
        print(f"{name}: {_children_cpu_s() - before_s:.0f} s of CPU time", flush=True)
    print(f"{_children_cpu_s():.0f} s of CPU time in all")
    for name in failed:
        print(f"FAILED {name}: run scripts/fuzz {name} --input FILE with the file named above")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
