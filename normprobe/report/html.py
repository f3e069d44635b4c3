"""One self-contained page of any runs: words, tables, curves to play with, provenance.

Everything is read from the run folders, nothing from a network. Style, script and images are in the
page; its policy lets no other script run. A command's own part of a page is a function in
``PARTS``.
"""

import base64
import hashlib
import math
import shlex
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pandas as pd

from normprobe.report import verdict
from normprobe.report.beside_paper import PUBLISHED
from normprobe.report.curves import (
    Chart,
    attention_charts,
    layer_charts,
    run_charts,
    theory_charts,
)
from normprobe.report.json_text import json_text
from normprobe.report.markup import Markup, data, element, joined
from normprobe.report.plots.by_layer import GROUPS
from normprobe.report.plots.style import asks_for_log
from normprobe.report.readable_token import readable_token
from normprobe.report.run_dir import COMPLETE, RunDir, read_table
from normprobe.report.significant import MISSING, count, significant

#: Facts of run.json and their words, in the order in which a reader asks; the rest is folded away.
_FACTS = {
    "model": "model",
    "model_revision": "revision",
    "model_type": "type",
    "family": "family",
    "norm_placement": "norm placement",
    "data": "data",
    "sample_ids": "samples",
    "step": "training step",
    "argv": "command line",
    "created": "started",
    "seconds": "seconds",
    "device": "device",
    "dtype": "dtype",
    "attn_implementation": "attention",
    "parts": "parts",
    "parts_found_by": "parts found by",
    "versions": "versions",
}
_HEAT = (("norm", "norm"), ("cosine", "cosine"), ("angle", "angle"), ("relative_update", "update"))
_COUNTS = {"tokens", "samples", "count", "nonfinite", "hidden_size"}  # may hold empty fields
_LONGEST_TABLE = 200  # rows; the file in the page holds all


def page(runs: Sequence[Path]) -> str:
    """The page.

    Args:
        runs: run folders of any commands.

    Returns:
        HTML.

    Raises:
        NormprobeError: a folder is no run folder.
    """
    opened = [RunDir.open(path) for path in runs]
    names = [_name(run) for run in opened]
    title = names[0] if len(runs) == 1 else f"{len(runs)} normprobe runs"
    links = [
        element("li", element("a", name, href=f"#run-{number}"))
        for number, name in enumerate(names, start=1)
    ]
    script = _file("curves.js")
    digest = hashlib.sha256(script.encode()).digest()
    return Template(_file("page.html")).substitute(
        title=joined(title),
        style=_file("style.css"),
        script=script,
        hash=base64.b64encode(digest).decode(),
        contents=element("nav", element("ol", *links), aria_label="runs") if len(runs) > 1 else "",
        sections="\n".join(
            _section(run, number if len(runs) > 1 else None)
            for number, run in enumerate(opened, start=1)
        ),
        footer=joined("Written by normprobe from the run folders alone."),
    )


def _section(run: RunDir, number: int | None) -> Markup:
    """Everything of a run; without a number it is the only one, and the page has its name."""
    record = run.record
    command = str(record.get("command", ""))
    blocks: list[Markup] = []
    if record["status"] != COMPLETE:
        blocks.append(_warning("This run is partial: it was interrupted, or is still going on."))
    blocks += [_warning(str(text)) for text in record["warnings"]]
    if command in PARTS:
        blocks += PARTS[command](run.path)
    blocks += _other_tables(run.path, command)
    blocks += _figures(run.path, folded=command in _CURVES_SHOW_ALL)
    blocks += [element("h3", "Provenance"), _provenance(record), _downloads(run.path)]
    subject = element("p", run.path.resolve().name, class_="subject")
    if number is None:
        return element("section", subject, *blocks)
    return element("section", element("h2", _name(run)), subject, *blocks, id=f"run-{number}")


def _interface(path: Path) -> list[Markup]:
    table = _read(path, "interface")
    if table is None:
        return []
    columns = ["stage", "group", "hidden_size", "tokens", "norm_mean", "norm_std", "norm_q50"]
    columns += ["ratio_to_prompt", "ratio_to_table"]
    return [
        _verdict(verdict.interface_verdict(table)),
        element("h3", "L2 norm at the interface"),
        _table(table[[column for column in columns if column in table]]),
        _note("std over tokens or rows of a table; q50 is the median; ratios divide the mean."),
    ]


