// Elements, and how numbers, sizes and times are written. Text only ever becomes text: nothing here,
// or anywhere on the page, parses HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** An HTML element: h("td", {class: "number"}, "12"). Properties that begin with "on" are listeners. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same of SVG. */
export function s(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

let numbered = 0;
/** An id that no other element has. */
export function freshId(prefix) {
  numbered += 1;
  return `${prefix}-${numbered}`;
}

/** Puts new children in, and the focus back to the element that has the same name (data-name). */
export function renew(parent, ...children) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const name = focused && focused.dataset ? focused.dataset.name : null;
  const open = new Map([...parent.querySelectorAll("details[data-name]")].map((d) => [d.dataset.name, d.open]));
  const scrolled = new Map([...parent.querySelectorAll(".scroll[data-name]")].map((d) => [d.dataset.name, d.scrollLeft]));
  parent.replaceChildren(...children.flat(Infinity).filter((child) => child));
  for (const details of parent.querySelectorAll("details[data-name]")) {
    if (open.has(details.dataset.name)) details.open = open.get(details.dataset.name);
  }
  for (const region of parent.querySelectorAll(".scroll[data-name]")) {
    if (scrolled.get(region.dataset.name)) region.scrollLeft = scrolled.get(region.dataset.name);
  }
  if (name) {
    const again = [...parent.querySelectorAll("[data-name]")].find((each) => each.dataset.name === name);
    if (again) again.focus({ preventScroll: true });
  }
}

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const NONE = "–";

export function count(value) {
  return value === null || value === undefined ? NONE : WHOLE.format(value);
}

/** A count and its noun. */
export function amount(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

export function short(value) {
  if (value === null || value === undefined) return NONE;
  return Math.abs(value) < 10000 ? WHOLE.format(value) : SHORT.format(value);
}

export function size(value) {
  if (value === null || value === undefined) return NONE;
  let unit = 0;
  let number = value;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  while (Math.abs(number) >= 1024 && unit < units.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${unit && Math.abs(number) < 100 ? number.toFixed(1) : WHOLE.format(number)} ${units[unit]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return NONE;
  if (ms < 0) return `−${duration(-ms)}`;
  if (ms < 10) return `${Number(ms.toFixed(1))}\u00a0ms`;
  if (ms < 1000) return `${Math.round(ms)}\u00a0ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)}\u00a0s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}\u00a0min\u00a0${Math.floor(seconds % 60)}\u00a0s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours}\u00a0h\u00a0${minutes % 60}\u00a0min`;
  return `${WHOLE.format(Math.floor(hours / 24))} days`;
}

/** An age in whole seconds, which does not flicker as it grows. */
export function age(ms) {
  return ms < 1000 ? "just now" : ms < 60000 ? `${Math.floor(ms / 1000)} s ago` : `${duration(ms)} ago`;
}

export function moment(ms) {
  if (ms === null || ms === undefined) return NONE;
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return ms < 0 ? "the beginning" : "the end";
  const two = (n) => String(n).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/**
 * A table in a region that scrolls where it is too wide. Columns are {name, number, render}; a row is
 * what their `render` takes.
 */
export function table(caption, columns, rows, { name = caption, empty = "Nothing.", hidden = false } = {}) {
  if (!rows.length) return h("p", { class: "quiet" }, empty);
  const head = h("tr", null, columns.map((c) => h("th", { scope: "col", class: c.number ? "number" : null }, c.name)));
  const body = rows.map((row) =>
    h("tr", null, columns.map((c, i) =>
      h(i === 0 && c.header ? "th" : "td", {
        class: c.number ? "number" : c.class,
        scope: i === 0 && c.header ? "row" : null,
      }, c.render(row)))));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption, "data-name": `scroll ${name}` },
    h("table", null, h("caption", { class: hidden ? "unseen" : null }, caption), h("thead", null, head), h("tbody", null, body)));
}

/** A figure with its name. */
export function tile(name, value, note) {
  return h("div", { class: "tile" }, h("dt", null, name), h("dd", null, value, note ? h("small", null, note) : null));
}

export function tiles(...all) {
  return h("dl", { class: "tiles" }, all);
}
