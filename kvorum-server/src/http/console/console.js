// The console: what a node says of itself and its cluster, drawn from the public API. Every text from the network is set as text,
// never as markup. It keeps nothing but the token, in this tab.

const at = (id) => document.getElementById(id);
const LOOK_EVERY = 5000;
const VALUE_SHOWN_MAX = 64 * 1024;

/** An element with text, a class, and children. */
function make(name, text, kind, ...children) {
  const element = document.createElement(name);
  if (text !== undefined && text !== null) element.textContent = text;
  if (kind) element.className = kind;
  element.append(...children);
  return element;
}

/** Fills a table. Figures stay on one line; the columns in `long` have texts, which may break anywhere. */
function fill(table, names, rows, long = []) {
  const head = make("tr", null, null, ...names.map((name) => make("th", name)));
  const kind = (place) => (long.includes(names[place]) ? "text" : "figure");
  const cells = (row) => row.map((cell, place) => (cell instanceof Node ? make("td", null, kind(place), cell) : make("td", cell, kind(place))));
  table.replaceChildren(head, ...rows.map((row) => make("tr", null, null, ...cells(row))));
}

// ---- Requests ----

const token = () => sessionStorage.getItem("kvorum-token") ?? "";

/** Sends a request to this node. Never throws for a status; throws when no answer comes. */
async function ask(method, target, { accept, body } = {}) {
  const headers = {};
  if (accept) headers.Accept = accept;
  if (token()) headers.Authorization = `Bearer ${token()}`;
  return fetch(target, { method, headers, body, cache: "no-store", redirect: "error", signal: AbortSignal.timeout(10_000) });
}

async function json(target) {
  const answer = await ask("GET", target, { accept: "application/json" });
  // A node that cannot serve says so in a status of its own, with a body that is the same.
  const read = await answer.text();
  try {
    const value = JSON.parse(read);
    if (answer.ok || value.verdict) return { value };
    return { problem: `${answer.status}: ${value.message ?? read.trim()}`, status: answer.status };
  } catch {
    return { problem: `${answer.status}: ${read.trim().slice(0, 300)}`, status: answer.status };
  }
}

function trouble(text) {
  at("trouble").hidden = !text;
  at("trouble").textContent = text ?? "";
}

// ---- Figures ----

