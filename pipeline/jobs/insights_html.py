"""HTML page of the job insights: one file with SVG charts, without scripts or external resources.

Charts: messages per second over time by topic, body sizes, latency from born to stored, lag by
group, skew of queues, hot keys. Pure.
"""

import html
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

Rows = Sequence[dict[str, Any]]

_COLOURS: Final = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#65a30d")
_WIDTH: Final = 860
_HEIGHT: Final = 220
_LEFT: Final = 70
_POINTS: Final = 240
_TOPICS: Final = len(_COLOURS)
_BARS: Final = 30
_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:920px;color:#1f2937}"
    "h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}svg{width:100%;height:auto}"
    "text{font:11px system-ui,sans-serif;fill:#4b5563}table{border-collapse:collapse}"
    "td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #e5e7eb}"
    "td:first-child,th:first-child{text-align:left}"
)


def page(store: str, records: int, tables: dict[str, Any]) -> str:
    """Return the HTML document."""
    parts = [
        f"<h1>{html.escape(store)}</h1><p>{records:,} messages</p>",
        "<h2>Messages per second</h2>" + _rates(tables["rates"]),
        "<h2>Body sizes</h2>" + _histogram(tables["sizes"], "below_bytes", _bytes),
        "<h2>Latency from born to stored</h2>"
        + _histogram(tables["latency"], "below_ms", lambda ms: f"{ms:,} ms"),
        "<h2>Lag by consumer group</h2>" + _lag(tables["lag"]),
        "<h2>Share of the queues</h2>" + _skew(tables["skew"]),
        "<h2>Most frequent keys</h2>" + _keys(tables["keys"]),
    ]
    head = "<meta charset=utf-8><meta name=viewport content='width=device-width'>"
    title = f"<title>{html.escape(store)}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang=en>{head}{title}{''.join(parts)}</html>\n"


def _rates(rows: Rows) -> str:
    if not rows:
        return "<p>There are no messages.</p>"
    first = min(row["minute_ms"] for row in rows)
    last = max(row["minute_ms"] for row in rows)
    minutes = (last - first) // 60_000 + 1
    step = -(-minutes // _POINTS)
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["topic"]] = totals.get(row["topic"], 0) + row["messages"]
    lines = {}
    for topic in sorted(totals, key=lambda name: -totals[name])[:_TOPICS]:
        values = [0.0] * (-(-minutes // step))
        for row in rows:
            if row["topic"] == topic:
                values[(row["minute_ms"] - first) // 60_000 // step] += row["messages"]
        lines[topic] = [value / (step * 60) for value in values]
    return _lines(lines, _time(first), _time(last))


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _lines(lines: dict[str, list[float]], begin: str, end: str) -> str:
    top = max((max(values) for values in lines.values()), default=0) or 1
    width = _WIDTH - _LEFT - 10
    drawn = []
    for number, (name, values) in enumerate(lines.items()):
        step = width / max(len(values) - 1, 1)
        places = [
            f"{_LEFT + at * step:.1f},{_HEIGHT - 30 - value / top * (_HEIGHT - 50):.1f}"
            for at, value in enumerate(values)
        ]
        if len(places) == 1:
            places.append(f"{_LEFT + width},{places[0].split(',')[1]}")
        colour = _COLOURS[number]
        points = " ".join(places)
        drawn.append(
            f"<polyline fill=none stroke='{colour}' stroke-width=1.5 points='{points}'/>"
            f"<text x={_LEFT + 8} y={28 + number * 14} style='fill:{colour}'>"
            f"{html.escape(name)}</text>"
        )
    base = _HEIGHT - 30
    axis = (
        f"<line x1={_LEFT} y1={base} x2={_WIDTH - 10} y2={base} stroke='#9ca3af'/>"
        f"<text x={_LEFT - 6} y=24 text-anchor=end>{_number(top)}</text>"
        f"<text x={_LEFT - 6} y={base} text-anchor=end>0</text>"
        f"<text x={_LEFT} y={_HEIGHT - 12}>{begin}</text>"
        f"<text x={_WIDTH - 10} y={_HEIGHT - 12} text-anchor=end>{end}</text>"
    )
    return _svg(_HEIGHT, axis + "".join(drawn))


def _histogram(rows: Rows, column: str, label: Any) -> str:
    counts: dict[int, int] = {}
    for row in rows:
        counts[row[column]] = counts.get(row[column], 0) + row["messages"]
    edges = sorted(edge for edge in counts if edge >= 0)
    bars = [(f"below {label(edge)}", float(counts[edge])) for edge in edges]
    if -1 in counts:
        bars.append(("more", float(counts[-1])))
    return _bars(bars)


def _lag(rows: Rows) -> str:
    groups: dict[str, int] = {}
    for row in rows:
        groups[row["group"]] = groups.get(row["group"], 0) + row["lag"]
    order = sorted(groups.items(), key=lambda item: -item[1])[:_BARS]
    return _bars([(name, float(lag)) for name, lag in order])


def _skew(rows: Rows) -> str:
    names = ("topic", "queues", "messages", "largest share", "largest to mean")
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(
        f"<tr><td>{html.escape(row['topic'])}</td><td>{row['queues']}</td>"
        f"<td>{row['messages']:,}</td>"
        f"<td>{row['largest_share']:.1%}</td><td>{row['largest_to_mean']:.2f}</td></tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _keys(rows: Rows) -> str:
    return _bars([(f"{row['topic']}: {row['key']}", row["messages"]) for row in rows[:_BARS]])


def _bars(bars: Sequence[tuple[str, float]]) -> str:
    if not bars:
        return "<p>There is nothing to show.</p>"
    top = max(value for _, value in bars) or 1
    left, step = 260, 20
    drawn = "".join(
        f"<text x={left - 6} y={at * step + 15} text-anchor=end>{html.escape(name[:44])}</text>"
        f"<rect x={left} y={at * step + 4} height=14 fill='{_COLOURS[0]}' "
        f"width={max(value / top * (_WIDTH - left - 90), 0.5):.1f} />"
        f"<text x={left + 6 + value / top * (_WIDTH - left - 90):.1f} y={at * step + 15}>"
        f"{_number(value)}</text>"
        for at, (name, value) in enumerate(bars)
    )
    return _svg(len(bars) * step + 10, drawn)


def _svg(height: int, content: str) -> str:
    return f"<svg viewBox='0 0 {_WIDTH} {height}' role=img>{content}</svg>"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:,.2f}".rstrip("0").rstrip(".")


def _bytes(value: int) -> str:
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value} {unit}"
        value //= 1024
    return f"{value} GiB"
