// Ranks, devices, switches, NICs and links in one picture.

const ROW = 46, BAR = 17, SEAT = 36, SLOT = 7, ACROSS = 8; // heights; devices beside each other
const HEAT = 6;

const currentLoad = () => at(state.data.picture.loads) || null;

// What a wire carries each way: bytes, and the share of time its busiest link is busy.
function carriedBy(load, places) {
  const { links } = state.data.picture;
  let sum = 0, busy = 0;
  const found = [];
  for (const place of places) {
    const index = load ? load.of[place] : -1;
    if (index < 0) continue;
    const carried = load.carried[index];
    sum += carried.bytes;
    busy = Math.max(busy, carried.busy_s);
    found.push([links[place], carried]);
  }
  return { bytes: sum, busy_s: busy, links: found };
}

// Heat of a value against the largest: steps of a third each, since bytes of links lie decades apart.
function heat(value, most) {
  if (!value || !most) return "var(--none)";
  const step = HEAT - 1 + Math.floor(Math.log(Math.min(1, value / most) * 1.0000001) / Math.log(3));
  return `var(--h${Math.max(0, Math.min(HEAT - 1, step))})`;
}

function scaleOf(load) {
  let most = 0;
  if (load) for (const wire of allWires()) for (const way of ["out", "back"]) most = Math.max(most, measure(carriedBy(load, wire[way])));
  return most;
}

const measure = (carried) => (state.colour === "bytes" ? carried.bytes : carried.busy_s);
const allWires = () => [...state.data.picture.nodes.flatMap((node) => node.wires), ...state.data.picture.core];
const rankWord = (device) => {
  const [replica, rank] = state.data.picture.ranks[device];
  return rank < 0 ? "" : state.several ? `${replica}:${rank}` : `${rank}`;
};

function numbers(list) {
  const parts = [];
  for (const n of list) {
    const last = parts[parts.length - 1];
    if (last && n === last[1] + 1) last[1] = n;
    else parts.push([n, n]);
  }
  return parts.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(", ");
}

const nodeTitle = (node) => (node.nodes.length > 1 ? `nodes ${numbers(node.nodes)} alike; node ${node.nodes[0]} drawn` : `node ${node.nodes[0]}`);

// Marks with their places. Shelves: rows of at most ACROSS devices with all they are linked to.
function layout(width) {
  const picture = state.data.picture;
  const across = Math.min(ACROSS, picture.devices_per_node);
  const pitch = Math.max(34, Math.min(112, Math.floor((width - 24) / across)));
  const boxWidth = across * pitch + 16;
  const columns = Math.max(1, Math.floor((width + 12) / (boxWidth + 12)));
  const out = { boxes: [], bars: [], seats: [], lines: [], words: [], height: 0 };
  let y = 0, tallest = 0;
  picture.nodes.forEach((node, number) => {
    const column = number % columns;
    if (column === 0 && number) { y += tallest + 12; tallest = 0; }
    tallest = Math.max(tallest, box(out, node, number, column * (boxWidth + 12), y, boxWidth, pitch, across));
  });
  out.height = y + tallest;
  if (picture.core.length) network(out, width);
  out.width = width;
  return out;
}

function box(out, node, number, left, top, boxWidth, pitch, across) {
  let y = top + 22;
  for (let first = 0; first < node.devices.length; first += across)
    y = shelf(out, node, number, node.devices.slice(first, first + across), left + 8, y, pitch) + 10;
  out.boxes.push({ x: left, y: top, w: boxWidth, h: y - top, tip: nodeTitle(node), fault: faultOf({ node: node.nodes[0] }) });
  out.words.push({ x: left + 8, y: top + 14, text: nodeTitle(node), limit: boxWidth - 16, align: "left" });
  return y - top;
}