const known = (value) => value !== null && value !== undefined;
const micros = (us) => (!known(us) ? "–" : us < 1000 ? `${us} µs` : us < 1e6 ? `${(us / 1000).toPrecision(3)} ms` : `${(us / 1e6).toPrecision(3)} s`);
const rate = (value) => (!known(value) ? "–" : value < 100 ? value.toFixed(1) : Math.round(value).toString());
function bytes(count) {
  if (!known(count)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let place = 0;
  for (; count >= 1024 && place < units.length - 1; place += 1) count /= 1024;
  return `${place ? count.toPrecision(3) : count} ${units[place]}`;
}
function time(ms) {
  if (!known(ms)) return "–";
  const seconds = Math.floor(ms / 1000);
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} d`;
}

// ---- Cluster ----

const GOOD = new Set(["up", "ok", "ready"]);
const state = (name) => make("span", name, GOOD.has(name) ? "good" : "bad");

function nodes(status) {
  const load = status.load ?? {};
  const own = [
    make("strong", status.url),
    state(status.serving),
    time(status.uptime_ms),
    rate(load.requests_per_second),
    micros(load.latency_us_p50),
    micros(load.latency_us_p99),
    known(load.cpu_cores) ? `${Math.round(load.cpu_cores * 100)} %` : "–",
    bytes(status.process?.resident_bytes),
    bytes(status.disk?.free_bytes),
    "this node", "–", "–", status.waits_for ?? "",
  ];
  const offset = (peer) => (known(peer.clock_offset_ms) ? `${peer.clock_offset_ms > 0 ? "+" : ""}${peer.clock_offset_ms} ms` : "–");
  const peers = (status.peers ?? []).map((peer) => [
    consoleOf(peer.url), state(peer.state), "", "", "", "", "", "", "",
    micros(peer.latency_us_mean), offset(peer), String(peer.hints?.waiting ?? "–"), peer.reason ?? "",
  ]);
  const names = ["node", "state", "up", "req/s", "p50", "p99", "cpu", "memory", "disk free", "latency from here", "clock", "hints", "why"];
  fill(at("nodes"), names, [own, ...peers], ["why"]);
}

/** A link to another node's console, which has that node's own figures. Only http(s): a node says what its URL is. */
function consoleOf(url) {
  if (!/^https?:\/\//.test(url)) return make("span", url);
  const link = make("a", url);
  link.href = `${url.replace(/\/+$/, "")}/console`;
  link.rel = "noreferrer";
  return link;
}

const SPARKS = [
  ["requests a second", (past) => sums(Object.values(past.requests_per_second ?? {})), rate],
  ["failures a second", (past) => past.failures_per_second, rate],
  ["p50", (past) => past.latency_us_p50, micros],
  ["p99", (past) => past.latency_us_p99, micros],
  ["CPU, cores", (past) => past.cpu_cores, (value) => (known(value) ? value.toFixed(2) : "–")],
  ["memory", (past) => past.resident_bytes, bytes],
  ["disk free", (past) => past.disk_free_bytes, bytes],
];

const sums = (lists) => (lists[0] ?? []).map((_, place) => lists.reduce((sum, list) => sum + (list[place] ?? 0), 0));

function spark(name, values, unit) {
  const present = values.filter(known);
  const latest = present.length ? unit(present[present.length - 1]) : "–";
  const caption = make("figcaption", null, null, make("span", name, "quiet"), make("strong", latest));
  const drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  drawing.setAttribute("viewBox", "0 0 180 40");
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", `${name}: ${latest}`);
  const most = Math.max(...present, 0) || 1;
  const first = 180 - values.length;
  if (!present.length) drawing.setAttribute("aria-label", `${name}: no samples yet`);
  // A gap in the samples is a gap in the line.
  let line = [];
  const lines = [line];
  values.forEach((value, place) => {
    if (known(value)) line.push(`${first + place},${(38 - (36 * value) / most).toFixed(1)}`);
    else if (line.length) lines.push(line = []);
  });
  for (const points of lines.filter((points) => points.length)) {
    const polyline = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    polyline.setAttribute("points", (points.length === 1 ? [points[0], points[0]] : points).join(" "));
    drawing.append(polyline);
  }
  return make("figure", null, null, caption, drawing);
}

async function lookAtCluster() {
  const { value: status, problem } = await json("/v0/status");
  if (problem) return trouble(problem);
  trouble();
  const { word, sentence, alarms } = status.verdict;
  at("verdict").textContent = sentence;
  at("verdict").className = word === "ok" ? "good" : alarms.some((alarm) => alarm.severity === "critical") ? "bad" : "warn";
  at("seen-by").textContent = `as ${status.url} sees it, version ${status.version}, ${new Date().toLocaleTimeString()}`;
  document.title = `kvorum: ${sentence}`;
  at("alarms").replaceChildren(...alarms.map((alarm) => make("li", null, alarm.severity,
    make("strong", `${alarm.severity} ${alarm.name}: `), make("span", alarm.sentence), make("div", alarm.remedy, "quiet"))));
  nodes(status);
  const count = (status.peers?.length ?? 0) + 1;
  offer(count, status.quorum);
  const past = await json("/v0/history");
  if (past.problem) at("sparks").replaceChildren(make("p", `No history: ${past.problem}`, "quiet"));
  else at("sparks").replaceChildren(...SPARKS.map(([name, of, unit]) => spark(name, of(past.value) ?? [], unit)));
}

// ---- Key ----

let offered = "";
/** The choice of ACK/FROM for a cluster of `count` nodes. It is made anew only where it differs: somebody may have chosen. */
function offer(count, quorum) {
  const now = JSON.stringify([count, quorum]);
  if (offered === now) return;
  offered = now;
  const choose = document.forms["key-form"].elements.replicas;
  const option = (text, value) => Object.assign(make("option", text), { value });
  const fall = quorum ? `default, ${quorum.ack}/${quorum.from}` : "default";
  const pairs = [];
  for (let from = 1; from <= Math.min(count, 7); from += 1) for (let ack = 1; ack <= from; ack += 1) pairs.push(`${ack}/${from}`);
  choose.replaceChildren(option(fall, ""), ...pairs.map((pair) => option(pair, pair)));
}

// A key is bytes; here it is the text in UTF-8. RFC 3986's reserved characters are escaped, too: a plus is no blank then.
const escape = (text) => encodeURIComponent(text).replace(/[!'()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`);

