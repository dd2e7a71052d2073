// Asks the server. A token, where it wants one, is kept by this tab alone.

const KEPT = "pystate token";

let ask = null;
/** What gets a token from who sits here: a promise of it. It is told what is wrong with the last one. */
export function askForTokenBy(asking) {
  ask = asking;
}

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function kept() {
  try {
    return sessionStorage.getItem(KEPT);
  } catch {
    return null;
  }
}

async function message(response) {
  try {
    const content = await response.json();
    const said = content.error ?? content.detail ?? content.message;
    if (typeof said === "string") return said;
    if (said && typeof said.message === "string") return said.message;
  } catch {
    // It is not JSON: the status has to do.
  }
  return `the server answers ${response.status} ${response.statusText}`;
}

async function request(path, options) {
  for (;;) {
    const token = kept();
    const headers = { ...(options.headers || {}), ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    let response;
    try {
      response = await fetch(path, { ...options, headers, credentials: "omit", redirect: "error" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError("the server cannot be reached", 0);
    }
    if (response.status === 401 && ask) {
      const given = await ask(token ? await message(response) : null);
      sessionStorage.setItem(KEPT, given);
      continue;
    }
    if (!response.ok) throw new ServerError(await message(response), response.status);
    return response;
  }
}

function query(parameters) {
  const pairs = Object.entries(parameters || {}).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value]).filter((v) => v !== null && v !== undefined).map((v) => [name, v]));
  return pairs.length ? `?${new URLSearchParams(pairs)}` : "";
}

export async function pulse(signal) {
  return (await (await request("v1/page/pulse", { signal })).json()).jobs;
}

/** What only the page asks for: ofJob("shop", "epochs", {last: 10}). */
export async function ofJob(job, what, parameters, { signal, method = "GET" } = {}) {
  const path = `v1/jobs/${encodeURIComponent(job)}/page/${what}${query(parameters)}`;
  return (await request(path, { signal, method })).json();
}

/** Rows of a statement: {columns: [...], rows: [...]}. */
export async function sql(job, statement, signal) {
  const response = await request(`v1/jobs/${encodeURIComponent(job)}/page/sql`, {
    signal,
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ query: statement }),
  });
  return response.json();
}
