"""Timeline of a drill as SVG: acknowledged sends over time, faults, and roles.

Top: bars of acknowledged sends per tenth of a second. Below: one band per broker, coloured by its
role, and a vertical line for each fault. Uses only histories and events.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from . import history

WIDTH, CHART, LANE, LEFT, TOP = 1000, 160, 22, 60, 40
STEP_S = 0.1
COLOURS = {
    "leader": "#2e7d32",
    "promoting": "#9ccc65",
    "follower": "#90caf9",
    "fenced": "#ffb74d",
    "hold": "#e53935",
    "down": "#424242",
}
FAULTS = {"kill", "pause", "resume", "cut", "isolate", "heal", "start", "stop", "power-loss",
          "switchover", "fault", "clock", "force-elect", "reset", "delay"}  # fmt: skip


def draw(events: Iterable[dict[str, Any]], histories: Iterable[Path], title: str) -> str:
    """Return the SVG document."""
    notes = list(events)
    oks = sorted(e["t"] for path in histories for e in history.read(path) if e["e"] == "ok")
    begin = min([e["t"] for e in notes] + oks, default=0.0)
    end = max([e["t"] for e in notes] + oks, default=begin + 1.0)
    scale = (WIDTH - LEFT - 10) / max(end - begin, 0.001)

    def x(t: float) -> float:
        return round(LEFT + (t - begin) * scale, 1)

    lanes = sorted({e["id"] for e in notes if e["e"] == "role"})
    height = TOP + CHART + 20 + LANE * len(lanes) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="16" font-size="13">{escape(title)}</text>',
        *_bars(oks, begin, x, scale),
        *_lanes(notes, lanes, end, x),
        *_faults(notes, height, x),
        *_axis(begin, end, height, x),
        "</svg>",
    ]
    return "\n".join(parts)


def _bars(oks: list[float], begin: float, x: Any, scale: float) -> Iterable[str]:
    counts: dict[int, int] = {}
    for t in oks:
        counts[int((t - begin) / STEP_S)] = counts.get(int((t - begin) / STEP_S), 0) + 1
    most = max(counts.values(), default=1)
    width = max(0.5, STEP_S * scale - 0.3)
    for slot, count in counts.items():
        tall = CHART * count / most
        yield (
            f'<rect x="{x(begin + slot * STEP_S)}" y="{TOP + CHART - tall:.1f}" '
            f'width="{width:.1f}" height="{tall:.1f}" fill="#5c6bc0"/>'
        )
    yield f'<text x="4" y="{TOP + 10}">{most * round(1 / STEP_S)}/s</text>'
    yield f'<text x="4" y="{TOP + CHART}">0</text>'


def _lanes(notes: list[dict[str, Any]], lanes: list[str], end: float, x: Any) -> Iterable[str]:
    for at, name in enumerate(lanes):
        y = TOP + CHART + 20 + at * LANE
        yield f'<text x="4" y="{y + 14}">{escape(name)}</text>'
        changes = [e for e in notes if e["e"] == "role" and e["id"] == name]
        for number, change in enumerate(changes):
            until = changes[number + 1]["t"] if number + 1 < len(changes) else end
            role, epoch = change["role"], change.get("epoch", 0)
            colour = COLOURS.get(role, "#cccccc")
            wide = max(0.5, x(until) - x(change["t"]))
            yield (
                f'<rect x="{x(change["t"])}" y="{y}" width="{wide:.1f}" height="{LANE - 5}" '
                f'fill="{colour}"><title>{escape(role)}, epoch {epoch}</title></rect>'
            )
            if wide > 60 and role != "down":
                yield (
                    f'<text x="{x(change["t"]) + 3}" y="{y + 13}" fill="white">'
                    f"{escape(role)} {epoch}</text>"
                )


def _faults(notes: list[dict[str, Any]], height: int, x: Any) -> Iterable[str]:
    for at, note in enumerate(n for n in notes if n["e"] in FAULTS):
        place = x(note["t"])
        yield (
            f'<line x1="{place}" x2="{place}" y1="{TOP}" y2="{height - 20}" stroke="#c62828" '
            'stroke-width="0.7" stroke-dasharray="3,2"/>'
        )
        yield (
            f'<text x="{place + 2}" y="{TOP - 10 + 9 * (at % 3)}" fill="#c62828" font-size="9">'
            f"{escape(note['e'])} {escape(str(note['id']))}</text>"
        )


def _axis(begin: float, end: float, height: int, x: Any) -> Iterable[str]:
    step = max(1, round((end - begin) / 12))
    for second in range(0, int(end - begin) + 1, step):
        yield f'<text x="{x(begin + second)}" y="{height - 6}">{second} s</text>'