function targetOf(what) {
  const { id, replicas } = document.forms["key-form"].elements;
  if (what === "explain") return `/v0/explain?id=${escape(id.value)}`;
  return `/v0/entity?id=${escape(id.value)}${replicas.value ? `&replicas=${replicas.value}` : ""}`;
}

/** `text` as one word of a POSIX shell. */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function curl(what) {
  const words = ["curl"];
  if (what === "PUT" || what === "DELETE") words.push("-X", what);
  if (what === "PUT") words.push("--data-binary", quoted(document.forms["key-form"].elements.value.value));
  if (token()) words.push("-H", '"Authorization: Bearer $KVORUM_TOKEN"');
  words.push(quoted(location.origin + targetOf(what)));
  at("curl").textContent = words.join(" ");
}

/** Bytes as people read them: text where they are text, else hexadecimal with the characters beside it. */
function shown(data) {
  const part = data.subarray(0, VALUE_SHOWN_MAX);
  const more = data.length > part.length ? `\n… ${data.length - part.length} more bytes` : "";
  try {
    // A cut may be inside a character: only a whole value can be text.
    const text = new TextDecoder("utf-8", { fatal: true }).decode(part);
    if (!/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f\u202a-\u202e\u2066-\u2069]/.test(text)) return text + more;
  } catch { /* no text */ }
  const lines = [];
  for (let place = 0; place < Math.min(part.length, 4096); place += 16) {
    const row = [...part.subarray(place, place + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const signs = row.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${place.toString(16).padStart(8, "0")}  ${hex}  ${signs}`);
  }
  return lines.join("\n") + (data.length > 4096 ? `\n… ${data.length} bytes in all` : "");
}

async function sendKey(what) {
  curl(what);
  const isWrite = what === "PUT" || what === "DELETE";
  if (isWrite && !at("allow").checked) return;
  const status = at("key-status");
  status.textContent = "…";
  at("key-value").textContent = "";
  at("key-headers").replaceChildren();
  try {
    const body = what === "PUT" ? new TextEncoder().encode(document.forms["key-form"].elements.value.value) : undefined;
    const answer = await ask(isWrite ? what : "GET", targetOf(what), { body });
    const data = new Uint8Array(await answer.arrayBuffer());
    status.textContent = `${answer.status} ${answer.statusText}, ${data.length} bytes`;
    status.className = answer.ok ? "good" : answer.status === 404 ? "warn" : "bad";
    const names = ["etag", "kvorum-replicas", "last-modified", "kvorum-expires", "kvorum-request-id", "retry-after"];
    fill(at("key-headers"), ["header", "value"], names.filter((name) => answer.headers.has(name)).map((name) => [name, answer.headers.get(name)]), ["value"]);
    at("key-value").textContent = shown(data);
  } catch (error) {
    status.className = "bad";
    status.textContent = isWrite ? `no answer (${error.message}): the write may have taken effect, or may yet` : `no answer: ${error.message}`;
  }
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sendKey(event.submitter?.value ?? "GET");
});
at("key-form").addEventListener("input", () => curl("GET"));
function allow() {
  for (const button of document.querySelectorAll("button.writes")) button.disabled = !at("allow").checked;
}
at("allow").addEventListener("change", allow);

// ---- Ranges ----

at("range-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { start, end, limit } = event.target.elements;
  const status = at("range-status");
  at("range-rows").replaceChildren();
  status.textContent = "…";
  status.className = "";
  const until = end.value ? `&end=${escape(end.value)}` : "";
  try {
    const answer = await ask("GET", `/v0/entities?start=${escape(start.value)}${until}&limit=${Number(limit.value) || 50}`, { accept: "application/x-ndjson" });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${answer.status}: ${text.trim()}`);
    const rows = text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
    const plain = (row, name) => row[name] ?? `base64 ${row[`${name}_base64`] ?? ""}`;
    const cut = (value) => (value.length > 200 ? `${value.slice(0, 200)}…` : value);
    fill(at("range-rows"), ["key", "value", "version", "expires"], rows.map((row) => {
      const open = make("a", cut(plain(row, "key")));
      open.href = "#key";
      open.addEventListener("click", () => {
        if (row.key === undefined) return;
        document.forms["key-form"].elements.id.value = row.key;
        sendKey("GET");
      });
      const expires = known(row.expires) ? new Date(row.expires).toISOString() : "";
      return [open, cut(plain(row, "value")), row.version, expires];
    }), ["key", "value"]);
    status.textContent = `${rows.length} records${rows.length >= Number(limit.value) ? ": there may be more" : ""}`;
  } catch (error) {
    status.className = "bad";
    status.textContent = `the range is not whole: ${error.message}`;
  }
});

