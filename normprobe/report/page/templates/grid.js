// Numbers as shades of cells, bare or laid over a picture; one cell is read at a time.

function grid(box) {
  const data = JSON.parse(box.querySelector("script").textContent);
  const row = make(box, "div", { class: "row maps" });
  for (const map of data.maps)
    figure(make(row, "div", { class: "panel" }), map.label, (svg, width, at) => drawGrid(svg, width, at, map, data));
}

function drawGrid(svg, width, at, map, data) {
  const down = map.values.length, across = map.values[0].length;
  const left = map.rows ? 34 : 0, foot = map.columns ? 34 : 0;
  const picture = data.pictures?.[map.picture];
  const inner = width - left, tall = picture ? inner * picture.ratio : Math.min(24, Math.max(12, 320 / down)) * down;
  const x = (i) => left + (map.x ? map.x[i] : i / across) * inner;
  const y = (j) => (map.y ? map.y[j] : j / down) * tall;
  const f = map.log ? Math.log : (value) => value;
  if (picture) make(svg, "image", { href: picture.url, x: left, y: 0, width: inner, height: tall,
    preserveAspectRatio: "none" });
  const cell = inner / across;
  for (let j = 0; j < down; j++)
    for (let i = 0; i < across; i++) {
      const value = map.values[j][i];
      if (!known(value)) continue;
      const strength = (f(Math.max(value, map.log ? 1e-9 : -Infinity)) - f(map.middle)) / (f(map.end) - f(map.middle));
      make(svg, "rect", { class: strength < 0 ? "cell less" : "cell", x: x(i), y: y(j), width: x(i + 1) - x(i),
        height: y(j + 1) - y(j), "fill-opacity": (Math.min(1, Math.abs(strength)) * 0.8).toFixed(3) });
      if (!picture && cell > 44)
        make(svg, "text", { x: x(i) + cell / 2, y: (y(j) + y(j + 1)) / 2 + 4, "text-anchor": "middle" },
          value.toPrecision(2));
    }
  const names = (list, place, room) => list.forEach((name, k) => {
    if (k % Math.ceil(room / (place(1) - place(0))) === 0) write(name, (place(k) + place(k + 1)) / 2);
  });
  let write = (name, at) => make(svg, "text", { x: left - 6, y: at + 4, "text-anchor": "end" }, String(name));
  if (map.rows) names(map.rows, y, 12);
  write = (name, at) => make(svg, "text", { x: at, y: tall + 15, "text-anchor": "middle" }, String(name));
  if (map.columns) {
    names(map.columns, x, 20);
    make(svg, "text", { x: left + inner / 2, y: tall + 30, "text-anchor": "middle" }, `${map.words[0]}s down, ${map.words[1]}s across`);
  }
  if (at !== null) {
    const [j, i] = [Math.floor(at / across), at % across];
    make(svg, "rect", { class: "outline", x: x(i), y: y(j), width: x(i + 1) - x(i), height: y(j + 1) - y(j) });
  }
  const last = (edge, count, at) => {
    let k = 0;
    while (k < count - 1 && edge(k + 1) <= at) k++;
    return k;
  };
  return {
    height: tall + foot, label: map.label,
    pick: (px, py) => last(y, down, py) * across + last(x, across, px),
    step: (from, key) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[key];
      if (!move) return undefined;
      const to = from === null ? 0 : from + move;
      return to >= 0 && to < down * across ? to : from;
    },
    tell: (cell, tip) => {
      const [j, i] = [Math.floor(cell / across), cell % across], value = map.values[j][i];
      if (map.rows) make(tip, "b", {}, `${map.words[0]} ${map.rows[j]}, ${map.words[1]} ${map.columns[i]}`);
      make(tip, "div", {}, known(value) ? `${number(value)} ${data.unit || ""}` : "no token looks here");
      tip.style.top = `${y(j + 1) + 6}px`;
      return x(i);
    },
  };
}

for (const box of document.querySelectorAll(".grid")) grid(box);
