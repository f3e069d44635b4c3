// Points with intervals in two directions: ratios on a log axis across, numbers upward; one point is read at a time.

function scatter(box) {
  const data = JSON.parse(box.querySelector("script").textContent);
  figure(box, "Inertia over disparity", (svg, width, at) => drawScatter(svg, width, at, data));
}

function drawScatter(svg, width, at, { points, x: across, y: up }) {
  const height = Math.min(480, Math.max(300, width * 0.6));
  const left = MARGIN.left, right = width - 24, top = 28, bottom = height - MARGIN.bottom;
  const xs = points.flatMap((point) => point.x).filter(known), ys = points.flatMap((point) => point.y).filter(known);
  const low = Math.min(...xs, 1) / 1.15, high = Math.max(...xs, 1) * 1.15;
  const edge = (Math.max(...ys, 0) - Math.min(...ys, 0)) * 0.06 || 1;
  const least = Math.min(...ys, 0) - edge, most = Math.max(...ys, 0) + edge;
  const x = (value) => left + Math.log(value / low) / Math.log(high / low) * (right - left);
  const y = (value) => bottom - (value - least) / (most - least) * (bottom - top);
  let free = -Infinity;
  for (const tick of logTicks(low, high)) {
    make(svg, "line", { class: "rule", x1: x(tick), x2: x(tick), y1: top, y2: bottom });
    if (x(tick) < free) continue;
    make(svg, "text", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, tickText(tick));
    free = x(tick) + 34;
  }
  for (const tick of linearTicks(least, most, 6)) {
    make(svg, "line", { class: "rule", x1: left, x2: right, y1: y(tick), y2: y(tick) });
    make(svg, "text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, tickText(tick));
  }
  // Where modalities are as loud, and turn as fast.
  make(svg, "line", { class: "axis", x1: x(1), x2: x(1), y1: top, y2: bottom });
  make(svg, "line", { class: "axis", x1: left, x2: right, y1: y(0), y2: y(0) });
  make(svg, "text", { x: (left + right) / 2, y: height - 5, "text-anchor": "middle" }, across);
  make(svg, "text", { x: 2, y: 16 }, up);
  const color = (point) => `--series:${point.hollow ? "#767d84" : "#0072b2"}`;
  for (const point of points) {
    const [px, py, style] = [x(point.x[0]), y(point.y[0]), color(point)];
    make(svg, "line", { class: "whisker", x1: x(point.x[1]), x2: x(point.x[2]), y1: py, y2: py, style });
    make(svg, "line", { class: "whisker", x1: px, x2: px, y1: y(point.y[1]), y2: y(point.y[2]), style });
  }
  points.forEach((point, index) => {
    const look = { class: point.hollow ? "dot hollow" : "dot", cx: x(point.x[0]), cy: y(point.y[0]), style: color(point) };
    make(svg, "circle", { ...look, r: index === at ? 6.5 : 4 });
  });
  const order = points.map((_, index) => index).sort((a, b) => points[a].x[0] - points[b].x[0]);
  const away = (point, px, py) => (x(point.x[0]) - px) ** 2 + (y(point.y[0]) - py) ** 2;
  const told = ([value, from, to]) => `${number(value)} [${number(from)}, ${number(to)}]`;
  return {
    height, label: `${up} over ${across}`,
    pick: (px, py) => order.reduce((a, b) => away(points[b], px, py) < away(points[a], px, py) ? b : a),
    step: (from, key) => along(order, from, key),
    tell: (index, tip) => {
      const point = points[index];
      make(tip, "b", {}, point.name);
      make(tip, "div", {}, point.told);
      make(tip, "div", {}, `disparity ${told(point.x)}`);
      make(tip, "div", {}, `inertia ${told(point.y)}`);
      tip.style.top = `${y(point.y[0]) + 12}px`;
      return x(point.x[0]);
    },
  };
}

for (const box of document.querySelectorAll(".scatter")) scatter(box);
