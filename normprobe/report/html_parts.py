"""What a page shows of each command, above its figures and provenance.

A new command has a page without a word here: its tables as they are, its figures. What is more
telling is a function and a line in ``PARTS``.
"""

from collections.abc import Callable
from pathlib import Path

import pandas as pd

from normprobe.report import html_tables, verdict
from normprobe.report.beside_paper import PUBLISHED
from normprobe.report.comparison import comparison_verdict
from normprobe.report.curves import (
    Chart,
    attention_charts,
    layer_charts,
    run_charts,
    theory_charts,
)
from normprobe.report.markup import Markup, data, element
from normprobe.report.run_dir import read_record, read_table
from normprobe.report.shift import shift_verdict
from normprobe.report.theory import theory_verdict


def part_of(command: str, path: Path) -> list[Markup]:
    """Words, tables and curves of a run.

    Args:
        command: of any name.
        path: the run folder.

    Raises:
        NormprobeError: a table cannot be read.
    """
    part = PARTS[command](path) if command in PARTS else []
    return part + _other_tables(path, command)


def _interface(path: Path) -> list[Markup]:
    table = _read(path, "interface")
    if table is None:
        return []
    columns = ["stage", "group", "hidden_size", "tokens", "norm_mean", "norm_std", "norm_q50"]
    columns += ["ratio_to_prompt", "ratio_to_table"]
    return [
        _verdict(verdict.interface_verdict(table)),
        element("h3", "L2 norm at the interface"),
        html_tables.table(table[[column for column in columns if column in table]]),
        _note("std over tokens or rows of a table; q50 is the median; ratios divide the mean."),
    ]


def _layers(path: Path) -> list[Markup]:
    table, theory, assumptions = (_read(path, name) for name in ("layers", "theory", "assumptions"))
    if table is None:
        return []
    blocks = [
        _verdict(verdict.layers_verdict(table)),
        element("h3", "Through the decoder"),
        _curves(layer_charts(table)),
        _note("Lines: means over tokens. Bands: 5-95 % of tokens. Layer 0: decoder input."),
        element("h3", "Layer by layer"),
        html_tables.heat_map(table),
        _note(
            "Darker is larger, within one metric; a metric with a wide range is shaded by its "
            "logarithm. angle: radians per layer. update: |h - x| / |x|."
        ),
    ]
    charts = [] if theory is None else theory_charts(theory)
    if charts:
        blocks += [element("h3", "The theory beside the measurement"), _curves(charts)]
    if theory is not None and assumptions is not None:
        blocks += [
            element("h3", "Does the paper's theory hold here?"),
            _verdict(theory_verdict(theory, assumptions)),
            html_tables.table(assumptions[_VERDICT_FIRST]),
        ]
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
        html_tables.table(table[[column for column in columns if column in table]]),
    ]
    shift = _read(path, "shift")
    if shift is not None:
        blocks.insert(1, _verdict(shift_verdict(table, shift)))
    if tokens is not None:
        blocks += [element("h3", "Loudest and quietest rows"), html_tables.table(tokens)]
    return blocks


def _compare(path: Path) -> list[Markup]:
    table, ranking = _read(path, "compare"), _read(path, "ranking")
    blocks = []
    if ranking is not None:
        compared = str((read_record(path) or {}).get("compared", ""))
        blocks.append(_verdict(comparison_verdict(compared, ranking)))
        blocks += [element("h3", "Ranked by disparity"), html_tables.table(ranking)]
    if table is not None and "layer" in table:
        blocks += [element("h3", "Through the decoder"), _curves(run_charts(table))]
        blocks.append(_note("Means over tokens. Full lines: visual tokens; dashed: text tokens."))
    elif table is not None:
        blocks += [element("h3", "Side by side"), html_tables.table(table)]
    return blocks


def _attention(path: Path) -> list[Markup]:
    table = _read(path, "attention")
    if table is None:
        return []
    return [
        _verdict(verdict.attention_verdict(table)),
        element("h3", "Attention to the image"),
        _curves(attention_charts(table)),
        html_tables.table(table),
    ]


def _other_tables(path: Path, command: str) -> list[Markup]:
    """The files that no part has shown, each as it is; all of them where a command has no part."""
    titles = {PUBLISHED: "Beside the paper"}
    blocks = []
    for file in sorted(path.glob("*.csv")):
        table = None if file.stem in _SHOWN.get(command, ()) else _read(path, file.stem)
        if table is not None:
            title = titles.get(file.stem, file.stem.replace("_", " ").capitalize())
            blocks += [element("h3", title), html_tables.table(table)]
    return blocks


#: Command -> what its section shows above figures and provenance.
PARTS: dict[str, Callable[[Path], list[Markup]]] = {
    "interface": _interface,
    "layers": _layers,
    "embeddings": _embeddings,
    "compare": _compare,
    "attention": _attention,
}

#: Columns of ``assumptions.csv`` in an order that a narrow screen can cut off.
_VERDICT_FIRST = ["assumption", "source", "verdict", "holds_in", "fails_in", "low", "high"]
_VERDICT_FIRST += ["median", "worst", "worst_layer", "number"]

#: Commands whose figures show no more than the curves and tables of their part.
CURVES_SHOW_ALL = ("interface", "layers", "embeddings")

#: Command -> files that its part has shown; a histogram is a figure.
_SHOWN = {
    "interface": ("interface",),
    "layers": ("layers", "theory", "assumptions"),
    "embeddings": ("embeddings", "tokens", "histogram"),
    "compare": ("compare", "ranking"),
    "attention": ("attention", "heatmaps"),
}


def _curves(charts: list[Chart]) -> Markup:
    return element("div", data(charts), class_="curves")


def _verdict(sentence: str) -> Markup:
    return element("p", sentence, class_="verdict") if sentence else Markup()


def _note(text: str) -> Markup:
    return element("p", text, class_="note")


def _read(path: Path, name: str) -> pd.DataFrame | None:
    """A table of the run; None where there is none (yet), or no row."""
    table = read_table(path, name) if (path / f"{name}.csv").is_file() else None
    return None if table is None or table.empty else table
