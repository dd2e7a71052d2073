// What the page shows of jobs and operators. A view is made once for a place, {element, refresh};
// `refresh` asks for what is new, and is called again for each new epoch.

import { ofJob } from "./api.js";
import { cells, chart } from "./charts.js";
import { age, amount, count, duration, h, moment, renew, short, size, table, tile, tiles } from "./dom.js";
import { line, shown } from "./values.js";

const part = encodeURIComponent;

export const link = {
  jobs: () => "#/",
  job: (job, view = "") => `#/jobs/${part(job)}${view && `/${view}`}`,
  operator: (job, uid, view = "") => `#/jobs/${part(job)}/operators/${part(uid)}${view && `/${view}`}`,
  key: (job, uid, key, epoch = null) => {
    const texts = key.map((text) => `key=${part(text === null ? "" : text)}`);
    const nulls = key.flatMap((text, i) => (text === null ? [`null=${i}`] : []));
    return `${link.operator(job, uid, "key")}?${[...texts, ...nulls, ...(epoch === null ? [] : [`epoch=${epoch}`])].join("&")}`;
  },
};

function heading(text, ...beside) {
  return h("div", { class: "row" }, h("h1", { tabindex: -1 }, text), beside);
}

const NAMES_OF_JOB = [["", "Overview"], ["verify", "Verify"], ["sql", "SQL"]];
const NAMES_OF_OPERATOR = [["", "Epochs"], ["groups", "Key groups"], ["key", "Look up"], ["changes", "Changes"], ["files", "Files"]];

function tabs(label, names, current, href) {
  return h("nav", { class: "tabs", "aria-label": label }, names.map(([view, name]) =>
    h("a", { href: href(view), "aria-current": view === current ? "page" : null }, name)));
}

export const jobTabs = (job, current) => tabs("Of the job", NAMES_OF_JOB, current, (view) => link.job(job, view));

function operatorTabs(job, uid, current) {
  return tabs("Of the operator", NAMES_OF_OPERATOR, current, (view) => link.operator(job, uid, view));
}

function running(state) {
  if (state === null || state === undefined) return null;
  return h("span", { class: `tag ${state ? "good" : "plain"}` }, state ? "running" : "not running");
}

function lagOf(figures) {
  return figures.watermark_lag_ms.some((lag) => lag !== null);
}

// ---- jobs ---------------------------------------------------------------------------------------

export function jobsView({ signal, jobs }) {
  const body = h("div");
  const element = h("div", null, heading("Jobs"), body);
  async function refresh() {
    const all = await Promise.all(jobs().map(async (each) => {
      try {
        return each.error ? each : await ofJob(each.job, "overview", {}, { signal });
      } catch (error) {
        if (error.name === "AbortError") throw error;
        return { job: each.job, error: error.message };
      }
    }));
    const ok = (render) => (row) => (row.error ? "" : render(row));
    renew(body, table("The checkpoints that are served here", [
      { name: "Job", header: true, render: (row) => h("a", { href: link.job(row.job), "data-name": `job ${row.job}` }, row.job) },
      { name: "State", render: (row) => (row.error ? h("span", { class: "tag bad" }, row.error) : [row.kind, " ", running(row.running)]) },
      { name: "Epoch", number: true, render: ok((row) => count(row.epoch)) },
      { name: "Published", render: ok((row) => moment(row.published_ms)) },
      { name: "Operators", number: true, render: ok((row) => count(row.operators.length)) },
      { name: "Keys", number: true, render: ok((row) => count(row.keys)) },
      { name: "Files", number: true, render: ok((row) => size(row.size_bytes)) },
      { name: "Watermark lag", number: true, render: ok((row) => duration(row.watermark_lag_ms)) },
    ], all, { empty: "No checkpoint is served here.", hidden: true }));
  }
  return { title: "Jobs", element, refresh };
}

// ---- a job --------------------------------------------------------------------------------------