def _layers(path: Path) -> list[Markup]:
    table, theory = _read(path, "layers"), _read(path, "theory")
    if table is None:
        return []
    blocks = [
        _verdict(verdict.layers_verdict(table)),
        element("h3", "Through the decoder"),
        _curves(layer_charts(table)),
        _note("Lines: means over tokens. Bands: 5-95 % of tokens. Layer 0: decoder input."),
        element("h3", "Layer by layer"),
        _heat_map(table),
        _note("Darker is larger, within one metric; a metric with a wide range is shaded by its "
              "logarithm. angle: radians per layer. update: |h - x| / |x|."),
    ]  # fmt: skip
    charts = [] if theory is None or theory.empty else theory_charts(theory)
    if charts:
        blocks += [element("h3", "The theory beside the measurement"), _curves(charts)]
    return blocks


def _embeddings(path: Path) -> list[Markup]:
    table, tokens = _read(path, "embeddings"), _read(path, "tokens")
    if table is None:
        return []
    columns = ["table", "rows", "hidden_size", "count", "norm_mean", "norm_std", "norm_min"]
    columns += ["norm_q50", "norm_max"]
    blocks = [
        _verdict(verdict.embeddings_verdict(table)),
        element("h3", "L2 norm of embedding rows"),
        _table(table[[column for column in columns if column in table]]),
    ]
    if tokens is not None and not tokens.empty:
        blocks += [element("h3", "Loudest and quietest rows"), _table(tokens)]
    return blocks


def _compare(path: Path) -> list[Markup]:
    table, ranking = _read(path, "compare"), _read(path, "ranking")
    blocks = []
    if ranking is not None:
        blocks += [element("h3", "Ranked by disparity"), _table(ranking)]
    if table is not None and "layer" in table:
        blocks += [element("h3", "Through the decoder"), _curves(run_charts(table))]
        blocks.append(_note("Means over tokens. Full lines: visual tokens; dashed: text tokens."))
    elif table is not None:
        blocks += [element("h3", "Side by side"), _table(table)]
    return blocks


def _attention(path: Path) -> list[Markup]:
    table = _read(path, "attention")
    if table is None or table.empty:
        return []
    return [
        element("h3", "Attention to the image"),
        _curves(attention_charts(table)),
        _table(table),
    ]


def _other_tables(path: Path, command: str) -> list[Markup]:
    """The files that no part has shown, each as it is; all of them where a command has no part."""
    titles = {PUBLISHED: "Beside the paper"}
    blocks = []
    for file in sorted(path.glob("*.csv")):
        table = None if file.stem in _SHOWN.get(command, ()) else _read(path, file.stem)
        if table is not None and not table.empty:
            title = titles.get(file.stem, _words(file.stem).capitalize())
            blocks += [element("h3", title), _table(table)]
    return blocks


#: Command -> what its section shows above figures and provenance.
PARTS: dict[str, Callable[[Path], list[Markup]]] = {
    "interface": _interface,
    "layers": _layers,
    "embeddings": _embeddings,
    "compare": _compare,
    "attention": _attention,
}

#: Commands whose figures show no more than the curves and tables of their part.
_CURVES_SHOW_ALL = ("interface", "layers", "embeddings")

#: Command -> files that its part has shown; a histogram is a figure.
_SHOWN = {
    "interface": ("interface",),
    "layers": ("layers", "theory"),
    "embeddings": ("embeddings", "tokens", "histogram"),
    "compare": ("compare", "ranking"),
    "attention": ("attention", "heatmaps"),
}


def _curves(charts: list[Chart]) -> Markup:
    return element("div", data(charts), class_="curves")


def _heat_map(layers: pd.DataFrame) -> Markup:
    """Layers down, metrics and groups across, each cell shaded by its place in the metric."""
    groups = [group for group in reversed(GROUPS) if (layers["group"] == group).any()]
    metrics = [(metric, word) for metric, word in _HEAT if f"{metric}_mean" in layers]
    tables = {
        metric: layers.pivot(index="layer", columns="group", values=f"{metric}_mean")[groups]
        for metric, _ in metrics
    }
    shades = {metric: _shades(table.to_numpy(float)) for metric, table in tables.items()}
    top = [element("th", word, colspan=len(groups), scope="colgroup") for _, word in metrics]
    below = [element("th", group, scope="col") for _ in metrics for group in groups]
    rows = []
    for place, layer in enumerate(sorted(layers["layer"].unique())):
        cells = [element("th", int(layer), scope="row")]
        for metric, _ in metrics:
            for value, shade in zip(tables[metric].loc[layer], shades[metric][place], strict=True):
                cells.append(_cell(float(value), float(shade), metric))
        rows.append(element("tr", *cells))
    head = element(
        "thead",
        element("tr", element("th", "layer", rowspan=2, class_="words", scope="col"), *top),
        element("tr", *below),
    )
    table = element("table", head, element("tbody", *rows), class_="shaded")
    return element("div", table, class_="frame tall", tabindex=0)