function shelf(out, node, number, devices, left, top, pitch) {
  const mid = new Map(devices.map((device, i) => [`d${device}`, left + pitch * (i + 0.5)]));
  const owner = (vertex) => (mid.has(vertex) ? vertex : slotOwner.get(vertex));
  const slotOwner = new Map();
  for (const wire of node.wires) if (wire.kind === "slot" && mid.has(wire.a)) slotOwner.set(wire.b, wire.a);
  const mine = node.wires.filter((wire) => owner(wire.a) !== undefined || owner(wire.b) !== undefined);
  const users = (kind) => {
    const found = new Map();
    for (const wire of mine) {
      if (wire.kind !== kind) continue;
      const far = owner(wire.a) !== undefined ? wire.b : wire.a;
      if (!found.has(far)) found.set(far, []);
      found.get(far).push(wire);
    }
    return found;
  };
  const rows = ["host", "peers", "island"].map((kind) => [kind, users(kind)]).filter(([, found]) => found.size);
  const seatTop = top + rows.length * (BAR + ROW);
  rows.forEach(([kind, found], row) => {
    const y = top + row * (BAR + ROW);
    // Lines of an upper row pass beside those of the lower ones.
    const aside = rows.length > 1 ? (row / (rows.length - 1) - 0.5) * pitch * 0.5 : 0;
    for (const [vertex, wires] of found) {
      const xs = wires.map((wire) => mid.get(owner(wire.a) || owner(wire.b)));
      wires.forEach((wire, i) => line(out, wire, xs[i] + aside, seatTop, y + BAR));
      bar(out, vertex, number, Math.min(...xs) - pitch * 0.46, y, Math.max(...xs) - Math.min(...xs) + pitch * 0.92, BAR, vertex === "peers" ? "direct links" : vertex);
    }
  });
  let y = seatTop + SEAT;
  devices.forEach((device) => seat(out, device, number, mid.get(`d${device}`), seatTop, pitch));
  const slots = [...slotOwner];
  if (slots.length) {
    for (const [vertex, device] of slots) bar(out, vertex, number, mid.get(device) - pitch * 0.4, y + 3, pitch * 0.8, SLOT, "");
    for (const wire of mine) if (wire.kind === "slot") line(out, wire, mid.get(wire.a), seatTop + SEAT - 3, y + 5);
    y += SLOT + 3;
  }
  const nics = users("nic");
  if (nics.size) {
    const shared = new Map();
    const place = [...nics].map(([vertex, wires]) => {
      const xs = wires.map((wire) => mid.get(owner(wire.a) || owner(wire.b)));
      return { vertex, wires, xs, x: xs.reduce((a, b) => a + b, 0) / xs.length };
    });
    // NICs of the same devices stand side by side.
    for (const one of place) shared.set(one.x, (shared.get(one.x) || 0) + 1);
    const used = new Map();
    for (const one of place) {
      const many = shared.get(one.x), nth = used.get(one.x) || 0;
      used.set(one.x, nth + 1);
      const wide = (Math.max(...one.xs) - Math.min(...one.xs) + pitch * 0.92) / many;
      const x = one.x + (nth - (many - 1) / 2) * wide;
      one.wires.forEach((wire, i) => line(out, wire, many > 1 ? x : one.xs[i], y, y + ROW));
      bar(out, one.vertex, number, x - wide / 2 + 1, y + ROW, wide - 2, BAR, wide > 34 ? one.vertex.split(".").pop() : "");
      for (const wire of node.wires) {
        if (wire.kind !== "switch" || wire.a !== one.vertex) continue;
        line(out, wire, x, y + ROW + BAR, y + ROW + BAR + 30);
        if (wide > 30) out.words.push({ x, y: y + ROW + BAR + 42, text: wire.b, limit: wide, align: "center" });
      }
    }
    y += ROW + BAR + 46;
  }
  const between = node.wires.filter((wire) => wire.kind === "sockets");
  between.forEach((wire, i) => {
    sideways(out, wire, left + 4 + i * 130, y + 12, 46);
    out.words.push({ x: left + 56 + i * 130, y: y + 16, text: `${wire.a.split(".").pop()} - ${wire.b.split(".").pop()}`, limit: 80, align: "left" });
  });
  return y + (between.length ? 24 : 0);
}

