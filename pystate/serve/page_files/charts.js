// Charts as SVG: bars that stand on one another, lines, and a map of cells. Each has its figures as
// text for the place that the pointer or the arrow keys choose, and as a table. Series differ by
// pattern or dash as well as by colour.

import { count, freshId, h, renew, s, table } from "./dom.js";

const HEIGHT = 190;
const LEFT = 68;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 24;

const SECOND = 1000;
const UNITS = [1, SECOND, 60 * SECOND, 3600 * SECOND, 24 * 3600 * SECOND];

/** Steps of 1, 2 or 5 times a power of the base, so that at most four lie below the most. */
function ticks(most, base) {
  if (!(most > 0)) return [0, 1];
  if (base === "time") {
    // Steps are round in the unit in which they are written.
    const of = [...UNITS].reverse().find((each) => most >= 2 * each) || 1;
    return ticks(most / of, 10).map((at) => at * of);
  }
  const unit = base ** Math.floor(Math.log(most / 3) / Math.log(base));
  const factors = base === 10 ? [1, 2, 5, 10, 20] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  const step = (factors.find((f) => most / (f * unit) <= 4) || factors[factors.length - 1]) * unit;
  const all = [];
  for (let at = 0; at < most + step; at += step) {
    all.push(at);
    if (at >= most) break;
  }
  return all;
}

function patterns(prefix) {
  const paths = ["", "M0 6L6 0", "M0 3H6", "M0 0L6 6", "M3 0V6", "M0 3H6M3 0V6"];
  return s("defs", null, paths.map((d, i) =>
    d && s("pattern", { id: `${prefix}-${i}`, width: 6, height: 6, patternUnits: "userSpaceOnUse" },
      s("path", { d, class: "hatch" }))));
}

function swatch(kind, i, prefix) {
  const box = { class: "swatch", viewBox: "0 0 22 12", width: 22, height: 12, "aria-hidden": "true" };
  if (kind === "lines") return s("svg", box, s("path", { d: "M1 6H21", class: `line s${i}` }));
  return s("svg", box, s("rect", { width: 22, height: 12, rx: 2, class: `bar s${i}` }),
    i ? s("rect", { width: 22, height: 12, rx: 2, fill: `url(#${prefix}-${i})` }) : null);
}

/**
 * A chart over epochs. `kind` is "bars" or "lines"; series are {name, of}, where `of` names a list of
 * the figures; `format` writes a value. Returns the figure and how it gets new figures.
 */
