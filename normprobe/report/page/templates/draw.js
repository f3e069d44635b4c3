"use strict";
// Elements, numbers and scales. Names in the data are untrusted: text enters through textContent.

const SVG = "http://www.w3.org/2000/svg";

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

const known = (value) => value !== null && value !== undefined;

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
  return ticks.length > 2 ? ticks : linearTicks(low, high, 5).filter((tick) => tick > 0);
}
