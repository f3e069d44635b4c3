"""The figure of what attention reads and where tokens point."""

import numpy as np
import pandas as pd
from normprobe.measurements.layers.figures.directions import figure

from experiments.theory import FAITHFUL, simulated
from normprobe.measurements.layers.table import layer_intervals, layers_table
from normprobe.measurements.layers.theory import theory_table
from normprobe.report.figures.lines import BAND_WORDS, INTERVAL_WORDS

LABELS = ["within text", "within visual", "visual, text", "visual, text, common mean taken out"]


def tables() -> dict[str, pd.DataFrame]:
    rows = simulated(FAITHFUL, 0)
    return {"layers": layer_intervals(layers_table(rows), rows), "theory": theory_table(rows)}


def test_every_line_is_a_column_of_the_tables() -> None:
    made = tables()
    norms, cosines = figure("made", made["theory"], made["layers"]).axes
    drawn = {line.get_label(): line for line in cosines.get_lines()[:-1]}
    # The layers of a simulation have no input norm, so that what attention reads is not known.
    assert list(drawn) == LABELS
    text = made["layers"].query("group == 'text'")
    np.testing.assert_allclose(
        drawn["within text"].get_ydata(), text["within_modal_cosine_mean"].to_numpy()
    )
    centered = made["theory"]["centered_cross_modal_cosine_mean"]
    np.testing.assert_allclose(drawn[LABELS[-1]].get_ydata(), centered)
    assert norms.get_legend_handles_labels()[1] == ["text", "visual"]
    named = [text.get_text() for text in norms.get_legend().get_texts()]
    assert named == ["text", "visual", INTERVAL_WORDS, BAND_WORDS]


def test_a_run_of_an_older_version_is_drawn_as_far_as_it_goes() -> None:
    made = tables()
    new = ["attention_input", "within_modal", "centered"]
    older = [
        table[[name for name in table if not name.startswith(tuple(new))]]
        for table in (made["theory"], made["layers"])
    ]
    _, cosines = figure("made", *older).axes
    assert [line.get_label() for line in cosines.get_lines()[:-1]] == ["visual, text"]
