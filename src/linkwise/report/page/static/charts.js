// Memory, the step as a timeline, layouts, a trace against the plan, findings.

// A tick's words, in units of time.
const TIMES = "datum.value >= 1 ? format(datum.value, '~g') + ' s' : datum.value >= 1e-3 ? format(datum.value * 1e3, '~g') + ' ms' : format(datum.value * 1e6, '~g') + ' us'";
const COLD = 10, WARM = 9; // colours --c0 to --c9 and --o0 to --o8

// A colour for a name: by the order in which names first appear.
const palette = (names, prefix, many) => new Map([...new Set(names)].map((name, i) => [name, `var(--${prefix}${i % many})`]));

function blocks(id, rows, height, width, left, axis, description, extra = []) {
  for (const one of rows) one.w = Math.max(0, one.x2 - one.x);
  const labels = new Map(rows.map((one) => [one.row, one.label]));
  return draw(id, {
    width, height, padding: { left: 0, right: 0, top: 0, bottom: 38 },
    data: [{ name: "blocks", values: rows }, { name: "rows", values: [...labels].map(([row, label]) => ({ row, label, y: rows.find((one) => one.row === row).y + 12 })) }],
    scales: [{ name: "x", type: "linear", domain: axis.domain, range: [left, width - 12] }],
    axes: [{ orient: "bottom", scale: "x", title: axis.title, labelFlush: true, tickCount: Math.max(2, Math.floor(width / 120)), format: axis.format }],
    marks: [
      { type: "rect", from: { data: "blocks" }, encode: { update: { x: { scale: "x", field: "x" }, x2: { scale: "x", field: "x2" }, y: { field: "y" }, height: { field: "h" },
        fill: { field: "colour" }, stroke: { field: "edge" }, strokeWidth: { value: 0.6 }, tooltip: { field: "tip" }, cursor: { value: "pointer" } } } },
      { type: "text", from: { data: "rows" }, encode: { update: { ...fixed(TEXT), x: { value: left - 6 }, y: { field: "y" }, text: { field: "label" }, align: { value: "right" }, baseline: { value: "middle" }, limit: { value: left - 8 } } } },
      ...extra,
    ],
  }, description);
}

function drawMemory() {
  const { memory } = state.data;
  const width = widthOf("memory"), left = width < 560 ? 70 : 150;
  const names = memory.flatMap((rank) => rank.states.filter((one) => one.path !== "" || !one.name.startsWith("left")).map((one) => one.name)).filter((name) => name !== "left for KV");
  const weights = palette(names.filter((name) => name.startsWith("weights")), "c", COLD);
  const others = palette(names.filter((name) => !name.startsWith("weights")), "o", WARM);
  const colour = (name) => weights.get(name) || others.get(name) || "var(--h0)";
  const rows = [], budgets = [];
  memory.forEach((rank, i) => {
    let x = 0;
    const y = 6 + i * 34;
    for (const one of rank.states) {
      const gb = one.bytes / 1e9;
      rows.push({ row: i, label: width < 560 ? rank.ranks.replace(/^ranks? /, "") : rank.ranks, y, h: 24, x, x2: x + gb, colour: colour(one.name), edge: "var(--page)", path: one.path || undefined,
        tip: `${one.name}: ${bytes(one.bytes)}${one.in_budget ? "" : ", outside the budget"}\n${one.note}` });
      x += gb;
    }
    budgets.push({ x: rank.budget_bytes / 1e9, y: y - 4, y2: y + 28, tip: `budget ${bytes(rank.budget_bytes)}` });
  });
  const most = Math.max(...memory.map((rank) => Math.max(rank.device_bytes, rank.states.reduce((sum, one) => sum + one.bytes, 0)))) / 1e9;
  const line = { type: "rule", from: { data: "budget" }, encode: { update: { x: { scale: "x", field: "x" }, y: { field: "y" }, y2: { field: "y2" }, stroke: { value: "var(--ink)" }, strokeWidth: { value: 2 }, strokeDash: { value: [4, 2] }, tooltip: { field: "tip" } } } };
  drawn(blocks("memory", rows, memory.length * 34 + 8, width, left, { domain: [0, most], title: "GB of device memory; dashed: the engine's budget", format: ",~f" },
    "Device memory of each rank class by state; the table below says the same.", [{ type: "group", data: [{ name: "budget", values: budgets }], marks: [line] }]));
  $("memory-keys").replaceChildren(legend([...names.filter((name, i) => names.indexOf(name) === i).map((name) => [colour(name), name.replaceAll("_", " ")]), ["var(--h0)", "left for KV"]]));
  paint($("memory-keys"));
  const states = [...new Set(memory.flatMap((rank) => rank.states.map((one) => one.name)))];
  const cell = (rank, name) => {
    const one = rank.states.find((state) => state.name === name);
    return one ? (one.path ? figIf(one.path, one.bytes, bytes(one.bytes)) : bytes(one.bytes)) : "-";
  };
  const notes = (name) => [...new Set(memory.flatMap((rank) => rank.states.filter((one) => one.name === name).map((one) => one.note)))].join("; ");
  $("memory-table").replaceChildren(table("bytes of one rank of each class", ["state", ...memory.map((rank) => `>${rank.ranks}`), ""],
    [...states.map((name) => [name, ...memory.map((rank) => cell(rank, name)), notes(name)]), ["budget", ...memory.map((rank) => bytes(rank.budget_bytes)), ""], ["device", ...memory.map((rank) => bytes(rank.device_bytes)), ""]]));
}

