"use strict";
// The page: one value (types.py), drawn. Nothing is computed here but sums over lines that stand for several links.

const $ = (id) => document.getElementById(id);

function make(tag, attributes, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...inside.flat().filter((one) => one != null && one !== ""));
  return element;
}

// --- Numbers, shown as the command line shows them (core/units.py) ---

const SCALES = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];

// To so many decimals. A tie goes to the even digit, as in Python; toFixed takes the larger one.
function rounded(value, decimals) {
  const halves = value * 2 ** (decimals + 1); // an odd whole number when the value lies between two of them
  if (!Number.isInteger(halves) || halves % 2 === 0) return value.toFixed(decimals);
  const below = Math.floor(value * 10 ** decimals);
  return ((below % 2 ? below + 1 : below) / 10 ** decimals).toFixed(decimals);
}

function bytes(count) {
  for (const [scale, unit] of SCALES)
    if (Math.abs(count) >= scale * 0.9995) {
      const value = count / scale;
      return `${rounded(value, Math.abs(value) >= 10 ? 1 : 2)} ${unit}`;
    }
  return `${rounded(count, 0)} B`;
}

function digits(value, most) {
  const decimals = value ? most - 1 - Math.floor(Math.log10(Math.abs(value))) : 0;
  return String(Number(decimals >= 0 && decimals <= 20 ? rounded(value, decimals) : value.toPrecision(most)));
}

function time(seconds) {
  for (const [scale, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "us"]])
    if (Math.abs(seconds) >= scale * 0.9995) return `${digits(seconds / scale, 3)} ${unit}`;
  return `${digits(seconds * 1e9, 3)} ns`;
}

const count = (value) => Math.round(value).toLocaleString("en-US");
const percent = (share) => (share >= 0.0995 ? `${(share * 100).toFixed(0)} %` : `${digits(share * 100, 2)} %`);

function shown(value, unit) {
  if (unit === "B") return bytes(value);
  if (unit === "B/s") return `${bytes(value)}/s`;
  if (unit === "s") return time(value);
  const number = Number.isInteger(value) ? value.toLocaleString("en-US") : digits(value, 4);
  return unit ? `${number} ${unit}` : number;
}

// --- State ---

const state = { data: null, step: "decode", batch: 0, colour: "time", chosen: -1 };
const views = {};

const pick = (list) => list[list.length > 1 ? state.batch : 0];
// A figure by its path, where the batch has it.
const figure = (path) => {
  const found = state.figures.get(path);
  return found && pick(found.values) != null ? found : undefined;
};
const batchOf = () => state.data.batches[state.batch];
const slides = () => ["decode", "mixed"].includes(state.step); // other steps have no batch
const at = (list) => list.find((one) => one.step === state.step && (one.batch === batchOf() || !slides()));

// A figure with its chain behind it.
function fig(path, text) {
  const found = figure(path);
  if (!found) return text || "-";
  return make("button", { class: "fig", type: "button", "data-path": path, onclick: () => explain(path) },
    text || shown(pick(found.values), found.unit));
}

// A number that is a figure only where the figure has this very value: stages other than the busiest have their own.
const figIf = (path, value, text) => {
  const found = figure(path);
  const same = found && Math.abs(pick(found.values) - value) <= 1e-9 * Math.abs(value);
  return same ? fig(path, text) : text;
};

// --- Chains ---

function chainOf(place) {
  const { words, steps, chains } = state.data.book;
  return chains[place].map((at) => {
    const [name, formula, source, note, value, numbers] = steps[at];
    return { name: words[name], formula: words[formula], source: words[source], note: words[note], value, numbers };
  });
}

function chainList(place) {
  return make("ol", { class: "chain" }, chainOf(place).map((one) =>
    one.formula
      ? make("li", {}, `${one.name} = ${one.formula}`, one.numbers && make("div", {}, `= ${one.numbers}`),
          make("div", {}, `= ${one.value}`), one.note && make("div", { class: "soft" }, one.note))
      : make("li", {}, `${one.name} = ${one.value}`, make("div", { class: "soft" }, one.source || "given"),
          one.note && make("div", { class: "soft" }, one.note))));
}

function open(title, ...inside) {
  $("panel-title").textContent = title;
  $("panel-body").replaceChildren(...inside.flat().filter(Boolean));
  if (!$("panel").open) $("panel").showModal();
  $("panel-close").focus();
}