function seat(out, device, number, x, y, pitch) {
  const word = rankWord(device);
  const sent = sentBy(`d${device}`);
  out.seats.push({
    x: x - pitch * 0.44, y, w: pitch * 0.88, h: SEAT, device, node: number, fault: faultOf({ device }), colour: word ? "var(--box2)" : "var(--page)",
    heat: heat(measure(sent), state.most), text: word ? (pitch > 60 ? `rank ${word}` : word) : pitch > 44 ? "free" : "",
    more: pitch > 44 && sent.bytes ? bytes(sent.bytes) : `d${device}`,
    tip: `${word ? `rank ${word}` : "no rank"} on d${device}\nsends ${bytes(sent.bytes)} a step${faultWords(faultOf({ device }))}`,
  });
}

// What a device puts on its links; a slot is a part of the way on.
function sentBy(device) {
  const load = currentLoad();
  let sum = 0, busy = 0;
  for (const node of state.data.picture.nodes) for (const wire of node.wires) {
    if (wire.a !== device && wire.b !== device) continue;
    const out = carriedBy(load, wire.a === device ? wire.out : wire.back);
    const back = carriedBy(load, wire.a === device ? wire.back : wire.out);
    sum += out.bytes;
    busy = Math.max(busy, out.busy_s, back.busy_s);
  }
  return { bytes: sum, busy_s: busy };
}

function bar(out, vertex, number, x, y, w, h, text) {
  out.bars.push({ x, y, w, h, text, vertex, node: number, tip: `${vertex === "peers" ? "direct links between devices" : vertex}` });
}

const sideways = (out, wire, x, y, length) => pair(out, wire, (shift) => ({ x, x2: x + length, y: y + shift, y2: y + shift }));
const line = (out, wire, x, near, far) => pair(out, wire, (shift) => ({ x: x + shift, x2: x + shift, y: near, y2: far }));

// Two lines: what goes out (the left one) and what comes back.
function pair(out, wire, place) {
  const load = currentLoad();
  for (const [way, shift] of [["out", -3.5], ["back", 3.5]]) {
    const carried = carriedBy(load, wire[way]);
    const share = load && load.over_s ? carried.busy_s / load.over_s : 0;
    const value = measure(carried);
    const fault = wire[way].map((index) => faultOf({ link: state.data.picture.links[index].name })).find(Boolean);
    out.lines.push({
      ...place(shift), wire, way, fault, value, colour: heat(value, state.most), thick: value ? 1.6 + 4 * Math.sqrt(value / state.most) : 1,
      tip: `${wayName(wire, way)}\n${bytes(carried.bytes)} a step, busy ${time(carried.busy_s)}, ${percent(share)} of the time${faultWords(fault)}`,
    });
  }
}

const wayName = (wire, way) => {
  const names = wire[way].map((index) => state.data.picture.links[index].name);
  return names.length === 1 ? names[0] : way === "out" ? `${wire.a} to its ${names.length} peers` : `${names.length} peers to ${wire.a}`;
};

// Switches into the core: one line of bars.
function network(out, width) {
  const { core } = state.data.picture;
  const shownCore = core.slice(0, 64);
  const wide = Math.max(26, Math.min(112, Math.floor((width - 16) / Math.min(shownCore.length, 16))));
  const rowLength = Math.max(1, Math.floor((width - 16) / wide));
  const top = out.height + 14;
  let y = top + 22;
  shownCore.forEach((wire, i) => {
    const x = 8 + (i % rowLength) * wide;
    if (i && i % rowLength === 0) y += BAR + ROW + 8;
    bar(out, wire.a, -1, x + 1, y, wide - 2, BAR, wide > 34 ? wire.a : "");
    line(out, wire, x + wide / 2, y + BAR, y + BAR + ROW - 8);
  });
  const used = Math.min(shownCore.length, rowLength) * wide;
  y += BAR + ROW - 8;
  bar(out, "core", -1, 8, y, used, BAR, "core");
  out.boxes.push({ x: 0, y: top, w: used + 16, h: y + BAR + 10 - top, tip: "switches of the network" });
  out.words.push({ x: 8, y: top + 14, text: core.length > shownCore.length ? `network: ${shownCore.length} of ${core.length} switches` : "network", limit: width, align: "left" });
  out.height = y + BAR + 10;
}

