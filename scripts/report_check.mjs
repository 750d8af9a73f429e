// Opens a report of the lab in headless Chromium, as a reader would, and fails on what he would stumble over: a script error, a
// request to anywhere, a plot without lines or values, a flame graph that is empty or does not zoom, a page wider than its window.
// In light and dark, wide and narrow. Needs `chromium` (or CHROMIUM=…) and Node.js 22, or 20 with its flag:
//
//   node --experimental-websocket scripts/report_check.mjs REPORT.html [FOLDER for pictures]
import { resolve } from "node:path";
import { VIEWS, browse } from "./browser.mjs";

const [report, pictures] = process.argv.slice(2);

// What runs in the page; says what it has seen, and what is wrong.
async function look() {
  const rest = () => new Promise((done) => setTimeout(done, 20));
  const [seen, wrong] = [{ plots: 0, flames: 0, differences: 0 }, []];
  for (const plot of document.querySelectorAll("svg.chart")) {
    seen.plots += 1;
    if (!plot.querySelector(".line")) wrong.push("a plot without lines");
    const box = plot.getBoundingClientRect();
    plot.dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width / 2, clientY: box.top + 9 }));
    const told = plot.closest(".plot, figure").querySelector(".told").textContent;
    if (!/\d.*: .*\d/.test(told)) wrong.push(`a plot says "${told}" where the pointer is`);
  }
  for (const name of document.querySelectorAll(".legend button")) {
    const line = name.closest(".plot").querySelector(`.line[data-line="${name.dataset.line}"]`);
    name.click();
    if (line && getComputedStyle(line).display !== "none") wrong.push(`${name.textContent}: the line is not hidden`);
    name.click();
    if (line && getComputedStyle(line).display === "none") wrong.push(`${name.textContent}: the line does not come back`);
  }
  for (const row of document.querySelectorAll(".flames")) {
    const thumbs = [...row.querySelectorAll(".thumb")];
    for (const thumb of thumbs) {
      const canvas = thumb.querySelector("canvas");
      const painted = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((byte) => byte > 0);
      if (!painted) wrong.push(`${thumb.dataset.flame}: the small picture is empty`);
      thumb.click();
      await rest();
      const name = thumb.dataset.flame;
      const flame = [...row.querySelectorAll(".flame")].find((one) => one.textContent.includes(thumb.dataset.title));
      const frames = () => [...flame.querySelectorAll(".frame")];
      seen.flames += 1;
      const all = frames().length;
      // A profile without samples says so in words; every other one is drawn.
      if (flame.classList.contains("nothing")) {
        if (!/^0 /.test(thumb.querySelector("small").textContent)) wrong.push(`${name}: it has samples, and nothing is drawn`);
        if (flame.querySelector(".told").textContent.length < 20) wrong.push(`${name}: it does not say that nothing was recorded`);
        continue;
      }
      if (all < 2) wrong.push(`${name}: ${all} frames`);
      // Narrower than the graph, and wide enough to be hit.
      const share = (frame) => parseFloat(frame.style.width);
      const some = frames().find((frame) => share(frame) > 3 && share(frame) < 90);
      if (some) {
        const title = some.title;
        some.click();
        await rest();
        if (!frames().some((frame) => frame.title === title && share(frame) === 100)) wrong.push(`${name}: ${title} was not zoomed`);
        frames()[0].click();
        await rest();
        if (frames().length !== all) wrong.push(`${name}: not the same after zooming out`);
      }
    }
    if (thumbs.length > 1) {
      const pictures = row.querySelectorAll(".flame");
      if (pictures.length !== 3) wrong.push(`two were chosen, and ${pictures.length} pictures are there`);
      else if (pictures[1].querySelectorAll(".frame").length < 2 && row.querySelectorAll(".flame.nothing").length < 3) wrong.push("an empty difference");
      else seen.differences += 1;
    }
  }
  document.querySelectorAll("details").forEach((part) => { part.open = true; });
  await rest();
  const beyond = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  if (beyond > 0) wrong.push(`the page is ${beyond} pixels wider than its window`);
  document.querySelectorAll("details:not(.warnings)").forEach((part) => { part.open = false; });
  return { seen, wrong };
}

const wrong = [];
function told(method, params) {
  if (method === "Runtime.exceptionThrown") wrong.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
  else if (method === "Log.entryAdded") wrong.push(params.entry.text);
  else if (method === "Network.requestWillBeSent" && !/^(file|data):/.test(params.request.url)) wrong.push(`a request to ${params.request.url}`);
}

await browse(told, async (page) => {
  for (const [scheme, width] of VIEWS) {
    await page.view(scheme, width);
    await page.open(`file://${resolve(report)}`);
    const { seen, wrong: found } = await page.run(look);
    if (seen.plots === 0) wrong.push("no plots");
    wrong.push(...found.map((text) => `${scheme}, ${width} pixels: ${text}`));
    console.log(`${scheme}, ${width} pixels:`, JSON.stringify(seen));
    if (pictures) await page.picture(pictures, `${scheme}-${width}`, width);
  }
});
for (const text of wrong) console.log(`WRONG: ${text}`);
process.exitCode = wrong.length > 0 ? 1 : 0;