function drawTimes() {
  const found = at(state.data.times);
  $("times-box").hidden = !found;
  if (!found) return;
  const width = widthOf("times"), left = width < 560 ? 58 : 92;
  const stages = found.stages.flatMap((one) => one.stages.map((stage) => ({ ...one, stage }))).sort((a, b) => a.stage - b.stage);
  const parts = palette(state.data.times.flatMap((one) => one.stages.flatMap((stage) => Object.keys(stage.parts))), "c", COLD);
  const ops = palette(state.data.times.flatMap((one) => one.stages.flatMap((stage) => stage.ops.map((op) => op.role))), "o", WARM);
  const rows = [], path = [];
  const [scale, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "us"]].find(([least]) => found.token_s >= least) || [1e-9, "ns"];
  let begin = 0;
  for (const stage of stages) {
    const y = 6 + rows.length * 0 + stage.stage * 34;
    const label = stages.length > 1 ? `stage ${stage.stage}` : "all ranks";
    // Other batches in flight pass the same stage one after the other.
    for (let turn = 1; turn < found.in_flight; turn++) {
      const x = begin + turn * found.interval_s;
      if (x < found.token_s) rows.push({ row: stage.stage, label, y: y + 4, h: 16, x, x2: Math.min(x + stage.step_s, found.token_s), colour: "var(--box2)", edge: "var(--line)", tip: `batch ${turn + 1} in flight on stage ${stage.stage}` });
    }
    let x = begin;
    const add = (seconds, colour, tip, figurePath, value) => {
      if (!(seconds > 0)) return;
      rows.push({ row: stage.stage, label, y, h: 24, x, x2: x + seconds, colour, edge: "var(--page)", tip, path: figure(figurePath) && Math.abs(pick(figure(figurePath).values) - value) <= 1e-9 * value ? figurePath : undefined });
      x += seconds;
    };
    for (const [name, seconds] of Object.entries(stage.parts)) add(seconds, parts.get(name), `${name}: ${time(seconds)} of computing`, `${found.step}.${name}.read_s`, seconds);
    for (const op of stage.ops) {
      add(op.exposed_s, ops.get(op.role), `${op.role}, ${op.kind}: ${count(op.calls)} calls of ${bytes(op.S_bytes)}, ${time(op.exposed_s)} exposed`, `${found.step}.${op.role}.time_s`, op.calls * op.call_s);
    }
    add(stage.host_s, "var(--host)", `host: ${time(stage.host_s)}`, `${found.step}.host_s`, stage.host_s);
    path.push({ x: begin, x2: begin + stage.step_s, y: y + 27, y2: y + 27 });
    if (stage.stage + 1 < stages.length) path.push({ x: begin + stage.step_s, x2: begin + stage.step_s, y: y + 27, y2: y + 61 });
    begin += stage.step_s;
  }
  const critical = { type: "group", data: [{ name: "path", values: path }], marks: [{ type: "rule", from: { data: "path" }, encode: { update: { x: { scale: "x", field: "x" }, x2: { scale: "x", field: "x2" }, y: { field: "y" }, y2: { field: "y2" }, stroke: { value: "var(--bad)" }, strokeWidth: { value: 2.5 } } } }] };
  for (const one of [...rows, ...path]) for (const side of ["x", "x2"]) one[side] /= scale;
  drawn(blocks("times", rows, stages.length * 34 + 10, width, left, { domain: [0, found.token_s / scale], title: `${unit} from the step's start`, format: ",~f" },
    `Timeline of one ${found.step} step; the table below says the same.`, [critical]));
  $("times-keys").replaceChildren(legend([...[...parts].filter(([name]) => stages.some((one) => one.parts[name])).map(([name, colour]) => [colour, name]),
    ...[...ops].filter(([role]) => stages.some((one) => one.ops.some((op) => op.role === role))).map(([role, colour]) => [colour, `${role} (link)`]), ["var(--host)", "host"], ["var(--bad)", "critical path (line)"]]));
  paint($("times-keys"));
  const step = found.step;
  const total = make("span", {}, "The step takes ", fig(`${step}.step_s`), stages.length > 1 ? make("span", {}, "; a stage's turn takes ", fig(`${step}.stage_s`)) : "",
    ": compute ", fig(`${step}.compute_s`), ", exposed links ", fig(`${step}.comm_s`), ", host ", fig(`${step}.host_s`), stages.length > 1 ? " in the busiest stage." : ".");
  $("times-words").replaceChildren(total);
  const opRows = found.stages.flatMap((stage) => stage.ops.map((op) => [op.role, op.kind, `${op.group} ${op.size}`, numbers(stage.stages), op.algorithm, figIf(`${step}.${op.role}.calls`, op.calls, count(op.calls)),
    figIf(`${step}.${op.role}.S_bytes`, op.S_bytes, bytes(op.S_bytes)), time(op.call_s), figIf(`${step}.${op.role}.time_s`, op.calls * op.call_s, time(op.calls * op.call_s)), time(op.exposed_s)]));
  const partRows = found.stages.flatMap((stage) => Object.entries(stage.parts).map(([name, seconds]) => [numbers(stage.stages), name, figIf(`${step}.${name}.read_s`, seconds, time(seconds))]));
  $("times-table").replaceChildren(table("computing, by part", ["stage", "part", ">time"], partRows),
    table("communication: the price of the calls, and what they add to the step", ["op", "kind", "group", "stage", "algorithm", ">calls", ">S", ">a call", ">all calls", ">exposed"], opRows));
}

