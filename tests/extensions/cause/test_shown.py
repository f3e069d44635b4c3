"""What a run of ``cause`` draws and compares: doses in place, hollow where off the map."""

import numpy as np
import pytest
from support.made_cause import ANGLES, cause

from normprobe.extensions.cause.answer_figure import draw_answer, sides
from normprobe.extensions.cause.compared import measures
from normprobe.extensions.cause.figures import dose_panels, drawings, with_levels
from normprobe.report.charts import charts
from normprobe.runs.run_folder import RunStore

DOSES = [0.125, 0.25, 0.5, 1, 2, 4, 8]


def names(query: str) -> list[str]:
    """The figures of a run with some interventions alone."""
    run = RunStore({"command": "cause"})
    run.write_table("cause", cause().query(query))
    return [drawing.name for drawing in drawings(run)]


def test_a_run_has_the_figures_that_it_has_numbers_for() -> None:
    assert names("layer >= 0") == ["cause", "doses", "effects", "by_layer"]
    assert names("intervention == 'freeze'") == ["cause", "effects"]
    assert names("intervention == 'norm-at-layer'") == ["by_layer"]


def test_one_figure_says_what_more_turning_gains_and_less_loses() -> None:
    more, less = sides(cause())
    doses = ["scale 0.125", "scale 0.25", "scale 0.5", "scale-to-text"]
    assert [*dict.fromkeys(more.rows["name"])] == [*doses, "blank", "placebo 0.125", "placebo 8"]
    assert [*dict.fromkeys(less.rows["name"])][:4] == ["freeze", "scale 2", "scale 4", "scale 8"]
    drawing = draw_answer("made", cause())
    gained, lost = drawing.axes[:2]
    assert gained.get_title(loc="left") == "gained by more turning"
    assert gained.get_xlabel() == "nats a token"
    (dots, *_) = gained.lines[2:]
    assert dots.get_xdata() == pytest.approx([-0.004])  # scale 0.5 costs 0.004 nats
    frozen = lost.lines[2].get_xdata()[0]
    assert frozen == pytest.approx(0.047)
    points = drawing.axes[3].lines[2].get_xdata()
    assert points[0] == pytest.approx(8.5)
    assert sides(cause(right=False)) == []


def test_the_page_draws_doses_and_hollow_points() -> None:
    angle, answer = charts(dose_panels(cause()), with_levels(cause()))
    assert {angle["across"], answer["across"]} == {"dose"}
    first = next(line for line in angle["series"] if line["name"] == "layer 1")
    assert first["x"] == DOSES
    assert first["y"] == pytest.approx([0.6 / ANGLES[0] / dose for dose in DOSES], rel=1e-5)
    assert first["hollow"] == [dose < 0.5 for dose in DOSES]
    scale, placebo, blank, freeze = answer["series"]
    assert scale["y"][3] == scale["low"][3] == 0  # untouched
    assert placebo["x"] == [0.125, 1, 8]
    assert blank["x"] == freeze["x"] == [0.125, 8]
    assert len(set(freeze["y"])) == 1 and "hollow" not in freeze


def test_a_deep_model_has_few_lines() -> None:
    table = cause()
    deep = table.assign(layer=table["layer"] * 10)
    (panel, *_) = dose_panels(deep)
    assert [curve.name for curve in panel.curves] == [f"layer {n}0" for n in (6, 5, 4, 3, 2, 1)]


def test_runs_are_ranked_by_what_freezing_costs() -> None:
    found = measures(cause())
    assert found["freeze_nll"].value == pytest.approx(0.047)
    assert found["freeze_ratio"].value == pytest.approx(np.exp(0.047))
    assert found["freeze_ratio"].low == pytest.approx(np.exp(0.018))
    assert found["freeze_accuracy"].value == pytest.approx(-0.085)
    assert found["share_removed"].value == pytest.approx(0.83)
    assert found["blank_nll"].value == pytest.approx(1.857)
    without = measures(cause().query("intervention != 'freeze'"))
    assert np.isnan(without["freeze_ratio"].value)
