// The page of profiles: takes one of this node or of several, draws it as a flame graph, and compares it with the one before.
// Frames are placed by properties of their style, which the page's policy allows; their names are set as text.

const DEEP_MAX = 150;
const FRAMES_MAX = 4000;
const ROW = 18;
/** Narrower frames cannot be seen: a share of the whole width. */
const NARROW = 0.0015;
const UNITS = { cpu: "samples", alloc: "bytes", lock: "µs waited" };

/** Adds up collapsed stacks, a line each: `frame;frame;… value`. Named waits lie within each other, so they are a list. */
function parse(text, into) {
  for (const line of text.split("\n")) {
    const cut = line.lastIndexOf(" ");
    const value = Number(line.slice(cut + 1));
    if (cut < 1 || !(value > 0)) continue;
    const frames = line.slice(0, cut).split(";");
    if (frames[0] === "named waits") {
      const name = frames.slice(1).join(": ");
      into.waits.set(name, (into.waits.get(name) ?? 0) + value);
      continue;
    }
    into.root.value += value;
    let at = into.root;
    for (const name of frames.slice(0, DEEP_MAX)) {
      if (!at.inner.has(name)) at.inner.set(name, { name, value: 0, inner: new Map() });
      at = at.inner.get(name);
      at.value += value;
    }
  }
}

const blank = (event) => ({ event, nodes: [], root: { name: "all", value: 0, inner: new Map() }, waits: new Map() });

/** For each function: how much is spent in itself, and with all that it calls. Within a recursion it counts once. */
function functions(root) {
  const found = new Map();
  const walk = (frame, above) => {
    let own = frame.value;
    for (const inner of frame.inner.values()) own -= inner.value;
    if (frame !== root) {
      const sum = found.get(frame.name) ?? { own: 0, all: 0 };
      sum.own += own;
      if (!above.has(frame.name)) sum.all += frame.value;
      found.set(frame.name, sum);
    }
    const isNew = !above.has(frame.name);
    if (isNew) above.add(frame.name);
    for (const inner of frame.inner.values()) walk(inner, above);
    if (isNew) above.delete(frame.name);
  };
  walk(root, new Set());
  return found;
}

/** A steady warm colour of a name. */
function tint(name) {
  let sum = 7;
  for (let place = 0; place < name.length; place += 1) sum = (sum * 31 + name.charCodeAt(place)) % 997;
  return `hsl(${15 + (sum % 40)} 75% ${62 + (sum % 13)}%)`;
}

/** Red where a share has grown, blue where it has shrunk. */
function change(by) {
  if (Math.abs(by) < 0.002) return "hsl(0 0% 80%)";
  const strong = Math.min(1, Math.abs(by) * 8);
  return `hsl(${by > 0 ? 5 : 220} 80% ${85 - 25 * strong}%)`;
}

const percent = (share) => `${(share * 100).toFixed(1)} %`;
const signed = (share) => `${share > 0 ? "+" : ""}${(share * 100).toFixed(1)} %`;

