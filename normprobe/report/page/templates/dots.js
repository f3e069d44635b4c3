// Means as dots on a log axis, stage by stage, with intervals; one row is read at a time.

const ROW = 22;

function dots(box) {
  const data = JSON.parse(box.querySelector("script").textContent);
  figure(box, data.label, (svg, width, at) => drawDots(svg, width, at, data));
}

function drawDots(svg, width, at, data) {
  const narrow = width < 560, told = data.rows.some((row) => row.told);
  const stacked = narrow && told;  // a narrow window: names above their dots
  const longest = (texts) => Math.max(...texts.map((text) => text.length)) * 6.9 + 24;
  const left = stacked ? 10 : told ? Math.max(150, 40 + longest(data.rows.map((row) => row.name)))
    : narrow ? 108 : 150;
  const right = width - (stacked ? 10 : told ? longest(data.rows.map((row) => row.told)) : narrow ? 62 : 150);
  const tall = stacked ? 2 * ROW - 6 : ROW;
  const stages = [...new Set(data.rows.map((row) => row.stage))];
  const places = [], names = [];
  let y = 4;
  for (const stage of stages) {
    y += ROW;
    names.push({ stage, y: y - 6 });
    data.rows.forEach((row, index) => {
      if (row.stage === stage) places.push({ row, index, y: (y += tall) - ROW / 2 });
    });
    y += 4;
  }
  const bottom = y + 4, height = bottom + 40;
  const found = [...data.rows.flatMap((row) => [row.value, row.after, row.low, row.high, row.least, row.most]),
    data.reference?.value].filter((value) => known(value) && value > 0);
  const low = Math.min(...found) / 1.2, high = Math.max(...found) * 1.2;
  const x = (value) => left + Math.log(value / low) / Math.log(high / low) * (right - left);
  let free = -Infinity;
  for (const tick of logTicks(low, high)) {
    make(svg, "line", { class: "rule", x1: x(tick), x2: x(tick), y1: ROW, y2: bottom });
    if (x(tick) < free) continue;
    make(svg, "text", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, tickText(tick));
    free = x(tick) + 34;
  }
  make(svg, "line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom });
  make(svg, "text", { x: (left + right) / 2, y: height - 5, "text-anchor": "middle" }, data.axis);
  if (data.reference) {
    const { value, color } = data.reference;
    make(svg, "line", { class: "reference", x1: x(value), x2: x(value), y1: ROW, y2: bottom, style: `--series:${color}` });
  }
  for (const { stage, y } of names) make(svg, "text", { class: "stage", x: 0, y }, stage);
  for (const { row, index, y } of places) {
    const style = `--series:${row.color}`;
    if (index === at) make(svg, "rect", { class: "chosen", x: 0, y: y + ROW / 2 - tall, width, height: tall });
    const line = stacked ? y - ROW / 2 + 1 : y + 4;
    if (row.mark) make(svg, "text", { class: "mark", x: 36, y: line, "text-anchor": "end" }, row.mark);
    make(svg, "text", { class: "halo", x: told ? 44 : 10, y: line }, row.name);
    for (const [from, to, kind] of [["least", "most", "whisker"], ["low", "high", "interval"]])
      if (row[from] > 0 && row[to] > 0)
        make(svg, "line", { class: kind, x1: x(row[from]), x2: x(row[to]), y1: y, y2: y, style });
    if (row.after > 0) {
      make(svg, "line", { class: "reference", x1: x(row.value), x2: x(row.after), y1: y, y2: y, style });
      make(svg, "circle", { class: "dot hollow", cx: x(row.after), cy: y, r: 3.5, style });
    }
    make(svg, "circle", { class: row.hollow ? "dot hollow" : "dot", cx: x(row.value), cy: y, r: 4.5, style });
    const text = row.told || (narrow || !row.ratio ? number(row.value) : `${number(row.value)}  (${row.ratio})`);
    if (stacked) make(svg, "text", { class: "halo", x: width - 4, y: line, "text-anchor": "end" }, text);
    else make(svg, "text", { x: right + 12, y: y + 4 }, text);
  }
  const order = places.map(({ index }) => index);
  return {
    height, label: data.label,
    pick: (_, py) => places.reduce((a, b) => Math.abs(b.y - py) < Math.abs(a.y - py) ? b : a).index,
    step: (from, key) => along(order, from, key, "ArrowUp", "ArrowDown"),
    tell: (index, tip) => {
      const row = data.rows[index];
      make(tip, "b", {}, `${row.stage}, ${row.name}`);
      const interval = known(row.low) ? ` [${number(row.low)}, ${number(row.high)}]` : "";
      make(tip, "div", {}, `${told ? data.axis : "mean"} ${number(row.value)}${interval}`);
      if (known(row.after)) make(tip, "div", {}, `after the last layer ${number(row.after)}`);
      if (known(row.least)) make(tip, "div", {}, `5-95 %: ${number(row.least)} to ${number(row.most)}`);
      if (row.ratio) make(tip, "div", {}, `${row.ratio} ${data.reference ? data.reference.name : ""}`);
      tip.style.top = `${places.find((place) => place.index === index).y + ROW}px`;
      return x(row.value);
    },
  };
}

for (const box of document.querySelectorAll(".dots")) dots(box);
