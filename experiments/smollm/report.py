"""The results as Markdown: means over seeds, with intervals over seeds and over images."""

import math
from collections.abc import Callable, Iterable, Mapping

import pandas as pd

from experiments.norm_alignment import interval
from experiments.smollm.grow import USUAL
from experiments.smollm.measure import guessed
from experiments.tables import markdown

Tables = Mapping[str, pd.DataFrame]
Column = tuple[str, float]  # variant and learning rate

RUN = ["variant", "learning_rate", "seed"]
#: Visual tokens as loud as text: their ratio, by geometric means.
LEVEL = (0.8, 1.25)
LAYERS = (0, 1, 2, 4, 8, 12, 16, 20, 24, 28, 30)
STEPS = (0, 5, 10, 20, 40, 80)
CAUSED = {
    "norm-at-layer: share_removed": "norm-at-layer: share of slower turning removed",
    "scale-to-text: nll": "scale-to-text: nats",
    "scale-to-text: accuracy": "scale-to-text: accuracy",
    "freeze: nll": "freeze: nats",
    "freeze: accuracy": "freeze: accuracy",
    "permute: accuracy": "permute: accuracy",
    "blank: nll": "grey picture: nats",
    "blank: accuracy": "grey picture: accuracy",
}


def report(tables: Tables) -> str:
    """All tables, one below the other, by variant and learning rate."""
    runs = tables["runs"]
    columns = list(dict.fromkeys(zip(runs["variant"], runs["learning_rate"], strict=True)))
    parts = [
        answered(tables["answers"], columns),
        against_usual(tables["answers"], columns),
        training(tables["results"], columns),
        by_layer(tables["results"], columns),
        causes(tables["results"], columns),
        sinks(tables["results"], columns),
        cost(runs),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def answered(answers: pd.DataFrame, columns: list[Column]) -> str:
    """Accuracy and nats an answer; ± over seeds, in brackets over the images."""
    header = [f"seeds: {_seeds(answers)}", *map(_title, columns), "question alone"]
    alone, rows = guessed(), []
    for name, words in (
        ("correct", "right answers"),
        ("correct_shuffled", "same, images shuffled"),
        ("nll", "nats an answer"),
        ("nll_shuffled", "same, images shuffled"),
    ):
        cells = [_both(_of(answers, column), name) for column in columns]
        rows.append([words, *cells, _both(alone, name)])
    for kind in answers["kind"].unique():
        of_kind = answers[answers["kind"] == kind]
        cells = [f"{_of(of_kind, column)['correct'].mean():.3f}" for column in columns]
        cells.append(f"{alone.loc[alone['kind'] == kind, 'correct'].mean():.3f}")
        rows.append([f"right, {kind}", *cells])
    return markdown(header, rows)


def against_usual(answers: pd.DataFrame, columns: list[Column]) -> str:
    """Differences to ``usual`` at the same learning rate, paired by seed and image."""
    rows = []
    for variant, rate in columns:
        if variant == USUAL or (USUAL, rate) not in columns:
            continue
        key = ["seed", "kind", "item"]
        one, other = (
            _of(answers, column).set_index(key)[["correct", "nll"]].astype(float)
            for column in ((variant, rate), (USUAL, rate))
        )
        paired = (one - other).dropna().reset_index()
        cells = [_both(paired, name, sign="+") for name in ("correct", "nll")]
        rows.append([_title((variant, rate)), *cells])
    return markdown(["against usual, paired", "right answers", "nats an answer"], rows)


def training(results: pd.DataFrame, columns: list[Column]) -> str:
    """Visual over text norm at the decoder input by step of both stages."""
    ratio = results[(results["quantity"] == "ratio") & (results["layer"] == 0)]
    last = ratio.groupby("stage")["step"].max()
    rows = []
    for stage in sorted(ratio["stage"].unique()):
        of_stage = ratio[ratio["stage"] == stage]
        for step in sorted({*STEPS, last[stage]} & {*of_stage["step"]}):
            at = of_stage[of_stage["step"] == step]
            rows.append([f"stage {stage:g}, step {step:g}", *_cells(at, columns)])
    for stage in sorted(ratio["stage"].unique()):
        losses = results[(results["quantity"] == "loss") & (results["stage"] == stage)]
        for step, words in ((losses["step"].min(), "first"), (losses["step"].max(), "last")):
            at = losses[losses["step"] == step]
            rows.append([f"loss, stage {stage:g}, {words} 10 steps", *_cells(at, columns)])
    return markdown(["visual / text at the decoder input", *map(_title, columns)], rows)


def by_layer(results: pd.DataFrame, columns: list[Column]) -> str:
    """Visual over text, norm and angle, behind each layer at the end."""
    rows = []
    for quantity, words in (("final_ratio", "norm"), ("angle_ratio", "angle")):
        for layer in LAYERS[words == "angle" :]:
            at = results[(results["quantity"] == quantity) & (results["layer"] == layer)]
            rows.append([f"{words}, layer {layer}", *_cells(at, columns)])
    level = _level_from(results[results["quantity"] == "final_ratio"])
    rows.append(["norms level (0.8 to 1.25) from layer", *_cells(level, columns)])
    return markdown(["visual / text at the end", *map(_title, columns)], rows)


def causes(results: pd.DataFrame, columns: list[Column]) -> str:
    """Effects of interventions on the whole model: a run's mean, and its interval over images."""
    rows = []
    for quantity, words in CAUSED.items():
        found = results[(results["quantity"] == quantity) & (results["layer"] == 0)]
        if not found.empty:
            rows.append([words, *_cells(found, columns, _with_ends)])
    return markdown(["effect", *map(_title, columns)], rows) if rows else ""


def sinks(results: pd.DataFrame, columns: list[Column]) -> str:
    """Which tokens are massive, and where text attends to: the layers of all, most and least."""
    rows = []
    for group in ("special", "text", "visual"):
        peaks = results[results["quantity"] == f"peak_max_{group}"]
        most = peaks.loc[peaks.groupby(RUN)["value"].idxmax()]
        rows.append([f"largest magnitude, {group}", *_cells(most, columns)])
        massive = results[results["quantity"] == f"massive_tokens_{group}"]
        at = massive.assign(value=massive["value"] > 0)
        layers = at.groupby(RUN)["value"].sum().reset_index()
        rows.append([f"layers with massive tokens, {group}", *_cells(layers, columns)])
    for name, words in (("first", "the first token"), ("visual", "visual tokens")):
        share = results[results["quantity"] == f"attention_{name}"]
        for first, last in ((1, 10), (11, 20), (21, 30)):
            at = share[share["layer"].between(first, last)]
            mean = at.groupby(RUN)["value"].mean().reset_index()
            cells = _cells(mean, columns)
            rows.append([f"attention of text to {words}, layers {first}-{last}", *cells])
    return markdown(["", *map(_title, columns)], rows)


def cost(runs: pd.DataFrame) -> str:
    """What it took, in words."""
    steps = " + ".join(f"{runs[name].iloc[0]:g}" for name in ("steps_1", "steps_2"))
    hours = runs["cpu_seconds"].sum() / 3600
    on = ", ".join(sorted({*runs["device_name"]}))
    return (
        f"{len(runs)} runs of {steps} steps on {on}: {hours:.2f} CPU hours, measurements included."
    )


def _level_from(ratios: pd.DataFrame) -> pd.DataFrame:
    """By run, the layer behind which the ratio never leaves ``LEVEL``."""
    uneven = ratios[~ratios["value"].between(*LEVEL)]
    last = uneven.groupby(RUN)["layer"].max().rename("value") + 1
    runs = pd.MultiIndex.from_frame(ratios[RUN].drop_duplicates())
    return last.reindex(runs, fill_value=0).reset_index()


# --- cells ---------------------------------------------------------------------------------------


def _of(table: pd.DataFrame, column: Column) -> pd.DataFrame:
    return table[(table["variant"] == column[0]) & (table["learning_rate"] == column[1])]


def _title(column: Column) -> str:
    return f"{column[0]}, {column[1]:g}"


def _seeds(table: pd.DataFrame) -> int:
    return int(table["seed"].nunique())


def _both(rows: pd.DataFrame, name: str, sign: str = "") -> str:
    """Mean, half of Student's interval over seeds, and the interval over images in brackets."""
    values = rows.assign(value=rows[name].astype(float))
    by_seed = values.groupby("seed")["value"].mean()
    by_image = values.groupby(["kind", "item"])["value"].mean()
    half = 1.96 * by_image.std(ddof=1) / math.sqrt(len(by_image))
    low, high = by_image.mean() - half, by_image.mean() + half
    return f"{interval(by_seed, sign=sign)} [{low:{sign}.3g}, {high:{sign}.3g}]"


def _over_seeds(rows: pd.DataFrame) -> str:
    return interval(rows.set_index("seed")["value"])


def _with_ends(rows: pd.DataFrame) -> str:
    """Each seed with its interval over images."""
    cells = [f"{row.value:.3g} [{row.low:.3g}, {row.high:.3g}]" for row in rows.itertuples()]
    return "<br>".join(cells)


def _cells(
    rows: pd.DataFrame,
    columns: Iterable[Column],
    shown: Callable[[pd.DataFrame], str] = _over_seeds,
) -> list[str]:
    found = [_of(rows, column) for column in columns]
    return [shown(those) if len(those) else "-" for those in found]