function epochCharts(ofOperator) {
  const made = {
    times: chart({
      title: "What an epoch takes", kind: "bars", format: duration, base: "time",
      note: ofOperator ? "by the slowest range" : "by the slowest operator and range",
      series: [
        { name: "attach", of: "attach_ms" }, { name: "process", of: "process_ms" }, { name: "seal", of: "seal_ms" },
        { name: "write", of: "write_ms" },
        ...(ofOperator ? [] : [{ name: "publish", of: "publish_ms" }, { name: "commit", of: "commit_ms" }]),
      ],
    }),
    rows: chart({
      title: "Rows", kind: "lines", format: short,
      series: [{ name: "in", of: "rows_in" }, { name: "out", of: "rows_out" }, { name: "changed in state", of: "rows_changed" }, { name: "late", of: "late_rows" }],
    }),
    bytes: chart({
      title: "Bytes written", kind: "bars", format: size, base: 2,
      series: [{ name: "deltas", of: "checkpoint_bytes" }, { name: "merged files", of: "merged_bytes" }],
    }),
    keys: chart({ title: "Keys", kind: "lines", format: short, series: [{ name: "keys", of: "keys" }] }),
    lag: chart({
      title: "Watermark lag", kind: "lines", format: duration, base: "time", note: "published, less the watermark",
      series: [{ name: "lag", of: "watermark_lag_ms" }],
    }),
  };
  const element = h("div", { class: "charts" }, Object.values(made).map((one) => one.element));
  return {
    element,
    update(figures) {
      made.lag.element.hidden = !lagOf(figures);
      for (const one of Object.values(made)) one.update(figures);
    },
  };
}

export function jobView({ job, signal, now }) {
  const figures = h("div");
  const operators = h("div");
  const charts = epochCharts(false);
  const state = h("span");
  const element = h("div", null, heading(job, state), jobTabs(job, ""), figures,
    h("h2", null, "Operators"), operators, h("h2", null, "Epochs over time"), charts.element);
  let ageOf = null;
  let published = null;
  async function refresh() {
    const [told, epochs] = await Promise.all([
      ofJob(job, "overview", {}, { signal }), ofJob(job, "epochs", {}, { signal })]);
    renew(state, h("span", { class: "tag plain" }, told.kind), " ", running(told.running));
    published = told.published_ms;
    ageOf = h("span", { id: "checkpoint-age" });
    renew(figures, tiles(
      tile("Newest epoch", h("span", { id: "newest-epoch" }, count(told.epoch)), moment(told.published_ms)),
      tile("Checkpoint age", ageOf, told.total_ms ? `it took ${duration(told.total_ms)}` : null),
      tile("Keys", short(told.keys), told.keys >= 10000 ? count(told.keys) : null),
      tile("State on storage", size(told.size_bytes), amount(told.files, "file")),
      tile("State in memory", size(told.state_bytes)),
      told.watermark_ms === null || told.watermark_ms === undefined ? null : tile("Watermark lag", duration(told.watermark_lag_ms), moment(told.watermark_ms)),
      tile("Retained epochs", count(told.epochs.length), told.epochs.length ? `${told.epochs[0]} to ${told.epochs[told.epochs.length - 1]}` : null),
    ));
    tick();
    renew(operators, table("Operators", [
      { name: "Operator", header: true, render: (op) => h("a", { href: link.operator(job, op.uid), "data-name": `operator ${op.uid}` }, op.uid) },
      { name: "Key", render: (op) => op.key.map((c) => `${c.name} ${c.type}`).join(", ") },
      { name: "States", render: (op) => [...op.states.map((each) => each.name), ...(op.timers ? ["timers"] : [])].join(", ") },
      { name: "Ranges", number: true, render: (op) => count(op.parallelism) },
      { name: "Keys", number: true, render: (op) => count(op.keys) },
      { name: "Rows in", number: true, render: (op) => count(op.rows_in) },
      { name: "Late", number: true, render: (op) => count(op.late_rows) },
      { name: "Last delta", number: true, render: (op) => size(op.checkpoint_bytes) },
      { name: "Files", number: true, render: (op) => size(op.size_bytes) },
      { name: "Longest chain", number: true, render: (op) => count(op.longest_chain) },
    ], told.operators, { empty: "No epoch yet.", hidden: true }));
    charts.update(epochs.figures);
  }
  function tick() {
    if (ageOf && published !== null) ageOf.textContent = age(Math.max(0, now() - published)).replace(" ago", "");
  }
  return { title: job, element, refresh, tick };
}

