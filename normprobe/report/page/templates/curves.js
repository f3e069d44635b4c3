// Curves over decoder layers, or over doses on a log axis. "curves" shows one of its charts at a time, "panels" all side by side.

const MARGIN = { left: 52, right: 12, top: 10, bottom: 38 };

// What lies around a line: ends, class, words.
const AROUND = [
  ["least", "most", "spread", "5-95 % of tokens"],
  ["low", "high", "interval", "95 % interval of each layer"],
  ["band_low", "band_high", "band", "95 % band of all layers together"],
];

function curves(box) {
  const charts = JSON.parse(box.querySelector("script").textContent);
  const together = box.classList.contains("panels");
  const hidden = new Set();
  const keys = make(box, "div", { class: "keys" });
  const row = make(box, "div", { class: "row" });
  const around = make(box, "div", { class: "around" });
  const shown = [];

  function keysOf(some) {
    const lines = some.flatMap((chart) => chart.series), names = new Map(lines.map((line) => [line.name, line]));
    keys.replaceChildren();
    around.replaceChildren();
    keys.hidden = names.size < 2;
    for (const [name, { color, dash }] of names) {
      const key = make(keys, "button", { type: "button", "aria-pressed": !hidden.has(name) });
      const sample = make(key, "svg", { width: 26, height: 8, "aria-hidden": "true" });
      make(sample, "line", { class: "series", x1: 0, x2: 26, y1: 4, y2: 4, style: `--series:${color}`,
        "stroke-dasharray": dash });
      make(key, "span", {}, name);
      key.addEventListener("click", () => {
        if (!hidden.delete(name)) hidden.add(name);
        key.setAttribute("aria-pressed", !hidden.has(name));
        for (const panel of shown) panel.redraw();
      });
    }
    for (const [, above, kind, words] of AROUND) {
      if (!lines.some((line) => line[above]?.some(known))) continue;
      const key = make(around, "span");
      const sample = make(key, "svg", { width: 26, height: 12, "aria-hidden": "true" });
      make(sample, "rect", { class: kind, x: 1, y: 1, width: 24, height: 10, style: "--series:#555" });
      make(key, "span", {}, some[0].across ? words.replace("layer", some[0].across) : words);
    }
  }

  function panel(first) {
    let chart = first, log = chart.log;
    const place = make(row, "div", { class: "panel" });
    const title = together || charts.length < 2 ? chart.label : (head) => {
      const choice = make(head, "select", { "aria-label": "quantity", class: "title" });
      for (const { label } of charts) make(choice, "option", {}, label);
      choice.addEventListener("change", () => {
        chart = charts[choice.selectedIndex];
        log = chart.log;
        keysOf([chart]);
        self.changed(null);
      });
      return choice;
    };
    const self = figure(place, title, (svg, width, at) => {
      const picture = drawCurves(svg, width, at, chart, hidden, log);
      scale.textContent = picture.useLog ? "log scale" : "linear scale";
      scale.disabled = !picture.canLog;
      return picture;
    });
    const scale = make(self.tools, "button", { type: "button", class: "scale" });
    self.tools.prepend(scale);
    scale.addEventListener("click", () => { log = !log; self.redraw(); });
    self.changed = (at) => { for (const other of shown) other.read(at); };
    shown.push(self);
  }

  for (const chart of together ? charts : charts.slice(0, 1)) panel(chart);
  keysOf(together ? charts : charts.slice(0, 1));
}

