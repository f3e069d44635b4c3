"use strict";
// Curves over decoder layers. Each element with the class "curves" holds its data as JSON; names in
// it are untrusted, so text only ever enters the page through textContent.

const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { left: 58, right: 14, top: 12, bottom: 40 };

function make(parent, name, attributes = {}, text = "") {
  const inSvg = name === "svg" || parent instanceof SVGElement;
  const element = inSvg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text) element.textContent = text;
  parent.append(element);
  return element;
}

function number(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e5) return value.toExponential(3);
  return value.toPrecision(4);
}

function tickText(value) {
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(0);
  return String(Number(value.toPrecision(6)));
}

function linearTicks(low, high, most) {
  const rough = (high - low) / most || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) ticks.push(i * step);
  return ticks;
}

function logTicks(low, high) {
  const factors = high / low > 1000 ? [1] : [1, 2, 5];
  const ticks = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++)
    for (const f of factors) {
      const tick = f * 10 ** e;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  return ticks;
}

function curves(box) {
  const charts = JSON.parse(box.querySelector("script").textContent);
  const hidden = new Set();
  let chart = charts[0], log = chart.log, at = null;

  const quantity = make(box, "p", { class: "quantity" });  // on paper, where nothing is chosen
  const controls = make(box, "div", { class: "controls" });
  const choice = make(controls, "select", { "aria-label": "quantity" });
  for (const { label } of charts) make(choice, "option", {}, label);
  const scale = make(controls, "button", { type: "button", class: "scale" });
  const keys = make(controls, "span", { class: "controls" });
  const place = make(box, "div", { class: "chart", tabindex: "0", role: "img" });
  const tip = make(box, "div", { class: "tip", "aria-live": "polite", hidden: "" });

  const shown = () => chart.series.filter((series) => !hidden.has(series.name));
  const values = () => shown().flatMap((s) => [...s.y, ...(s.low || []), ...(s.high || [])])
    .filter((value) => value !== null);
  const layers = () => [...new Set(chart.series.flatMap((s) => s.x))].sort((a, b) => a - b);

  function keysOf() {
    keys.replaceChildren();
    for (const series of chart.series) {
      const key = make(keys, "button", { type: "button", "aria-pressed": !hidden.has(series.name) });
      const sample = make(key, "svg", { width: 26, height: 8, "aria-hidden": "true" });
      make(sample, "line", { x1: 0, x2: 26, y1: 4, y2: 4, stroke: series.color,
        "stroke-width": 2.5, "stroke-dasharray": series.dash });
      make(key, "span", {}, series.name);
      key.addEventListener("click", () => {
        if (!hidden.delete(series.name)) hidden.add(series.name);
        key.setAttribute("aria-pressed", !hidden.has(series.name));
        draw();
      });
    }
  }

  function draw() {
    place.replaceChildren();
    const width = Math.max(280, place.clientWidth), height = Math.min(380, Math.max(250, width * 0.5));
    const found = values(), canLog = found.length > 0 && found.every((value) => value > 0);
    const useLog = log && canLog;
    scale.textContent = useLog ? "log scale" : "linear scale";
    scale.setAttribute("aria-pressed", useLog);
    scale.disabled = !canLog;
    quantity.textContent = chart.label;
    place.setAttribute("aria-label", `${chart.label} by decoder layer; arrow keys read values`);
    place.append(tip);
    const svg = make(place, "svg", { viewBox: `0 0 ${width} ${height}` });
    const xs = layers(), first = xs[0], last = Math.max(xs[xs.length - 1], first + 1);
    let low = Math.min(...found), high = Math.max(...found);
    if (!found.length) [low, high] = [0, 1];
    if (!useLog && chart.zero) low = Math.min(0, low);
    if (!useLog) high += (high - low || Math.abs(high) || 1) * 0.04;
    else [low, high] = [low / 1.15, high * 1.15];
    if (!useLog && !chart.zero) low -= (high - low) * 0.04;
    const f = useLog ? Math.log : (value) => value;
    const x = (value) => MARGIN.left + 6 +
      (value - first) / (last - first) * (width - MARGIN.left - MARGIN.right - 12);
    const y = (value) => height - MARGIN.bottom -
      (f(value) - f(low)) / (f(high) - f(low)) * (height - MARGIN.top - MARGIN.bottom);
    const ok = (value) => value !== null && value !== undefined && (!useLog || value > 0);

    for (const tick of useLog ? logTicks(low, high) : linearTicks(low, high, 6)) {
      make(svg, "line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(tick), y2: y(tick), stroke: "#e2e2e2" });
      make(svg, "text", { x: MARGIN.left - 6, y: y(tick) + 4, "text-anchor": "end" }, tickText(tick));
    }
    for (const tick of linearTicks(first, last, Math.min(14, width / 45)).filter(Number.isInteger))
      make(svg, "text", { x: x(tick), y: height - MARGIN.bottom + 18, "text-anchor": "middle" }, String(tick));
    make(svg, "line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: height - MARGIN.bottom,
      y2: height - MARGIN.bottom, stroke: "#1a1a1a" });
    make(svg, "text", { x: (MARGIN.left + width) / 2, y: height - 4, "text-anchor": "middle" }, "decoder layer");

    for (const series of shown()) {
      const points = series.x.map((layer, i) => [layer, series.low?.[i], series.high?.[i]])
        .filter(([, below, above]) => ok(below) && ok(above));
      if (points.length > 1) {
        const upper = points.map(([l, , above]) => `${x(l)},${y(above)}`);
        const lower = points.map(([l, below]) => `${x(l)},${y(below)}`).reverse();
        make(svg, "polygon", { points: [...upper, ...lower].join(" "), fill: series.color, opacity: 0.14 });
      }
    }
    for (const series of shown()) {
      let path = "", pen = "M";
      series.x.forEach((layer, i) => {
        if (!ok(series.y[i])) { pen = "M"; return; }
        path += `${pen}${x(layer)},${y(series.y[i])}`;
        pen = "L";
      });
      make(svg, "path", { d: path, fill: "none", stroke: series.color, "stroke-width": 2,
        "stroke-dasharray": series.dash, "data-series": series.name });
    }
    if (at === null) { tip.hidden = true; return; }
    make(svg, "line", { x1: x(at), x2: x(at), y1: MARGIN.top, y2: height - MARGIN.bottom, stroke: "#595959" });
    tip.replaceChildren();
    make(tip, "b", {}, `layer ${at}`);
    for (const series of shown()) {
      const i = series.x.indexOf(at);
      if (i < 0 || series.y[i] === null) continue;
      if (ok(series.y[i]))
        make(svg, "circle", { cx: x(at), cy: y(series.y[i]), r: 4, fill: series.color });
      const line = make(tip, "div");
      make(line, "i", { style: `background:${series.color}` });
      line.append(`${series.name} ${number(series.y[i])}`);
      if (ok(series.low?.[i])) line.append(` (${number(series.low[i])} to ${number(series.high[i])})`);
    }
    tip.hidden = false;
    const space = place.clientWidth / width, right = x(at) > width / 2;
    tip.style.left = right ? "" : `${(x(at) + 10) * space}px`;
    tip.style.right = right ? `${(width - x(at) + 10) * space}px` : "";
  }

  function nearest(event) {
    const frame = place.getBoundingClientRect();
    const all = layers(), span = frame.width - MARGIN.left - MARGIN.right - 12;
    const layer = all[0] + (event.clientX - frame.left - MARGIN.left - 6) / span * (all[all.length - 1] - all[0]);
    return all.reduce((a, b) => Math.abs(b - layer) < Math.abs(a - layer) ? b : a);
  }

  for (const kind of ["pointermove", "pointerdown"])
    place.addEventListener(kind, (event) => {
      const layer = nearest(event);
      if (layer !== at) { at = layer; draw(); }
    });
  place.addEventListener("pointerleave", () => { at = null; draw(); });
  place.addEventListener("keydown", (event) => {
    const all = layers(), step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") at = null;
    else if (step) at = all[Math.min(all.length - 1, Math.max(0, at === null ? 0 : all.indexOf(at) + step))];
    else return;
    event.preventDefault();
    draw();
  });
  choice.addEventListener("change", () => {
    chart = charts[choice.selectedIndex];
    log = chart.log;
    at = null;
    keysOf();
    draw();
  });
  scale.addEventListener("click", () => { log = !log; draw(); });
  new ResizeObserver(() => draw()).observe(box);
  keysOf();
  draw();
}

for (const box of document.querySelectorAll(".curves")) curves(box);