// ---- an operator --------------------------------------------------------------------------------

export function operatorView({ job, uid, signal }) {
  const figures = h("div");
  const charts = epochCharts(true);
  const states = h("div");
  const element = h("div", null, heading(uid), operatorTabs(job, uid, ""), figures, charts.element, h("h2", null, "Declared state"), states);
  async function refresh() {
    const [told, epochs] = await Promise.all([
      ofJob(job, "overview", {}, { signal }), ofJob(job, "epochs", { uid }, { signal })]);
    const op = told.operators.find((each) => each.uid === uid);
    const all = epochs.figures;
    const last = all.epoch.length - 1;
    const cached = last < 0 ? 0 : all.cache_hits[last] + all.cache_misses[last];
    renew(figures, tiles(
      tile("Keys", short(op && op.keys)),
      tile("Rows in, last epoch", count(op && op.rows_in), op && op.late_rows ? `${count(op.late_rows)} late` : null),
      tile("State on storage", size(op && op.size_bytes), op && amount(op.files, "file")),
      last >= 0 ? tile("State in memory", size(all.state_bytes[last])) : null,
      cached ? tile("Found in memory", `${((100 * all.cache_hits[last]) / cached).toFixed(1)} %`, `of ${count(cached)} keys`) : null,
      op && op.watermark_ms !== null ? tile("Watermark", last < 0 ? "–" : duration(all.watermark_lag_ms[last]), `behind, at ${moment(op.watermark_ms)}`) : null,
      tile("Written per byte", epochs.written_per_byte === null ? "–" : epochs.written_per_byte.toFixed(2), "deltas and merges, per byte of deltas"),
    ));
    charts.update(all);
    renew(states, table("Declared state", [
      { name: "Name", header: true, render: (row) => row.name },
      { name: "Kind and type", render: (row) => h("code", null, row.type) },
    ], op ? op.states : [], { hidden: true }));
  }
  return { title: uid, element, refresh };
}

