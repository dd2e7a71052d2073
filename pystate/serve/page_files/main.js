// Which view is shown, and how it stays live: each second the page asks which epoch is the newest,
// and a view that shows an older one asks for what is new.

import { askForTokenBy, pulse } from "./api.js";
import { age, h, renew } from "./dom.js";
import { sqlView, verifyView } from "./tools.js";
import { changesView, filesView, groupsView, jobView, jobsView, keyView, link, operatorView } from "./views.js";

const LOOK_MS = 1000;
const LOST_MS = 4000;
const THEMES = ["auto", "light", "dark"];

const main = document.getElementById("main");
const live = document.getElementById("live");
const trouble = document.getElementById("trouble");
const pause = document.getElementById("pause");
const theme = document.getElementById("theme");

let jobs = [];
let ahead = 0; // by how much the server's clock is ahead of this one
let view = null;
let place = null;
let leaving = new AbortController();
let paused = false;
let busy = false;
let away = false;

const now = () => Date.now() + ahead;

// ---- where ------------------------------------------------------------------------------------

function where() {
  const [path, query = ""] = location.hash.slice(1).split("?", 2);
  let parts;
  try {
    parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    parts = ["?"];
  }
  const [jobsWord, job, second, uid, fourth = ""] = parts;
  const params = new URLSearchParams(query);
  if (!parts.length) return { make: jobsView, params };
  if (jobsWord !== "jobs" || !job) return { params };
  if (second === undefined) return { make: jobView, job, params };
  if (second === "verify") return { make: verifyView, job, params, name: "Verify" };
  if (second === "sql") return { make: sqlView, job, params, name: "SQL" };
  const make = { "": operatorView, groups: groupsView, key: keyView, changes: changesView, files: filesView }[fourth];
  return second === "operators" && uid && make ? { make, job, uid, params } : { params };
}

function trail() {
  const steps = [[link.jobs(), "Jobs"]];
  if (place.job) steps.push([link.job(place.job), place.job]);
  if (place.uid) steps.push([link.operator(place.job, place.uid), place.uid]);
  renew(document.getElementById("trail"), h("ol", null, steps.map(([href, name]) => h("li", null, h("a", { href }, name)))));
}

async function go(focus) {
  leaving.abort();
  leaving = new AbortController();
  place = where();
  trail();
  const known = !place.job || !jobs.length || jobs.some((each) => each.job === place.job);
  if (!place.make || !known) {
    view = null;
    document.title = "pystate";
    main.replaceChildren(h("h1", { tabindex: -1 }, "There is no such page"),
      h("p", null, known ? "" : `No job ${place.job} is served here. `, h("a", { href: link.jobs() }, "All jobs")));
    return;
  }
  view = place.make({
    ...place, now, signal: leaving.signal, jobs: () => jobs,
    // The address says what is shown, and a reload shows it again; the view stays.
    replace: (hash) => history.replaceState(null, "", hash),
  });
  view.epoch = undefined;
  document.title = `${view.title} – pystate`;
  main.replaceChildren(view.element);
  if (focus) (main.querySelector("h1") || main).focus({ preventScroll: true });
  window.scrollTo(0, 0);
  if (view.begin) view.begin();
  status(false);
  await refresh();
}

// ---- live -------------------------------------------------------------------------------------

function newest() {
  return place && place.job ? jobs.find((each) => each.job === place.job) : null;
}

/** What the view has to show: the epoch of its job, or those of all. */
function shownEpoch() {
  const own = newest();
  return own ? `${own.epoch}` : jobs.map((each) => `${each.job} ${each.epoch}`).join();
}

async function refresh() {
  if (!view || busy) return;
  const refreshed = view;
  const epoch = shownEpoch();
  busy = true;
  try {
    await refreshed.refresh();
    refreshed.epoch = epoch;
    say(null);
  } catch (error) {
    if (error.name !== "AbortError" && refreshed === view) say(error.message);
  } finally {
    busy = false;
  }
  if (refreshed !== view) await refresh();
}

function say(message) {
  trouble.hidden = !message;
  if (trouble.textContent !== (message || "")) trouble.textContent = message || "";
}

function status(lost) {
  live.classList.toggle("lost", lost);
  live.classList.toggle("paused", paused && !lost);
  const own = newest();
  if (lost) live.textContent = "no connection";
  else if (!own) live.textContent = paused ? "paused" : "live";
  else if (own.epoch === null || own.epoch === undefined) live.textContent = "no epoch yet";
  else renew(live, h("b", null, `epoch ${own.epoch}`), ` ${age(Math.max(0, now() - own.published_ms))}`);
}

async function look() {
  if (document.hidden || paused) {
    status(false);
    return LOOK_MS;
  }
  try {
    const told = await pulse(AbortSignal.timeout(10000));
    const before = shownEpoch();
    const first = !jobs.length;
    jobs = told;
    const own = newest();
    const clock = (own || jobs.find((each) => each.now_ms) || {}).now_ms;
    if (clock) ahead = clock - Date.now();
    live.classList.toggle("fresh", before !== shownEpoch());
    status(false);
    if (away) say(null);
    away = false;
    if (first) await go(false);
    else if (own && own.error) say(own.error);
    else if (view && view.epoch !== shownEpoch()) await refresh();
    if (view && view.tick) view.tick();
    return LOOK_MS;
  } catch (error) {
    away = true;
    status(true);
    say(`${error.name === "TimeoutError" ? "the server does not answer" : error.message}: it is asked again every few seconds`);
    return LOST_MS;
  }
}

async function lookAgain() {
  const wait = await look();
  setTimeout(lookAgain, wait);
}

// ---- what is around -----------------------------------------------------------------------------

function kept(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

function dress(chosen) {
  if (chosen === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  theme.textContent = { auto: "Auto", light: "Light", dark: "Dark" }[chosen];
  theme.setAttribute("aria-label", `Colours: ${chosen}. Choose others`);
}

let chosenTheme = THEMES.includes(kept("pystate theme")) ? kept("pystate theme") : "auto";
dress(chosenTheme);
theme.addEventListener("click", () => {
  chosenTheme = THEMES[(THEMES.indexOf(chosenTheme) + 1) % THEMES.length];
  try {
    localStorage.setItem("pystate theme", chosenTheme);
  } catch {
    // The choice holds for this visit.
  }
  dress(chosenTheme);
});

pause.addEventListener("click", () => {
  paused = !paused;
  pause.setAttribute("aria-pressed", String(paused));
  pause.textContent = paused ? "Go on" : "Pause";
  status(false);
});

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

let waiting = null;
askForTokenBy((wrong) => {
  // One question for all requests that wait for it.
  waiting = waiting || new Promise((resolve) => {
    const dialog = document.getElementById("token");
    const text = document.getElementById("token-text");
    const said = document.getElementById("token-wrong");
    text.value = "";
    said.hidden = !wrong;
    said.textContent = wrong || "";
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => {
      waiting = null;
      resolve(text.value.trim());
    }, { once: true });
    dialog.showModal();
  });
  return waiting;
});

window.addEventListener("hashchange", () => go(true));
lookAgain();