export function profiles({ at, make, fill, ask, nodes }) {
  let latest = null;
  let before = null;
  let zoomed = [];
  const form = document.forms["profile-form"];
  // A share of nothing says nothing.
  const canCompare = () => before?.event === latest?.event && before?.root.value > 0 && latest.root.value > 0;
  const compared = () => (form.elements.compare.checked && canCompare() ? before : null);

  function show() {
    const place = at("flame");
    place.replaceChildren();
    at("flame-at").textContent = "";
    for (const table of ["functions", "waits"]) at(table).replaceChildren();
    if (!latest) return;
    form.elements.compare.disabled = !canCompare();
    const old = compared();
    const whole = latest.root.value;
    const unit = UNITS[latest.event];
    const said = [`${whole} ${unit} in ${latest.nodes.join(", ") || "no node"}`];
    if (old) said.push(`compared with ${old.root.value} ${unit} before: red has a greater share now, blue a smaller one`);
    if (!whole) said.push("nothing was seen in that time");
    at("flame-said").textContent = said.join("; ");
    draw(place, old);
    tell(old);
  }

  /** The frame that the page is zoomed to, in both profiles. */
  function zoom(old) {
    let [frame, was] = [latest.root, old?.root];
    for (const name of zoomed) {
      if (!frame.inner.has(name)) break;
      frame = frame.inner.get(name);
      was = was?.inner.get(name);
    }
    return [frame, was];
  }

  function draw(place, old) {
    const [top, topBefore] = zoom(old);
    let count = 0;
    let deepest = 0;
    const put = (frame, was, path, left, depth) => {
      const width = frame.value / top.value;
      if (width < NARROW || depth > DEEP_MAX || count >= FRAMES_MAX) return;
      count += 1;
      deepest = Math.max(deepest, depth);
      const box = make("button", frame.name, "frame");
      box.type = "button";
      box.style.left = `${left * 100}%`;
      box.style.width = `${width * 100}%`;
      box.style.top = `${depth * ROW}px`;
      const share = frame.value / latest.root.value;
      const shareBefore = old?.root.value ? (was?.value ?? 0) / old.root.value : 0;
      box.style.background = old ? change(share - shareBefore) : tint(frame.name);
      const said = `${frame.name}: ${frame.value} ${UNITS[latest.event]}, ${percent(share)}${old ? `, ${signed(share - shareBefore)}` : ""}`;
      box.title = said;
      box.addEventListener("mouseenter", () => { at("flame-at").textContent = said; });
      box.addEventListener("focus", () => { at("flame-at").textContent = said; });
      box.addEventListener("click", () => {
        zoomed = path;
        show();
        at("flame-at").textContent = said;
      });
      place.append(box);
      let next = left;
      for (const inner of [...frame.inner.values()].sort((one, other) => (one.name < other.name ? -1 : 1))) {
        put(inner, was?.inner.get(inner.name), [...path, inner.name], next, depth + 1);
        next += inner.value / top.value;
      }
    };
    if (top.value) put(top, topBefore, zoomed, 0, 0);
    place.style.height = `${(deepest + 1) * ROW}px`;
    at("flame-out").hidden = zoomed.length === 0;
  }

  function tell(old) {
    const now = functions(latest.root);
    const past = old ? functions(old.root) : new Map();
    const shareOf = (sums, name, root) => (root.value ? (sums.get(name)?.own ?? 0) / root.value : 0);
    const rows = [...new Set([...now.keys(), ...past.keys()])].map((name) => {
      const own = shareOf(now, name, latest.root);
      return { name, own, all: latest.root.value ? (now.get(name)?.all ?? 0) / latest.root.value : 0, by: old ? own - shareOf(past, name, old.root) : 0 };
    });
    const told = rows.filter((row) => row.own > 0 || row.by !== 0);
    told.sort((one, other) => (old ? Math.abs(other.by) - Math.abs(one.by) : other.own - one.own));
    const names = old ? ["in itself", "change", "with its calls", "function"] : ["in itself", "with its calls", "function"];
    const cells = (row) => (old ? [percent(row.own), signed(row.by), percent(row.all), row.name] : [percent(row.own), percent(row.all), row.name]);
    if (told.length) fill(at("functions"), names, told.slice(0, 15).map(cells), ["function"]);
    const waits = [...latest.waits].sort((one, other) => other[1] - one[1]).slice(0, 15);
    if (waits.length) fill(at("waits"), ["waited", "for"], waits.map(([name, value]) => [`${value} µs`, name]), ["for"]);
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { event: chosen, seconds, node } = form.elements;
    const time = Math.min(60, Math.max(1, Number(seconds.value) || 10));
    const asked = nodes().filter((one) => node.value === "all" || one.url === node.value);
    const status = at("profile-status");
    status.className = "";
    status.textContent = `taking ${time} s of ${asked.length === 1 ? asked[0].url : `${asked.length} nodes`} …`;
    form.elements.take.disabled = true;
    const taken = blank(chosen.value);
    const wrong = [];
    await Promise.all(asked.map(async (one) => {
      try {
        const answer = await ask("GET", `${one.base}/debug/profile?event=${chosen.value}&seconds=${time}&format=collapsed`, { wait: (time + 20) * 1000 });
        const text = await answer.text();
        if (!answer.ok) throw new Error(`${answer.status}: ${text.trim().slice(0, 300)}`);
        taken.nodes.push(one.url);
        parse(text, taken);
      } catch (error) {
        wrong.push(`${one.url}: ${error.message}`);
      }
    }));
    form.elements.take.disabled = false;
    status.className = wrong.length ? "bad" : "good";
    status.textContent = wrong.length ? `not of all: ${wrong.join("; ")}` : "done";
    if (!taken.nodes.length) return;
    [before, latest, zoomed] = [latest, taken, []];
    form.elements.compare.checked &&= canCompare();
    show();
  });
  form.elements.compare.addEventListener("change", show);
  at("flame-out").addEventListener("click", () => {
    zoomed = [];
    show();
  });

  let offered = "";
  /** Offers the nodes that there are; what is chosen stays. */
  return async () => {
    const urls = nodes().map((one) => one.url);
    if (offered === urls.join(" ")) return;
    offered = urls.join(" ");
    const { node } = form.elements;
    const chosen = node.value;
    const option = (text, value) => Object.assign(make("option", text), { value });
    const all = urls.length > 1 ? [option(`all ${urls.length} nodes`, "all")] : [];
    node.replaceChildren(...urls.map((url, place) => option(place ? url : `this node, ${url}`, url)), ...all);
    if ([...node.options].some((one) => one.value === chosen)) node.value = chosen;
  };
}