export function groupsView({ job, uid, signal }) {
  const weight = h("select", { id: "weight" }, h("option", { value: "bytes" }, "Bytes"), h("option", { value: "rows" }, "Rows"));
  const figures = h("div");
  const how = h("p", { class: "quiet" });
  let told = null;
  const map = cells({ label: "Key groups", format: (v) => (weight.value === "bytes" ? size(Math.round(v)) : `${count(Math.round(v))} rows`) });
  const groups = h("div");
  const ranges = h("div");
  const keys = h("div");
  const element = h("div", null, heading(uid), operatorTabs(job, uid, "groups"), figures,
    h("section", { class: "card" },
      h("div", { class: "row" }, h("h2", null, "Key groups"), h("label", { for: "weight" }, "by"), weight), how, map.element,
      h("p", { class: "quiet" }, "The larger a square, and the stronger its colour, the heavier the key group.")),
    h("h2", null, "Heaviest key groups"), groups, h("h2", null, "Ranges"), ranges, h("h2", null, "Heaviest keys"), keys);

  function named(at) {
    const per = told.groups_per_cell;
    const last = Math.min(told.key_groups, (at + 1) * per) - 1;
    return per === 1 ? String(at) : `${at * per} to ${last}`;
  }

  function paint() {
    const values = told[weight.value];
    map.update(values, named);
    const most = Math.max(...values, 1);
    const mean = values.reduce((sum, v) => sum + v, 0) / Math.max(1, values.length);
    const order = values.map((v, at) => at).sort((a, b) => values[b] - values[a]).slice(0, 10).filter((at) => values[at] > 0);
    renew(groups, table("Heaviest key groups", [
      { name: "Key group", header: true, render: named },
      { name: "Rows", number: true, render: (at) => count(Math.round(told.rows[at])) },
      { name: "Bytes", number: true, render: (at) => size(Math.round(told.bytes[at])) },
      { name: "Of the mean", number: true, render: (at) => `${(values[at] / mean).toFixed(2)} ×` },
      { name: "", class: "share-cell", render: (at) => share(values[at] / most) },
    ], order, { hidden: true, empty: "There is no state." }));
  }

  weight.addEventListener("change", () => told && paint());
  async function refresh() {
    told = await ofJob(job, "heat", { uid }, { signal });
    renew(how, told.counted === "rows"
      ? `Counted in the rows of epoch ${told.epoch}.`
      : `By the indexes of the files of epoch ${told.epoch}, without reading state: a key counts in each file that has it until they are merged.`);
    renew(figures, tiles(
      tile("Key groups", count(told.key_groups), `in ${amount(told.ranges.length, "range")}`),
      tile("Rows", short(told.rows.reduce((sum, v) => sum + v, 0))),
      tile("Skew of bytes", told.skew.bytes === null ? "–" : `${told.skew.bytes.toFixed(2)} ×`, "the heaviest group, of the mean"),
      tile("Skew of rows", told.skew.rows === null ? "–" : `${told.skew.rows.toFixed(2)} ×`, "the heaviest group, of the mean"),
    ));
    paint();
    const most = Math.max(1, ...told.ranges.map((each) => each.bytes));
    renew(ranges, table("Ranges", [
      { name: "Range", header: true, render: (row) => count(row.index) },
      { name: "Key groups", render: (row) => `${row.first_key_group} to ${row.last_key_group}` },
      { name: "Rows", number: true, render: (row) => count(row.rows) },
      { name: "Bytes", number: true, render: (row) => size(row.bytes) },
      { name: "", class: "share-cell", render: (row) => share(row.bytes / most) },
    ], told.ranges, { hidden: true }));
    const heavy = await ofJob(job, "heaviest", { uid }, { signal });
    const from = heavy.of === "all"
      ? `Of all ${count(heavy.rows_read)} rows of epoch ${heavy.epoch}.`
      : heavy.key_groups_read
        ? `A sample: the ${count(heavy.rows_read)} rows of the ${count(heavy.key_groups_read)} heaviest key groups of epoch ${heavy.epoch}.`
        : "No sample was taken: one key group alone is larger than what the page reads.";
    renew(keys, h("p", { class: "quiet" }, from), keyTable(job, uid, heavy));
  }
  return { title: `Key groups of ${uid}`, element, refresh };
}

function share(part_) {
  const bar = h("span", { class: "share", "aria-hidden": "true" });
  bar.style.width = `${Math.max(0, Math.min(1, part_)) * 100}%`;
  return bar;
}

function keyTable(job, uid, heavy) {
  return table("Heaviest keys", [
    { name: heavy.columns.join(", "), header: true, render: (row) => keyLink(job, uid, row) },
    { name: "Bytes", number: true, render: (row) => size(row.bytes) },
  ], heavy.keys, { hidden: true, empty: "There is no key." });
}

function keyLink(job, uid, row, epoch = null) {
  return h("a", { class: "key", href: link.key(job, uid, row.key, epoch), "data-name": `key ${JSON.stringify(row.key)} ${line(row.values)}` },
    row.values.map((value) => (value === "" ? "(empty text)" : line(value))).join(", "));
}

// ---- a key --------------------------------------------------------------------------------------