function explain(path) {
  const found = figure(path);
  const batch = found.values.length > 1 ? `, batch ${count(batchOf())}` : "";
  open(path, make("p", { class: "value" }, `${shown(pick(found.values), found.unit)}`),
    make("p", { class: "soft" }, `Its chain: inputs with their sources, every step, the figure last${batch}.`),
    chainList(pick(found.chains)), state.batch === state.data.plan && path in state.data.textbook ? taught(state.data.textbook[path], pick(found.values), found.unit) : null);
}

// The textbook's figure beside the engine's own: its chain, and what makes them differ.
function taught(one, own, unit) {
  const same = one.value === own;
  return make("div", { id: "textbook" }, make("h3", {}, `The textbook's figure: ${shown(one.value, unit)}`),
    same ? make("p", { class: "soft" }, "The same, by the same chain or a shorter one.") : chainList(one.chain),
    one.differences.length ? make("ul", {}, one.differences.map((text) => make("li", {}, text))) : null);
}

// --- Tables ---

// columns: names, `>name` to the right. rows: cells are text or nodes.
function table(caption, columns, rows) {
  const side = columns.map((name) => (name.startsWith(">") ? { class: "n" } : {}));
  return make("div", { class: "scroll" }, make("table", {}, make("caption", {}, caption),
    make("thead", {}, make("tr", {}, columns.map((name, i) => make("th", { scope: "col", ...side[i] }, name.replace(">", ""))))),
    make("tbody", {}, rows.map((cells) => make("tr", {}, cells.map((cell, i) => make("td", side[i], cell == null ? "" : cell)))))));
}

const legend = (entries) => make("ul", { class: "keys" }, entries.map(([colour, text]) =>
  make("li", {}, make("i", { "data-colour": colour }), text)));

function paint(root) {
  for (const swatch of root.querySelectorAll("i[data-colour]")) swatch.style.background = swatch.dataset.colour;
}

// --- Drawing ---

const TEXT = { font: "system-ui, sans-serif", fontSize: 11, fill: "var(--ink)" };
const CONFIG = {
  background: null,
  axis: { domainColor: "var(--line)", gridColor: "var(--line)", gridOpacity: 0.6, labelColor: "var(--ink)", tickColor: "var(--line)", titleColor: "var(--soft)", labelFont: TEXT.font, titleFont: TEXT.font, titleFontWeight: "normal" },
};

