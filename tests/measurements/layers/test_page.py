"""The section of a run of ``layers``: the numbers of its tables, drawn, shaded and in words."""

import re
from pathlib import Path

import pandas as pd
import pytest
from support import made_massive, made_tables
from support.made_bands import with_bands
from support.made_runs import run_folder
from support.read_page import Reader, charts, drawn, page_of_folders

from normprobe.measurements.layers.assumptions import LEGEND, assumptions_table, theory_verdict
from normprobe.measurements.layers.massive import massive_verdict
from normprobe.report.figures.style import GROUP_LOOKS, SERIES_COLORS


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "one", "layers", layers=made_tables.layers())


def test_curves_hold_the_numbers_of_the_table(layers: Path) -> None:
    table = made_tables.layers()
    table = with_bands(table, [f"{metric}_mean" for metric in ("norm", "cosine", "angle")])
    table.to_csv(layers / "layers.csv", index=False)
    table = table.set_index(["group", "layer"])
    (found,) = charts(page_of_folders(layers))
    assert found[0]["label"] == "L2 norm of the hidden state"
    assert [series["name"] for series in found[0]["series"]] == [
        "visual",
        "text",
        "special",
        "structural",
    ]
    for chart, metric in zip(found, ("norm", "cosine", "angle"), strict=False):
        for series in chart["series"]:
            rows = table.loc[series["name"]]
            assert series["x"] == list(rows.index)
            for line, column in (
                ("y", "mean"),
                ("low", "mean_ci_low"),
                ("high", "mean_ci_high"),
                ("band_low", "mean_band_low"),
                ("band_high", "mean_band_high"),
                ("least", "q05"),
                ("most", "q95"),
            ):
                written = pd.Series(series[line], dtype=float)
                expected = rows[f"{metric}_{column}"].reset_index(drop=True)
                pd.testing.assert_series_equal(written, expected, rtol=1e-5, check_names=False)
    assert found[0]["log"]
    assert not found[1]["log"]


def test_the_first_figure_is_loudness_and_turning_of_both_modalities(layers: Path) -> None:
    ((norm, angle),) = drawn(page_of_folders(layers), "panels")
    table = made_tables.layers()
    for chart, column in ((norm, "norm_mean"), (angle, "angle_mean")):
        assert [series["name"] for series in chart["series"]] == ["visual", "text"]
        for series in chart["series"]:
            expected = table[table["group"] == series["name"]][column].tolist()
            assert series["y"][1:] == pytest.approx(expected[1:], rel=1e-5)
    assert "Loudness" in norm["label"]
    assert "Turning" in angle["label"]


def test_heat_map_and_words(layers: Path) -> None:
    text = page_of_folders(layers)
    assert "Visual tokens enter the decoder 57 x louder than text tokens" in Reader(text).text
    assert ">16.53</td>" in text
    shades = [float(s) for s in re.findall(r"rgba\(213,94,0,([\d.]+)\)", text)]
    assert min(shades) == 0.0
    assert max(shades) == pytest.approx(0.45)


def test_the_theory_is_judged_in_words_and_its_verdicts_come_first(tmp_path: Path) -> None:
    theory = made_tables.theory()
    assumptions = assumptions_table(theory)
    path = run_folder(
        tmp_path / "run",
        "layers",
        layers=made_tables.layers(),
        theory=theory,
        assumptions=assumptions,
    )
    text = page_of_folders(path)
    assert theory_verdict(theory, assumptions) in Reader(text).text
    assert text.count(">Uniform Update Magnitude<") == 5  # numbers that judge it
    assert text.index(">verdict</th>") < text.index(">median</th>")
    lines = {chart["label"]: chart["series"] for chart in charts(text)[1]}
    measured, predicted, _ = lines["cross-modal cosine"]
    group_colors = {look.color for look in GROUP_LOOKS.values()}
    assert not {measured["color"], predicted["color"]} & group_colors
    turns = {series["name"]: series for series in lines["mean cosine over pairs"]}
    visual = turns["visual turn, text state"]
    column = "visual_turn_to_text_mean"
    ends = {"low": "_ci_low", "high": "_ci_high"}
    ends |= {"band_low": "_band_low", "band_high": "_band_high"}
    for line, end in {"y": "", **ends}.items():
        assert visual[line][1:] == pytest.approx(theory[column + end].tolist()[1:], rel=1e-5)
    assert LEGEND in Reader(text).text


def test_no_run_has_the_color_of_a_token_group() -> None:
    assert not set(SERIES_COLORS) & {look.color for look in GROUP_LOOKS.values()}


def test_a_text_only_model_and_an_empty_table_have_a_page(tmp_path: Path) -> None:
    table = made_tables.layers()
    text = run_folder(tmp_path / "text", "layers", layers=table[table["group"] == "text"])
    empty = run_folder(tmp_path / "empty", "layers", layers=table.iloc[:0])
    (found,) = charts(page_of_folders(text, empty))
    assert [series["name"] for series in found[0]["series"]] == ["text"]


def test_massive_activations_are_told_and_drawn(tmp_path: Path) -> None:
    made = made_massive.tables(massive=True)
    path = run_folder(tmp_path / "run", "layers", layers=made_tables.layers(), **made)
    text = page_of_folders(path)
    assert massive_verdict(made["massive"], made["dimensions"]) in Reader(text).text
    lines = {chart["label"]: chart["series"] for chart in charts(text)[1]}
    everything, without = lines["visual / text norm"][::-1]
    visual = made["massive"].query("group == 'visual'")
    for series, column in (
        (everything, "norm_ratio_to_text"),
        (without, "norm_ratio_to_text_without_massive"),
    ):
        assert series["y"] == pytest.approx(visual[column].tolist(), rel=1e-5)
        assert series["high"] == pytest.approx(visual[f"{column}_ci_high"].tolist(), rel=1e-5)
    assert text.count(">share at most</th>") == 1  # dimensions.csv, as it is