def _shades(values: "np.ndarray[Any, np.dtype[np.float64]]") -> Any:
    """0 to 1 over the finite values of a metric, by their logarithm where they span much."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return values
    if finite.min() > 0 and asks_for_log(finite):
        values, finite = np.log(values), np.log(finite)
    low, span = finite.min(), np.ptp(finite)
    return (values - low) / (span or 1.0)


def _cell(value: float, shade: float, metric: str) -> Markup:
    if not math.isfinite(value):
        return element("td", MISSING)
    text = f"{value:.4f}" if metric == "cosine" else significant(value)
    return element("td", text, style=f"background:rgba(213,94,0,{0.6 * shade:.3f})")


def _table(table: pd.DataFrame) -> Markup:
    """A table as it is, numbers short, tokens with every character visible."""
    words = {name: not pd.api.types.is_numeric_dtype(table[name]) for name in table}
    head = [
        element("th", str(name).replace("_", " "), class_="words" if words[name] else None)
        for name in table
    ]
    rows = [
        element(
            "tr",
            *(
                element("td", _text(name, value), class_="words" if words[name] else None)
                for name, value in row.items()
            ),
        )
        for row in table.head(_LONGEST_TABLE).to_dict("records")
    ]
    made = element("table", element("thead", element("tr", *head)), element("tbody", *rows))
    frame = element("div", made, class_="frame tall", tabindex=0)
    if len(table) <= _LONGEST_TABLE:
        return frame
    return joined(frame, _note(f"{_LONGEST_TABLE} of {len(table)} rows; the file has all."))


def _text(name: object, value: object) -> str:
    if isinstance(value, str):
        return readable_token(value) if str(name).endswith("token") and value else _words(value)
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if not isinstance(value, int | float | np.integer | np.floating):
        return MISSING if value is None else str(value)
    if isinstance(value, int | np.integer) or name in _COUNTS:
        return count(float(value))
    return significant(float(value))


def _figures(path: Path, *, folded: bool) -> list[Markup]:
    """The pictures of ``plots/``; folded away where curves above show the same."""
    images = [
        element("figure", element("img", src=_data_url("image/png", file), alt=file.stem),
                element("figcaption", file.stem.replace("_", " ")))
        for file in sorted((path / "plots").glob("*.png"))
    ]  # fmt: skip
    if not images or not folded:
        return images
    return [element("details", element("summary", "Figures for print"), *images)]


def _provenance(record: dict[str, Any]) -> Markup:
    rows = [
        element("tr", element("th", words, scope="row"), element("td", fact))
        for name, words in _FACTS.items()
        if (fact := _fact(name, record.get(name)))
    ]
    everything = element("pre", json_text(record))
    folded = element("details", element("summary", "run.json"), everything, class_="bulky")
    return joined(element("table", element("tbody", *rows), class_="facts"), folded)


def _fact(name: str, value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{_words(k)}: {item}" for k, item in value.items() if item is not None)
    if isinstance(value, list):
        # Of samples the number is enough.
        return _command_line(value) if name == "argv" else str(len(value) or "")
    return "" if value is None else str(value)


def _command_line(argv: list[str]) -> str:
    """Without the program's path; a run of the training callback was started by another one."""
    program = Path(argv[0]).name if argv else ""
    return shlex.join(["normprobe" if program == "__main__.py" else program, *argv[1:]])


def _downloads(path: Path) -> Markup:
    """The tables themselves, so that the page is enough to go on from."""
    links: list[object] = []
    for file in sorted(path.glob("*.csv")):
        address = _data_url("text/csv", file)
        links += [" " if links else "Files: ", element("a", file.name, href=address,
                                                       download=file.name)]  # fmt: skip
    return element("p", *links, class_="files note")


def _verdict(sentence: str) -> Markup:
    return element("p", sentence, class_="verdict") if sentence else Markup()


def _note(text: str) -> Markup:
    return element("p", text, class_="note")


def _warning(text: str) -> Markup:
    return element("p", text, class_="warning")


def _name(run: RunDir) -> str:
    """E.g. ``layers: llava-hf/llava-1.5-7b-hf, mmbench, step 100``."""
    record = run.record
    step = record.get("step")
    model = str(record.get("model") or "")
    facts = [
        Path(model).name if model.startswith(("/", ".")) else model,
        record.get("data"),
        None if step is None else f"step {step}",
    ]
    subject = ", ".join(str(fact) for fact in facts if fact) or run.path.resolve().name
    return f"{record.get('command', 'run')}: {subject}"


def _read(path: Path, name: str) -> pd.DataFrame | None:
    """A table of the run; None where there is none (yet)."""
    return read_table(path, name) if (path / f"{name}.csv").is_file() else None


def _data_url(kind: str, file: Path) -> str:
    return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _file(name: str) -> str:
    return (files("normprobe.report") / "page" / name).read_text(encoding="utf-8")
