"""How a training is shown: on a terminal, and on the page."""

import pandas as pd
from rich.console import Console

from normprobe.measurements.training.figures import step_panels
from normprobe.measurements.training.words import verdict
from normprobe.report.charts import charts
from normprobe.report.page.blocks import curves, heading, note, sentence, shown_table
from normprobe.report.page.markup import Markup
from normprobe.report.readable import readable_table
from normprobe.report.terminal import print_readable, print_sentence, selected_layers
from normprobe.runs.run_folder import RunStore
from normprobe.schema import TEXT, VISUAL

_NOTE = "Each step on the batch that it trained on. Gradients as the optimizer got them."


def show(run: RunStore, console: Console) -> None:
    """Print norms at the decoder input and gradients by step, and what they say."""
    print_readable(readable_table(_by_step(run)), console)
    print_sentence(verdict(run), console)


def section(run: RunStore) -> list[Markup]:
    """Curves over steps, alarms, and the tables."""
    training, gradients = run.table("training"), run.table("gradients")
    blocks = [
        sentence(verdict(run)),
        curves(charts(*step_panels(training, gradients))),
        note(_NOTE),
    ]
    if (alarms := run.rows_of("alarms")) is not None:
        blocks += [heading("Alarms"), shown_table(alarms)]
    return [*blocks, heading("By step"), shown_table(_by_step(run))]


def _by_step(run: RunStore) -> pd.DataFrame:
    """A row a step, some of many: norms that enter the decoder, gradient of each part."""
    training, gradients = run.table("training"), run.table("gradients")
    entering = training[(training["layer"] == 0) & training["group"].isin([VISUAL, TEXT])]
    norms = entering.pivot(index="training_step", columns="group", values="norm_mean")
    parts = gradients.pivot(index="training_step", columns="part", values="gradient_norm")
    table = norms.add_prefix("norm_").join(parts.add_prefix("gradient_"), how="outer")
    return table.loc[selected_layers(list(table.index))].reset_index()
