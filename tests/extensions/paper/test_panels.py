"""The paper's panels: their order and names, and lines that hold the numbers of the runs."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from support import made_tables
from support.flat import tidied

from normprobe.extensions.paper.figures import curves_of_run, figure_layouts
from normprobe.extensions.paper.panels import drawn_as_paper
from normprobe.report.figures.style import DOUBLE_WIDTH, GROUP_LOOKS
from normprobe.runs.run_folder import RunStore

PUBLISHED = pd.DataFrame(
    {"quantity": ["after the projector"], "statistic": ["mean"], "published": [39.96]}
)


def curves(name, *models, published=None):
    """The lines of made runs; each is a little louder than the one before."""
    tables = []
    for place, model in enumerate(models):
        layers = made_tables.layers()
        for metric in ("norm", "cosine"):
            layers[f"{metric}_mean"] *= 1 - 0.01 * place
            layers[f"{metric}_mean_ci_low"] = layers[f"{metric}_mean"] - 0.01
            layers[f"{metric}_mean_ci_high"] = layers[f"{metric}_mean"] + 0.01
        run = RunStore({"command": f"run {place}"})
        run.write_table(run.command, tidied("layers", layers))
        label = f"model {place}, 56 samples"
        tables.append(curves_of_run(figure_layouts()[name], model, run, label, published))
    return pd.concat(tables, ignore_index=True)


def panels(drawing):
    return [axes for axes in drawing.axes if axes.get_title(loc="left")]


def measured_lines(axes):
    return [line for line in axes.get_lines() if line.get_label() in ("visual", "text")]


def legend(drawing):
    return [text.get_text() for text in drawing.legends[0].get_texts()]


FIGURE3 = figure_layouts()["figure3"].names
FIGURE5 = figure_layouts()["figure5"].names


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("figure1b", [""]),
        ("figure2", figure_layouts()["figure2"].names),
        ("figure3", FIGURE3),
        ("figure4", ["BASELINE", "ALIGNED"]),
        ("figure5", FIGURE5),
    ],
)
def test_lines_hold_the_means_in_the_papers_panels(name, models):
    table = curves(name, *models)
    if name == "figure5":
        table["step"] = table["run"].str.split().str[-1].astype(int)
    drawing = drawn_as_paper("t", table, "training step" if name == "figure5" else "")
    shown = panels(drawing)
    assert [axes.get_title(loc="left") for axes in shown] == [
        panel.title for panel in figure_layouts()[name].panels
    ]
    for axes in shown:
        of_panel = table[table["panel"] == axes.get_title(loc="left")]
        expected = [rows for _, rows in of_panel.groupby(["run", "group"], sort=False)]
        lines = measured_lines(axes)
        assert len(lines) == len(expected) == 2 * of_panel["run"].nunique()
        for rows in expected:
            group, values = rows["group"].iloc[0], rows["mean"].to_numpy(np.float64)
            drawn = [line for line in lines if line.get_label() == group]
            assert any(np.array_equal(line.get_ydata(), values) for line in drawn)
            assert all(np.array_equal(line.get_xdata(), rows["layer"]) for line in drawn)
        assert axes.get_xlabel() == "decoder layer"


def test_panels_of_a_metric_share_a_scale_that_holds_every_number():
    table = curves("figure3", *FIGURE3)
    limits = {axes.get_ylim() for axes in panels(drawn_as_paper("t", table))}
    ((low, high),) = limits
    assert low <= table["low"].min()
    assert high == 1.0
    norm, cosine = panels(drawn_as_paper("t", curves("figure4", "BASELINE", "ALIGNED")))
    assert norm.get_yscale() == "log"
    assert cosine.get_yscale() == "linear"


def test_a_panel_says_of_which_run_it_is():
    drawing = drawn_as_paper("t", curves("figure3", *FIGURE3))
    told = [axes.texts[0].get_text() for axes in panels(drawing)]
    assert told == [f"model {place}, 56 samples" for place in range(4)]


def test_the_two_runs_of_a_pair_differ_in_line_and_marker():
    drawing = drawn_as_paper("t", curves("figure4", "BASELINE", "ALIGNED"))
    for axes in panels(drawing):
        looks = {
            (line.get_label(), line.get_linestyle(), line.get_markerfacecolor() == "white")
            for line in measured_lines(axes)
        }
        assert looks == {
            (group, line, hollow)
            for group in ("visual", "text")
            for line, hollow in (("-", False), ("--", True))
        }
        colors = {line.get_label(): to_hex(line.get_color()) for line in measured_lines(axes)}
        assert colors == {g: GROUP_LOOKS[g].color.lower() for g in ("visual", "text")}
    assert legend(drawing)[-2:] == ["model 0, 56 samples", "model 1, 56 samples"]


def test_over_a_training_colour_is_the_step_and_the_line_the_group():
    table = curves("figure5", *FIGURE5)
    table["step"] = 100 * table["run"].str.split().str[-1].astype(int)
    drawing = drawn_as_paper("t", table, "training step")
    for axes in panels(drawing):
        lines = measured_lines(axes)
        assert len({line.get_color() for line in lines}) == 3
        styles = {(line.get_label(), line.get_linestyle(), line.get_marker()) for line in lines}
        assert styles == {("visual", "-", "o"), ("text", "--", "s")}
        assert axes.texts[0].get_text().startswith("3 runs, the first: model ")
    bar = drawing.axes[-1]
    assert bar.get_ylabel() == "training step"
    assert bar.get_ylim() == (0, 500)


def test_the_published_norm_is_a_star_at_the_decoder_input():
    drawing = drawn_as_paper("t", curves("figure1b", "", published=PUBLISHED))
    (axes,) = panels(drawing)
    stars = [line for line in axes.get_lines() if line.get_marker() == "*"]
    known = [
        (x, y) for star in stars for x, y in zip(*star.get_data(), strict=True) if np.isfinite(y)
    ]
    assert known == [(0, 39.96)]
    assert axes.get_ylim()[1] > 39.96
    assert "paper, Table 2" in legend(drawing)
    assert not any("paper" in text for text in legend(drawn_as_paper("t", curves("figure1b", ""))))


def test_a_single_panel_is_one_column_wide():
    assert drawn_as_paper("t", curves("figure1b", "")).get_figwidth() == DOUBLE_WIDTH / 2
    assert drawn_as_paper("t", curves("figure3", *FIGURE3)).get_figwidth() == DOUBLE_WIDTH