export function chart({ title, kind, series, format, base = 10, note = null }) {
  const prefix = freshId("hatch");
  const drawing = h("div", {
    class: "drawing", tabindex: 0, role: "group", "aria-roledescription": "chart",
    "aria-label": `${title}: left and right arrow keys choose an epoch`,
  });
  const said = h("p", { class: "readout", "aria-live": "polite" });
  const legend = h("ul", { class: "legend" });
  const listed = h("details", { class: "listed" }, h("summary", null, "As a table"));
  const figure = h("figure", { class: "card chart" }, h("figcaption", null, title, note ? h("small", null, note) : null),
    legend, drawing, said, listed);
  let figures = null;
  let chosen = null;
  let layout = null;

  const value = (one, at) => figures[one.of][at];

  function describe() {
    if (!figures || !figures.epoch.length) {
      renew(said, "No epoch yet.");
      return;
    }
    const at = chosen === null ? figures.epoch.length - 1 : chosen;
    const parts = series.map((one) => `${one.name} ${format(value(one, at))}`);
    renew(said, h("b", null, `Epoch ${figures.epoch[at]}`), ` ${parts.join(" · ")}`);
  }

  function list() {
    if (!listed.open || !figures) return;
    const rows = figures.epoch.map((_, at) => at).reverse().slice(0, 60);
    const columns = [
      { name: "Epoch", number: true, header: true, render: (at) => count(figures.epoch[at]) },
      ...series.map((one) => ({ name: one.name, number: true, render: (at) => format(value(one, at)) })),
    ];
    renew(listed, listed.firstChild, table(`${title}, newest epoch first`, columns, rows, { hidden: true }));
  }

  function draw() {
    const n = figures ? figures.epoch.length : 0;
    const width = Math.max(240, drawing.clientWidth || 480);
    const inner = width - LEFT - RIGHT;
    const below = HEIGHT - BOTTOM;
    const sums = Array.from({ length: n }, (_, at) =>
      kind === "bars" ? series.reduce((sum, one) => sum + Math.max(0, value(one, at) || 0), 0)
        : Math.max(0, ...series.map((one) => value(one, at) || 0)));
    const scale = ticks(Math.max(0, ...sums), base);
    const most = scale[scale.length - 1];
    const slot = n ? inner / Math.max(n, 12) : inner;
    const start = LEFT + inner - slot * n;
    const x = (at) => start + slot * at;
    const y = (v) => below - (below - TOP) * (v / most);
    layout = { n, slot, start };
    const parts = [patterns(prefix)];
    for (const tick of scale) {
      parts.push(s("path", { d: `M${LEFT} ${y(tick).toFixed(1)}H${width - RIGHT}`, class: "grid" }),
        s("text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end", class: "axis" }, format(tick)));
    }
    const labels = Math.max(1, Math.ceil(n / Math.max(2, Math.floor(inner / 80))));
    for (let at = n - 1; at >= 0; at -= labels) {
      if (x(at) < LEFT + 10) break;
      parts.push(s("text", { x: x(at) + slot / 2, y: HEIGHT - 6, "text-anchor": "middle", class: "axis" }, String(figures.epoch[at])));
    }
    const gap = slot > 6 ? 1 : 0;
    const base0 = new Array(n).fill(0);
    series.forEach((one, i) => {
      let d = "";
      for (let at = 0; at < n; at += 1) {
        const v = value(one, at);
        if (kind === "bars") {
          if (!(v > 0)) continue;
          const top = y(base0[at] + v);
          const bottom = y(base0[at]);
          base0[at] += v;
          d += `M${(x(at) + gap / 2).toFixed(1)} ${bottom.toFixed(1)}V${top.toFixed(1)}h${(slot - gap).toFixed(2)}V${bottom.toFixed(1)}z`;
        } else if (v !== null && v !== undefined) {
          const before = at ? value(one, at - 1) : null;
          d += `${before === null || before === undefined ? "M" : "L"}${(x(at) + slot / 2).toFixed(1)} ${y(Math.max(0, v)).toFixed(1)}`;
          if (n === 1) d += "h4";
        }
      }
      if (kind === "bars") {
        parts.push(s("path", { d, class: `bar s${i}` }), i ? s("path", { d, fill: `url(#${prefix}-${i})` }) : null);
      } else {
        parts.push(s("path", { d, class: `line s${i}` }));
      }
    });
    if (chosen !== null && chosen < n) {
      parts.push(s("rect", { x: x(chosen), y: TOP, width: Math.max(slot, 2), height: below - TOP, class: "cursor" }));
    }
    drawing.replaceChildren(s("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, "aria-hidden": "true" }, parts));
    describe();
  }

  function choose(at) {
    if (!layout || !layout.n) return;
    chosen = at === null ? null : Math.max(0, Math.min(layout.n - 1, at));
    draw();
  }

  drawing.addEventListener("pointermove", (event) => {
    if (!layout) return;
    const at = Math.floor((event.clientX - drawing.getBoundingClientRect().left - layout.start) / layout.slot);
    if (at >= 0 && at < layout.n && at !== chosen) choose(at);
  });
  drawing.addEventListener("pointerleave", () => choose(null));
  drawing.addEventListener("blur", () => choose(null));
  drawing.addEventListener("keydown", (event) => {
    const last = layout ? layout.n - 1 : 0;
    const at = chosen === null ? last : chosen;
    const to = { ArrowLeft: at - (chosen === null ? 0 : 1), ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") choose(null);
    if (to === undefined) return;
    event.preventDefault();
    choose(to);
  });
  listed.addEventListener("toggle", list);
  new ResizeObserver(() => figures && draw()).observe(drawing);

  renew(legend, series.map((one, i) => h("li", null, swatch(kind, i, prefix), one.name)));
  return {
    element: figure,
    update(next) {
      const moved = figures && chosen !== null ? next.epoch.indexOf(figures.epoch[chosen]) : -1;
      figures = next;
      chosen = moved >= 0 ? moved : null;
      draw();
      list();
    },
  };
}

/** Cells of key groups: the darker and the larger the square, the heavier. */
export function cells({ label, format }) {
  const drawing = h("div", {
    class: "drawing", tabindex: 0, role: "group", "aria-roledescription": "heat map",
    "aria-label": `${label}: arrow keys choose a cell`,
  });
  const said = h("p", { class: "readout", "aria-live": "polite" });
  let values = [];
  let name = (at) => String(at);
  let chosen = null;
  let columns = 32;
  let side = 16;

  function draw() {
    const width = Math.max(240, drawing.clientWidth || 480);
    columns = width < 520 ? 16 : 32;
    if (values.length > 256) columns *= 2;
    side = Math.min(26, width / columns);
    const most = Math.max(...values, 0);
    const rows = Math.ceil(values.length / columns);
    const parts = values.map((v, at) => {
      const x = (at % columns) * side;
      const y = Math.floor(at / columns) * side;
      const share = most ? v / most : 0;
      const inner = (side - 2) * Math.sqrt(share);
      const step = share === 0 ? 0 : Math.min(5, 1 + Math.floor(share * 5));
      return [
        s("rect", { x: x + 1, y: y + 1, width: side - 2, height: side - 2, rx: 2, class: at === chosen ? "cell chosen" : "cell" }),
        step ? s("rect", { x: x + 1 + (side - 2 - inner) / 2, y: y + 1 + (side - 2 - inner) / 2, width: inner, height: inner, rx: 1.5, class: `heat h${step}` }) : null,
      ];
    });
    const box = [columns * side, rows * side];
    drawing.replaceChildren(s("svg", { viewBox: `0 0 ${box[0]} ${box[1]}`, width: box[0], height: box[1], "aria-hidden": "true" }, parts));
    const at = chosen === null ? values.indexOf(most) : chosen;
    renew(said, values.length && most
      ? [h("b", null, `Key group ${name(at)}`), ` ${format(values[at])}${chosen === null ? ", the heaviest" : ""}`]
      : "There is no state.");
  }

  function choose(at) {
    chosen = at === null || !values.length ? null : Math.max(0, Math.min(values.length - 1, at));
    draw();
  }

  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const at = Math.floor((event.clientY - box.top) / side) * columns + Math.floor((event.clientX - box.left) / side);
    if (event.clientX - box.left < columns * side && at < values.length && at !== chosen) choose(at);
  });
  drawing.addEventListener("pointerleave", () => choose(null));
  drawing.addEventListener("blur", () => choose(null));
  drawing.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (event.key === "Escape") choose(null);
    if (by === undefined) return;
    event.preventDefault();
    choose(chosen === null ? 0 : chosen + by);
  });
  new ResizeObserver(() => values.length && draw()).observe(drawing);
  return {
    element: h("div", null, drawing, said),
    update(next, named) {
      values = next;
      name = named;
      draw();
    },
  };
}