// ---- Tasks ----

async function lookAtTasks() {
  const { value, problem } = await json("/admin/workers");
  const status = at("tasks-status");
  if (problem) {
    at("workers").replaceChildren();
    status.textContent = `Read-only: ${problem}`;
    return;
  }
  status.textContent = "A pause ends by itself after an hour.";
  fill(at("workers"), ["task", "state", "done", "a second", "backlog", "what it does", ""], value.workers.map((worker) => {
    const isPaused = worker.state === "paused";
    const button = make("button", isPaused ? "Resume" : "Pause for 1 h");
    button.disabled = !worker.can_pause;
    button.addEventListener("click", async () => {
      button.disabled = true;
      const path = `/admin/workers/${escape(worker.name)}`;
      try {
        const answer = await ask("POST", isPaused ? `${path}/resume` : `${path}/pause?for=1h`);
        if (!answer.ok) trouble(`${answer.status}: ${(await answer.text()).trim()}`);
      } catch (error) {
        trouble(`no answer: ${error.message}`);
      }
      await lookAtTasks();
    });
    return [worker.name, worker.state, `${worker.done} ${worker.unit}`, rate(worker.rate), String(worker.backlog), worker.detail ?? worker.purpose, button];
  }), ["what it does"]);
}

// ---- Pages ----

const PAGES = { cluster: lookAtCluster, key: async () => curl("GET"), ranges: async () => {}, tasks: lookAtTasks };
const page = () => (Object.hasOwn(PAGES, location.hash.slice(1)) ? location.hash.slice(1) : "cluster");

async function look() {
  try {
    await PAGES[page()]();
  } catch (error) {
    trouble(`This node does not answer: ${error.message}`);
  }
}

function turn() {
  for (const name of Object.keys(PAGES)) at(name).hidden = name !== page();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${page()}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  trouble();
  look();
}

at("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (at("token").value) sessionStorage.setItem("kvorum-token", at("token").value);
  else sessionStorage.removeItem("kvorum-token");
  at("token").value = "";
  at("token").placeholder = token() ? "a token is in use" : "token ID.SECRET";
  turn();
});
window.addEventListener("hashchange", turn);
allow();
offer(1, null);
turn();
// The key page needs the number of nodes, whatever page was opened first.
if (page() !== "cluster") lookAtCluster().catch(() => {});
// One look after the other, and none in a tab that nobody sees.
(async () => {
  for (;;) {
    await new Promise((done) => { setTimeout(done, LOOK_EVERY); });
    if (!document.hidden && (page() === "cluster" || page() === "tasks")) await look();
  }
})();
