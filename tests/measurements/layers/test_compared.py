"""What ranks runs of ``layers``, by tables made by hand."""

import numpy as np
import pandas as pd
import pytest
from support import made_tables
from support.flat import tidied
from support.slow_bootstrap import SAMPLES, ends_of, slow_draws, use_few_draws

from normprobe.measurements.compare.measure import joined
from normprobe.measurements.layers.compared import (
    COLUMNS,
    ROW_COLUMNS,
    draw_training,
    drawings,
    measures,
    run_charts,
    step_color,
    step_scale,
)
from normprobe.measurements.layers.figures import METRICS
from normprobe.measurements.layers.table import layers_table
from normprobe.report.ranking import ranking, runs_of
from normprobe.schema import OTHER_TOKEN_METRICS, SAMPLE_METRICS, TEXT, TOKEN_METRICS, VISUAL
from normprobe.statistics.sample_statistics import statistics_of

FLAT = made_tables.layers()
LAYERS = tidied("layers", FLAT)


def layers(visual: list[float], text: list[float], turns: tuple[float, float]) -> pd.DataFrame:
    rows = []
    for group, norms, turn in (("visual", visual, turns[0]), ("text", text, turns[1])):
        for layer, norm in enumerate(norms):
            angle = turn * layer if layer else np.nan
            rows.append({"layer": layer, "group": group, "norm_mean": norm, "angle_mean": angle})
    rows.append({"layer": 0, "group": "special", "norm_mean": 1e6, "angle_mean": 9.0})
    return tidied("layers", made_tables.with_ratios(pd.DataFrame(rows)))


LOUD = layers([80.0, 81.0, 82.0, 83.0], [1.0, 2.0, 4.0, 8.0], (0.1, 0.4))
EVEN = layers([2.0, 2.0, 2.0], [1.0, 1.0, 2.0], (0.1, 1.0))
TEXT_ONLY = LOUD[LOUD["group"] == "text"]


def test_disparity_at_the_input_ranks_and_inertia_stands_beside_it() -> None:
    measured = [measures(table) for table in (EVEN, TEXT_ONLY, LOUD)]
    table = ranking(measured, ["even", "text", "loud"])
    assert runs_of(table) == ["loud", "even", "text"]
    numbers = table.pivot(index="run", columns="quantity", values="mean")
    loud, even, lonely = (numbers.loc[run] for run in ("loud", "even", "text"))
    assert (loud["rank"], even["rank"]) == (1, 2)
    assert np.isnan(lonely["rank"])
    assert loud["disparity_input"] == 80.0
    assert loud["disparity_middle"] == 82.0 / 4.0  # after layer 2 of 3
    assert loud["disparity_last"] == 83.0 / 8.0
    assert loud["inertia_gap"] == pytest.approx(np.mean([0.3, 0.6, 0.9]))
    assert even["disparity_middle"] == 2.0  # after layer 1 of 2
    assert even["inertia_gap"] == pytest.approx(np.mean([0.9, 1.8]))
    assert (loud["inertia_rank"], even["inertia_rank"]) == (2, 1)
    assert np.isnan(lonely["inertia_gap"])


def test_every_number_that_is_shown_is_measured() -> None:
    assert set(COLUMNS.values()) <= measures(LOUD).keys()


def test_checkpoints_of_one_training_are_drawn_by_step() -> None:
    table = joined([LOUD, EVEN], ["a", "b"])
    assert [drawing.name for drawing in drawings(table)] == ["small_multiples", "overlay"]
    of_training = drawings(table.assign(step=0))
    assert [drawing.name for drawing in of_training] == ["training", "small_multiples"]


