// What is asked of a job by hand: a check of all its files, and SQL.

import { ofJob, sql } from "./api.js";
import { amount, count, duration, h, moment, renew, size, table, tile, tiles } from "./dom.js";
import { jobTabs, link } from "./views.js";
import { shown } from "./values.js";

const LOOK_MS = 400;

export function verifyView({ job, signal }) {
  const begin = h("button", { type: "button", class: "main-button", id: "begin" }, "Verify now");
  const stop = h("button", { type: "button", id: "stop", hidden: true }, "Stop");
  const progress = h("progress", { id: "progress", "aria-label": "Bytes read", hidden: true });
  const said = h("p", { class: "quiet", role: "status", id: "check" });
  const found = h("div");
  const element = h("div", null, h("h1", { tabindex: -1 }, job), jobTabs(job, "verify"),
    h("section", { class: "card" },
      h("p", null, "Reads every file of all retained epochs, and compares it with its checksum. The job may run meanwhile; nothing is changed."),
      h("div", { class: "row" }, begin, stop, progress), said), found);
  let timer = null;

  async function act(method) {
    try {
      show(await ofJob(job, "verify", {}, { signal, method }));
    } catch (error) {
      if (error.name !== "AbortError") renew(said, error.message);
    }
  }
  begin.addEventListener("click", () => act("POST"));
  stop.addEventListener("click", () => act("DELETE"));
  signal.addEventListener("abort", () => clearTimeout(timer));

  function show(told) {
    const runs = told.state === "running";
    begin.disabled = runs;
    stop.hidden = progress.hidden = !runs;
    clearTimeout(timer);
    if (runs) {
      if (told.all_bytes) {
        progress.max = told.all_bytes;
        progress.value = told.read_bytes;
      }
      said.textContent = told.all_bytes ? `${size(told.read_bytes)} of ${size(told.all_bytes)} read` : "Looking which files there are …";
      timer = setTimeout(() => act("GET"), LOOK_MS);
      return;
    }
    said.textContent = {
      none: "No check was made since the server began.",
      failed: told.error,
      stopped: "The check was stopped.",
      done: told.ended_ms ? `Checked at ${moment(told.ended_ms)}, in ${duration(told.ended_ms - told.started_ms)}.` : "",
    }[told.state];
    renew(found, told.result ? results(told.result) : []);
  }

  function results(result) {
    const verdict = result.ok
      ? h("p", { class: "card", id: "verdict" }, h("span", { class: "tag good" }, "nothing is wrong"), ` ${amount(result.files, "file")}, ${size(result.size_bytes)}, of ${amount(result.epochs.length, "epoch")}.`)
      : h("p", { class: "card", id: "verdict" }, h("span", { class: "tag bad" }, `${count(result.errors)} wrong`),
        ` Epochs that can be restored: ${result.good_epochs.join(", ") || "none"}. `, h("code", null, "pystate repair … --dry-run"), " says what can be done.");
    return [verdict, tiles(tile("Files", count(result.files), size(result.size_bytes)), tile("Epochs", count(result.epochs.length), `${count(result.good_epochs.length)} can be restored`), tile("Findings", count(result.findings.length + result.more_findings))),
      table("Findings", [
        { name: "Kind", header: true, render: (row) => h("span", { class: `tag ${row.is_error ? "bad" : "plain"}`, title: row.meaning }, row.kind) },
        { name: "Operator", render: (row) => (row.uid ? h("a", { href: link.operator(job, row.uid) }, row.uid) : "") },
        { name: "Ranges", render: (row) => row.ranges.join(", ") },
        { name: "Key groups", render: (row) => (row.key_groups ? row.key_groups.join(" to ") : "") },
        { name: "Epochs", render: (row) => row.epochs.join(", ") },
        { name: "What", render: (row) => row.message },
        { name: "File", class: "path", render: (row) => row.path },
      ], result.findings, { empty: "Nothing was found." })];
  }

  return { title: `Verify ${job}`, element, refresh: async () => {}, begin: () => act("GET") };
}

export function sqlView({ job, signal }) {
  const text = h("textarea", { id: "statement", spellcheck: "false", "aria-describedby": "statement-hint" });
  const run = h("button", { type: "submit", class: "main-button" }, "Run");
  const stop = h("button", { type: "button", hidden: true }, "Stop");
  const said = h("p", { class: "quiet", role: "status", id: "sql-state" });
  const found = h("div", { id: "sql-rows" });
  const names = h("div");
  const form = h("form", { class: "card" }, h("label", { for: "statement" }, "SQL"),
    text, h("p", { class: "hint", id: "statement-hint" }, "Ctrl and Enter runs it. Each operator is a table; all tables are of one epoch."),
    h("div", { class: "row" }, run, stop, said));
  const element = h("div", null, h("h1", { tabindex: -1 }, job), jobTabs(job, "sql"), form, found, names);
  let running = null;

  async function ask() {
    if (running || !text.value.trim()) return;
    running = new AbortController();
    run.disabled = true;
    stop.hidden = false;
    said.textContent = "Running …";
    const began = performance.now();
    try {
      const told = await sql(job, text.value, running.signal);
      said.textContent = `${amount(told.rows.length, "row")} in ${duration(performance.now() - began)}${told.epoch ? `, of epoch ${told.epoch}` : ""}${told.more ? "; there are more" : ""}.`;
      renew(found, table("Rows", told.columns.map((name, i) => ({
        name, number: told.rows.length > 0 && told.rows.every((row) => typeof row[i] === "number" || row[i] === null),
        render: (row) => shown(row[i], `${i}`),
      })), told.rows, { hidden: true, empty: "No rows." }));
    } catch (error) {
      said.textContent = error.name === "AbortError" ? "Stopped." : "";
      renew(found, error.name === "AbortError" ? [] : h("p", { class: "trouble", role: "alert" }, error.message));
    } finally {
      running = null;
      run.disabled = false;
      stop.hidden = true;
    }
  }
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  stop.addEventListener("click", () => running && running.abort());
  signal.addEventListener("abort", () => running && running.abort());
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      ask();
    }
  });

  async function refresh() {
    const told = await ofJob(job, "overview", {}, { signal });
    const quoted = (name) => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`);
    if (!text.value && told.operators.length) text.value = `select * from ${quoted(told.operators[0].uid)} limit 20`;
    renew(names, h("h2", null, "Tables"), table("Tables", [
      { name: "Table", header: true, render: (op) => h("code", null, quoted(op.uid)) },
      { name: "Columns", render: (op) => [...op.key.map((c) => c.name), ...op.states.map((c) => c.name)].join(", ") },
    ], told.operators, { hidden: true }));
  }
  return { title: `SQL on ${job}`, element, refresh };
}
