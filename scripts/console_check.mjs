// Uses the console of a running node in headless Chromium, as an operator would, and fails on what he would stumble over: a script
// error, a request to anywhere but the node, text from a key or value that became markup, a page wider than its window.
//
//   node --experimental-websocket scripts/console_check.mjs NODE_URL VERDICT [FOLDER for pictures]
//   node --experimental-websocket scripts/console_check.mjs NODE_URL --guarded TOKEN
//   node --experimental-websocket scripts/console_check.mjs NODE_URL --alarm ALARM ROW
//
// VERDICT: what the page must say of the cluster, a regular expression. TOKEN: one with every right, of a node that needs it.
// ALARM, ROW: what the alarms and the table of nodes must show, regular expressions.
import { VIEWS, browse } from "./browser.mjs";

const [node, verdict, third, fourth] = process.argv.slice(2);
const isGuarded = verdict === "--guarded";
const pictures = isGuarded ? undefined : third;
// A page may read reports of the members of its cluster, and ask nobody else.
const { cluster } = await (await fetch(`${node}/v0/status`, { headers: { Accept: "application/json" } })).json();
const isAsked = (url) => url.startsWith(`${node}/`) || cluster.some((member) => ["/v0/status", "/v0/history", "/debug/profile?"].some((path) => url.startsWith(member + path)));
const HOSTILE_KEY = "<img src=x onerror=document.title='broken'>'\"&%+ \u202e\u{1f511}";
const LOAD = "x".repeat(100_000);
const HOSTILE_VALUE = "</pre><script>document.title='broken'</script>\n<b>no markup</b>";

const wrong = [];
function told(method, params) {
  if (method === "Runtime.exceptionThrown") wrong.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
  // What the network says is a status of the node, which the page shows.
  else if (method === "Log.entryAdded" && params.entry.source !== "network") wrong.push(params.entry.text);
  else if (method === "Network.requestWillBeSent" && !isAsked(params.request.url)) wrong.push(`a request to ${params.request.url}`);
}

// What runs in the page. Each waits for what it expects, and says what is there instead after ten seconds.
async function until(id, pattern) {
  for (let wait = 0; wait < 200; wait += 1) {
    const element = document.getElementById(id);
    if (!element.closest("main")?.hidden && new RegExp(pattern, "s").test(element.textContent)) return null;
    await new Promise((done) => { setTimeout(done, 50); });
  }
  return `#${id} has ${JSON.stringify(document.getElementById(id).textContent)}, and /${pattern}/ was expected`;
}
function press(what, fields) {
  const form = document.getElementById("key-form");
  for (const [name, value] of Object.entries(fields)) form.elements[name].value = value;
  form.querySelector(`button[value="${what}"]`).click();
}
const shape = () => ({
  beyond: document.documentElement.scrollWidth - document.documentElement.clientWidth,
  foreign: document.querySelectorAll("main img, main script, main b").length,
  title: document.title,
});

/** Takes a profile of allocations until it has some: they are sampled, and a busy machine has few. `node`: a URL or "all". */
async function profile(node) {
  const form = document.getElementById("profile-form");
  form.elements.event.value = "alloc";
  form.elements.seconds.value = 1;
  form.elements.node.value = node;
  for (let taken = 0; taken < 8; taken += 1) {
    form.requestSubmit();
    do await new Promise((done) => { setTimeout(done, 50); }); while (form.elements.take.disabled);
    if (document.querySelectorAll("#flame .frame").length > 1) return;
  }
}

