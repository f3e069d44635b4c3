"""How a training is shown: sentences, figures, on a terminal and on the page."""

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure
from rich.console import Console

from normprobe.report.charts import Curve, Panel, by_series, charts, draw_panels
from normprobe.report.figures.draw import Drawing
from normprobe.report.figures.lines import Given
from normprobe.report.figures.style import series_look
from normprobe.report.page.blocks import curves, heading, note, shown_table
from normprobe.report.ratio_words import Ratio, factor
from normprobe.report.readable import readable_table
from normprobe.report.terminal import print_readable, selected_layers
from normprobe.report.verdict import Finding, Verdict, verdict_of
from normprobe.runs.run_folder import RunStore
from normprobe.schema import GEOMETRIC_RATIOS, TEXT, VISUAL
from normprobe.tidy import select

# --- in words ------------------------------------------------------------------------------------


def verdict(run: RunStore) -> Verdict:
    """The norms with which visual tokens entered at first and at last; then what seems wrong."""
    headline, alarms = "", run.rows_of("alarms")
    disparity = disparities(run.table("training"))
    if len(disparity):
        told = [
            f"{factor([Ratio(ratio)])} {'the norm of text tokens ' * (not place)}at step {step}"
            for place, (step, ratio) in enumerate(disparity.items())
        ]
        ends = " and ".join(dict.fromkeys([told[0], told[-1]]))
        headline = f"Visual tokens enter the decoder with {ends}."
    elif {"vision_encoder", "projector"} & set(run.record.get("parts", ())):
        headline = "Visual tokens were never seen."
    if alarms is None:
        return verdict_of(headline, [Finding("alarms", "No alarm.")])
    steps = alarms["training_step"].astype(int)
    return verdict_of(
        headline,
        [
            Finding("alarm", f"Alarm at step {step}: {what}.")
            for step, what in zip(steps, alarms["words"], strict=True)
        ],
    )


def disparities(training: pd.DataFrame, layer: int = 0) -> "pd.Series[float]":
    """Visual over text norm after a layer, by step; without steps that have no pictures."""
    rows = select(training, GEOMETRIC_RATIOS["norm"], layer=layer, group=VISUAL)
    return rows.set_index(rows["training_step"].astype(int))["mean"].dropna()


# --- drawn ---------------------------------------------------------------------------------------

STEP = "training_step"


def drawings(_run: RunStore) -> list[Drawing]:
    """The figure of a run of ``training``."""
    return [Drawing("training", ("training", "gradients", "alarms"), draw_steps)]


def step_panels(
    training: pd.DataFrame, gradients: pd.DataFrame
) -> tuple[list[Panel], pd.DataFrame]:
    """What is drawn, and the table of it."""
    gradients = gradients.assign(part=gradients["part"].astype(str).str.replace("_", " "))
    depth = int(training["layer"].max())
    ratios = [
        Curve(
            f"after layer {layer}" if layer else "decoder input",
            GEOMETRIC_RATIOS["norm"],
            series_look(place),
            {"layer": layer, "group": VISUAL},
            across=STEP,
        )
        for place, layer in enumerate(dict.fromkeys((0, (depth + 1) // 2, depth)))
    ]
    parts = by_series(gradients, "part", "gradient_norm", dashed=True, across=STEP)
    drawn = [Panel("visual norm / text norm", ratios[::-1])]
    drawn += [Panel("gradient norm", parts)] * bool(parts)
    return drawn, pd.concat([training, gradients])


def draw_steps(
    title: str,
    training: pd.DataFrame,
    gradients: pd.DataFrame,
    alarms: pd.DataFrame,
    ax: Given = None,
) -> Figure:
    """Norm ratio and gradients over steps; a vertical line where an alarm was raised."""
    declared, table = step_panels(training, gradients)
    drawing = draw_panels(title, declared, table, ax, columns=len(declared), height=2.0)
    for axes in drawing.axes if ax is None else np.ravel(np.asarray(ax, dtype=object)):
        for place, step in enumerate(sorted(set(alarms[STEP]))):
            label = "_" if place else "alarm"
            axes.axvline(step, color="0.4", linewidth=0.9, linestyle=":", label=label)
        if axes.get_lines():
            axes.legend(loc="best", fontsize=6.5, reverse=True)
    return drawing


# --- on a terminal, and on the page --------------------------------------------------------------

_NOTE = "Each step on the batch that it trained on. Gradients as the optimizer got them."


def show(run: RunStore, console: Console) -> None:
    """Print norms at the decoder input and gradients by step."""
    print_readable(readable_table(_by_step(run)), console)


def section(run: RunStore) -> list[Markup]:
    """Curves over steps, alarms, and the tables."""
    training, gradients = run.table("training"), run.table("gradients")
    blocks = [
        curves(charts(*step_panels(training, gradients))),
        note(_NOTE),
    ]
    if (alarms := run.rows_of("alarms")) is not None:
        blocks += [heading("Alarms"), shown_table(alarms)]
    return [*blocks, heading("By step"), shown_table(_by_step(run))]


def _by_step(run: RunStore) -> pd.DataFrame:
    """A row a step, some of many: norms that enter the decoder, gradient of each part."""
    entering = select(run.table("training"), "norm", layer=0)
    entering = entering[entering["group"].isin([VISUAL, TEXT])]
    norms = entering.pivot(index="training_step", columns="group", values="mean")
    gradients = select(run.table("gradients"), "gradient_norm")
    parts = gradients.pivot(index="training_step", columns="part", values="mean")
    table = norms.add_prefix("norm_").join(parts.add_prefix("gradient_"), how="outer")
    return table.loc[selected_layers(list(table.index))].reset_index()
