// What the pages do beyond htmx: the theme, the event stream, charts, and questions before what cannot be undone.
"use strict";

const root = document.documentElement;
const prefix = root.dataset.prefix; // of all paths, where a proxy serves the pages below one

// ---- Theme -------------------------------------------------------------------------------------------------

const stored = localStorage.getItem("theme");
if (stored) root.dataset.theme = stored;

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function toggleTheme() {
  root.dataset.theme = isDark() ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  drawCharts();
}

// ---- Charts ------------------------------------------------------------------------------------------------
// <div class="chart" data-chart='{"unit": "rate", "series": [["publish", "Published"], ...]}'></div>
// The stream brings {"samples": {"times": [...], "publish": [...]}}: whole rings first, then a value a time. What a
// chart shows now is said in its label, for those who cannot see it.

const charts = new Map(); // element -> {plot, spec, rows}

function colour(name) {
  const probe = document.createElement("i");
  probe.className = `colour-${name}`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

const UNITS = {
  rate: (value) => `${compact(value)}/s`,
  count: compact,
  bytes: bytes,
  rate_bytes: (value) => `${bytes(value)}/s`,
  seconds: (value) => (value < 1 ? `${round(value * 1000)} ms` : `${round(value)} s`),
};

function round(value) {
  return Math.abs(value) >= 100 ? Math.round(value) : Number(value.toPrecision(3));
}

function clocks(ticks) {
  const second = ticks.length > 1 && ticks[1] - ticks[0] < 60 ? "2-digit" : undefined;
  const format = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second, hourCycle: "h23" });
  return ticks.map((seconds) => format.format(new Date(seconds * 1000)));
}

function chartSize(element) {
  return { width: Math.max(element.clientWidth, 200), height: 11.5 * rem() };
}

function rem() {
  return parseFloat(getComputedStyle(root).fontSize);
}

function compact(value) {
  for (const [size, sign] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(value) >= size) return `${round(value / (sign === "k" ? 1e3 : size))}${sign}`;
  }
  return String(round(value));
}

function bytes(value) {
  for (const [power, sign] of [[4, "TiB"], [3, "GiB"], [2, "MiB"], [1, "KiB"]]) {
    if (Math.abs(value) >= 1024 ** power) return `${round(value / 1024 ** power)} ${sign}`;
  }
  return `${round(value)} B`;
}