await browse(told, async (page) => {
  const expect = async (what, id, pattern) => {
    const problem = await page.run(until, id, pattern);
    if (problem) wrong.push(`${what}: ${problem}`);
  };
  const check = async (what) => {
    const { beyond, foreign, title } = await page.run(shape);
    if (beyond > 0) wrong.push(`${what}: ${beyond} pixels wider than the window`);
    if (foreign > 0) wrong.push(`${what}: ${foreign} elements that a text made`);
    if (title === "broken") wrong.push(`${what}: a text ran as a program`);
  };
  const go = (hash) => page.run((to) => { location.hash = to; }, hash);
  await page.view("light", 1280);
  if (isGuarded) return await guarded(page, expect, go);
  if (verdict === "--alarm") {
    await page.open(`${node}/console`);
    await expect("an alarm", "alarms", third);
    await expect("a row", "nodes", fourth);
    return await check("alarms");
  }
  // A browser is sent on from /.
  await page.open(`${node}/`);
  await expect("cluster", "verdict", verdict);
  await expect("cluster", "nodes", "req/s.*http");
  // Another node's own figures, and what it measures.
  await expect("the other nodes' figures", "nodes", "(MiB.*){2}");
  await expect("latency and clocks", "matrix", "from, to.*·.*[µm]s, [+-]?\\d+ ms");
  await expect("history", "sparks", "requests a second.*memory.*MiB");
  await check("cluster");

  await go("key");
  if (!await page.run(() => document.querySelector("button.writes").disabled)) wrong.push("changes are allowed unasked");
  await page.run(() => document.getElementById("allow").click());
  await page.run(press, "PUT", { id: HOSTILE_KEY, value: HOSTILE_VALUE });
  await expect("PUT", "key-status", "^201 ");
  await page.run(press, "GET", { replicas: "2/3" });
  await expect("GET", "key-status", "^200 ");
  await expect("GET", "key-headers", "kvorum-replicas2/3");
  await expect("GET", "key-value", "^</pre><script>.*<b>no markup</b>$");
  await expect("curl", "curl", "^curl 'http.*id=%3Cimg.*%27%22%26%25%2B%20.*replicas=2/3'$");
  await page.run(press, "explain", {});
  await expect("explain", "key-value", "rank");
  await check("key");

  await go("ranges");
  await page.run(() => {
    const form = document.getElementById("range-form");
    form.elements.start.value = "<";
    form.elements.end.value = "=";
    form.requestSubmit();
  });
  await expect("range", "range-status", "^1 records$");
  await expect("range", "range-rows", "<img src=x.*no markup");
  await check("ranges");
  await page.run(() => document.querySelector("#range-rows a").click());
  await expect("a key of a range", "key-status", "^200 ");
  await page.run(press, "DELETE", { replicas: "" });
  await expect("DELETE", "key-status", "^202 ");
  await page.run(press, "GET", {});
  await expect("GET of what is gone", "key-status", "^404 ");

  await go("tasks");
  await expect("tasks", "workers", "scrub");
  const button = (text) => {
    const row = [...document.querySelectorAll("#workers tr")].find((one) => one.cells[0].textContent === "scrub");
    if (!row.textContent.includes(text)) throw new Error(row.textContent);
    row.querySelector("button").click();
  };
  await page.run(button, "Pause");
  await expect("a paused task", "workers", "scrubpaused.*Resume");
  await page.run(button, "Resume");
  await expect("a resumed task", "workers", "^(?!.*scrubpaused)");
  await check("tasks");

  await go("placement");
  await expect("placement", "placement-status", "^4096 partitions on 3 nodes, a default request is 2/3");
  await expect("no change of members", "change", "^No change of members is under way");
  await expect("shares", "shares", "first for.*http.*%");
  await expect("states", "legend", verdict.startsWith("^2") ? "4096: a replica is away" : "0: a replica is away");
  await page.run(() => {
    const form = document.getElementById("partition-form");
    form.elements.partition.value = 17;
    form.requestSubmit();
  });
  await expect("a partition", "partition-said", "^Partition 17: http.*answer and vote");
  await page.run(() => {
    const grid = document.getElementById("grid");
    const { left, top, width, height } = grid.getBoundingClientRect();
    grid.dispatchEvent(new MouseEvent("click", { clientX: left + width - 1, clientY: top + height - 1 }));
  });
  await expect("the last partition", "partition-said", "^Partition 4095: ");
  await check("placement");

  await go("profile");
  await expect("profile", "profile-form", "this node.*all 3 nodes");
  // Allocations are sampled: without a load there may be none.
  const load = setInterval(() => { fetch(`${node}/v0/entity?id=load`, { method: "PUT", body: LOAD }).catch(() => {}); }, 20);
  await page.run(profile, "all");
  const isWhole = !verdict.startsWith("^2");
  await expect("a profile of all", "profile-status", isWhole ? "^done$" : "^not of all: http");
  await expect("a flame graph", "flame-said", isWhole ? "^\\d+ bytes in http.*, http.*, http" : "^\\d+ bytes in http.*, http");
  // Of a busy node's threads the engine's own may have allocated most.
  await expect("its frames", "flame", "^all.*(kvorum|fjall):");
  await expect("its functions", "functions", "with its calls.*%");
  const zoomed = await page.run(() => {
    const frame = document.querySelectorAll("#flame .frame")[1];
    const name = frame?.textContent ?? "";
    frame?.click();
    return name;
  });
  if (zoomed === "") wrong.push("a zoom: there is no frame, or it has no name");
  await expect("a zoom", "flame", `^${zoomed.replace(/[^\w:]/g, "\\$&")}`);
  await page.run(() => { document.getElementById("flame-out").click(); });
  await expect("no zoom", "flame", "^all");
  await page.run(profile, "all");
  await expect("a second one", "flame-said", "^\\d+ bytes");
  await page.run(() => { document.querySelector("#profile-form [name=compare]").click(); });
  await expect("a difference", "flame-said", "compared with \\d+ bytes before");
  clearInterval(load);
  await expect("what changed", "functions", "change.*[+-]?\\d+\\.\\d %");
  await check("profile");

  await go("settings");
  await expect("settings", "settings-rows", "durability.*default.*listen|listen.*flag --listen.*durability.*default");
  await page.run(() => { document.getElementById("given").click(); });
  await expect("given settings", "settings-rows", "^(?!.*default).*flag --cluster");
  await check("settings");

  for (const [scheme, width] of VIEWS) {
    await page.view(scheme, width);
    for (const hash of ["cluster", "key", "ranges", "tasks", "placement", "profile", "settings"]) {
      await go(hash);
      await page.run(() => new Promise((done) => { setTimeout(done, 150); }));
      await check(`${hash}, ${scheme}, ${width} pixels`);
      if (pictures) await page.picture(pictures, `${hash}-${scheme}-${width}`, width);
    }
  }
});

/** A node that needs a token: without one the page shows what anybody may see, and changes nothing. */
async function guarded(page, expect, go) {
  await page.open(`${node}/console`);
  await expect("without a token: cluster", "verdict", "nodes? up");
  await go("tasks");
  await expect("without a token: tasks", "tasks-status", "^Read-only: 401");
  await go("settings");
  await expect("without a token: settings", "settings-status", "^Not shown: 401");
  await go("placement");
  await expect("without a token: placement", "placement-status", "^Not shown: 401");
  await go("profile");
  await page.run(profile, cluster[0]);
  await expect("without a token: a profile", "profile-status", "^not of all: http.*401");
  await page.run((token) => {
    document.getElementById("token").value = token;
    document.getElementById("token-form").requestSubmit();
  }, third);
  await page.run(profile, cluster[0]);
  await expect("with a token: a profile", "profile-status", "^done$");
  await go("settings");
  await expect("with a token: settings", "settings-rows", "auth.*flag --auth");
  await go("tasks");
  await expect("with a token: tasks", "workers", "scrub");
}
for (const text of wrong) console.log(`WRONG: ${text}`);
if (wrong.length === 0) console.log("the console does what it says");
process.exitCode = wrong.length > 0 ? 1 : 0;