function epochChoice(id, label) {
  const choice = h("select", { id });
  const field = h("div", { class: "field" }, h("label", { for: id }, label), choice);
  return {
    field,
    choice,
    update(epochs, wanted, newest) {
      const chosen = choice.options.length ? choice.value : wanted === null ? "" : String(wanted);
      const options = [["", newest], ...[...epochs].reverse().map((epoch) => [String(epoch), `epoch ${epoch}`])];
      if (chosen && !options.some(([value]) => value === chosen)) options.push([chosen, `epoch ${chosen} (gone)`]);
      choice.replaceChildren(...options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
    },
    get value() {
      return choice.value === "" ? null : Number(choice.value);
    },
  };
}

export function keyView({ job, uid, signal, params, replace }) {
  const fields = h("div", { class: "form" });
  const epoch = epochChoice("epoch", "Epoch");
  const form = h("form", { class: "card" }, fields);
  const answer = h("div", { class: "answer" });
  const proposals = h("div");
  const element = h("div", null, heading(uid), operatorTabs(job, uid, "key"), form, answer, proposals);
  const inputs = [];
  let wanted = params.getAll("key");
  if (wanted.length) for (const place of params.getAll("null")) wanted[Number(place)] = null;
  const wantedEpoch = params.get("epoch");
  if (!wanted.length) wanted = null;

  function make(op) {
    op.key.forEach((column, i) => {
      const id = `key-${i}`;
      const isNull = h("input", { type: "checkbox", id: `${id}-null`, checked: wanted && wanted[i] === null });
      const input = h("input", { id, type: "text", autocomplete: "off", spellcheck: "false", value: (wanted && wanted[i]) || "" });
      input.disabled = isNull.checked;
      isNull.addEventListener("change", () => { input.disabled = isNull.checked; });
      inputs.push({ input, isNull });
      fields.append(h("div", { class: "field" },
        h("div", { class: "field-head" }, h("label", { for: id }, column.name, " ", h("small", null, column.type)),
          h("label", { class: "null-choice hint", for: `${id}-null` }, isNull, "is null")), input));
    });
    fields.append(epoch.field, h("button", { type: "submit", class: "main-button" }, "Look up"));
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    wanted = inputs.map(({ input, isNull }) => (isNull.checked ? null : input.value));
    replace(link.key(job, uid, wanted, epoch.value));
    look(true);
  });
  epoch.choice.addEventListener("change", () => {
    if (!wanted) return;
    replace(link.key(job, uid, wanted, epoch.value));
    look(true);
  });

  async function look(asked) {
    try {
      const nulls = wanted.flatMap((text, i) => (text === null ? [i] : []));
      const told = await ofJob(job, "key", { uid, key: wanted.map((text) => text ?? ""), null: nulls, epoch: epoch.value }, { signal });
      renew(answer, stateOfKey(told));
    } catch (error) {
      if (error.name === "AbortError") return;
      renew(answer, h("p", { class: "trouble", role: asked ? "alert" : null }, error.message));
    }
  }

  async function refresh() {
    const told = await ofJob(job, "overview", {}, { signal });
    const op = told.operators.find((each) => each.uid === uid);
    if (!op) {
      renew(answer, h("p", { class: "trouble" }, `The newest epoch has no operator ${uid}.`));
      return;
    }
    const first = !inputs.length;
    if (first) make(op);
    epoch.update(told.epochs, wantedEpoch, "the newest, as it comes");
    if (wanted && (first || epoch.value === null)) await look(false);
    if (first) {
      const heavy = await ofJob(job, "heaviest", { uid }, { signal });
      renew(proposals, h("h2", null, "Keys to begin with"), h("p", { class: "quiet" }, "The heaviest ones of those that were read."), keyTable(job, uid, heavy));
    }
  }
  return { title: `Look up in ${uid}`, element, refresh };
}

