// What the report can do besides being read: names of a legend hide and show their lines, a plot says its values where the pointer
// is, and flame graphs are drawn from the trees in the page. A frame is [name, value, children]. No library.
"use strict";
(() => {
  const ROW = 18;
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const [trees, words] = [read("flames"), read("texts")];
  const count = (value) => value.toLocaleString(words.language);
  const part = (value, of) => `${((of > 0 ? value / of : 0) * 100).toLocaleString(words.language, { maximumFractionDigits: 2 })} %`;
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  // ---- Plots.

  const UNITS = words.language === "ru" ? ["нс", "мкс", "мс", "с"] : ["ns", "µs", "ms", "s"];
  const said = {
    count: (value) => count(Math.round(value)),
    nanos: (value) => {
      const place = value < 999.5 ? 0 : value < 999.5e3 ? 1 : value < 999.5e6 ? 2 : 3;
      return `${Number((value / 1000 ** place).toPrecision(3)).toLocaleString(words.language)} ${UNITS[place]}`;
    },
    share: (value) => `p${((1 - 1 / value) * 100).toLocaleString(words.language, { maximumFractionDigits: 3 })}`,
  };
  const axis = (text) => {
    const [kind, scale, low, high] = text.split(" ");
    const [from, to] = [Number(low), Number(high)];
    const at = scale === "log" ? (share) => from * (to / from) ** share : (share) => from + (to - from) * share;
    return (share) => said[kind](at(share));
  };

  for (const chart of document.querySelectorAll("svg.chart")) {
    const plot = chart.closest(".plot, figure");
    const [left, top, width, height] = chart.dataset.plot.split(" ").map(Number);
    const [x, y] = [axis(chart.dataset.x), axis(chart.dataset.y)];
    const lines = [...chart.querySelectorAll(".line")].map((line) => ({
      line,
      name: line.querySelector("title").textContent,
      points: line.getAttribute("d").slice(1).split("L").map((point) => point.split(" ").map(Number)),
    }));
    const told = plot.querySelector(".told") ?? plot.appendChild(make("p", "told"));
    const rule = document.createElementNS("http://www.w3.org/2000/svg", "path");
    rule.setAttribute("class", "rule");
    chart.append(rule);
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
      const near = ({ points }) => points.reduce((best, point) => (Math.abs(point[0] - at) < Math.abs(best[0] - at) ? point : best));
      const seen = lines.filter(({ line }) => !line.classList.contains("off")).map((one) => ({ name: one.name, point: near(one) }));
      if (seen.length === 0) return;
      const place = seen[0].point[0];
      rule.setAttribute("d", `M${place} ${top}v${height}`);
      const values = seen.map(({ name, point }) => `${name} ${y(1 - (point[1] - top) / height)}`);
      told.textContent = `${x((place - left) / width)}: ${values.join("; ")}`;
    });
    for (const name of plot.querySelectorAll(".legend button")) {
      name.addEventListener("click", () => {
        const isOn = name.getAttribute("aria-pressed") === "false";
        name.setAttribute("aria-pressed", String(isOn));
        const own = lines.filter(({ line }) => line.dataset.line === name.dataset.line);
        own.forEach(({ line }) => line.classList.toggle("off", !isOn));
      });
    }
  }

  // ---- Flame graphs.

  // Red for what was gained, blue for what was lost, full where it is the greatest change of the graph.
  const changed = (delta, most) => {
    const share = most > 0 ? Math.min(1, Math.abs(delta) / most) : 0;
    const light = 92 - 34 * Math.sqrt(share);
    return delta === 0 ? "hsl(0 0% 88%)" : `hsl(${delta > 0 ? 8 : 214} 80% ${light}%)`;
  };

  // A frame of one profile, with its children.
  const frames = (tree) => {
    const frame = ([place, value, children]) => ({
      name: tree.names[place],
      colour: tree.colours[place],
      value,
      before: null,
      children: children.map(frame),
    });
    return frame(tree.root);
  };

  // The frames of two profiles, one over the other.
  const merged = (before, after) => {
    const children = new Map();
    for (const child of before?.children ?? []) children.set(child.name, [child, undefined]);
    for (const child of after?.children ?? []) children.set(child.name, [children.get(child.name)?.[0], child]);
    return {
      name: (after ?? before).name,
      value: after?.value ?? 0,
      before: before?.value ?? 0,
      children: [...children.values()].map(([one, two]) => merged(one, two)),
    };
  };

  const graph = (root, title, unit, file) => {
    const isDifference = root.before !== null;
    // In a difference a frame that is gone has its place, too: a frame is as wide as its children need.
    const widths = new Map();
    const depths = new Map();
    let most = 0;
    const measure = (frame) => {
      const [inner, depth] = frame.children.reduce(([sum, deep], child) => [sum + measure(child), Math.max(deep, depths.get(child))], [0, 0]);
      if (frame !== root && isDifference) most = Math.max(most, Math.abs(frame.value - frame.before));
      depths.set(frame, depth + 1);
      widths.set(frame, Math.max(frame.value, frame.before ?? 0, inner));
      return widths.get(frame);
    };
    measure(root);

    const text = (frame) => {
      if (!isDifference) return `${frame.name}: ${count(frame.value)} ${unit}, ${part(frame.value, root.value)}`;
      const delta = frame.value - frame.before;
      return `${frame.name}: ${count(frame.value)} ${unit} (${part(frame.value, root.value)}), ` +
        `${words.before} ${count(frame.before)} (${part(frame.before, root.before)}), ${delta > 0 ? "+" : ""}${count(delta)}`;
    };

    const picture = make("figure", "flame");
    const head = make("figcaption", "", title);
    if (file) {
      const link = make("a", "", words.file);
      link.href = file;
      head.append(" ", link);
    }
    const search = make("input");
    search.type = "search";
    search.placeholder = words.find;
    search.setAttribute("aria-label", words.find);
    const stage = make("div", "stage");
    const scroll = make("div", "scroll");
    scroll.append(stage);
    const told = make("p", "told");
    if (root.children.length === 0) {
      picture.classList.add("nothing");
      picture.append(head, make("p", "told", words.nothing));
      return { picture, draw: () => {} };
    }
    picture.append(head, search, scroll, told);
    let path = [root];

    const draw = () => {
      stage.replaceChildren();
      const zoomed = path[path.length - 1];
      stage.style.height = `${(path.length - 1 + depths.get(zoomed)) * ROW}px`;
      const wanted = search.value.toLowerCase();
      const isFound = (frame) => wanted !== "" && frame.name.toLowerCase().includes(wanted);
      const pixels = stage.clientWidth || 800;
      let found = 0;
      const put = (frame, left, width, row, trail, isAbove) => {
        const box = make("div", isAbove ? "frame above" : "frame", frame.name);
        box.title = text(frame);
        box.style.left = `${left * 100}%`;
        box.style.width = `${width * 100}%`;
        box.style.bottom = `${row * ROW}px`;
        box.style.background = isDifference ? changed(frame.value - frame.before, most) : frame.colour;
        box.classList.toggle("found", isFound(frame));
        box.addEventListener("click", () => { path = trail; draw(); });
        box.addEventListener("pointerenter", () => { told.textContent = text(frame); });
        stage.append(box);
      };
      path.forEach((frame, row) => put(frame, 0, 1, row, path.slice(0, row + 1), row < path.length - 1));
      const descend = (frame, left, width, row, trail, isCounted) => {
        let at = left;
        for (const child of frame.children) {
          const share = (widths.get(child) / widths.get(frame)) * width;
          const inner = [...trail, child];
          if (isFound(child) && !isCounted) found += child.value;
          const isSeen = share * pixels >= 1;
          if (isSeen) put(child, at, share, row, inner, false);
          if (isSeen || wanted !== "") descend(child, at, share, row + 1, inner, isCounted || isFound(child));
          at += share;
        }
      };
      if (widths.get(zoomed) > 0) descend(zoomed, 0, 1, path.length, path, false);
      told.textContent = wanted === "" ? text(zoomed) : `"${search.value}": ${count(found)} ${unit}, ${part(found, zoomed.value)} ${words.shown}`;
    };
    search.addEventListener("input", draw);
    window.addEventListener("resize", () => { if (picture.isConnected) draw(); });
    return { picture, draw };
  };

  const thumbnail = (canvas, root) => {
    const pen = canvas.getContext("2d");
    const row = 6;
    const paint = (frame, left, width, depth) => {
      if (width < 0.5 || depth * row > canvas.height) return;
      pen.fillStyle = frame.colour;
      pen.fillRect(left, canvas.height - (depth + 1) * row, Math.max(width - 0.5, 0.5), row - 0.5);
      let at = left;
      for (const child of frame.children) {
        const share = frame.value > 0 ? (child.value / frame.value) * width : 0;
        paint(child, at, share, depth + 1);
        at += share;
      }
    };
    paint(root, 0, canvas.width, 0);
  };

  for (const section of document.querySelectorAll(".flames")) {
    const pictures = section.querySelector(".pictures");
    const unit = section.dataset.unit;
    let chosen = [];
    const show = () => {
      for (const thumb of section.querySelectorAll(".thumb")) thumb.setAttribute("aria-pressed", String(chosen.includes(thumb)));
      const inOrder = [...section.querySelectorAll(".thumb")].filter((thumb) => chosen.includes(thumb));
      const roots = inOrder.map((thumb) => frames(trees[thumb.dataset.flame]));
      const titled = (thumb, root) => `${thumb.dataset.title} (${count(root.value)} ${unit})`;
      const graphs = inOrder.map((thumb, nth) => graph(roots[nth], titled(thumb, roots[nth]), unit, thumb.dataset.file));
      if (graphs.length === 2) {
        const [one, two] = inOrder.map((thumb) => thumb.querySelector("span").textContent);
        graphs.splice(1, 0, graph(merged(...roots), `${words.difference}: ${one} → ${two}`, unit, null));
      }
      pictures.classList.toggle("three", graphs.length === 3);
      pictures.replaceChildren(...graphs.map(({ picture }) => picture));
      graphs.forEach(({ draw }) => draw());
    };
    for (const thumb of section.querySelectorAll(".thumb")) {
      thumbnail(thumb.querySelector("canvas"), frames(trees[thumb.dataset.flame]));
      thumb.addEventListener("click", () => {
        chosen = chosen.includes(thumb) ? chosen.filter((one) => one !== thumb) : [...chosen.slice(-1), thumb];
        show();
      });
    }
  }
})();