function drawPicture() {
  const load = currentLoad();
  state.several = state.data.picture.ranks.some(([replica]) => replica > 0);
  state.most = scaleOf(load);
  const out = layout(widthOf("picture"));
  state.order = [...out.seats, ...out.lines];
  const rect = (data, encode, extra) => ({ type: "rect", from: { data }, encode: { update: {
    x: { field: "x" }, y: { field: "y" }, width: { field: "w" }, height: { field: "h" }, tooltip: { field: "tip" }, cursor: { value: "pointer" }, ...encode } }, ...extra });
  const text = (data, encode) => ({ type: "text", from: { data }, interactive: false, encode: { update: { ...fixed(TEXT), ...encode } } });
  const middle = { x: { field: "cx" }, align: { value: "center" }, baseline: { value: "middle" } };
  for (const one of [...out.bars, ...out.seats]) one.cx = one.x + one.w / 2;
  const spec = {
    width: out.width, height: out.height,
    data: [
      { name: "boxes", values: out.boxes }, { name: "bars", values: out.bars }, { name: "seats", values: out.seats },
      { name: "lines", values: out.lines }, { name: "words", values: out.words },
      { name: "faults", values: [...out.seats, ...out.boxes].filter((one) => one.fault).map((one) => ({ x: one.x - 4, y: one.y - 4, w: one.w + 8, h: one.h + 8 })) },
      { name: "broken", values: out.lines.filter((one) => one.fault) },
    ],
    marks: [
      rect("boxes", { fill: { value: "var(--box)" }, stroke: { value: "var(--line)" }, cornerRadius: { value: 5 } }, { interactive: false }),
      text("words", { x: { field: "x" }, y: { field: "y" }, text: { field: "text" }, align: { field: "align" }, limit: { field: "limit" }, fill: { value: "var(--soft)" } }),
      { type: "rule", from: { data: "broken" }, encode: { update: { x: { field: "x" }, y: { field: "y" }, x2: { field: "x2" }, y2: { field: "y2" }, stroke: { value: "var(--fault)" }, strokeWidth: { value: 13 }, strokeOpacity: { value: 0.45 } } } },
      { type: "rule", from: { data: "lines" }, encode: { update: { x: { field: "x" }, y: { field: "y" }, x2: { field: "x2" }, y2: { field: "y2" },
        stroke: { field: "colour" }, strokeWidth: { field: "thick" }, tooltip: { field: "tip" }, cursor: { value: "pointer" } } } },
      rect("bars", { fill: { value: "var(--box2)" }, stroke: { value: "var(--line)" }, cornerRadius: { value: 3 } }),
      text("bars", { ...middle, y: { signal: "datum.y + datum.h / 2" }, text: { field: "text" }, limit: { field: "w" } }),
      rect("seats", { fill: { field: "colour" }, stroke: { field: "heat" }, strokeWidth: { value: 3 }, cornerRadius: { value: 4 } }),
      text("seats", { ...middle, y: { signal: "datum.y + 12" }, text: { field: "text" }, limit: { field: "w" } }),
      text("seats", { ...middle, y: { signal: "datum.y + 26" }, text: { field: "more" }, limit: { field: "w" }, fontSize: { value: 10 }, fill: { value: "var(--soft)" } }),
      rect("faults", { fill: { value: null }, stroke: { value: "var(--fault)" }, strokeWidth: { value: 3 }, strokeDash: { value: [6, 3] }, cornerRadius: { value: 6 } }, { interactive: false }),
      text("faults", { x: { signal: "datum.x + datum.w - 5" }, y: { signal: "datum.y + 5" }, text: { value: "✖" }, fontSize: { value: 15 }, align: { value: "right" }, baseline: { value: "top" }, fill: { value: "var(--fault)" } }),
      text("broken", { x: { signal: "datum.x + 10" }, y: { signal: "(datum.y + datum.y2) / 2" }, text: { value: "✖" }, fontSize: { value: 15 }, baseline: { value: "middle" }, fill: { value: "var(--fault)" } }),
    ],
  };
  const title = `${state.step} step: devices, switches, NICs and links, coloured by ${state.colour === "bytes" ? "bytes a step" : "time busy"}. Arrow keys go through them, Enter opens one; the table below says the same.`;
  drawn(draw("picture", spec, title));
  pictureWords(load);
  drawRanks();
}

