// The console: what a node says of itself and its cluster, drawn from the public API. Every text from the network is set as text,
// never as markup. It keeps nothing but the token, in this tab.

import { profiles } from "/console/profile.js";

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

/** Sends a request to this node, or to the one that `target` names. Never throws for a status; throws when no answer comes. */
async function ask(method, target, { accept, body, wait = 10_000 } = {}) {
  const headers = {};
  if (accept) headers.Accept = accept;
  if (token()) headers.Authorization = `Bearer ${token()}`;
  return fetch(target, { method, headers, body, cache: "no-store", redirect: "error", signal: AbortSignal.timeout(wait) });
}

async function json(target, wait) {
  const answer = await ask("GET", target, { accept: "application/json", wait });
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

// ---- Other nodes ----

const OTHERS_MAX = 16;
const OTHERS_WAIT = 3000;
/** This node first, then the other members, as this node's settings name them: `url`, and `base` to put before a path. */
let cluster = [{ url: location.origin, base: "" }];

/** A node lets pages of members read its reports, and only those. */
const isMember = () => cluster.some((node) => node.url.replace(/\/+$/, "") === location.origin);

function learn(status) {
  const others = (status.cluster ?? []).filter((url) => url !== status.url && /^https?:\/\//.test(url));
  const base = (url) => url.replace(/\/+$/, "");
  cluster = [{ url: status.url, base: "" }, ...others.map((url) => ({ url, base: base(url) }))];
}

/** Status and history of every other node that answers this page; by URL. */
async function lookAtOthers() {
  const found = new Map();
  if (!isMember()) return found;
  await Promise.all(cluster.slice(1, 1 + OTHERS_MAX).map(async ({ url, base }) => {
    try {
      const [status, past] = await Promise.all([json(`${base}/v0/status`, OTHERS_WAIT), json(`${base}/v0/history`, OTHERS_WAIT)]);
      if (status.value) found.set(url, { status: status.value, past: past.value });
    } catch { /* the row says so */ }
  }));
  return found;
}

// ---- Cluster ----

const GOOD = new Set(["up", "ok", "ready"]);
const state = (name) => make("span", name, GOOD.has(name) ? "good" : "bad");

/** A figure with its line of the last quarter of an hour. */
const withLine = (text, values) => (values?.some(known) ? make("span", `${text} `, null, line(values)) : text);

/** The figures that a node has of itself: from its status, and its history where there is one. */
function figures(status, past) {
  const load = status.load ?? {};
  return [
    time(status.uptime_ms),
    withLine(rate(load.requests_per_second), past && requestsOf(past)),
    withLine(micros(load.latency_us_p50), past?.latency_us_p50),
    withLine(micros(load.latency_us_p99), past?.latency_us_p99),
    withLine(known(load.cpu_cores) ? `${Math.round(load.cpu_cores * 100)} %` : "–", past?.cpu_cores),
    withLine(bytes(status.process?.resident_bytes), past?.resident_bytes),
    withLine(bytes(status.disk?.free_bytes), past?.disk_free_bytes),
  ];
}

function nodes(status, past, others) {
  const own = [make("strong", status.url), state(status.serving), ...figures(status, past), "–", status.waits_for ?? "this node"];
  const peers = (status.peers ?? []).map((peer) => {
    const other = others.get(peer.url);
    const itself = other ? figures(other.status, other.past) : ["", "", "", "", "", "", ""];
    // A node that answers may say more than that it is up, as that its disk is full.
    const said = peer.state === "up" ? other?.status.serving ?? peer.state : peer.state;
    return [consoleOf(peer.url), state(said), ...itself, String(peer.hints?.waiting ?? "–"), peer.reason ?? other?.status.waits_for ?? ""];
  });
  fill(at("nodes"), ["node", "state", "up", "req/s", "p50", "p99", "cpu", "memory", "disk free", "hints here", "why"], [own, ...peers], ["why"]);
  const named = cluster[0].url;
  at("others").textContent = isMember() ? "" : `The others' own figures are read only by a page of a member: open ${named}/console.`;
  matrix(status, others);
}

/** Who measures what of whom: latency and clock. */
function matrix(status, others) {
  const short = (url) => url.replace(/^https?:\/\//, "");
  const limit = status.clock?.offset_max_ms ?? Infinity;
  const rows = cluster.slice(0, 1 + OTHERS_MAX).map(({ url }) => {
    const seen = url === status.url ? status : others.get(url)?.status;
    const cells = cluster.slice(0, 1 + OTHERS_MAX).map((other) => {
      if (other.url === url) return "·";
      const peer = seen?.peers?.find((one) => one.url === other.url);
      if (!peer) return "–";
      if (peer.state !== "up") return state(peer.state);
      const ahead = known(peer.clock_offset_ms) ? `${peer.clock_offset_ms > 0 ? "+" : ""}${peer.clock_offset_ms} ms` : "–";
      return make("span", `${micros(peer.latency_us_mean)}, ${ahead}`, Math.abs(peer.clock_offset_ms ?? 0) > limit ? "bad" : "");
    });
    return [make("strong", short(url)), ...cells];
  });
  fill(at("matrix"), ["from, to", ...cluster.slice(0, 1 + OTHERS_MAX).map(({ url }) => short(url))], rows);
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
  ["requests a second", (past) => requestsOf(past), rate],
  ["failures a second", (past) => past.failures_per_second, rate],
  ["p50", (past) => past.latency_us_p50, micros],
  ["p99", (past) => past.latency_us_p99, micros],
  ["CPU, cores", (past) => past.cpu_cores, (value) => (known(value) ? value.toFixed(2) : "–")],
  ["memory", (past) => past.resident_bytes, bytes],
  ["disk free", (past) => past.disk_free_bytes, bytes],
];

const sums = (lists) => (lists[0] ?? []).map((_, place) => lists.reduce((sum, list) => sum + (list[place] ?? 0), 0));

const requestsOf = (past) => sums(Object.values(past.requests_per_second ?? {}));

/** A line of samples. A gap in the samples is a gap in the line. */
function line(values) {
  const drawing = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  drawing.setAttribute("viewBox", "0 0 180 40");
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("aria-hidden", "true");
  const most = Math.max(...values.filter(known), 0) || 1;
  const first = 180 - values.length;
  let part = [];
  const parts = [part];
  values.forEach((value, place) => {
    if (known(value)) part.push(`${first + place},${(38 - (36 * value) / most).toFixed(1)}`);
    else if (part.length) parts.push(part = []);
  });
  for (const points of parts.filter((points) => points.length)) {
    const polyline = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    polyline.setAttribute("points", (points.length === 1 ? [points[0], points[0]] : points).join(" "));
    drawing.append(polyline);
  }
  return drawing;
}

function spark(name, values, unit) {
  const present = values.filter(known);
  const latest = present.length ? unit(present[present.length - 1]) : "–";
  const caption = make("figcaption", null, null, make("span", name, "quiet"), make("strong", latest));
  const drawing = line(values);
  drawing.removeAttribute("aria-hidden");
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", present.length ? `${name}: ${latest}` : `${name}: no samples yet`);
  return make("figure", null, null, caption, drawing);
}

const SEVERITIES = ["critical", "warning", "info"];

/**
 * The verdict of this node, with what the others say of themselves: only the node itself knows that its disk is full. One that
 * sees other nodes up than this one does not count: it may be cut off.
 */
function together(own, others) {
  const sayings = [...others].map(([url, { status }]) => [url, status.verdict]).filter(([, verdict]) => Array.isArray(verdict?.alarms));
  const up = (verdict) => verdict.sentence.split(",")[0];
  const lacks = (verdict) => (verdict.writes ? 0 : 1) + (verdict.reads ? 0 : 2);
  const alike = sayings.map(([, verdict]) => verdict).filter((verdict) => up(verdict) === up(own));
  const worst = alike.reduce((most, verdict) => (lacks(verdict) > lacks(most) ? verdict : most), own);
  const alarms = [...own.alarms];
  for (const [url, verdict] of sayings) {
    const isNew = ({ name, node }) => node === url && !alarms.some((known) => known.name === name && known.node === node);
    alarms.push(...verdict.alarms.filter(isNew));
  }
  alarms.sort((one, other) => SEVERITIES.indexOf(one.severity) - SEVERITIES.indexOf(other.severity));
  return { sentence: worst.sentence, isFailing: lacks(worst) > 0, alarms };
}

function say({ sentence, isFailing, alarms }) {
  at("verdict").textContent = sentence;
  const severity = isFailing ? "critical" : alarms[0]?.severity;
  at("verdict").className = { critical: "bad", warning: "warn" }[severity] ?? "good";
  document.title = `kvorum: ${sentence}`;
  at("alarms").replaceChildren(...alarms.map((alarm) => make("li", null, alarm.severity,
    make("strong", `${alarm.severity} ${alarm.name}: `), make("span", alarm.sentence), make("div", alarm.remedy, "quiet"))));
}

let othersBefore = new Map();
async function lookAtCluster() {
  const { value: status, problem } = await json("/v0/status");
  if (problem) return trouble(problem);
  trouble();
  say(together(status.verdict, othersBefore));
  learn(status);
  offer((status.peers?.length ?? 0) + 1, status.quorum);
  const [past, others] = await Promise.all([json("/v0/history"), lookAtOthers()]);
  othersBefore = others;
  say(together(status.verdict, others));
  const count = others.size ? `, and ${others.size} others of themselves` : "";
  at("seen-by").textContent = `as ${status.url} sees it${count}, version ${status.version}, ${new Date().toLocaleTimeString()}`;
  nodes(status, past.value, others);
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

// ---- Placement ----

const STATES = [
  ["good", "all replicas are there, and agreed within 10 minutes"],
  ["quiet", "all replicas are there; when they last agreed is not known or longer ago"],
  ["warn", "a replica is away; a default request has its quorum"],
  ["bad", "too few replicas for a default request"],
];
const AGREED_LATELY = 600_000;
let placement = null;

/** What the page says of a cluster: for each partition its replicas for a default request, and its state. */
function placed(status, topology, converged) {
  const lists = Uint8Array.from(atob(topology.preference_lists), (sign) => sign.charCodeAt(0));
  const from = Math.min(topology.default_from, topology.ranks);
  const votes = new Map([[status.url, status.store?.votes === "yes"], ...(status.peers ?? []).map((peer) => [peer.url, peer.state === "up" && peer.votes === true])]);
  const usable = topology.nodes.map((node) => votes.get(node.url) ?? false);
  return Array.from({ length: 2 ** topology.partition_bits }, (_, partition) => {
    const first = partition * topology.ranks;
    const replicas = Array.from({ length: from }, (_, rank) => (lists[2 * (first + rank)] << 8) | lists[2 * (first + rank) + 1]);
    const there = replicas.filter((place) => usable[place]).length;
    const agreed = converged.partitions?.[partition] ?? null;
    const isLate = agreed === null || converged.now - agreed > AGREED_LATELY;
    return { replicas, agreed, there, state: there < topology.default_ack ? 3 : there < from ? 2 : isLate ? 1 : 0 };
  });
}

async function lookAtPlacement() {
  const answers = await Promise.all([json("/v0/status"), json("/v0/topology"), json("/v0/converged?partitions=all")]);
  const problem = answers.map((answer) => answer.problem).find(Boolean);
  if (problem) {
    at("placement-status").textContent = `Not shown: ${problem}`;
    return;
  }
  const [status, topology, converged] = answers.map((answer) => answer.value);
  const partitions = placed(status, topology, converged);
  placement = { topology, converged, partitions };
  const quorum = `${topology.default_ack}/${topology.default_from}`;
  at("placement-status").textContent = `${partitions.length} partitions on ${topology.nodes.length} nodes, a default request is ${quorum}, epoch ${topology.epoch}.`;
  tellChange(await json("/admin/cluster"));
  const shares = topology.nodes.map((node, place) => {
    const first = partitions.filter(({ replicas }) => replicas[0] === place).length;
    const any = partitions.filter(({ replicas }) => replicas.includes(place)).length;
    const share = (count) => `${count}, ${((100 * count) / partitions.length).toFixed(1)} %`;
    return [consoleOf(node.url), node.zone || "–", String(node.weight), share(first), share(any)];
  });
  fill(at("shares"), ["node", "zone", "weight", "first for", "replica of"], shares);
  at("legend").replaceChildren(...STATES.map(([kind, text], place) => make("li", `${partitions.filter(({ state }) => state === place).length}: ${text}`, kind)));
  paint(partitions);
  document.forms["partition-form"].elements.partition.max = partitions.length - 1;
}

// What moves, and what that waits for.
function tellChange({ value, problem }) {
  const lines = [];
  if (problem) {
    lines.push(`Whether members change is not shown: ${problem}`);
  } else if (!value.change) {
    lines.push("No change of members is under way.");
  } else {
    const { heading, begin, end, partitions, reads, waits, left_seconds: left } = value.change;
    const rest = typeof left === "number" ? ` At the rate so far, ${Math.round(left)} s are left.` : "";
    const way = heading === "back" ? "A change of members was cancelled and goes back" : "A change of members is under way";
    lines.push(`${way}: of ${partitions} partitions, ${begin} to ${end - 1} are written by both placements and read by the ${reads} one.${rest}`, ...waits);
  }
  if (value?.plan) lines.push(`This node keeps a plan (${value.plan.change}), made on epoch ${value.plan.on_epoch}: kvorum cluster apply ${value.plan.on_epoch}`);
  at("change").replaceChildren(...lines.map((line) => make("li", line)));
}

function paint(partitions) {
  const grid = at("grid");
  const wide = 2 ** Math.ceil(Math.log2(partitions.length) / 2);
  [grid.width, grid.height] = [wide, partitions.length / wide];
  const colours = getComputedStyle(document.documentElement);
  const fills = STATES.map(([kind]) => colours.getPropertyValue(`--${kind}`));
  const pen = grid.getContext("2d");
  partitions.forEach(({ state: place }, partition) => {
    pen.fillStyle = fills[place];
    pen.fillRect(partition % wide, Math.floor(partition / wide), 1, 1);
  });
}

function tellPartition(partition) {
  const found = placement?.partitions[partition];
  if (!found) return;
  document.forms["partition-form"].elements.partition.value = partition;
  const urls = found.replicas.map((place) => placement.topology.nodes[place].url).join(", ");
  const agreed = found.agreed === null ? "when they last agreed is not known" : `they agree up to ${time(placement.converged.now - found.agreed)} ago`;
  at("partition-said").textContent = `Partition ${partition}: ${urls}; ${found.there} of ${found.replicas.length} answer and vote; ${agreed}.`;
}

at("grid").addEventListener("click", (event) => {
  const { width, height } = at("grid");
  const box = at("grid").getBoundingClientRect();
  const place = (at, size, count) => Math.min(count - 1, Math.max(0, Math.floor((at / size) * count)));
  tellPartition(place(event.clientY - box.top, box.height, height) * width + place(event.clientX - box.left, box.width, width));
});
at("partition-form").addEventListener("submit", (event) => {
  event.preventDefault();
  tellPartition(Number(event.target.elements.partition.value));
});

// ---- Settings ----

async function lookAtSettings() {
  const { value, problem } = await json("/admin/settings");
  at("settings-rows").replaceChildren();
  if (problem) {
    at("settings-status").textContent = `Not shown: ${problem}`;
    return;
  }
  at("settings-status").textContent = `${value.settings.length} settings of this node, each with the source of its value. They are read at the start.`;
  const rows = value.settings.filter((setting) => !at("given").checked || setting.origin !== "default");
  fill(at("settings-rows"), ["setting", "value", "from", "what it does"], rows.map((setting) => [
    setting.name,
    setting.origin === "default" ? setting.value || "–" : make("strong", setting.value || "–"),
    setting.origin,
    setting.help,
  ]), ["value", "from", "what it does"]);
}
at("given").addEventListener("change", () => look());

// ---- Pages ----

const PAGES = {
  cluster: lookAtCluster, key: async () => curl("GET"), ranges: async () => {}, tasks: lookAtTasks, placement: lookAtPlacement,
  profile: profiles({ at, make, fill, ask, nodes: () => (isMember() ? cluster : cluster.slice(0, 1)) }), settings: lookAtSettings,
};
const LIVE = new Set(["cluster", "tasks", "placement"]);
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
// Other pages need to know the nodes, whatever page was opened first.
if (page() !== "cluster") lookAtCluster().then(look).catch(() => {});
// One look after the other, and none in a tab that nobody sees.
(async () => {
  for (;;) {
    await new Promise((done) => { setTimeout(done, LOOK_EVERY); });
    if (!document.hidden && LIVE.has(page())) await look();
  }
})();
