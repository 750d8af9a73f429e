// Draws a flame graph into each <details class="flame"> when it is opened. A frame is [name, value, before, children];
// before is null where the graph is of one profile. No library: some rectangles and a click.
"use strict";
(() => {
  const ROW = 18;
  const trees = JSON.parse(document.getElementById("flames").textContent);

  const grouped = (value) => value.toLocaleString("en-US");

  // A colour for each crate, so that what belongs together looks alike in every graph.
  const own = (name) => {
    const crate = name.replace(/^[<&\s]+/, "").split(/::|[ <(]/)[0];
    let hash = 0;
    for (const c of crate) hash = (hash * 31 + c.codePointAt(0)) % 997;
    return `hsl(${20 + (hash * 47) % 200} 62% ${68 + hash % 10}%)`;
  };

  // Red for what was gained, blue for what was lost, full where it is the greatest change of the graph.
  const changed = (delta, most) => {
    const share = most > 0 ? Math.min(1, Math.abs(delta) / most) : 0;
    const light = 92 - 34 * Math.sqrt(share);
    return delta === 0 ? "hsl(0 0% 88%)" : `hsl(${delta > 0 ? 8 : 214} 80% ${light}%)`;
  };

  const open = (details) => {
    const tree = trees[details.dataset.flame];
    const unit = details.dataset.unit;
    const isDifference = tree.root[2] !== null;
    const weight = (frame) => (isDifference ? Math.max(frame[1], frame[2]) : frame[1]);
    // In a difference a frame that is gone has its place, too: a frame is as wide as its children need.
    const widths = new Map();
    const depths = new Map();
    let most = 0;
    const measure = (frame) => {
      let inner = 0, depth = 0;
      for (const child of frame[3]) {
        inner += measure(child);
        depth = Math.max(depth, depths.get(child));
      }
      if (frame !== tree.root && isDifference) most = Math.max(most, Math.abs(frame[1] - frame[2]));
      depths.set(frame, depth + 1);
      widths.set(frame, Math.max(weight(frame), inner));
      return widths.get(frame);
    };
    measure(tree.root);

    const total = tree.root[1];
    const percent = (value, of) => (of > 0 ? ((value / of) * 100).toFixed(2) : "0.00") + " %";
    const text = (frame) => {
      const name = tree.names[frame[0]];
      if (!isDifference) return `${name}: ${grouped(frame[1])} ${unit}, ${percent(frame[1], total)}`;
      const delta = frame[1] - frame[2];
      const sign = delta > 0 ? "+" : "";
      return `${name}: ${grouped(frame[1])} ${unit} (${percent(frame[1], total)}), ` +
        `before ${grouped(frame[2])} (${percent(frame[2], tree.root[2])}), ${sign}${grouped(delta)}`;
    };

    const search = document.createElement("input");
    search.type = "search";
    search.placeholder = "find frames";
    search.setAttribute("aria-label", "find frames");
    const stage = document.createElement("div");
    stage.className = "stage";
    const told = document.createElement("p");
    told.className = "told";
    details.append(search, stage, told);
    let path = [tree.root];

    const draw = () => {
      stage.replaceChildren();
      const zoomed = path[path.length - 1];
      const rows = path.length - 1 + depths.get(zoomed);
      stage.style.height = rows * ROW + "px";
      const wanted = search.value.toLowerCase();
      const pixels = stage.clientWidth || 800;
      let found = 0;
      const put = (frame, left, width, row, trail, isAbove) => {
        const box = document.createElement("div");
        box.className = isAbove ? "frame above" : "frame";
        box.textContent = tree.names[frame[0]];
        box.title = text(frame);
        box.style.left = left * 100 + "%";
        box.style.width = width * 100 + "%";
        box.style.bottom = row * ROW + "px";
        box.style.background = isDifference ? changed(frame[1] - frame[2], most) : own(tree.names[frame[0]]);
        const isFound = wanted !== "" && tree.names[frame[0]].toLowerCase().includes(wanted);
        if (isFound) box.classList.add("found");
        box.addEventListener("click", () => { path = trail; draw(); });
        box.addEventListener("mouseenter", () => { told.textContent = text(frame); });
        stage.append(box);
        return isFound;
      };
      path.forEach((frame, row) => put(frame, 0, 1, row, path.slice(0, row + 1), row < path.length - 1));
      const descend = (frame, left, width, row, trail, isCounted) => {
        let at = left;
        for (const child of frame[3]) {
          const share = (widths.get(child) / widths.get(frame)) * width;
          const inner = [...trail, child];
          const isFound = wanted !== "" && tree.names[child[0]].toLowerCase().includes(wanted);
          if (isFound && !isCounted) found += child[1];
          if (share * pixels >= 1) put(child, at, share, row, inner, false);
          if (share * pixels >= 1 || wanted !== "") descend(child, at, share, row + 1, inner, isCounted || isFound);
          at += share;
        }
      };
      if (widths.get(zoomed) > 0) descend(zoomed, 0, 1, path.length, path, false);
      told.textContent = wanted === "" ? text(zoomed) : `"${search.value}": ${grouped(found)} ${unit}, ${percent(found, zoomed[1])} of what is shown`;
    };
    search.addEventListener("input", draw);
    window.addEventListener("resize", () => { if (details.open) draw(); });
    draw();
  };

  for (const details of document.querySelectorAll("details.flame")) {
    details.addEventListener("toggle", () => {
      if (details.open && !details.querySelector(".stage")) open(details);
    });
  }
})();
