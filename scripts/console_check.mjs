// Uses the console of a running node in headless Chromium, as an operator would, and fails on what he would stumble over: a script
// error, a request to anywhere but the node, text from a key or value that became markup, a page wider than its window.
//
//   node --experimental-websocket scripts/console_check.mjs NODE_URL VERDICT [FOLDER for pictures]
//
// VERDICT: what the page must say of the cluster, a regular expression.
import { VIEWS, browse } from "./browser.mjs";

const [node, verdict, pictures] = process.argv.slice(2);
const HOSTILE_KEY = "<img src=x onerror=document.title='broken'>'\"&%+ \u202e\u{1f511}";
const HOSTILE_VALUE = "</pre><script>document.title='broken'</script>\n<b>no markup</b>";

const wrong = [];
function told(method, params) {
  if (method === "Runtime.exceptionThrown") wrong.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
  // What the network says is a status of the node, which the page shows.
  else if (method === "Log.entryAdded" && params.entry.source !== "network") wrong.push(params.entry.text);
  else if (method === "Network.requestWillBeSent" && !params.request.url.startsWith(node)) wrong.push(`a request to ${params.request.url}`);
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
  // A browser is sent on from /.
  await page.open(`${node}/`);
  await expect("cluster", "verdict", verdict);
  await expect("cluster", "nodes", "req/s.*http");
  await expect("history", "sparks", "requests a second.*memory.*MiB");
  await check("cluster");

  await go("key");
  if (!await page.run(() => document.querySelector("button.writes").disabled)) wrong.push("changes are allowed unasked");
  await page.run(() => document.getElementById("allow").click());
  await page.run(press, "PUT", { id: HOSTILE_KEY, value: HOSTILE_VALUE });
  await expect("PUT", "key-status", "^201 ");
  await page.run(press, "GET", { replicas: "1/1" });
  await expect("GET", "key-status", "^200 ");
  await expect("GET", "key-headers", "kvorum-replicas1/1");
  await expect("GET", "key-value", "^</pre><script>.*<b>no markup</b>$");
  await expect("curl", "curl", "^curl 'http.*id=%3Cimg.*%27%22%26%25%2B%20.*replicas=1/1'$");
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

  for (const [scheme, width] of VIEWS) {
    await page.view(scheme, width);
    for (const hash of ["cluster", "key", "ranges", "tasks"]) {
      await go(hash);
      await page.run(() => new Promise((done) => { setTimeout(done, 150); }));
      await check(`${hash}, ${scheme}, ${width} pixels`);
      if (pictures) await page.picture(pictures, `${hash}-${scheme}-${width}`, width);
    }
  }
});
for (const text of wrong) console.log(`WRONG: ${text}`);
if (wrong.length === 0) console.log("the console does what it says");
process.exitCode = wrong.length > 0 ? 1 : 0;
