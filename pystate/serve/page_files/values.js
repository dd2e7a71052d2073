// Keys and values of states, whatever is in them: page_values.py says in which form they come.

import { amount, count, h } from "./dom.js";

/** One line: for tables, and for the head of what can be opened. */
export function line(value) {
  if (value === null || value === undefined) return "null";
  if (typeof value !== "object") return typeof value === "string" ? value : String(value);
  if (Array.isArray(value)) return value.map(line).join(", ");
  if ("number" in value) return value.number;
  if ("time" in value) return value.time;
  if ("text" in value) return `${value.text}… (${count(value.more)} more characters)`;
  if ("bytes" in value) return `0x${value.bytes}${value.size * 2 > value.bytes.length ? "…" : ""} (${count(value.size)} bytes)`;
  if ("fields" in value) return `{${value.fields.map(([name, inner]) => `${name}: ${line(inner)}`).join(", ")}}`;
  if ("items" in value) return amount(value.items.length + value.more, "item");
  if ("entries" in value) return amount(value.entries.length + value.more, "entry", "entries");
  return JSON.stringify(value);
}

function isPart(value) {
  return value !== null && typeof value === "object" && ("items" in value || "entries" in value || "fields" in value);
}

/** A value that can be opened, if it has parts. `path` names it among those of its row. */
export function shown(value, path, open = false) {
  if (value === null || value === undefined) return h("span", { class: "null" }, "null");
  if (!isPart(value)) {
    const kind = typeof value === "string" || (typeof value === "object" && "text" in value) ? "text" : "plain";
    return h("span", { class: `value ${kind}` }, value === "" ? h("i", null, "empty text") : line(value));
  }
  const pairs = value.fields || value.entries;
  const more = value.more || 0;
  if (!pairs && !value.items.length) return h("span", { class: "null" }, "empty");
  if (pairs && !pairs.length) return h("span", { class: "null" }, "empty");
  const rest = more ? h("p", { class: "quiet" }, `and ${count(more)} more`) : null;
  const inside = pairs
    ? h("dl", { class: "pairs" }, pairs.map(([name, inner], i) => [
        h("dt", null, value.fields ? name : line(name)),
        h("dd", null, shown(inner, `${path}.${i}`, true)),
      ]))
    : h("ol", { class: "items", start: 0 }, value.items.map((inner, i) => h("li", null, shown(inner, `${path}.${i}`, true))));
  if (value.fields) return inside;
  return h("details", { class: "parts", open, "data-name": `value ${path}` }, h("summary", null, line(value)), inside, rest);
}