function stateOfKey(told) {
  const key = told.key_columns.map((name, i) => `${name} = ${line(told.key[i])}`).join(", ");
  const head = h("h2", null, h("span", { class: "key", id: "answer-key" }, key), " ", h("small", { class: "hint" }, `in epoch ${told.epoch}`));
  if (!told.found && !told.timers.length) return [head, h("p", { class: "card", id: "absent" }, "Nothing is known of this key in that epoch.")];
  const of = (row, path) => h("dl", { class: "card" }, told.states.map((state, i) => h("div", { class: "state" },
    h("dt", null, h("b", null, state.name), h("small", null, state.type)),
    h("dd", null, shown(row.values[i], `${path}.${state.name}`, true)))));
  const rows = told.rows.map((row, n) => (told.has_namespaces
    ? h("section", null, h("h3", null, `namespace ${line(row.namespace)}`), of(row, String(n)))
    : of(row, String(n))));
  const more = told.more_rows ? h("p", { class: "quiet" }, `and ${count(told.more_rows)} more namespaces`) : null;
  const timers = told.timers.length ? table("Timers", [
    { name: "Clock", header: true, render: (row) => line(row[row.length - 2]) },
    { name: "Fires at", render: (row) => moment(Number(line(row[row.length - 1]))) },
    ...(told.timers[0].length > 2 ? [{ name: "Namespace", render: (row) => line(row[0]) }] : []),
  ], told.timers) : null;
  return [head, rows, more, timers].flat().filter(Boolean);
}

// ---- changes and files --------------------------------------------------------------------------

export function changesView({ job, uid, signal, params }) {
  const epoch = epochChoice("epoch", "Changes of");
  const body = h("div");
  const element = h("div", null, heading(uid), operatorTabs(job, uid, "changes"),
    h("form", { class: "card" }, h("div", { class: "form" }, epoch.field)), body);
  const WORDS = { new: "new", put: "changed", delete: "deleted" };

  function difference(row) {
    if (row.change === "delete") return h("span", null, "was ", part_(row.before));
    if (row.change === "new") return part_(row.after);
    const before = (row.before && row.before.fields) || [];
    const after = (row.after && row.after.fields) || [];
    return after.map(([name, value], i) => (JSON.stringify(before[i]) === JSON.stringify([name, value]) ? null
      : h("span", { class: "changed-state" }, `${name}: `, shown(before[i] && before[i][1], `${row.key}.${name}.before`),
        h("span", { class: "arrow" }, "→"), shown(value, `${row.key}.${name}.after`))));
  }

  function part_(value) {
    return h("span", { class: "value" }, line(value));
  }

  async function show() {
    let told;
    try {
      told = await ofJob(job, "changed", { uid, epoch: epoch.value }, { signal });
    } catch (error) {
      if (error.name === "AbortError") return;
      renew(body, h("p", { class: "trouble", role: "alert" }, error.message));
      return;
    }
    const all = told.more ? `the first ${count(told.changes.length)} that were found` : count(told.changes.length);
    renew(body,
      h("h2", null, `Epoch ${told.epoch} against ${told.before || "the empty state"}`),
      h("p", { class: "quiet" }, `Keys that differ: ${all}.${told.rows_changed === null ? "" : ` The epoch changed ${count(told.rows_changed)} rows of state.`}`),
      table("Changes", [
        { name: told.columns.join(", "), header: true, render: (row) => keyLink(job, uid, row, epoch.value) },
        { name: "Change", render: (row) => h("span", { class: `tag ${row.change === "delete" ? "bad" : row.change === "new" ? "good" : "plain"}` }, WORDS[row.change] || row.change) },
        { name: "State", render: difference },
      ], told.changes, { hidden: true, empty: "Nothing has changed." }));
  }

  epoch.choice.addEventListener("change", show);
  element.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  async function refresh() {
    const told = await ofJob(job, "overview", {}, { signal });
    const first = !epoch.choice.options.length;
    epoch.update(told.epochs, params.get("epoch"), "the newest epoch, as it comes");
    if (first || epoch.value === null) await show();
  }
  return { title: `Changes of ${uid}`, element, refresh };
}

