"use strict";
(() => {
  const POINTS_SECONDS = 2;
  const WINDOW_SECONDS_MIN = 60;
  const BREAK_SECONDS = 30;
  const paused = { value: false };
  const stale = () => document.getElementById("stale");

  function tell(sentence) {
    const line = stale();
    if (line.textContent !== sentence) line.textContent = sentence;
    line.hidden = !sentence;
  }

  // ---- Live parts: htmx asks for them; a reader may stop them, and a hidden page asks nothing ----

  function isLive(element) {
    return (element.getAttribute("hx-trigger") || "").startsWith("every");
  }

  document.addEventListener("htmx:beforeRequest", (event) => {
    const element = event.detail.elt;
    if (isLive(element) && (paused.value || document.hidden)) event.preventDefault();
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    if (!isLive(event.detail.elt)) return;
    const status = event.detail.xhr ? event.detail.xhr.status : 0;
    if (event.detail.successful) tell("");
    else if (status === 0) tell("The controller does not answer: what you see is old.");
    else tell(`The controller answers with an error (${status}): what you see is old. Load the page again to see why.`);
  });

  // What a reader has opened or moved stays so when its part is replaced.
  const kept = { open: [], left: new Map() };
  const name = (element) => element.id || element.getAttribute("aria-labelledby") || element.getAttribute("aria-label");
  document.addEventListener("htmx:beforeSwap", (event) => {
    const part = event.detail.target;
    kept.open = [...part.querySelectorAll("details[open]")].map(name);
    kept.left = new Map([...part.querySelectorAll(".scroll")].map((each) => [name(each), each.scrollLeft]));
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    const part = event.detail.target;
    for (const each of part.querySelectorAll("details")) if (kept.open.includes(name(each))) each.open = true;
    for (const each of part.querySelectorAll(".scroll")) {
      if (kept.left.has(name(each))) each.scrollLeft = kept.left.get(name(each));
    }
    showLatest(part);
  });

  function showLatest(part) {
    for (const each of part.querySelectorAll("[data-latest]")) each.scrollLeft = each.scrollWidth;
  }

  // ---- Charts ----

  function scale(value, units) {
    let step = 0;
    while (Math.abs(value) >= 1000 && step < units.length - 1) { value /= 1000; step += 1; }
    return `${+value.toPrecision(3)} ${units[step]}`.trim();
  }

  const SHOW = {
    bytes: (value) => scale(value, ["B", "kB", "MB", "GB", "TB"]),
    count: (value) => scale(value, ["", "k", "M", "G"]),
    seconds: (value) => value >= 1 ? `${+value.toPrecision(3)} s` : value >= 1e-3 || value === 0 ? `${+(value * 1e3).toPrecision(3)} ms` : `${+(value * 1e6).toPrecision(3)} µs`,
  };

  function colour(variable) {
    return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
  }

  // Where nobody had the page open, a line has a gap.
  function breakLines(rows) {
    return rows.flatMap((row, index) => index && row[0] - rows[index - 1][0] > BREAK_SECONDS ? [[row[0] - 1], row] : [row]);
  }

  function draw(holder, rows) {
    const show = SHOW[holder.dataset.unit];
    const series = holder.dataset.series.split(" ").map((text) => text.split(":"));
    const data = [rows.map((row) => row[0]), ...series.map(([index]) => rows.map((row) => row[index] ?? null))];
    if (holder.plot) { holder.plot.setData(data); showLast(holder.plot); return; }
    const clock = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 8);
    const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    const lines = series.map(([, label], index) => ({
      label: label.replaceAll("_", " "),
      stroke: colour(`--series-${index + 1}`), width: 2, dash: index ? [6, 3] : undefined, spanGaps: false,
      value: (plot, value) => value === null || value === undefined ? "–" : show(value),
    }));
    holder.plot = new uPlot({
      width: holder.clientWidth - 18, height: 190, cursor: { drag: { setScale: false } },
      scales: { x: { range: (plot, least, most) => [Math.min(least, most - WINDOW_SECONDS_MIN), most] }, y: { range: (plot, least, most) => [0, most > 0 ? most * 1.1 : 1] } },
      axes: [{ ...axis, space: 80, values: (plot, values) => values.map(clock) }, { ...axis, size: 70, values: (plot, values) => values.map(show) }],
      series: [{ label: "at", value: (plot, value) => value === null || value === undefined ? "–" : clock(value) }, ...lines],
    }, data, holder);
    showLast(holder.plot);
  }

  // The legend has the newest numbers, unless the reader points at others.
  function showLast(plot) {
    if (!(plot.cursor.left >= 0)) plot.setLegend({ idx: plot.data[0].length - 1 });
  }

  async function drawAll() {
    if (paused.value || document.hidden) return;
    const holders = [...document.querySelectorAll(".chart")];
    for (const address of new Set(holders.map((each) => each.dataset.points))) {
      try {
        // A page that was opened with a password in its address would hand it on, which is refused.
        const answer = await fetch(location.origin + address, { headers: { Accept: "application/json" } });
        if (!answer.ok) continue;
        const rows = breakLines(await answer.json());
        for (const each of holders) if (each.dataset.points === address) draw(each, rows);
      } catch {
        // The live part beside the chart tells that the controller does not answer.
      }
    }
  }

  function redraw() {
    for (const each of document.querySelectorAll(".chart")) {
      if (each.plot) { each.plot.destroy(); each.plot = undefined; }
    }
    drawAll();
  }

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.querySelector(".pause");
    const charts = document.querySelector(".chart");
    if (charts || document.querySelector("[hx-trigger^='every']")) {
      button.hidden = false;
      button.addEventListener("click", () => {
        paused.value = !paused.value;
        button.setAttribute("aria-pressed", String(paused.value));
        button.textContent = paused.value ? "Go on with updates" : "Pause updates";
      });
    }
    showLatest(document);
    if (!charts) return;
    drawAll();
    setInterval(drawAll, POINTS_SECONDS * 1000);
    let width = window.innerWidth;
    window.addEventListener("resize", () => {
      if (window.innerWidth !== width) { width = window.innerWidth; redraw(); }
    });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  });
})();