function tip(text, x, y) {
  const box = $("tip");
  box.hidden = !text;
  if (!text) return;
  box.textContent = text;
  box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.offsetWidth - 6))}px`;
  box.style.top = `${y + 16 + box.offsetHeight > innerHeight ? y - box.offsetHeight - 8 : y + 16}px`;
}

// Draw a Vega specification in place; marks with `tip` in their datum show it, marks with `act` do it when clicked.
async function draw(id, spec, description) {
  const place = $(id);
  if (views[id]) views[id].finalize();
  const result = await vegaEmbed(place, { autosize: "none", padding: 0, description, config: CONFIG, ...spec }, {
    mode: "vega", ast: true, renderer: "svg", actions: false, defaultStyle: false,
    tooltip: (_, event, item) => event && tip(item && item.datum && item.datum.tip, event.clientX, event.clientY),
  });
  views[id] = result;
  result.view.addEventListener("click", (_, item) => item && item.datum && act(item.datum));
  return result.view;
}

// What is being drawn, so that others can wait for it.
const pending = new Set();

function drawn(promise) {
  const one = promise.catch((error) => console.error(error)).finally(() => pending.delete(one));
  pending.add(one);
}

function act(datum) {
  tip("");
  if (datum.path) explain(datum.path);
  else if (datum.wire) showWire(datum.wire, datum.way);
  else if (datum.vertex) showVertex(datum.vertex, datum.node);
  else if (datum.device != null) showDevice(datum.device, datum.node);
  else if (datum.tried != null) showTried(state.data.layouts[datum.tried]);
}

const widthOf = (id) => Math.max(300, Math.floor($(id).clientWidth));

// --- All of it ---

function render() {
  const parts = [drawPicture, drawTimes, drawKeys, drawFigures];
  for (const one of parts) one();
}

function control() {
  const { data } = state;
  $("steps").replaceChildren(...data.steps.map((step) => make("label", {},
    make("input", { type: "radio", name: "step", value: step, checked: step === state.step, onchange: () => { state.step = step; change(); } }), ` ${step}`)));
  const slider = $("batch");
  slider.max = data.batches.length - 1;
  slider.value = state.batch;
  slider.oninput = () => { state.batch = Number(slider.value); change(); };
  for (const box of document.querySelectorAll("input[name=colour]"))
    box.onchange = () => { state.colour = box.value; drawPicture(); };
  change(false);
}

function change(again = true) {
  const { data } = state;
  $("batch").disabled = !slides();
  const words = state.step === "prefill" ? "one prompt chunk" : state.step === "handoff" ? "one request" : !slides() ? "as in the file" : `${count(batchOf())} requests${state.batch === data.plan ? " (the plan's)" : ""}`;
  $("batch-words").textContent = words;
  $("batch").setAttribute("aria-valuetext", words);
  if (again) render();
}

// Cards of a step's time. With several stages the parts are those of the busiest one, and add up to its turn.
function ofStages(step) {
  const found = at(state.data.times);
  const several = found && found.stages.reduce((sum, one) => sum + one.stages.length, 0) > 1;
  const parts = [["compute", "compute_s"], ["links, exposed", "comm_s"], ["host", "host_s"]];
  const whole = several ? [[`${step} step, all stages`, "step_s"], ["a stage's turn", "stage_s"]] : [[`${step} step`, "step_s"]];
  return [...whole, ...parts.map(([name, path]) => [several ? `${name}, a stage` : name, path])].map(([name, path]) => [name, `${step}.${path}`]);
}

function drawKeys() {
  const { step } = state;
  const rows = step === "handoff" ? state.data.figures.filter((one) => one.path.startsWith("handoff.")).map((one) => [one.path.slice(8).replaceAll("_", " "), one.path]).slice(0, 12) : [["TPOT", "tpot_s"], ["TTFT", "ttft_s"], ["requests/s, all", "deployment_rate_per_s"],
    ...ofStages(step), ["sent a rank", `${step}.sent_bytes`]];
  $("key").replaceChildren(...rows.filter(([, path]) => figure(path)).map(([name, path]) => make("li", {}, make("span", {}, name), fig(path))));
}

function drawFigures() {
  if (!$("figures-box").open) return;
  const wanted = $("find").value.trim().toLowerCase();
  const rows = state.data.figures.filter((one) => one.path.toLowerCase().includes(wanted) && figure(one.path));
  $("figures").replaceChildren(table(`${rows.length} of ${state.data.figures.length} figures, at ${$("batch-words").textContent}`,
    ["figure", ">value"], rows.map((one) => [make("span", {}, one.path), fig(one.path)])));
}

function load(data) {
  state.data = data;
  state.figures = new Map(data.figures.map((one) => [one.path, one]));
  state.batch = data.plan;
  if (!data.steps.includes(state.step)) state.step = "decode";
  $("title").textContent = document.title = data.title;
  $("calibration").textContent = data.calibration;
  $("lead").replaceChildren(...data.lead.flatMap(([label, words]) => [make("dt", {}, label), make("dd", {}, words)]));
  $("notes").replaceChildren(...data.notes.map((text) => make("p", { class: "differs" }, text)));
  $("used").replaceChildren(...data.used.map((text) => make("p", { class: "soft" }, `Beside the plan: ${text}`)));
  control();
  render();
  drawMemory();
  drawLayouts();
  drawFaults();
  drawObserved();
}

// The data is packed JSON: it is half of the file otherwise.
async function unpacked(text) {
  const packed = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

async function start() {
  $("panel-close").onclick = () => $("panel").close();
  $("panel").onclick = (event) => { if (event.target === $("panel")) $("panel").close(); };
  $("find").oninput = drawFigures;
  $("figures-box").ontoggle = drawFigures;
  // On paper nothing can be unfolded.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("main details:not([open])")];
    for (const one of folded) one.open = true;
    drawFigures();
  });
  addEventListener("afterprint", () => { for (const one of folded) one.open = false; });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    drawPicture(); drawTimes(); drawMemory(); drawLayouts(); drawObserved();
  });
  load(await unpacked($("data").textContent));
  Promise.all(pending).then(() => { document.documentElement.dataset.ready = "yes"; });
}