const fixed = (values) => Object.fromEntries(Object.entries(values).map(([name, value]) => [name, { value }]));

function pictureWords(load) {
  const unit = state.colour === "bytes" ? bytes : (value) => `${time(value)}${load && load.over_s ? ` (${percent(value / load.over_s)})` : ""}`;
  const entries = [["var(--none)", "nothing"]];
  for (let step = 0; step < HEAT; step++)
    if (state.most) entries.push([`var(--h${step})`, step === HEAT - 1 ? `up to ${unit(state.most)}` : `up to ${unit(state.most / 3 ** (HEAT - 1 - step))}`]);
  $("heat").replaceChildren(legend(entries));
  paint($("heat"));
  const hidden = state.data.picture.hidden ? ` ${state.data.picture.hidden} more nodes that carry something else are not drawn.` : "";
  $("busiest").textContent = load && load.busiest
    ? `Busiest: ${load.busiest}, ${time(load.busiest_s)} of ${time(load.over_s)} ${state.step === "handoff" ? "between two requests" : state.data.times.some((one) => one.stages.length > 1 || one.stages[0].stages.length > 1) ? "of the busiest stage" : "of the step"} (${percent(load.busiest_s / load.over_s)}).${hidden}`
    : `Nothing crosses a link.${hidden}`;
  linkTable(load);
}

function linkTable(load) {
  if (!$("links").open) { $("links").ontoggle = () => linkTable(currentLoad()); return; }
  const rows = [];
  state.data.picture.nodes.forEach((node) => node.wires.forEach((wire) => rows.push(...linkRows(load, wire))));
  state.data.picture.core.forEach((wire) => rows.push(...linkRows(load, wire)));
  rows.sort((a, b) => b.busy - a.busy);
  $("links-table").replaceChildren(table(`links that carry bytes in a ${state.step} step`, ["link", "kind", ">usable", ">bytes", ">busy", ">of the time"],
    rows.map((one) => one.cells)));
}

const linkRows = (load, wire) => ["out", "back"].map((way) => {
  const carried = carriedBy(load, wire[way]);
  const link = state.data.picture.links[wire[way][0]];
  const open = make("button", { class: "fig", type: "button", onclick: () => showWire(wire, way) }, bytes(carried.bytes));
  return { busy: carried.busy_s, bytes: carried.bytes, cells: [wayName(wire, way), link.kind, `${digits(link.effective_Bps / 1e9, 4)} GB/s`, open, time(carried.busy_s), percent(load && load.over_s ? carried.busy_s / load.over_s : 0)] };
}).filter((one) => one.bytes > 0);

function showWire(wire, way) {
  const load = currentLoad();
  const carried = carriedBy(load, wire[way]);
  const inside = carried.links.flatMap(([link, one]) => [
    make("h3", {}, link.name),
    make("p", {}, `${bytes(one.bytes)} a step at ${digits(link.effective_Bps / 1e9, 4)} GB/s usable of ${digits(link.spec_Bps / 1e9, 4)}: busy ${time(one.busy_s)}. ${link.source}.`),
    table("what each op puts on it", ["op", "group", ">bytes"], one.parts.map(([role, group, size]) => [role, group, bytes(size)])),
    one.like !== link.name && make("p", { class: "soft" }, `${one.like} carries the same; the chain is that link's.`),
    one.chain >= 0 ? chainList(one.chain)
      : make("p", { class: "soft" }, state.step === "handoff" ? "Its chain: linkwise explain handoff:PATH." : slides() && state.batch !== state.data.plan ? "Its chain is kept at the plan's own batch." : "Its chain: linkwise traffic, of the file's own inputs."),
  ]);
  open(wayName(wire, way), inside.length ? inside : make("p", {}, `Carries nothing in a ${state.step} step.`));
}

