"""Where a send spends its CPU time: threads of the broker, and steps of its event loop.

`python -m cometmq.tests.bench.send_profile [--picture docs/images/send.svg]` loads `cometmq up
--single` behind the native door, splits the CPU time of a message by thread (from /proc), and that
of the event loop's thread by the function that py-spy (`pip install py-spy`) sees in it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from ..harness.cluster import temporary
from .native_door import NATIVE
from .processes import TICK
from .server import ASYNC, loadgen, prepared

LOADS = {
    "64 requests of one message in flight": ("-inflight", "64"),
    "8 requests of 32 messages in flight": ("-inflight", "8", "-batch", "32"),
}
SAMPLES_PER_S = 250
DOOR_THREAD = "cometmq-door"
#: Step and the files that belong to it, by the innermost frame that is in one of them.
STEPS = (
    ("decode, check, encode records (Rust)", ("broker/sending/crate_planner.py:encode",)),
    ("write to the log", ("store/append.py", "store/log/", "store/writing.py:append")),
    (
        "queue units and message index",
        (
            "store/dispatch.py",
            "store/index/",
            "store/queue/",
            "broker/visible/dispatch_pump.py",
            "numpy/",
        ),
    ),
    (
        "answers",
        (
            *("front/reply_future.py", "front/native/calls.py:answer", "front/native/replies.py"),
            "broker/sending/answer",
        ),
    ),
    ("counters and metrics", ("metrics/", "call_times.py")),
    ("accept calls, route them", ("front/", "broker/routing/", "broker/access/")),
    ("decide: limits, role, durability", ("broker/",)),
)
REST = "event loop and the rest"
DOOR, DOOR_KERNEL = "HTTP/2 and wake-ups (Rust thread)", "sockets (Rust thread, kernel)"
LOOP_KERNEL = "files, wake-ups (event loop, kernel)"


@dataclass(frozen=True, slots=True)
class Profile:
    """CPU microseconds of a message by step, for one load."""

    load: str
    steps: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.steps.values())


def thread_ticks(pid: int) -> Counter[tuple[str, str]]:
    """Return clock ticks by thread (`door` or `loop`) and mode (`user` or `kernel`)."""
    found: Counter[tuple[str, str]] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        text = (task / "stat").read_text()
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text.rsplit(")", 1)[1].split()
        who = "door" if name == DOOR_THREAD else "loop"
        found[who, "user"] += int(fields[11])
        found[who, "kernel"] += int(fields[12])
    return found


def step_of(stack: str) -> str:
    """Return the step of a line of py-spy: `frame (file:line);frame (file:line)`."""
    for frame in reversed(stack.split(";")):
        function, _, place = frame.rpartition(" (")
        file = place.rpartition(":")[0]
        for step, parts in STEPS:
            for part in parts:
                path, _, name = part.partition(":")
                if path in file and name in function:
                    return step
    return REST


def shares(raw: str) -> dict[str, float]:
    """Return the share of each step in the samples of the event loop's thread."""
    counts: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        if "run_forever" in stack or "Runner.run" in stack:
            counts[step_of(stack)] += int(count)
    total = counts.total()
    if not total:
        raise RuntimeError("py-spy saw no sample of the event loop")
    return {step: count / total for step, count in counts.items()}


