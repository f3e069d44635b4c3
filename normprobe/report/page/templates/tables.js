// Tables sort by a click on a header, say when they scroll, and can be copied.

// A shown number for sorting and copying: 2.880M is 2880000, of 2 (1-3) and 2 [1, 3] it is 2; null for text.
function numeric(text) {
  const found = /^(-?[\d.]+(?:e[+-]?\d+)?)([MG]?)(?: \(.*\)| \[.*\])?$/.exec(text);
  return found ? Number(found[1]) * { "": 1, M: 1e6, G: 1e9 }[found[2]] : null;
}

function compareCells(a, b) {
  const [x, y] = [numeric(a), numeric(b)];
  if (x !== null && y !== null) return x - y;
  if (x === null && y === null) return a.localeCompare(b);
  return x === null ? 1 : -1;  // what is no number comes last
}

function contentOf(table) {
  const heads = [...table.tHead.lastElementChild.cells].map((cell) => cell.dataset.name || cell.textContent);
  return [heads, ...[...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent))];
}

function asCsv(rows) {
  const cell = (text) => {
    if (text === "-") return "";
    if (/^[=+\-@\t]/.test(text) && numeric(text) === null) text = `'${text}`;  // no formula in a spreadsheet
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",") + "\n").join("");
}

function asMarkdown([heads, ...rows]) {
  const line = (cells) => `| ${cells.map((text) => text.replaceAll("\\", "\\\\").replaceAll("|", "\\|")).join(" | ")} |\n`;
  return line(heads) + line(heads.map(() => "---")) + rows.map(line).join("");
}

const LATEX = {
  "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}",
  ">": "\\textgreater{}", "|": "\\textbar{}", "`": "\\textasciigrave{}", "\u2423": "\\textvisiblespace{}",
  "\u00b1": "$\\pm$", "[": "{[}", "*": "{*}",
};

// As text; what pdfLaTeX may have no glyph of stands as a code point.
function latexText(text) {
  text = text.replace(/[^ -~\u00a1-\u00aa\u00ae-\u00ba\u00bf-\u00cf\u00d1-\u00dd\u00df-\u00ef\u00f1-\u00fd\u2013\u2014\u2018-\u201d\u2026\u2423]/gu,
    (sign) => {
      const code = sign.codePointAt(0), [kind, digits] = code > 0xffff ? ["U", 8] : code > 0xff ? ["u", 4] : ["x", 2];
      return `\\${kind}${code.toString(16).padStart(digits, "0")}`;
    });
  return text.replace(/[\\~^<>|`[*&%$#_{}\u2423\u00b1]/g, (sign) => LATEX[sign] || `\\${sign}`)
    .replace(/([-,'])(?=\1)/g, "$1{}");  // two of them would be a dash, or a quotation mark
}

// A float with booktabs, its notes below.
function asLatex([heads, ...rows], title, notes) {
  const numbers = heads.map((_, place) => rows.every((row) => row[place] === "-" || numeric(row[place]) !== null));
  const line = (cells) => `${cells.join(" & ")} \\\\\n`;
  const cell = (text, place) => numbers[place] && text !== "-" ? text.replace(/^-/, "$-$") : latexText(text);
  const caption = title.replace(/^Table \d+: /, "");
  const below = "\\par\\smallskip\n\\begin{minipage}{\\linewidth}\n\\footnotesize\\raggedright\n" +
    notes.map((text) => `${latexText(text)}\\par\n`).join("") + "\\end{minipage}\n";
  return "% Needs \\usepackage{booktabs}.\n\\begin{table}\n\\centering\\small\\setlength{\\tabcolsep}{3pt}\n" +
    (caption && `\\caption{${latexText(caption)}}\n\\label{tab:${caption.replace(/[^A-Za-z0-9.-]+/g, "-")}}\n`) +
    `\\smallskip\n\\begin{tabular}{@{}${numbers.map((number) => number ? "r" : "l").join("")}@{}}\n\\toprule\n` +
    `${line(heads.map(latexText))}\\midrule\n${rows.map((row) => line(row.map(cell))).join("")}\\bottomrule\n` +
    `\\end{tabular}\n${notes.length ? below : ""}\\end{table}\n`;
}

// The heading above a table, and the notes behind it.
function saidOf(box) {
  let above = box, behind = box.nextElementSibling;
  while (above && above.tagName !== "H3") above = above.previousElementSibling;
  const notes = [];
  for (; behind && behind.matches(".note:not(.files, .of-figures)"); behind = behind.nextElementSibling) notes.push(behind.textContent);
  return [above ? above.textContent : "", notes];
}

async function copy(text, button) {
  const said = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "The browser refuses";
  }
  setTimeout(() => { button.textContent = said; }, 1500);
}

function sortable(table) {
  const body = table.tBodies[0], original = [...body.rows];
  for (const [column, head] of [...table.tHead.lastElementChild.cells].entries()) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const order = { ascending: "descending", descending: "none" }[head.ariaSort] || "ascending";
      for (const other of table.tHead.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
      if (order !== "none") head.ariaSort = order;
      const way = order === "descending" ? -1 : 1;
      const rows = order === "none" ? original : [...original].sort((a, b) => {
        const texts = [a, b].map((row) => row.cells[column].textContent);
        const missing = texts.map((text) => text === "-");
        return missing[0] !== missing[1] ? missing[0] - missing[1] : way * compareCells(...texts);
      });
      body.append(...rows);
    });
  }
}

for (const box of document.querySelectorAll(".table")) {
  const frame = box.querySelector(".frame"), table = box.querySelector("table");
  const tools = document.createElement("div");
  tools.className = "tools";
  box.prepend(tools);
  const hint = make(tools, "span", { class: "hint" });
  for (const [words, write] of [["Copy CSV", asCsv], ["Copy Markdown", asMarkdown], ["Copy LaTeX", asLatex]]) {
    const button = make(tools, "button", { type: "button" }, words);
    button.addEventListener("click", () => copy(write(contentOf(table), ...saidOf(box)), button));
  }
  sortable(table);
  const look = () => {
    const more = frame.scrollWidth - frame.clientWidth - frame.scrollLeft > 1;
    box.classList.toggle("more", more);
    hint.textContent = frame.scrollWidth > frame.clientWidth + 1 ? "scrolls sideways \u2192" : "";
  };
  frame.addEventListener("scroll", look);
  new ResizeObserver(look).observe(frame);
}