export function filesView({ job, uid, signal, params, replace }) {
  const ranges = h("div");
  const files = h("div");
  const merges = h("div");
  const written = chart({ title: "Bytes written", kind: "bars", format: size, base: 2, series: [{ name: "deltas", of: "checkpoint_bytes" }, { name: "merged files", of: "merged_bytes" }] });
  const deep = chart({ title: "Files of one key group", kind: "lines", format: count, note: "in the deepest range", series: [{ name: "files", of: "most_files" }] });
  const element = h("div", null, heading(uid), operatorTabs(job, uid, "files"), merges, h("div", { class: "charts" }, written.element, deep.element),
    h("h2", null, "Ranges and their chains"), ranges, files);
  let index = params.get("range");

  function choose(row) {
    const href = `${link.operator(job, uid, "files")}?range=${row.index}`;
    return h("a", {
      href, "data-name": `range ${row.index}`, "aria-current": String(row.index) === String(index) ? "true" : null,
      onclick: (event) => { event.preventDefault(); index = row.index; replace(href); refresh(); },
    }, `range ${row.index}`);
  }

  async function refresh() {
    const [told, epochs] = await Promise.all([
      ofJob(job, "files", { uid, range: index }, { signal }), ofJob(job, "epochs", { uid }, { signal })]);
    if (index === null) index = told.range;
    written.update(epochs.figures);
    deep.update(epochs.figures);
    const longest = told.ranges.reduce((most, each) => Math.max(most, each.deltas), 0);
    renew(merges, tiles(
      tile("Longest chain", count(longest), "deltas of one range"),
      tile("Deepest", count(told.ranges.reduce((most, each) => Math.max(most, each.depth), 0)), "files for one key group"),
      tile("Written per byte", epochs.written_per_byte === null ? "–" : epochs.written_per_byte.toFixed(2), "deltas and merges, per byte of deltas"),
      tile("Ranges", count(told.ranges.length + told.more_ranges)),
    ));
    renew(ranges, table("Ranges", [
      { name: "Range", header: true, render: choose },
      { name: "Key groups", render: (row) => `${row.first_key_group} to ${row.last_key_group}` },
      { name: "Base", render: (row) => (row.has_base ? "yes" : "no") },
      { name: "Deltas", number: true, render: (row) => count(row.deltas) },
      { name: "Depth", number: true, render: (row) => count(row.depth) },
      { name: "Size", number: true, render: (row) => size(row.size_bytes) },
      { name: "Rows in files", number: true, render: (row) => count(row.rows) },
      { name: "Next event timer", render: (row) => moment(row.next_event_timer_ms) },
      { name: "Next processing timer", render: (row) => moment(row.next_processing_timer_ms) },
    ], told.ranges, { hidden: true }));
    const most = Math.max(1, ...told.files.map((each) => each.size_bytes));
    renew(files, h("h2", null, `Files of range ${told.range}, newest first`), h("p", { class: "quiet" },
      "A restore reads them from the last to the first. Deltas have what an epoch has changed; merged files stand for several; a base for all before it."),
    table(`Files of range ${told.range}`, [
      { name: "Epoch", header: true, render: (row) => count(row.epoch) },
      { name: "Kind", render: (row) => [h("span", { class: "tag plain" }, row.kind), row.is_new ? [" ", h("span", { class: "tag good" }, "new")] : null] },
      { name: "Size", number: true, render: (row) => size(row.size_bytes) },
      { name: "", class: "share-cell", render: (row) => share(row.size_bytes / most) },
      { name: "Puts", number: true, render: (row) => count(row.rows) },
      { name: "Deletes", number: true, render: (row) => count(row.tombstones) },
      { name: "Key groups", render: (row) => `${row.first_key_group} to ${row.last_key_group}` },
      { name: "File", class: "path", render: (row) => row.path },
    ], [...told.files].reverse(), { name: "files", hidden: true, empty: "No file: the range is empty." }));
  }
  return { title: `Files of ${uid}`, element, refresh };
}
