// Asks for the figures each second, and shows those of a new epoch.

const SVG = "http://www.w3.org/2000/svg";
const HOUR = 3600_000;
const SECOND = 1000;
const PARTS = ["history", "live"];

const at = (id) => document.getElementById(id);
const number = (n) => n.toLocaleString("en");
const money = (cents) => number(Math.round(cents / 100));
const time = (ms) => new Date(ms).toISOString().slice(0, 16).replace("T", " ");

let shown = 0;
let hours = new Map();
// The hour that is looked at: the last one, until somebody chooses another.
let chosen = null;

function show(said) {
  for (const part of [...PARTS, "total"]) at(part).textContent = number(said[part].orders);
  at("revenue").textContent = `orders, revenue ${money(said.total.cents)}`;
  const until = said.watermark ? `: what was before ${time(Date.parse(said.watermark))} UTC is over` : "";
  at("epoch").textContent = `epoch ${said.epoch}${until}`;
  hours = byHour(said);
  showHours();
  showProducts(said);
  document.querySelector("main").hidden = false;
}

function byHour(said) {
  const found = new Map();
  for (const part of PARTS) {
    for (const { hour, orders } of said[part].hours) {
      if (!found.has(hour)) found.set(hour, { history: 0, live: 0 });
      found.get(hour)[part] += orders;
    }
  }
  return found;
}

/** A bar for each hour: the history below, what is live on it; and a slider to choose one. */
function showHours() {
  const first = Math.min(...hours.keys());
  const last = Math.max(...hours.keys());
  const most = Math.max(...[...hours.values()].map((each) => each.history + each.live));
  const bars = [];
  for (const [hour, counts] of hours) {
    let low = 0;
    for (const part of PARTS.filter((each) => counts[each] > 0)) {
      const bar = document.createElementNS(SVG, "rect");
      bar.setAttribute("class", part);
      bar.dataset.hour = hour;
      low += counts[part];
      const box = { x: (hour - first) / HOUR + 0.04, y: most - low, width: 0.92, height: counts[part] };
      for (const [name, value] of Object.entries(box)) bar.setAttribute(name, value);
      bars.push(bar);
    }
  }
  at("hours").setAttribute("viewBox", `0 0 ${(last - first) / HOUR + 1} ${most}`);
  at("hours").replaceChildren(...bars);
  Object.assign(at("hour"), { min: first, max: last, step: HOUR, value: chosen ?? last });
  showHour();
}

function showHour() {
  const hour = Number(at("hour").value);
  const { history, live } = hours.get(hour) ?? { history: 0, live: 0 };
  const said = `${time(hour)} UTC: ${number(history + live)} orders, ${live > 0 ? "live" : "history"}`;
  at("chosen").textContent = said;
  at("hour").setAttribute("aria-valuetext", said);
  for (const bar of at("hours").children) bar.classList.toggle("chosen", Number(bar.dataset.hour) === hour);
}

function choose(hour) {
  chosen = hour === Number(at("hour").max) ? null : hour;
  at("hour").value = hour;
  showHour();
}

function showProducts(said) {
  const of = (part, product) =>
    said[part].hours.filter((each) => each.product === product).reduce((sum, each) => sum + each.orders, 0);
  const rows = said.products.map(({ product, orders, cents }) => {
    const row = document.createElement("tr");
    const cells = [product, number(of("history", product)), number(of("live", product)), number(orders), money(cents)];
    for (const text of cells) {
      const cell = document.createElement("td");
      cell.textContent = text;
      row.append(cell);
    }
    return row;
  });
  at("products").replaceChildren(...rows);
}

/** The figures, and what keeps them from being shown. */
async function ask() {
  try {
    const answer = await fetch("figures");
    const said = await answer.json();
    return answer.ok ? [said, "", true] : [null, said.error, true];
  } catch {
    return [null, `The example has ended${shown > 0 ? ": these are its last figures" : ""}.`, false];
  }
}

/** Looks, and looks again after a while, which gets longer as long as there is no server. */
async function look(pause) {
  const [said, trouble, served] = await ask();
  if (said !== null && said.epoch !== shown) {
    if (said.epoch > 0) show(said);
    shown = said.epoch;
  }
  if (at("trouble").textContent !== trouble) at("trouble").textContent = trouble;
  at("trouble").hidden = trouble === "";
  const next = served ? SECOND : Math.min(2 * pause, 60 * SECOND);
  setTimeout(look, next, next);
}

function point(event) {
  const { left, width } = at("hours").getBoundingClientRect();
  const [first, last] = [Number(at("hour").min), Number(at("hour").max)];
  const place = Math.floor(((event.clientX - left) / width) * ((last - first) / HOUR + 1));
  choose(Math.min(last, Math.max(first, first + place * HOUR)));
}

at("hour").addEventListener("input", () => choose(Number(at("hour").value)));
for (const kind of ["pointerdown", "pointermove"]) at("hours").addEventListener(kind, point);
look(SECOND);