function drawCurves(svg, width, at, chart, hidden, log) {
  const height = Math.min(360, Math.max(230, width * 0.55));
  const lines = chart.series.filter((line) => !hidden.has(line.name));
  const found = lines.flatMap((s) => [s.y, s.low, s.high, s.least, s.most]).flatMap((v) => v || []).concat(chart.reference).filter(known);
  const canLog = found.length > 0 && found.every((value) => value > 0), useLog = log && canLog;
  const layers = [...new Set(chart.series.flatMap((s) => s.x))].sort((a, b) => a - b);
  const first = layers[0], last = Math.max(layers[layers.length - 1], first + 1);
  let [low, high] = found.length ? [Math.min(...found), Math.max(...found)] : [0, 1];
  // A band of few images can be so wide that all else would lie flat: as far again, then it leaves the chart.
  const ends = lines.flatMap((s) => [s.band_low, s.band_high]).flatMap((v) => v || []).filter(known);
  const least = low > 0 ? Math.max(2 * low - high, low * low / high) : 2 * low - high, most = 2 * high - low;
  for (const end of ends) {
    low = Math.min(low, Math.max(least, end));
    high = Math.max(high, Math.min(most, end));
  }
  if (useLog) [low, high] = [low / 1.15, high * 1.15];
  else {
    if (chart.zero) [low, high] = [Math.min(0, low), Math.max(0, high)];
    const room = (high - low || Math.abs(high) || 1) * 0.04;
    if (high > 0 || !chart.zero) high += room;
    if (low < 0 || !chart.zero) low -= room;
  }
  const f = useLog ? Math.log : (value) => value;
  const across = width - MARGIN.left - MARGIN.right - 16;
  const g = chart.across === "dose" ? Math.log : (value) => value;
  const x = (layer) => MARGIN.left + 8 + (g(layer) - g(first)) / (g(last) - g(first)) * across;
  const y = (value) => height - MARGIN.bottom -
    (f(value) - f(low)) / (f(high) - f(low)) * (height - MARGIN.top - MARGIN.bottom);
  const ok = (value) => known(value) && (!useLog || value > 0);
  const right = width - MARGIN.right, bottom = height - MARGIN.bottom;

  for (const tick of useLog ? logTicks(low, high) : linearTicks(low, high, 5)) {
    make(svg, "line", { class: tick === (chart.reference ?? 0) ? "axis" : "rule", x1: MARGIN.left, x2: right, y1: y(tick), y2: y(tick) });
    make(svg, "text", { x: MARGIN.left - 6, y: y(tick) + 4, "text-anchor": "end" }, tickText(tick));
  }
  const ticks = linearTicks(first, last, Math.min(14, width / 45)).filter(Number.isInteger);
  for (const tick of chart.across === "dose" ? layers : ticks)
    make(svg, "text", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, String(tick));
  make(svg, "line", { class: "axis", x1: MARGIN.left, x2: right, y1: bottom, y2: bottom });
  make(svg, "text", { x: (MARGIN.left + right) / 2, y: height - 5, "text-anchor": "middle" }, chart.across ?? "decoder layer");

  const [wide, tall] = [right - MARGIN.left, bottom - MARGIN.top];
  const inside = make(svg, "svg", { x: MARGIN.left, y: MARGIN.top, width: wide, height: tall,
    viewBox: `${MARGIN.left} ${MARGIN.top} ${wide} ${tall}` });
  for (const [below, above, kind] of AROUND)
    for (const line of lines) {
      const points = line.x.map((layer, i) => [layer, line[below]?.[i], line[above]?.[i]])
        .filter(([, from, to]) => ok(from) && ok(to));
      if (points.length < 2) continue;
      const upper = points.map(([layer, , to]) => `${x(layer)},${y(to)}`);
      const lower = points.map(([layer, from]) => `${x(layer)},${y(from)}`).reverse();
      make(inside, "polygon", { class: kind, points: [...upper, ...lower].join(" "), style: `--series:${line.color}` });
    }
  for (const line of lines) {
    let path = "";
    line.x.forEach((layer, i) => {
      if (!ok(line.y[i])) return;
      const alone = !ok(line.y[i - 1]) && !ok(line.y[i + 1]);
      if (alone) make(svg, "circle", { class: "dot", cx: x(layer), cy: y(line.y[i]), r: 3, style: `--series:${line.color}` });
      path += `${ok(line.y[i - 1]) ? "L" : "M"}${x(layer)},${y(line.y[i])}`;
    });
    make(svg, "path", { class: "series", d: path, style: `--series:${line.color}`,
      "stroke-dasharray": line.dash, "data-series": line.name });
    line.x.forEach((layer, i) => {
      if (!line.hollow?.[i] || !ok(line.y[i])) return;
      make(svg, "circle", { class: "dot hollow", cx: x(layer), cy: y(line.y[i]), r: 3.5, style: `--series:${line.color}` });
    });
  }
  if (at !== null && layers.includes(at)) {
    make(svg, "line", { class: "cursor", x1: x(at), x2: x(at), y1: MARGIN.top, y2: bottom });
    for (const line of lines) {
      const value = line.y[line.x.indexOf(at)];
      if (ok(value)) make(svg, "circle", { class: "dot", cx: x(at), cy: y(value), r: 4, style: `--series:${line.color}` });
    }
  }
  return {
    height, useLog, canLog, label: `${chart.label} by ${chart.across ?? "decoder layer"}`,
    pick: (px) => layers.reduce((a, b) => Math.abs(x(b) - px) < Math.abs(x(a) - px) ? b : a),
    step: (from, key) => along(layers, from, key),
    tell: (layer, tip) => {
      make(tip, "b", {}, `${chart.across ?? "layer"} ${layer}`);
      for (const line of lines) {
        const i = line.x.indexOf(layer);
        if (i < 0 || !known(line.y[i])) continue;
        const said = make(tip, "div");
        make(said, "i", { style: `--series:${line.color}` });
        said.append(`${line.name} ${number(line.y[i])}`);
        if (known(line.low?.[i])) said.append(` [${number(line.low[i])}, ${number(line.high[i])}]`);
        if (known(line.band_low?.[i]))
          said.append(`, all layers [${number(line.band_low[i])}, ${number(line.band_high[i])}]`);
      }
      return x(layer);
    },
  };
}

for (const box of document.querySelectorAll(".curves, .panels")) curves(box);