const VERDICT = { chosen: "var(--accent)", "runner-up": "var(--o0)", feasible: "var(--c1)", rejected: "var(--rejected)" };

function drawLayouts() {
  const { layouts, layouts_left_out: left, targets } = state.data;
  const width = widthOf("layouts"), height = Math.min(420, Math.max(260, width * 0.5)), pad = 54;
  const points = [];
  const pale = layouts.filter((one) => one.points.length).length > 40 ? 0.22 : 0.65; // many curves: the chosen one stands out
  layouts.forEach((one, number) => one.points.forEach(([batch, user, device]) => {
    const row = { tried: number, layout: one.layout, batch, user, device, colour: VERDICT[one.verdict], big: one.verdict === "chosen" ? 2.4 : one.verdict === "runner-up" ? 1.8 : 1,
      size: one.verdict === "chosen" ? 70 : one.verdict === "rejected" ? 14 : 26, shape: one.verdict === "rejected" ? "cross" : "circle", faint: one.verdict === "chosen" || one.verdict === "runner-up" ? 1 : one.verdict === "rejected" ? Math.min(0.5, pale) : pale,
      tip: `${one.layout}: ${one.verdict}\nbatch ${count(batch)}: ${digits(user, 3)} tokens/s a user, ${digits(device, 3)} tokens/s a device${one.reason ? `\n${one.reason}` : ""}` };
    points.push(row);
  }));
  const planned = points.filter((one) => one.big === 2.4 && one.batch === state.data.batches[state.data.plan]).map((one) => ({ ...one, tip: `the plan\n${one.tip}` }));
  points.sort((a, b) => a.faint - b.faint || a.tried - b.tried || a.batch - b.batch);
  const none = layouts.map((one, number) => [one, number]).filter(([one]) => !one.points.length);
  const many = Math.max(1, Math.floor((width - pad - 12) / 9));
  const cannot = none.map(([one, number], i) => ({ tried: number, x: pad + 4 + (i % many) * 9, y: height + 62 + Math.floor(i / many) * 10, tip: `${one.layout}: ${one.resource}\n${one.reason}` }));
  const target = (targets.find(([name]) => name === "tpot_s") || [])[1];
  const rule = target ? [{ x: 1 / target, tip: `TPOT at most ${time(target)}: ${digits(1 / target, 3)} tokens/s a user at least` }] : [];
  const positive = (key) => { const all = points.map((one) => one[key]).filter((value) => value > 0); return all.length ? [Math.min(...all) * 0.9, Math.max(...all) * 1.12] : [0.1, 10]; };
  const place = { x: { scale: "x", field: "user" }, y: { scale: "y", field: "device" } };
  drawn(draw("layouts", {
    width, height, padding: { left: 0, right: 0, top: 0, bottom: 70 + Math.ceil(cannot.length / many) * 10 },
    data: [{ name: "points", values: points }, { name: "cannot", values: cannot }, { name: "target", values: rule }, { name: "planned", values: planned }],
    scales: [{ name: "x", type: "log", domain: positive("user"), range: [pad, width - 12], nice: false }, { name: "y", type: "log", domain: positive("device"), range: [height, 10], nice: false }],
    axes: [{ orient: "bottom", scale: "x", title: "interactivity: tokens/s a user", grid: true, tickCount: width < 560 ? 4 : 8, format: "~g", labelOverlap: true, labelFlush: true },
      { orient: "left", scale: "y", title: "throughput: output tokens/s a device", offset: -pad, tickCount: 6, format: ",~g", labelOverlap: true }],
    marks: [
      { type: "rule", from: { data: "target" }, encode: { update: { x: { scale: "x", field: "x" }, y: { value: 10 }, y2: { value: height }, stroke: { value: "var(--ink)" }, strokeDash: { value: [5, 4] }, tooltip: { field: "tip" } } } },
      { type: "group", from: { facet: { name: "one", data: "points", groupby: "tried" } }, marks: [{ type: "line", from: { data: "one" }, interactive: false, encode: { update: { ...place, stroke: { field: "colour" }, strokeWidth: { field: "big" }, strokeOpacity: { field: "faint" } } } }] },
      { type: "symbol", from: { data: "points" }, encode: { update: { ...place, fill: { field: "colour" }, size: { field: "size" }, shape: { field: "shape" }, fillOpacity: { field: "faint" }, tooltip: { field: "tip" }, cursor: { value: "pointer" } } } },
      { type: "symbol", from: { data: "planned" }, encode: { update: { ...place, fill: { value: "transparent" }, stroke: { value: "var(--ink)" }, strokeWidth: { value: 2 }, size: { value: 260 }, tooltip: { field: "tip" }, cursor: { value: "pointer" } } } },
      { type: "symbol", from: { data: "cannot" }, encode: { update: { x: { field: "x" }, y: { field: "y" }, size: { value: 30 }, shape: { value: "cross" }, fill: { value: "var(--rejected)" }, fillOpacity: { value: 0.7 }, tooltip: { field: "tip" }, cursor: { value: "pointer" } } } },
      { type: "text", encode: { update: { ...fixed(TEXT), x: { value: pad }, y: { value: height + 50 }, fill: { value: "var(--soft)" }, text: { value: cannot.length ? `${count(cannot.length)} layouts that cannot run here, each with its reason` : "" } } } },
    ],
  }, "Layouts by throughput and interactivity; the table below says the same."));
  $("layouts-keys").replaceChildren(legend(Object.entries(VERDICT).filter(([name]) => layouts.some((one) => one.verdict === name)).map(([name, colour]) => [colour, name === "chosen" ? "chosen (ring: the plan)" : name])));
  paint($("layouts-keys"));
  const best = (one) => one.points[one.points.length - 1];
  $("layouts-table").replaceChildren(table(`${count(layouts.length)} layouts${left ? `; ${count(left)} more are left out: illegal ones, and those far from the best` : ""}`,
    ["layout", ">devices", "", ">largest batch", ">tokens/s a user", ">tokens/s a device", "reason"],
    layouts.map((one, i) => [make("button", { class: "fig", type: "button", onclick: () => showTried(one) }, one.layout), one.devices, one.verdict + (one.resource ? `: ${one.resource}` : ""),
      ...(best(one) ? [count(best(one)[0]), digits(best(one)[1], 3), digits(best(one)[2], 3)] : ["-", "-", "-"]), one.reason])));
}

