"""Terminal tables that fit 80 columns, and the table as JSON for stdout.

A table shows what a reader compares; the CSV beside it holds every column and row.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import pandas as pd
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from normprobe.report.json_text import json_text
from normprobe.report.readable_token import SPACE, readable_token
from normprobe.report.significant import MISSING, count, significant
from normprobe.report.terminal import add_column, new_table, print_notes, print_table, words
from normprobe.schema import ROW_SCOPES, STAGES, TEXT, TOKEN_GROUPS, VISUAL

__all__ = [
    "alignment_table",
    "attention_table",
    "embeddings_table",
    "inspect_table",
    "interface_table",
    "layers_table",
    "models_table",
    "norm_statistics_table",
    "readable_token",
    "to_json",
]

#: The hues of the figures, as far as 256-colour terminals know them.
GROUP_STYLES = {VISUAL: "color(173)", TEXT: "color(74)"}

_MOST_LAYERS = 33  # a 32-layer model and its input: one screen
_STEPS = (2, 3, 4, 5, 8, 10, 20, 50, 100)
_MOST_RANKS = 10
_TOKEN_WIDTH = 20
_ALIGNED = ", visual tokens aligned"  # in a title


def interface_table(interface: pd.DataFrame, console: Console, *, aligned: bool = False) -> None:
    """Print ``interface.csv``: norms by stage and group.

    Args:
        interface: the table.
        console: where to print.
        aligned: whether the model has an alignment norm.
    """
    table = new_table("L2 norm at the interface" + _ALIGNED * aligned)
    for header in ("stage", "d", "tokens", "mean", "std", "median", "x prompt", "x table"):
        add_column(table, header, left=header == "stage")
    for stage in STAGES:
        rows = interface[interface["stage"] == stage]
        if rows.empty:
            continue
        table.add_row(
            Text(words(stage), style="bold"), Text(count(float(rows["hidden_size"].iloc[0])))
        )
        for group in (*TOKEN_GROUPS, *ROW_SCOPES):
            for _, row in rows[rows["group"] == group].iterrows():
                columns = ("norm_mean", "norm_std", "norm_q50", "ratio_to_prompt", "ratio_to_table")
                table.add_row(
                    Text(f"  {words(group)}"),
                    Text(),
                    Text(count(float(row["tokens"]))),
                    *(Text(significant(float(row[column]))) for column in columns),
                    style=GROUP_STYLES.get(group),
                )
    print_table(table, console)
    print_notes(
        console,
        "d: hidden size. std: over tokens, or rows of a table.",
        "x prompt: mean norm / that of the prompts' text tokens at the decoder input.",
        "x table: mean norm / that of the non-zero effective text embeddings.",
        _nonfinite(interface, "stage"),
    )


def layers_table(layers: pd.DataFrame, console: Console, *, aligned: bool = False) -> None:
    """Print ``layers.csv``: visual beside text, or whichever groups exist, layer by layer.

    Args:
        layers: the table.
        console: where to print.
        aligned: whether the model has an alignment norm.
    """
    present = [group for group in (VISUAL, TEXT, *TOKEN_GROUPS) if (layers["group"] == group).any()]
    groups = list(dict.fromkeys(present))[:2]
    by_layer = {group: layers[layers["group"] == group].set_index("layer") for group in groups}
    numbers = sorted(int(layer) for layer in layers["layer"].unique())
    shown = _selection(numbers)

    table = new_table("Decoder layers" + _ALIGNED * aligned)
    add_column(table, "\nlayer")
    for header in ("norm", "cosine", "angle", "rel.update"):
        for place, group in enumerate(groups):
            title = Text(f"{header if place == 0 else ''}\n")
            title.append(group, style=GROUP_STYLES.get(group, ""))
            add_column(table, title)
    flagged = False
    for layer in shown:
        cells = [Text(str(layer))]
        rows = [by_layer[group][by_layer[group].index == layer] for group in groups]
        for column in ("norm_mean", "cosine_mean", "angle_mean", "relative_update_mean"):
            for group, row in zip(groups, rows, strict=True):
                text = _layer_cell(row, column)
                flagged |= text.endswith("*")
                cells.append(Text(text, style=GROUP_STYLES.get(group, "")))
        table.add_row(*cells)
    print_table(table, console)
    print_notes(
        console,
        "Means over tokens of the L2 norm after the layer (layer 0: decoder input);",
        "of cosine and angle (radians per layer) between layer input x and output h;",
        "and of the relative update |h - x| / |x|.",
        "* below what the stored numbers resolve." if flagged else "",
        ""
        if len(shown) == len(numbers)
        else f"{len(shown)} of {len(numbers)} layers shown; layers.csv has all.",
        _nonfinite(layers, "layer"),
    )


def embeddings_table(embeddings: pd.DataFrame, tokens: pd.DataFrame, console: Console) -> None:
    """Print ``embeddings.csv``, then the rows with the largest and smallest norms.

    Args:
        embeddings: statistics by table and row scope.
        tokens: ``tokens.csv``.
        console: where to print.
    """
    table = new_table("L2 norm of embedding rows")
    for header in ("table", "d", "rows", "mean", "std", "min", "median", "max"):
        add_column(table, header, left=header == "table")
    for name, rows in embeddings.groupby("table", sort=False):
        title = Text(f"{name} table", style="bold")
        table.add_row(title, Text(count(float(rows["hidden_size"].iloc[0]))))
        for _, row in rows.iterrows():
            columns = ("norm_mean", "norm_std", "norm_min", "norm_q50", "norm_max")
            table.add_row(
                Text(f"  {words(str(row['rows']))}"),
                Text(),
                Text(count(float(row["count"]))),
                *(Text(significant(float(row[column]))) for column in columns),
                style=GROUP_STYLES.get(str(name)),
            )
    print_table(table, console)
    print_notes(console, "d: hidden size. std: over rows.")
    for name, rows in tokens.groupby("table", sort=False):
        _ends_table(f"{name} table", rows, console)


def attention_table(attention: pd.DataFrame, console: Console) -> None:
    """Print ``attention.csv``: how much, how widely and how well text attends to the image.

    Args:
        attention: the table.
        console: where to print.
    """
    columns = ("share_mean", "share_std", "even_share_mean", "entropy_mean", "signal_to_noise")
    headers = ("share", "std", "even", "entropy", "signal/noise")
    for query, rows in attention.groupby("query", sort=False):
        tokens = int(rows["tokens"].iloc[0])
        table = new_table(f"Attention to the image from {query} ({tokens} tokens)")
        for header in ("layer", *headers):
            add_column(table, header)
        shown = _selection([int(layer) for layer in rows["layer"]])
        for _, row in rows[rows["layer"].isin(shown)].iterrows():
            cells = (Text(significant(float(row[column]))) for column in columns)
            table.add_row(Text(str(row["layer"])), *cells)
        print_table(table, console)
    target = attention["signal_to_noise"].notna().any()
    print_notes(
        console,
        "share: of a token's attention, what falls on visual tokens; mean and std over",
        "heads and tokens. even: the share if spread evenly over all visible tokens.",
        "entropy: over the visual tokens, 1: even, 0: on one token.",
        "signal/noise: attention to a visual token inside the box / outside." if target else "",
        "" if attention["heads"].gt(0).all() else "- a layer without softmax attention to them.",
    )


def inspect_table(parts: pd.DataFrame, facts: Mapping[str, object], console: Console) -> None:
    """Print what ``inspect`` sees in a model.

    Args:
        parts: one row a part: part, name, size, parameters.
        facts: named facts about the model; empty ones are left out.
        console: where to print.
    """
    for name, fact in facts.items():
        if fact not in (None, ""):
            console.print(Text(f"{name + ':':17}{fact}"))
    console.print()
    table = new_table("Parts")
    for header in ("part", "name in the model", "size", "parameters"):
        add_column(table, header, left=header in ("part", "name in the model"))
    for _, row in parts.iterrows():
        table.add_row(
            Text(words(str(row["part"]))),
            Text(str(row["name"])),
            Text(str(row["size"])),
            Text(f"{row['parameters']:,}"),
        )
    print_table(table, console)


def weights_table(weights: pd.DataFrame, console: Console) -> None:
    """Print what the weight files hold of each part, and what each command reads.

    Args:
        weights: one row a part or command: what, kind, parameters, bytes, dtype, files.
        console: where to print.
    """
    whole = len(str(weights["files"].iloc[-1]).split())
    table = new_table("Weights")
    for header in ("", "tensors of", "parameters", "bytes", "stored as", "files"):
        add_column(table, header, left=header in ("", "tensors of", "stored as"))
    previous = None
    for _, row in weights.iterrows():
        kind = "needed by" if row["kind"] == "command" else row["kind"]
        known = pd.notna(row.get("bytes"))
        table.add_row(
            Text(kind if kind != previous and row["what"] != kind else ""),
            Text(words(str(row["what"]))),
            Text(f"{row['parameters']:,.0f}" if known else "all"),
            Text(decimal(int(row["bytes"])) if known else "all"),
            Text(str(row["dtype"]) if known else ""),
            Text(f"{len(str(row['files']).split())} of {whole}"),
        )
        previous = kind
    print_table(table, console)


def models_table(models: pd.DataFrame, families: Mapping[str, str], console: Console) -> None:
    """Print ``supported_models.csv``.

    Args:
        models: one row a model type: model_type, family, norm_placement, found_by, notes.
        families: what families mean, those that need a word.
        console: where to print.
    """
    table = new_table(f"{len(models)} model types")
    for header in ("type", "family", "norms", "found by"):
        add_column(table, header, left=True)
    table.add_column("notes", overflow="fold")
    for _, row in models.iterrows():
        columns = ("model_type", "family", "norm_placement", "found_by", "notes")
        table.add_row(*(Text(str(row[column])) for column in columns))
    print_table(table, console)
    print_notes(console, *(f"{name}: {meaning}." for name, meaning in families.items()))


def alignment_table(alignment: pd.DataFrame, console: Console) -> None:
    """Print what ``align`` inserts.

    Args:
        alignment: one row: after, target, target_norm, gain, scale, hidden_size.
        console: where to print.
    """
    row = alignment.iloc[0]
    hidden, gain = float(row["hidden_size"]), significant(float(row["gain"]))
    scale = None if pd.isna(row["scale"]) else significant(float(row["scale"]))
    facts = {
        "norm behind": row["after"],
        "target": f"{row['target']}, L2 norm {significant(float(row['target_norm']))}",
        "gain": f"{gain} in each of {count(hidden)} dimensions; bias 0",
        "model's own scale": "none: it changes the rows otherwise" if scale is None else scale,
    }
    for name, fact in facts.items():
        console.print(Text(f"{name + ':':19}{fact}"))
    console.print()


def norm_statistics_table(statistics: pd.DataFrame, console: Console) -> None:
    """Print the size of gain and bias (Table 5).

    Args:
        statistics: one row for gain and bias: l2_norm, mean_abs, std_abs, sem_abs.
        console: where to print.
    """
    table = new_table("Alignment norm: gain and bias")
    for header in ("parameter", "d", "L2 norm", "mean |w|", "std |w|", "std / sqrt(d)"):
        add_column(table, header, left=header == "parameter")
    for _, row in statistics.iterrows():
        numbers = (row["l2_norm"], row["mean_abs"], row["std_abs"], row["sem_abs"])
        cells = [significant(float(number)) for number in numbers]
        table.add_row(str(row["parameter"]), count(float(row["hidden_size"])), *cells)
    print_table(table, console)


def to_json(table: pd.DataFrame) -> str:
    """A table as a JSON array of one object a row, NaN as null, floats in full precision."""
    return json_text(table.to_dict("records"))


def _ends_table(name: str, tokens: pd.DataFrame, console: Console) -> None:
    ends = {
        end: tokens[tokens["end"] == end].sort_values("rank").head(_MOST_RANKS)
        for end in ("top", "bottom")
    }
    table = new_table(f"Loudest and quietest rows of the {name}")
    add_column(table, "rank")
    for end in ("loudest", "quietest"):
        add_column(table, end, left=True)
        add_column(table, "id")
        add_column(table, "norm")
    for place in range(max(map(len, ends.values()))):
        cells = [Text(str(place + 1))]
        for rows in ends.values():
            if place >= len(rows):
                cells += [Text(MISSING)] * 3
                continue
            row = rows.iloc[place]
            cells += [
                token_cell(row["token"], special=bool(row["special"])),
                Text(str(row["token_id"])),
                Text(significant(float(row["norm"]))),
            ]
        table.add_row(*cells)
    print_table(table, console)
    most = int(tokens.groupby("end").size().max())
    print_notes(
        console,
        f"* special token. {SPACE} a space.",
        f"{_MOST_RANKS} of {most} ranks shown; tokens.csv has all." if most > _MOST_RANKS else "",
    )


def token_cell(token: object, *, special: bool) -> Text:
    """A token in quotes, cut to its column, with a star where it is special."""
    mark = "* " if special else "  "
    # Rows of a visual table have no text.
    text = readable_token(token) if isinstance(token, str) and token else MISSING
    if cell_len(mark + text) > _TOKEN_WIDTH:
        # A terminal shows a wide character in two cells: cut by cells, not by characters.
        text = set_cell_size(text, _TOKEN_WIDTH - len(mark) - 1).rstrip() + "\u2026"
    return Text(mark + text)


def _layer_cell(row: pd.DataFrame, column: str) -> str:
    if row.empty or column not in row:
        return MISSING
    value = float(row[column].iloc[0])
    if column == "cosine_mean":
        return MISSING if pd.isna(value) else f"{value:.4f}"
    flag = column == "angle_mean" and row.get("angle_below_resolution", pd.Series()).eq(True).any()
    return significant(value) + ("*" if flag else "")


def _selection(layers: Sequence[int]) -> list[int]:
    """All layers, or of a deep model the input, layer 1, even steps and the last."""
    if len(layers) <= _MOST_LAYERS:
        return list(layers)
    step = next((step for step in _STEPS if len(layers) <= 20 * step), len(layers))
    chosen = {*layers[:2], layers[-1]}
    return [layer for layer in layers if layer in chosen or layer % step == 0]


def _nonfinite(table: pd.DataFrame, key: Literal["layer", "stage"]) -> str:
    if "nonfinite" not in table:
        return ""
    bad = table[table["nonfinite"].fillna(0) > 0]
    if bad.empty:
        return ""
    where = [words(str(place)) for place in bad[key].unique()]
    named = ", ".join(where[:4]) + (", ..." if len(where) > 4 else "")
    return f"Left out as non-finite: {count(float(bad['nonfinite'].sum()))} at {key} {named}."
