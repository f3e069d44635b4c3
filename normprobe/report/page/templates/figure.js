// What every figure has: a head with its title, a place that reads values, and a way to save it.

// A figure in a box. draw(svg, width) fills an empty picture and returns how it is read:
// pick(x, y) the value at a point, step(at, key) the next one, tell(at) what to say of it.
function figure(box, title, draw) {
  const head = make(box, "div", { class: "head" });
  const name = typeof title === "string" ? make(head, "p", { class: "title" }, title) : title(head);
  const tools = make(head, "div", { class: "tools" });
  const place = make(box, "div", { class: "chart", tabindex: "0", role: "group" });
  const tip = make(box, "div", { class: "tip", role: "status" });
  const save = make(tools, "button", { type: "button", "aria-label": "save as SVG" }, "SVG");
  let at = null, reading = null, width = 0;

  function redraw() {
    place.replaceChildren();
    width = Math.max(260, place.clientWidth);
    const svg = make(place, "svg", { "aria-hidden": "true" });
    reading = draw(svg, width, at);
    svg.setAttribute("viewBox", `0 0 ${width} ${reading.height}`);
    place.setAttribute("aria-label", `${reading.label}; arrow keys read values`);
    place.append(tip);
    tip.replaceChildren();
    tip.hidden = at === null;
    if (at === null) return;
    tip.style.top = "";
    const x = reading.tell(at, tip);
    const free = place.clientWidth - tip.offsetWidth;
    const beside = x + 12 <= free ? x + 12 : x - 12 - tip.offsetWidth;
    if (beside < 0 && !tip.style.top) tip.style.top = "100%";  // a narrow window: not over the point
    tip.style.left = `${Math.max(0, Math.min(free, beside))}px`;
  }

  const shell = { tools, redraw, read(value) { at = value; redraw(); } };
  shell.changed = shell.read;
  for (const kind of ["pointermove", "pointerdown"])
    place.addEventListener(kind, (event) => {
      const frame = place.getBoundingClientRect(), scale = width / frame.width;
      const value = reading.pick((event.clientX - frame.left) * scale, (event.clientY - frame.top) * scale);
      if (value !== at) shell.changed(value);
    });
  // A finger that is lifted leaves, too: what it read stays.
  place.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") shell.changed(null); });
  place.addEventListener("keydown", (event) => {
    const value = event.key === "Escape" ? null : reading.step(at, event.key);
    if (value === undefined) return;
    event.preventDefault();
    shell.changed(value);
  });
  save.addEventListener("click", () => {
    shell.changed(null);
    saveSvg(place.querySelector("svg"), typeof title === "string" ? title : name.value);
  });
  let drawn = 0;
  new ResizeObserver(() => { if (place.clientWidth !== drawn) { drawn = place.clientWidth; redraw(); } }).observe(place);
  return shell;
}

// Which place of a list the arrow keys lead to; undefined for other keys.
function along(list, at, key, back = "ArrowLeft", forth = "ArrowRight") {
  const move = { [back]: -1, [forth]: 1, Home: -list.length, End: list.length }[key];
  if (!move) return undefined;
  const from = at === null ? (move > 0 ? -1 : list.length) : list.indexOf(at);
  return list[Math.min(list.length - 1, Math.max(0, from + move))];
}

const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity",
  "font-family", "font-size", "font-weight", "text-anchor", "paint-order"];

// The picture as it is seen, with the look that the page's style gives it.
function saveSvg(svg, name) {
  const copy = svg.cloneNode(true), from = svg.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((element, place) => {
    const look = getComputedStyle(from[place]);
    element.setAttribute("style", STYLES.map((style) => `${style}:${look.getPropertyValue(style)}`).join(";"));
  });
  const [, , width, height] = svg.getAttribute("viewBox").split(" ");
  for (const [key, value] of Object.entries({ xmlns: SVG, width, height })) copy.setAttribute(key, value);
  const paper = getComputedStyle(document.documentElement).getPropertyValue("--paper");
  copy.prepend(make(copy, "rect", { width, height, style: `fill:${paper}` }));
  const text = new XMLSerializer().serializeToString(copy);
  const link = make(document.body, "a", { download: `${name.replace(/[^\w]+/g, "-").slice(0, 60)}.svg` });
  link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