function showTried(one) {
  open(one.layout, make("p", {}, `${one.verdict}${one.reason ? `: ${one.reason}` : ""}`),
    one.points.length ? table("at each batch", [">batch", ">tokens/s a user", ">tokens/s a device"], one.points.map(([batch, user, device]) => [count(batch), digits(user, 4), digits(device, 4)])) : null,
    one.verdict === "chosen" ? make("p", {}, "The plan's own figures: TPOT ", fig("tpot_s"), ", TTFT ", fig("ttft_s"), ", requests/s a replica ", fig("rate_per_s"), ".") : null);
}

// --- Findings ---

function faultOf({ device, link, node }) {
  return state.data.faults.find((one) => (device != null && one.devices.includes(device)) || (link && one.links.includes(link)) || (node != null && one.nodes.includes(node)));
}

const faultWords = (fault) => (fault ? `\n✖ ${fault.summary}` : "");

function drawFaults() {
  const { faults } = state.data;
  $("faults-box").hidden = !faults.length;
  $("faults").replaceChildren(...faults.map((one) => make("div", { class: one.decided ? "fault" : "fault open" },
    make("h3", {}, `${one.decided ? "✖" : "?"} ${one.summary}`),
    make("p", { class: "soft" }, `${one.title}, ${one.decided ? `${Math.round(one.confidence * 100)} % sure` : "not decided"}; original fault: ${one.where}${one.first_reporter ? `; first reporter: ${one.first_reporter}` : ""}`),
    one.devices.length || one.links.length || one.nodes.length ? null : make("p", { class: "soft" }, "Its place is none of this plan's devices or links, so nothing is marked."),
    make("ul", {}, one.evidence.map((line) => make("li", {}, line))), one.next && make("p", {}, `next: ${one.next}`))));
}