def sample_rows() -> pd.DataFrame:
    random = np.random.default_rng(3)
    made = []
    for sample, image in SAMPLES:
        for group in (VISUAL, TEXT) if image else (TEXT,):
            for layer in range(4):
                metrics = TOKEN_METRICS if layer else TOKEN_METRICS[:1]
                values = random.gamma(3.0, 1.0, (len(metrics), random.integers(2, 9)))
                made.append(
                    {"sample_id": sample, "image_hash": image, "layer": layer, "group": group}
                    | {"hidden_size": 16, "dtype": "float32", **dict.fromkeys(SAMPLE_METRICS, 0.5)}
                    | {
                        f"{name}_{part}": 0.0
                        for name in OTHER_TOKEN_METRICS
                        for part in ("mean", "m2", "log_mean")
                    }
                    | {"loudest_share": 0.5, "loudest_position": 3, "loudest_id": 7}
                    | statistics_of(values, metrics)
                )
    return pd.DataFrame(made)


def test_every_number_of_the_ranking_has_the_interval_of_its_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_few_draws(monkeypatch)
    rows = sample_rows()
    found = measures(layers_table(rows), rows.reindex(columns=list(ROW_COLUMNS)))

    def numbers(drawn: pd.DataFrame) -> pd.DataFrame:
        measured = measures(layers_table(drawn, intervals=False))
        return pd.DataFrame([{name: found.value for name, found in measured.items()} | {"one": 0}])

    drawn = slow_draws(rows, numbers, ["one"])
    for name in COLUMNS.values():
        column = name if name == "inertia_gap" else "norm_ratio_to_text"
        values = np.array([float(table[name].iloc[0]) for table in drawn.tables])
        # Two of the five units have no image, and so no visual token.
        low, high = ends_of(values, column, 3)
        assert found[name].low == pytest.approx(low, rel=1e-9)
        assert found[name].high == pytest.approx(high, rel=1e-9)
        assert low < high


def test_one_image_has_no_interval() -> None:
    rows = sample_rows().query("image_hash == 'x'")
    found = measures(layers_table(rows), rows)
    assert not any(found[name].has_interval for name in COLUMNS.values())
    assert np.isfinite([found[name].value for name in COLUMNS.values()]).all()


# --- figures and charts --------------------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
def test_the_page_draws_each_run_in_a_colour_of_its_own(training: bool) -> None:
    louder = tidied("layers", FLAT.assign(norm_mean=2 * FLAT["norm_mean"]))
    table = joined([LAYERS, louder], ["a", "b"])
    table = table.assign(step=table["run"].map({"a": 0, "b": 9})) if training else table
    made = run_charts(table)
    assert made[0]["label"] == METRICS[0].title
    for chart in made:
        names = [f"{run}, {group}" for run in ("a", "b") for group in (VISUAL, TEXT)]
        assert [series["name"] for series in chart["series"]] == names
        colours = [series["color"] for series in chart["series"]]
        assert colours[0] == colours[1] != colours[2] == colours[3]
        assert [bool(series["dash"]) for series in chart["series"]] == [False, True] * 2
        assert not {"low", "band_low", "least"} & set(chart["series"][0])
    of_b = FLAT[FLAT["group"] == VISUAL]["norm_mean"] * 2
    assert made[0]["series"][2]["y"] == pytest.approx(of_b.tolist(), rel=1e-5)


def test_checkpoints_take_the_colours_of_their_steps() -> None:
    table = pd.concat([LAYERS.assign(run=f"step {s}", step=s) for s in (0, 500, 900)])
    drawing = draw_training("t", table)
    scale = step_scale(table["step"])
    for axes, group in zip(drawing.axes[:2], (VISUAL, TEXT), strict=True):
        rows = FLAT[(FLAT["group"] == group) & FLAT["cosine_mean"].notna()]
        colours = [line.get_color() for line in axes.get_lines()]
        assert colours == [step_color(scale, step) for step in (0, 500, 900)]
        for line in axes.get_lines():
            np.testing.assert_array_equal(line.get_ydata(), rows["cosine_mean"])
    assert drawing.axes[2].get_ylabel() == "training step"