function drawChart(element) {
  const old = charts.get(element);
  const spec = old ? old.spec : JSON.parse(element.dataset.chart);
  const columns = old ? old.columns : [[], ...spec.series.map(() => [])];
  if (old) old.plot.destroy();
  const say = UNITS[spec.unit];
  const font = `${0.8 * rem()}px system-ui, sans-serif`;
  const axis = { stroke: colour("muted"), font, grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
  const plot = new uPlot(
    {
      ...chartSize(element),
      cursor: { sync: { key: "charts" }, points: { size: 6 } },
      axes: [{ ...axis, size: 2 * rem(), space: 5 * rem(), values: (_, ticks) => clocks(ticks) }, { ...axis, size: 4.4 * rem(), values: (_, ticks) => ticks.map(say) }],
      scales: {
        // With one value alone uPlot would show the day that begins there.
        x: { range: (plot, low, high) => (plot.data[0].length === 1 ? [low - 60, low] : [low, high]) },
        y: { range: (_, low, high) => [Math.min(low, 0), high > 0 ? high * 1.05 : 1] },
      },
      series: [
        { label: "Time" },
        ...spec.series.map(([, label], index) => ({
          label,
          stroke: colour(`chart-${index + 1}`),
          width: 2,
          dash: index % 2 ? [6, 3] : undefined,
          // One value alone is no line.
          points: { show: (plot) => plot.data[0].length === 1 },
          // Where no pointer is, the last one.
          value: (plot, value, series, index) => written(index == null ? plot.data[series].at(-1) : value, say),
        })),
      ],
    },
    columns,
    element,
  );
  charts.set(element, { plot, spec, columns });
}

function written(value, say) {
  return value == null ? "-" : say(value);
}

function drawCharts() {
  document.querySelectorAll("[data-chart]").forEach(drawChart);
}

function addSamples(samples) {
  for (const [element, { plot, spec, columns }] of charts) {
    const added = spec.series.map(([key]) => samples[key] || []);
    const known = columns[0].at(-1) ?? 0;
    samples.times.forEach((time, at) => {
      // A stream that begins again brings what it brought before.
      if (time <= known) return;
      // Before its first value a chart has no time: that of the others would leave it empty.
      if (!columns[0].length && added.every((values) => values[at] == null)) return;
      columns[0].push(time);
      added.forEach((values, index) => columns[index + 1].push(values[at] ?? null));
    });
    const surplus = columns[0].length - 720;
    if (surplus > 0) columns.forEach((column) => column.splice(0, surplus));
    plot.setData(columns);
    const last = spec.series.map(([, label], index) => `${label} ${written(columns[index + 1].at(-1), UNITS[spec.unit])}`);
    element.setAttribute("aria-label", `${spec.title} over the last minutes, now: ${last.join(", ")}`);
  }
}

// ---- The event stream --------------------------------------------------------------------------------------
// <main data-stream="/stream/overview">: "samples" go to the charts, "figures" to the elements that have
// data-figure="KEY", and each "tick" lets htmx fetch the tables anew (hx-trigger="tick from:body").

const RETRY_MS = 3000;
let source = null;

function listen() {
  const main = document.querySelector("[data-stream]");
  if (!main) return;
  source = new EventSource(main.dataset.stream);
  source.addEventListener("samples", (event) => addSamples(JSON.parse(event.data)));
  source.addEventListener("figures", (event) => {
    for (const [key, text] of Object.entries(JSON.parse(event.data))) {
      document.querySelectorAll(`[data-figure="${CSS.escape(key)}"]`).forEach((element) => {
        if (element.textContent !== text) element.textContent = text;
      });
    }
  });
  source.addEventListener("tick", () => {
    if (!document.hidden) document.body.dispatchEvent(new CustomEvent("tick"));
  });
  source.addEventListener("ended", () => {
    source.close();
    const link = document.createElement("a");
    const here = location.pathname.slice(prefix.length) + location.search;
    link.href = `${prefix}/login?next=${encodeURIComponent(here)}`;
    link.textContent = "Log in again";
    say("Your session has ended: what is shown here is no longer up to date.", "warn", link);
  });
  source.addEventListener("gone", (event) => {
    source.close();
    say(`What is shown here is no longer up to date: ${JSON.parse(event.data).reason}`, "warn");
  });
  source.onopen = () => say("");
  source.onerror = () => {
    say("The broker does not answer. What is shown here is no longer up to date.", "bad");
    // The browser tries again by itself, unless it was answered with an error.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, RETRY_MS);
  };
}

function say(text, kind = "good", link = "") {
  const place = document.getElementById("connection-state");
  if (!place || place.textContent === text) return;
  place.replaceChildren(text, link ? " " : "", link);
  place.className = text ? `notice ${kind}` : "";
}

// ---- Questions ---------------------------------------------------------------------------------------------
// <form data-confirm="Delete queue orders?"> asks in a dialog before it is sent; a button may ask for itself.

let confirmed = null;

function ask(event) {
  const form = event.target;
  const submitter = event.submitter;
  const isSelection = form.dataset.select && form.elements["which:optional"].value === "all";
  const question = isSelection
    ? `${submitter.textContent}: all messages ${form.dataset.filter ? "that match the filter" : "of this queue"}?`
    : (submitter && submitter.dataset.confirm) || form.dataset.confirm;
  if (!question || confirmed === form) {
    confirmed = null;
    if (isSelection) {
      event.preventDefault();
      select(form, submitter);
    }
    return;
  }
  event.preventDefault();
  event.stopImmediatePropagation();
  const dialog = document.getElementById("question");
  dialog.querySelector("p").textContent = question;
  dialog.querySelector("[value=yes]").textContent = submitter ? submitter.textContent : "Yes";
  dialog.returnValue = "";
  dialog.onclose = () => {
    if (dialog.returnValue !== "yes") return;
    confirmed = form;
    form.requestSubmit(submitter || undefined);
  };
  dialog.showModal();
}

// ---- All messages of a queue -----------------------------------------------------------------------------------
// <form data-select="/select/%2F/orders">: if all are meant, the answer says line by line how far it is. What came of
// it, the next page says.

async function select(form, submitter) {
  const fields = new URLSearchParams(new FormData(form, submitter));
  fields.delete("positions:texts");
  fields.set("filter", form.dataset.filter);
  const dialog = document.getElementById("progress");
  const bar = dialog.querySelector("progress");
  const text = dialog.querySelector("p");
  const stop = new AbortController();
  dialog.querySelector("button").onclick = () => stop.abort();
  dialog.oncancel = () => stop.abort();
  text.textContent = `${submitter.textContent}: started`;
  dialog.showModal();
  try {
    const answer = await fetch(form.dataset.select, { method: "POST", body: fields, signal: stop.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      const lines = (rest + part.value).split("\n");
      rest = lines.pop();
      if (!lines.length || answer.redirected) continue;
      const { seen, of } = JSON.parse(lines.at(-1));
      bar.max = of;
      bar.value = seen;
      text.textContent = `${submitter.textContent}: ${seen.toLocaleString()} of ${of.toLocaleString()} messages looked at`;
    }
  } catch (error) {
    // It was stopped, or the broker is gone: the page that follows says so.
  }
  location.reload();
}

// ---- A form that was refused ---------------------------------------------------------------------------------
// <template id="refused" data-action="/act/..." data-fields='[["payload", "..."]]'>: what was typed is put back.

function restore() {
  const refused = document.getElementById("refused");
  if (!refused) return;
  const forms = [...document.forms].filter((form) => form.getAttribute("action") === refused.dataset.action);
  const fields = JSON.parse(refused.dataset.fields);
  for (const form of forms) {
    form.closest("details")?.setAttribute("open", "");
    form.querySelectorAll("input[type=checkbox]").forEach((box) => (box.checked = false));
    for (const [name, value] of fields) {
      const found = form.elements.namedItem(name);
      for (const element of found instanceof RadioNodeList ? found : [found]) {
        if (element?.type === "checkbox") element.checked = element.checked || element.value === value;
        else if (element && element.type !== "hidden") element.value = value;
      }
    }
  }
}

// ---- Start -------------------------------------------------------------------------------------------------

document.addEventListener("submit", ask, true);
document.addEventListener("click", (event) => {
  if (event.target.closest("[data-theme-toggle]")) toggleTheme();
  const all = event.target.closest("[data-check-all]");
  if (all) {
    all.closest("form").querySelectorAll('input[name="positions:texts"]').forEach((box) => (box.checked = all.checked));
  }
});
document.addEventListener("DOMContentLoaded", () => {
  // On a phone the navigation scrolls: where one is should be seen.
  document.querySelector(".top [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  restore();
  drawCharts();
  listen();
  const wide = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const chart = charts.get(target);
      if (chart) chart.plot.setSize(chartSize(target));
    }
  });
  charts.forEach((_, element) => wide.observe(element));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
addEventListener("pagehide", () => source && source.close());