def measure(load: str, seconds: float) -> Profile:
    """Run one load and split its CPU time."""
    with (
        temporary("--single", *ASYNC, env=NATIVE) as cluster,
        tempfile.NamedTemporaryFile(mode="r", suffix=".txt") as samples,
    ):
        node, address = prepared(cluster).node("master"), cluster.address("master")
        loadgen(address, node.pid, *LOADS[load], seconds=1.0)
        before = thread_ticks(node.pid)
        run = loadgen(address, node.pid, "-warm", "0", *LOADS[load], seconds=seconds)
        used = thread_ticks(node.pid)
        used.subtract(before)
        sampler = threading.Thread(target=_sample, args=(node.pid, samples.name, seconds))
        sampler.start()  # in a run of its own: sampling slows the process
        loadgen(address, node.pid, *LOADS[load], seconds=seconds)
        sampler.join()
        parts = shares(samples.read())
    each_us = 1e6 / TICK / run["messages"]
    steps = {step: part * used["loop", "user"] * each_us for step, part in parts.items()}
    steps[LOOP_KERNEL] = used["loop", "kernel"] * each_us
    steps[DOOR] = used["door", "user"] * each_us
    steps[DOOR_KERNEL] = used["door", "kernel"] * each_us
    return Profile(load, steps)


def _sample(pid: int, file: str, seconds: float) -> None:
    words = ["-p", str(pid), "-d", str(round(seconds)), "-r", str(SAMPLES_PER_S), "-f", "raw"]
    program = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program is not None
    subprocess.run([program, "record", *words, "-o", file], check=True, capture_output=True)


# --- the picture ----------------------------------------------------------------------------------

ORDER = (DOOR_KERNEL, DOOR, *(step for step, _ in STEPS), LOOP_KERNEL, REST)
COLOURS = (
    *("#9a6700", "#d4a72c", "#0969da", "#54aeff", "#8250df", "#1a7f37", "#bf3989", "#4ac26b"),
    *("#57606a", "#0550ae", "#8c959f"),
)
WIDTH, BAR_LEFT, BAR_WIDTH, BAR_HEIGHT, LINE = 960, 20, 920, 44, 22
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1f2328; }
  .title { font-weight: 600; }
  .inside { fill: #ffffff; font-size: 12px; text-anchor: middle; }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3; } }"""


def picture(profiles: list[Profile]) -> str:
    """Return an SVG with a bar for each load and a legend with its figures."""
    scale = BAR_WIDTH / max(profile.total for profile in profiles)
    parts, top = [], 10
    for profile in profiles:
        parts.append(_text(BAR_LEFT, top + 16, _title(profile), "title"))
        top += 26
        left = float(BAR_LEFT)
        for step, colour in zip(ORDER, COLOURS, strict=True):
            cost = profile.steps.get(step, 0.0)
            width = cost * scale
            box = f'x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR_HEIGHT}"'
            parts.append(f'<rect {box} fill="{colour}"/>')
            if width > 26:
                parts.append(_text(left + width / 2, top + 27, f"{cost:.1f}", "inside"))
            left += width
        top += BAR_HEIGHT + 14
    for number, (step, colour) in enumerate(zip(ORDER, COLOURS, strict=True)):
        left, line = BAR_LEFT + number % 2 * 470, top + number // 2 * LINE
        parts.append(f'<rect x="{left}" y="{line}" width="14" height="14" fill="{colour}"/>')
        costs = ", ".join(f"{profile.steps.get(step, 0.0):.2f}" for profile in profiles)
        parts.append(_text(left + 22, line + 12, f"{step}: {costs} us"))
    height = top + (len(ORDER) + 1) // 2 * LINE + 10
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
    head += ' aria-label="CPU time of a send by step">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>\n"])


def _title(profile: Profile) -> str:
    return f"{profile.load}: {profile.total:.1f} us of CPU a message in the broker"


def _text(left: float, top: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{left:.1f}" y="{top}"{named}>{escape(text)}</text>'


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--picture", type=Path, help="write the picture to this file")
    options = parser.parse_args()
    if not shutil.which("py-spy", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"):
        sys.exit("py-spy is needed: pip install py-spy")
    profiles = [measure(load, options.seconds) for load in LOADS]
    for profile in profiles:
        print(_title(profile))
        for step in ORDER:
            print(f"  {profile.steps.get(step, 0.0):6.2f}  {step}")
    if options.picture:
        options.picture.write_text(picture(profiles))


if __name__ == "__main__":
    main()