// --- A trace against the plan ---

function drawObserved() {
  const found = state.data.observed;
  $("observed-box").hidden = !found;
  if (!found) return;
  const timed = found.ops.filter((one) => one.planned_s && one.observed_s);
  $("observed").hidden = !timed.length;
  if (timed.length) {
    const width = widthOf("observed"), left = width < 560 ? 92 : 160, height = timed.length * 26;
    const values = timed.map((one, i) => ({ y: 14 + i * 26, label: one.role || one.kind, a: one.planned_s, b: one.observed_s, tip: `${one.role} ${one.kind}\nplanned ${time(one.planned_s)}, observed ${time(one.observed_s)} a call` }));
    const all = values.flatMap((one) => [one.a, one.b]);
    const dot = (field, colour, shape) => ({ type: "symbol", from: { data: "ops" }, encode: { update: { x: { scale: "x", field }, y: { field: "y" }, shape: { value: shape }, size: { value: 80 }, fill: { value: colour }, tooltip: { field: "tip" } } } });
    drawn(draw("observed", {
      width, height, padding: { left: 0, right: 0, top: 0, bottom: 40 }, data: [{ name: "ops", values }],
      scales: [{ name: "x", type: "log", domain: [Math.min(...all) * 0.7, Math.max(...all) * 1.4], range: [left, width - 14] }],
      axes: [{ orient: "bottom", scale: "x", title: "time of one call", encode: { labels: { update: { text: { signal: TIMES } } } }, grid: true, labelOverlap: true, tickCount: 5 }],
      marks: [
        { type: "rule", from: { data: "ops" }, encode: { update: { x: { scale: "x", field: "a" }, x2: { scale: "x", field: "b" }, y: { field: "y" }, stroke: { value: "var(--line)" }, strokeWidth: { value: 2 } } } },
        dot("a", "var(--accent)", "diamond"), dot("b", "var(--o1)", "circle"),
        { type: "text", from: { data: "ops" }, encode: { update: { ...fixed(TEXT), x: { value: left - 8 }, y: { field: "y" }, text: { field: "label" }, align: { value: "right" }, baseline: { value: "middle" }, limit: { value: left - 10 } } } },
      ],
    }, "Time of one call of each op, planned and observed; the table below says the same."));
    $("observed-keys").replaceChildren(legend([["var(--accent)", "planned (diamond)"], ["var(--o1)", "observed, median (circle)"]]));
    paint($("observed-keys"));
  }
  const unknown = (value, show) => (value == null ? "-" : show(value));
  const against = (plan, seen, show) => (plan != null && plan !== seen ? make("span", { class: "differs" }, show(seen)) : show(seen));
  $("observed-table").replaceChildren(
    table(`${count(found.ranks)} ranks, at most ${count(found.steps)} steps each; a message counts where it is sent`, ["op", "kind", ">calls planned", ">observed", ">bytes planned", ">observed", ">a call planned", ">observed"],
      found.ops.map((one) => [one.role || "(no role)", one.kind, unknown(one.planned_calls, count), against(one.planned_calls, one.observed_calls, count), unknown(one.planned_bytes, bytes),
        against(one.planned_bytes, one.observed_bytes, bytes), unknown(one.planned_s, time), unknown(one.observed_s, time)])),
    found.links.length ? table("bytes on links, by what counted them", ["counter", "links", ">planned", ">observed", ">observed / planned"], found.links.map((one) => [one.counter, one.links, bytes(one.planned_bytes), bytes(one.observed_bytes), one.planned_bytes ? digits(one.observed_bytes / one.planned_bytes, 3) : "-"]))
      : make("p", { class: "soft" }, "No counters of links are in this evidence."),
    ...found.notes.map((text) => make("p", { class: "soft" }, text)));
}

addEventListener("DOMContentLoaded", () => {
  $("picture").addEventListener("keydown", pictureKeys);
  $("picture").addEventListener("blur", () => tip(""));
  start().catch((error) => {
    console.error(error);
    $("notes").append(make("p", { class: "differs" }, `This browser cannot show the page: ${error.message}`));
  });
});
