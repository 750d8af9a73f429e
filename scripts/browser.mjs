// A headless Chromium for the checks of pages, spoken to by its own protocol. Needs `chromium` (or CHROMIUM=…) and a WebSocket:
// Node.js 22, or 20 with --experimental-websocket.
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Every view in which a page is looked at: scheme and width. */
export const VIEWS = [["light", 1280], ["dark", 1280], ["light", 390], ["dark", 390]];

/** How long a browser may take to start, and a whole check, in milliseconds: what takes longer hangs. */
const START_MAX = 60_000;
const CHECK_MAX = 300_000;

/**
 * Opens a browser with one page, calls `work` with what drives it, and ends the browser. `told(method, params)` hears every event.
 */
export async function browse(told, work) {
  const home = mkdtempSync(join(tmpdir(), "kvorum-page-"));
  const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", `--user-data-dir=${home}`];
  const browser = spawn(process.env.CHROMIUM ?? "chromium", [...flags, "about:blank"], { stdio: ["ignore", "ignore", "pipe"] });
  const gone = new Promise((done) => { browser.on("exit", done); });
  let doing = "the browser does not start";
  const hangs = () => {
    console.error(`hung: ${doing}`);
    browser.kill("SIGKILL");
    process.exit(1);
  };
  const starting = setTimeout(hangs, START_MAX);
  setTimeout(hangs, CHECK_MAX).unref();
  const address = await new Promise((done, fail) => {
    let said = "";
    browser.on("error", fail);
    browser.on("exit", () => fail(new Error(said)));
    browser.stderr.on("data", (data) => {
      said += data;
      const found = said.match(/ws:\/\/\S+/);
      if (found) done(found[0]);
    });
  });
  const socket = new WebSocket(address);
  await new Promise((done, fail) => {
    socket.onopen = done;
    socket.onerror = () => fail(new Error("the browser's socket cannot be opened"));
  });
  clearTimeout(starting);

  let last = 0;
  let sessionId;
  let loaded = () => {};
  const answers = new Map();
  socket.onmessage = ({ data }) => {
    const { id, method, params, result, error } = JSON.parse(data);
    if (id) {
      const { done, fail } = answers.get(id);
      if (error) fail(new Error(error.message)); else done(result);
      return;
    }
    if (method === "Page.loadEventFired") loaded();
    told(method, params);
  };
  const send = (method, params = {}) => new Promise((done, fail) => {
    last += 1;
    doing = method;
    answers.set(last, { done, fail });
    socket.send(JSON.stringify({ id: last, method, params, sessionId }));
  });
  const page = {
    /** Shows the page in a scheme, so wide. */
    async view(scheme, width) {
      await send("Emulation.setDeviceMetricsOverride", { width, height: 900, deviceScaleFactor: 1, mobile: width < 500 });
      await send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: scheme }] });
    },
    /** Opens `url`, and waits until it is loaded. */
    async open(url) {
      const isLoaded = new Promise((done) => { loaded = done; });
      await send("Page.navigate", { url });
      await isLoaded;
    },
    /** Calls a function in the page; it may be asynchronous, and knows nothing but its arguments. */
    async run(call, ...given) {
      const expression = `(${call})(...${JSON.stringify(given)})`;
      const { result, exceptionDetails } = await send("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true });
      if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
      return result.value;
    },
    /** Writes a picture of the whole page. */
    async picture(folder, name, width) {
      mkdirSync(folder, { recursive: true });
      const height = await page.run(() => document.documentElement.scrollHeight);
      const clip = { x: 0, y: 0, width, height: Math.min(height, 8000), scale: 1 };
      const shot = await send("Page.captureScreenshot", { format: "png", captureBeyondViewport: true, clip });
      writeFileSync(join(folder, `${name}.png`), Buffer.from(shot.data, "base64"));
    },
  };
  try {
    const { targetId } = await send("Target.createTarget", { url: "about:blank" });
    ({ sessionId } = await send("Target.attachToTarget", { targetId, flatten: true }));
    for (const domain of ["Page", "Runtime", "Log", "Network"]) await send(`${domain}.enable`);
    await work(page);
  } finally {
    socket.close();
    browser.kill();
    await gone;
    // Processes that the browser had started may still write there for a moment.
    try {
      rmSync(home, { recursive: true, force: true, maxRetries: 20, retryDelay: 200 });
    } catch (error) {
      // What the browser leaves in its folder says nothing of the page.
      console.log(`left ${home}: ${error.message}`);
    }
  }
}