// A switch, host or NIC: all its links.
function showVertex(vertex, number) {
  const wires = number < 0 ? state.data.picture.core : state.data.picture.nodes[number].wires;
  const rows = wires.filter((wire) => wire.a === vertex || wire.b === vertex).flatMap((wire) => linkRows(currentLoad(), wire));
  open(vertex === "peers" ? "direct links between devices" : vertex,
    rows.length ? table(`its links in a ${state.step} step`, ["link", "kind", ">usable", ">bytes", ">busy", ">of the time"], rows.sort((a, b) => b.busy - a.busy).map((one) => one.cells))
      : make("p", {}, "Its links carry nothing in this step."));
}

function showDevice(device, number) {
  const node = state.data.picture.nodes[number];
  const load = currentLoad();
  const name = `d${device}`;
  const rows = node.wires.filter((wire) => wire.a === name || wire.b === name).flatMap((wire) => linkRows(load, wire));
  const rank = rankWord(device);
  const fault = faultOf({ device });
  open(`${rank ? `rank ${rank}` : "no rank"} on ${name}, node ${Math.floor(device / state.data.picture.devices_per_node)}`,
    fault && make("p", { class: "differs" }, fault.summary),
    rows.length ? table(`its links in a ${state.step} step`, ["link", "kind", ">usable", ">bytes", ">busy", ">of the time"], rows.map((one) => one.cells))
      : make("p", {}, "Its links carry nothing in this step."));
}

// Every rank as a cell, where nodes stand for others: coloured as its node's drawing.
function drawRanks() {
  const { nodes, devices_per_node: per, ranks } = state.data.picture;
  const all = nodes.some((node) => node.nodes.length > 1) || state.data.picture.hidden > 0;
  $("ranks-box").hidden = !all;
  if (!all) return;
  const width = widthOf("ranks");
  const cell = ranks.length > 600 ? 10 : 14, gap = 8;
  const wide = per * cell + gap, rowLength = Math.max(1, Math.floor((width + gap) / wide));
  const heats = new Map();
  nodes.forEach((node, number) => node.devices.forEach((device, i) => {
    const colour = heat(measure(sentBy(`d${device}`)), state.most);
    for (const one of node.nodes) heats.set(one * per + i, [colour, number]);
  }));
  const cells = [];
  ranks.forEach(([, rank], device) => {
    if (rank < 0 && !heats.has(device)) return;
    const node = Math.floor(device / per);
    const [colour, number] = heats.get(device) || ["var(--none)", -1];
    const fault = faultOf({ device });
    cells.push({ x: (node % rowLength) * wide + (device % per) * cell, y: Math.floor(node / rowLength) * (cell + 6), w: cell - 1, h: cell - 1, colour,
      stroke: fault ? "var(--fault)" : null, ...(number >= 0 ? { device: device % per + nodes[number].nodes[0] * per, node: number } : {}),
      tip: `${rank < 0 ? "free" : `rank ${rankWord(device)}`} on d${device}, node ${node}${number >= 0 && nodes[number].nodes.length > 1 ? `: as on node ${nodes[number].nodes[0]}` : ""}${faultWords(fault)}` });
  });
  drawn(draw("ranks", {
    width, height: Math.max(0, ...cells.map((one) => one.y)) + cell + 2,
    data: [{ name: "cells", values: cells }],
    marks: [{ type: "rect", from: { data: "cells" }, encode: { update: { x: { field: "x" }, y: { field: "y" }, width: { field: "w" }, height: { field: "h" },
      fill: { field: "colour" }, stroke: { field: "stroke" }, strokeWidth: { value: 3 }, tooltip: { field: "tip" }, cursor: { value: "pointer" } } } }],
  }, `${cells.length} devices by node, coloured as above`));
}

// Arrow keys go through devices and links; Enter opens the one that is said.
function pictureKeys(event) {
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  const { order } = state;
  if (event.key in steps && order.length) {
    state.chosen = (state.chosen + steps[event.key] + order.length) % order.length;
    const one = order[state.chosen];
    $("say").textContent = one.tip;
    const box = $("picture").getBoundingClientRect();
    tip(one.tip, box.left + (one.x2 ?? one.x), box.top + one.y);
    event.preventDefault();
  } else if (event.key === "Enter" && order[state.chosen]) {
    act(order[state.chosen]);
    event.preventDefault();
  } else if (event.key === "Escape") tip("");
}
