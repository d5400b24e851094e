// The console's own script: the theme, the curves, and the notice of a lost
// connection. It runs before the page is drawn, so that the theme does not flicker.
(() => {
  "use strict";
  const root = document.documentElement;
  const saved = localStorage.getItem("theme");
  if (saved === "dark" || saved === "light") root.dataset.theme = saved;

  const isDark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // Curves: the first event has all points, later ones add one.
  const WINDOW = 720;
  const charts = [];
  const fixed = [];
  let columns = null;

  function options(width, series, seconds = 0, least = 1, isClose = false) {
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    const short = (value) => {
      if (value === null || value === undefined) return "";
      for (const unit of ["", "k", "M", "G"]) {
        if (Math.abs(value) < 1000 || unit === "G") return +value.toFixed(value < 1 ? 2 : 1) + unit;
        value /= 1000;
      }
    };
    // A curve of days has dates, one of hours has no seconds.
    const [first, last] = seconds > 172800 ? [5, 16] : seconds > 7200 ? [11, 16] : [11, 19];
    const time = (at) => localText(new Date(at * 1000)).slice(first, last);
    return {
      width, height: 180, legend: { show: false }, cursor: { show: false },
      padding: [10, 28, 0, 0],
      // Positions of a log are large and close together: their axis does not begin at 0.
      scales: { y: { range: (u, low, high) => isClose ? around(low, high) : [0, Math.max(high || 0, least) * 1.1] } },
      axes: [{ ...axis, space: 80, size: 32, values: (u, ticks) => ticks.map(time) }, { ...axis, size: 46, values: (u, ticks) => ticks.map(short) }],
      series: [{}, ...series.map((one) => ({ stroke: colour(one.colour), dash: one.dash, width: 2, points: { show: false } }))],
    };
  }

  function around(low, high) {
    const margin = Math.max(((high || 0) - (low || 0)) * 0.1, 512);
    return [Math.max(0, (low || 0) - margin), (high || 0) + margin];
  }

  const DRAWN = {
    rates: { columns: [1, 2], series: [{ colour: "--accent" }, { colour: "--warning" }] },
    lag: { columns: [3], series: [{ colour: "--accent" }] },
  };

  function draw() {
    for (const chart of charts.splice(0)) chart.plot.destroy();
    for (const [name, drawn] of Object.entries(DRAWN)) {
      const place = document.getElementById(`chart-${name}`);
      if (!place || !columns || !window.uPlot) continue;
      const data = [columns[0], ...drawn.columns.map((index) => columns[index])];
      charts.push({ place, drawn, plot: new uPlot(options(place.clientWidth, drawn.series), data, place) });
    }
    drawFixed();
  }

  // Curves of replication: for each broker group the time, the confirm offset, the in-sync
  // replicas, the epoch, and the log end of each replica.
  const COLOURS = ["--accent", "--warning", "--ok", "--bad", "--muted"];
  const groups = new Map();
  const replicaCharts = [];

  function replicaParts(group) {
    const words = document.querySelector("[data-legend]").dataset;
    const ends = group.brokers.map((id, index) => ({ name: words.broker.replace("{}", id), colour: COLOURS[index % COLOURS.length], column: 4 + index }));
    return {
      ends: [...ends, { name: words.confirmed, colour: "--text", dash: [6, 4], column: 1 }],
      set: [{ colour: "--accent", column: 2 }],
    };
  }

  function drawReplicas() {
    for (const chart of replicaCharts.splice(0)) chart.plot.destroy();
    for (const place of document.querySelectorAll(".chart[data-replicas]")) {
      const group = groups.get(place.dataset.replicas);
      if (!group || !window.uPlot) continue;
      const series = replicaParts(group)[place.dataset.part];
      const isEnds = place.dataset.part === "ends";
      if (isEnds) legend(group, place.dataset.replicas, series);
      const indexes = [0, ...series.map((one) => one.column)];
      const data = indexes.map((index) => group.columns[index]);
      replicaCharts.push({ place, group, indexes, plot: new uPlot(options(place.clientWidth, series, 0, 1, isEnds), data, place) });
    }
  }

  function legend(group, name, series) {
    for (const place of document.querySelectorAll("[data-legend]")) {
      if (place.dataset.legend !== name) continue;
      place.replaceChildren(...series.map((one) => {
        const part = document.createElement("span");
        part.className = `line-${one.colour.slice(2)}${one.dash ? " dashed" : ""}`;
        part.textContent = one.name;
        return part;
      }));
    }
  }

  function addReplicas(message) {
    if (message.all) {
      groups.set(message.group, { brokers: message.brokers, columns: message.all });
      drawReplicas();
      return;
    }
    const group = groups.get(message.group);
    if (!group || !message.point || message.point[0] === group.columns[0].at(-1)) return;
    message.point.forEach((value, index) => group.columns[index].push(value));
    if (group.columns[0].length > WINDOW) group.columns.forEach((column) => column.shift());
    for (const { group: drawn, indexes, plot } of replicaCharts) {
      if (drawn === group) plot.setData(indexes.map((index) => group.columns[index]));
    }
  }

  // Curves whose points are in the page.
  function drawFixed() {
    for (const chart of fixed.splice(0)) chart.plot.destroy();
    for (const place of document.querySelectorAll(".chart[data-columns]")) {
      const data = JSON.parse(place.dataset.columns);
      if (!window.uPlot || !(data[0]?.length > 1)) continue;
      const series = data.slice(1).map((_, index) => ({ colour: COLOURS[index] }));
      const drawn = options(place.clientWidth, series, data[0].at(-1) - data[0][0], +place.dataset.least || 0.01);
      fixed.push({ place, plot: new uPlot(drawn, data, place) });
    }
  }

  function add(message) {
    if (message.all) {
      columns = message.all;
      draw();
      return;
    }
    if (!columns || !message.point || message.point[0] === columns[0].at(-1)) return;
    message.point.forEach((value, index) => columns[index].push(value));
    if (columns[0].length > WINDOW) columns.forEach((column) => column.shift());
    for (const { drawn, plot } of charts) {
      plot.setData([columns[0], ...drawn.columns.map((index) => columns[index])]);
    }
  }

  function label() {
    const button = document.getElementById("theme");
    if (button) button.textContent = isDark() ? button.dataset.light : button.dataset.dark;
  }

  // Times are in the zone of the browser, with UTC and the age beside them.
  const two = (value, size = 2) => String(value).padStart(size, "0");
  const spanOf = (ms) => {
    for (const [unit, size] of [["d", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000]]) {
      if (ms >= size) return `${Math.floor(ms / size)} ${unit}`;
    }
    return "0 s";
  };
  function localText(at) {
    const clock = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${two(at.getMilliseconds(), 3)}`;
    return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock}`;
  }
  function localTimes(part) {
    for (const one of part.querySelectorAll("time[data-ms]")) {
      const at = new Date(+one.dataset.ms);
      if (!one.title) one.title = `${one.textContent} UTC`;
      one.textContent = "clock" in one.dataset ? localText(at).slice(11, 19) : localText(at);
      const age = Date.now() - at;
      const words = age >= 0 ? root.dataset.ago : root.dataset.in;
      one.title = `${one.title.split(",")[0]}, ${words.replace("{}", spanOf(Math.abs(age)))}`;
    }
    for (const one of part.querySelectorAll("th, th a, dt, .more, [data-zone]")) {
      if (one.children.length === 0) one.textContent = one.textContent.replace("(UTC)", root.dataset.local);
    }
  }
  document.addEventListener("htmx:afterSwap", () => {
    localTimes(document);
    sortTables();
    drawFixed();
  });
  document.addEventListener("htmx:sseMessage", () => localTimes(document));
  // A table with all its rows is sorted by a column of them; a list in pages, by the console.
  const orders = new Map(); // by table: the column and the direction
  const UNITS = { "µs": 1e-3, ms: 1, s: 1e3, min: 6e4, h: 3.6e6, d: 8.64e7, KiB: 1024, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, k: 1e3, M: 1e6, G: 1e9 };
  function valueOf(row, column) {
    const cell = row.cells[column], time = cell?.querySelector("time[data-ms]");
    if (time) return +time.dataset.ms;
    const text = cell?.textContent.trim() ?? "";
    const [, number, unit] = /^(-?[\d,]*\.?\d+) ?([µa-zA-Z]*)/.exec(text) ?? [];
    return number && !/^\d+[.-]\d+[.-]/.test(text) ? +number.replaceAll(",", "") * (UNITS[unit] ?? 1) : text.toLowerCase();
  }
  function compare(one, other) {
    if (typeof one === typeof other) return one < other ? -1 : one > other ? 1 : 0;
    return typeof one === "number" ? -1 : 1;
  }
  function sortTables() {
    for (const table of document.querySelectorAll("main table")) {
      const heads = [...(table.tHead?.rows[0].cells ?? [])], rows = table.tBodies[0];
      if (!(rows?.rows.length > 1) || heads.some((one) => one.querySelector("a")) || table.closest(".card")?.querySelector(".pager")) continue;
      const key = heads.map((one) => one.textContent).join();
      const apply = () => {
        const [column, down] = orders.get(key) ?? [];
        if (column === undefined) return;
        const sign = down ? -1 : 1;
        rows.append(...[...rows.rows].sort((one, other) => sign * compare(valueOf(one, column), valueOf(other, column))));
        heads.forEach((one, index) => {
          if (index === column) one.ariaSort = down ? "descending" : "ascending";
          else one.removeAttribute("aria-sort");
        });
      };
      heads.forEach((one, column) => {
        if (one.children.length || !one.textContent) return;
        const button = document.createElement("button");
        button.type = "button";
        button.className = "sort";
        button.textContent = one.textContent;
        button.addEventListener("click", () => {
          const [known, down] = orders.get(key) ?? [];
          orders.set(key, [column, known === column ? !down : one.classList.contains("number")]);
          apply();
        });
        one.replaceChildren(button);
      });
      apply();
    }
  }
  // A picker is in local time; the console gets UTC.
  document.addEventListener("formdata", ({ target, formData }) => {
    for (const one of target.querySelectorAll("input[data-local]")) {
      if (one.value) formData.set(one.name, new Date(one.value).toISOString());
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    event.preventDefault();
    document.getElementById("find")?.focus();
  });

  document.addEventListener("DOMContentLoaded", () => {
    label();
    localTimes(document);
    sortTables();
    // A time that was sent as UTC comes back with the form.
    for (const one of document.querySelectorAll("input[data-local]")) {
      if (one.dataset.local.endsWith("Z")) one.value = localText(new Date(one.dataset.local)).slice(0, 19).replace(" ", "T");
    }
    // The field that is filled is the one that is meant.
    document.addEventListener("input", ({ target }) => {
      const way = target.closest(".field-of")?.previousElementSibling?.querySelector("input[type=radio]");
      if (way) way.checked = true;
    });
    drawFixed();
    // A long change goes on by itself, one part after another.
    document.querySelector("form[data-continue]")?.requestSubmit();
    // On a narrow screen the sections are scrolled sideways.
    document.querySelector(".nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    document.getElementById("theme")?.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      localStorage.setItem("theme", root.dataset.theme);
      label();
      draw();
      drawReplicas();
    });
    for (const one of document.querySelectorAll("[data-language]")) {
      one.addEventListener("click", () => {
        document.cookie = `${root.dataset.languageCookie}=${one.dataset.language}; path=/; max-age=31536000; samesite=lax`;
        location.reload();
      });
    }
    // A form is sent once.
    document.addEventListener("submit", (event) => {
      const button = event.target.querySelector("button[type=submit][data-once]");
      if (button) setTimeout(() => { button.disabled = true; }, 0);
    });
    // A file that is too large is not sent.
    document.addEventListener("change", ({ target }) => {
      if (!target.dataset.bytesMax) return;
      target.setCustomValidity(target.files[0]?.size > +target.dataset.bytesMax ? target.dataset.tooLarge : "");
      target.reportValidity();
    });
    document.addEventListener("click", (event) => {
      const all = event.target.closest("[data-check-all]");
      if (!all) return;
      for (const box of document.querySelectorAll(`input[name="${all.dataset.checkAll}"]`)) box.checked = all.checked;
    });
  });
  addEventListener("pageshow", () => {
    for (const button of document.querySelectorAll("button[data-once]")) button.disabled = false;
  });
  addEventListener("resize", () => {
    for (const { place, plot } of [...charts, ...fixed, ...replicaCharts]) plot.setSize({ width: place.clientWidth, height: 180 });
  });
  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    const show = { curves: add, replicas: addReplicas }[event.detail.type];
    if (!show) return;
    event.preventDefault();
    show(JSON.parse(event.detail.data));
  });
  const offline = (is) => document.body.classList.toggle("is-offline", is);
  document.addEventListener("htmx:sseError", () => offline(true));
  document.addEventListener("htmx:sseOpen", () => offline(false));
  document.addEventListener("htmx:sendError", () => offline(true));
  document.addEventListener("htmx:afterOnLoad", () => offline(false));
})();
