"""The HTML page of `--html`: a table and two curves for each run. It loads nothing."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

from .report import row_of

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem;
  padding: 0 1rem; color: #1a2230; background: #fff; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #d5dae2; }
th:first-child, td:first-child { text-align: left; }
.table { overflow-x: auto; }
.curves { display: flex; flex-wrap: wrap; gap: 1.5rem; }
.curves > div { flex: 1 1 22rem; min-width: 0; }
h2 { margin: 2.5rem 0 .5rem; }
p { margin: .2rem 0 1rem; color: #4a5568; }
"""
_SCRIPT = """
const blue = "#2458c5", orange = "#c05e00", green = "#1d7a4a";
function draw(place, options, data) {
  const width = Math.max(place.clientWidth, 280);
  new uPlot({ width, height: 260, cursor: { drag: { x: false } }, ...options }, data, place);
}
runs.forEach((run, i) => {
  const points = run.curve;
  draw(document.getElementById(`time-${i}`), {
    title: "Messages and latency by second",
    scales: { x: { time: false }, n: { range: (u, low, high) => [0, high * 1.1 || 1] },
              ms: { distr: 3 } },
    axes: [{ label: "s" }, { scale: "n", label: "messages/s", size: 70 },
           { scale: "ms", side: 1, label: "ms", grid: { show: false } }],
    series: [{ label: "s" },
      { label: "messages/s", scale: "n", stroke: green },
      { label: "p50 ms", scale: "ms", stroke: blue },
      { label: "p99 ms", scale: "ms", stroke: orange }],
  }, [points.map(p => p.second), points.map(p => p.messages), points.map(p => p.p50_ms),
      points.map(p => p.p99_ms)]);
  const shown = run.percentiles_ms;
  draw(document.getElementById(`percentiles-${i}`), {
    title: "Latency by percentile",
    scales: { x: { time: false }, ms: { distr: 3 } },
    axes: [{ label: "percentile", values: (u, at) => at.map(k => shown[k] ? shown[k][0] : "") },
           { scale: "ms", label: "ms", size: 60 }],
    series: [{ label: "percentile", value: (u, k) => k == null ? "" : shown[k][0] },
      { label: "ms", scale: "ms", stroke: blue, points: { show: true } }],
  }, [shown.map((_, k) => k), shown.map(p => p[1])]);
});
"""


def page(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of the runs."""
    static = resources.files("cometmq.console") / "static"
    plot_style = (static / "uplot.min.css").read_text()
    plot = (static / "uplot.min.js").read_text()
    # "</" would end the script element.
    runs = json.dumps(list(documents)).replace("</", "<\\/")
    sections = "".join(_section(number, each) for number, each in enumerate(documents))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>cometmq bench</title><style>{plot_style}{_STYLE}</style></head><body>"
        f"<h1>cometmq bench</h1>{_table(documents)}{sections}"
        f"<script>{plot}</script><script>const runs = {runs};{_SCRIPT}</script></body></html>\n"
    )


def _table(documents: Sequence[Mapping[str, Any]]) -> str:
    rows = [row_of(each) for each in documents]
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_text(value))}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    return f'<div class="table"><table><tr>{head}</tr>{body}</table></div>'


def _section(number: int, run: Mapping[str, Any]) -> str:
    pace = f"open loop, {run['rate']:,} a second" if run["rate"] else "closed loop"
    facts = (
        f"{run['title']}; {pace}; {run['in_flight']} in flight; {run['size_bytes']:,} bytes;"
        f" {run['seconds']} s; {run['endpoint']}"
    )
    return (
        f"<h2>{escape(run['workload'])}</h2><p>{escape(facts)}</p>"
        f'<div class="curves"><div id="time-{number}"></div>'
        f'<div id="percentiles-{number}"></div></div>'
    )


def _text(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
