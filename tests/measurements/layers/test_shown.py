"""How a run of ``layers`` is shown: each table in its place on a terminal, and on the page."""

import re
from pathlib import Path

import pandas as pd
import pytest
from support import made_massive, made_tables
from support.flat import flat, tidied
from support.made_runs import run_folder
from support.printed import assert_fits, extreme, printed
from support.read_page import Reader, charts, drawn, page_of_folders

from normprobe.measurements.layers.accounted import ARITHMETIC
from normprobe.measurements.layers.assumptions import ASSUMPTIONS_LEGEND
from normprobe.measurements.layers.shown import show
from normprobe.measurements.layers.words import verdict
from normprobe.report.figures.style import GROUP_LOOKS, SERIES_COLORS
from normprobe.runs.run_folder import RunStore

LAYERS = made_tables.layers()
THEORY = made_tables.theory()
MASSIVE = made_massive.tables(massive=True)
#: Flat, as they are made.
FLAT = {
    "layers": LAYERS,
    "theory": THEORY,
    "accounted": made_tables.accounted(),
    "branches": made_tables.branches(),
    "massive": flat(MASSIVE["massive"]),
}
#: As a run holds them.
EVERYTHING = {
    **MASSIVE,
    **{name: tidied(name, table) for name, table in FLAT.items()},
    "assumptions": made_tables.assumptions(THEORY),
}
OWN = {"mine": {"words": "a number of mine", "unit": "share", "per": "token"}}


def store(record: dict[str, object] | None = None, **tables: pd.DataFrame) -> RunStore:
    """A run of these tables, tidy or flat."""
    run = RunStore(record or {})
    empty = {name: EVERYTHING[name].iloc[:0] for name in ("theory", "assumptions")}
    for name, table in {"layers": LAYERS, **empty, **tables}.items():
        run.write_table(name, tidied(name, table))
    return run


def lines_of(run: RunStore) -> list[list[str]]:
    return [line.split() for line in printed(show, run).splitlines()]


def below(lines: list[list[str]], title: str, layer: int) -> list[str]:
    """The row of a layer in the table of a title."""
    start = lines.index(title.split())
    return next(line for line in lines[start:] if line[:1] == [str(layer)])


# --- on a terminal -------------------------------------------------------------------------------


def test_layers_visual_beside_text() -> None:
    lines = lines_of(store())
    assert below(lines, "Decoder layers", 0) == ["0", "16.53", "0.2911", *"------"]
    row = ["1", "16.52", "1.500", "0.9995", "0.4303", "0.03160", "1.126"]
    assert below(lines, "Decoder layers", 1)[:7] == row
    assert lines[1] == ["norm", "cosine", "angle", "rel.update"]


def test_a_doubted_angle_has_a_star() -> None:
    doubted = (LAYERS["layer"] == 1) & (LAYERS["group"] == "visual")
    text = printed(show, store(layers=LAYERS.assign(angle_below_resolution=doubted)))
    assert text.count("0.03160*") == text.count("*") - 1 == 1  # and the note


def test_text_only_models_show_the_groups_that_exist() -> None:
    text = printed(show, store(layers=LAYERS[LAYERS["group"].isin(["text", "special"])]))
    assert "visual" not in text and "special" in text


def test_what_else_was_asked_for_follows() -> None:
    layers = LAYERS.assign(mine_mean=LAYERS["layer"] + LAYERS["group"].map(len))
    run = store({"own_numbers": OWN}, **EVERYTHING | {"layers": layers})
    lines, text = lines_of(run), " ".join(printed(show, run).split())
    added = FLAT["branches"].query("layer == 2").set_index(["branch", "group"])
    numbers = [
        added.loc[(branch, group), f"{metric}_mean"]
        for branch in ("attention", "mlp")
        for metric in ("angle", "relative_update")
        for group in ("visual", "text")
    ]
    found = [float(cell) for cell in below(lines, "Branches", 2)]
    assert found == pytest.approx([2, *numbers], rel=1e-3)
    shares = FLAT["massive"].query("layer == 2").set_index("group")["top10_share_mean"]
    found = below(lines, "Massive activations", 2)[1:5]
    assert found == ["7", "0", *(f"{100 * shares[group]:.1f}" for group in ("visual", "text"))]
    assert below(lines, "mine", 2) == ["2", "8.000", "6.000"]
    order = ["Decoder layers", "Massive activations", "Branches", "A number of mine: mean (share)."]
    places = [text.index(" ".join(words.split())) for words in order]
    assert places == sorted(places)


def test_ratios_with_massive_tokens_stand_before_those_without() -> None:
    massive = FLAT["massive"].copy()
    names = [f"{m}_ratio_to_text{s}" for m in ("norm", "angle") for s in ("", "_without_massive")]
    massive.loc[massive["group"] == "visual", names] = [940.0, 30.0, 0.25, 0.75]
    lines = lines_of(store(**EVERYTHING | {"massive": massive}))
    assert below(lines, "Massive activations", 2)[5:] == ["940.0", "30.00", "0.2500", "0.7500"]


def test_of_three_branches_the_angles_alone() -> None:
    table = made_tables.branches()
    crossed = table[table["branch"] == "mlp"].assign(branch="cross_attention")
    lines = lines_of(store(branches=pd.concat([table, crossed])))
    start = lines.index(["Branches"])
    assert lines[start + 1] == ["attention", "cross-attention", "MLP"]
    assert lines[start + 2] == ["angle"] * 3


@pytest.mark.parametrize("group", ["visual", "text"])
def test_branches_of_one_group_alone(group: str) -> None:
    table = made_tables.branches()
    lines = lines_of(store(branches=table[table["group"] == group]))
    assert lines[lines.index(["Branches"]) + 3] == ["layer", *[group] * 4]


def test_aligned_tokens_are_called_that() -> None:
    run = store({"alignment": {"after": "projector"}}, branches=made_tables.branches())
    titles = [" ".join(line) for line in lines_of(run)]
    assert {"Decoder layers, visual tokens aligned", "Branches, visual tokens aligned"} <= {*titles}


def test_a_decoder_that_is_not_pre_norm_says_so() -> None:
    run = store({"norm_placement": "sandwich: the paper's theory is about pre-norm"})
    *_, placement, intervals = verdict(run).findings
    assert placement.words.startswith("Norm placement of this decoder: sandwich. The paper's")
    assert intervals.words == "One image, no intervals."


def test_deep_models_say_which_file_has_all() -> None:
    deep = store(layers=made_tables.layers(80), branches=made_tables.branches(80))
    text = printed(show, deep)
    assert "18 of 81 layers shown; layers.csv has all." in text
    assert "layers shown; branches.csv has all." in text


@pytest.mark.parametrize("change", [lambda table: table, extreme], ids=["made", "extreme"])
@pytest.mark.parametrize("name", ["layers", "branches", "massive"])
def test_every_line_fits_and_nothing_is_cut_or_wrapped(name, change) -> None:
    told = {"dimensions": MASSIVE["dimensions"]} if name == "massive" else {}
    assert_fits(show, store(**{name: change(FLAT[name])}, **told))


# --- on the page ---------------------------------------------------------------------------------


@pytest.fixture
def page(tmp_path: Path) -> str:
    layers = LAYERS.assign(mine_mean=LAYERS["layer"] + LAYERS["group"].map(len))
    tables = EVERYTHING | {"layers": tidied("layers", layers)}
    return page_of_folders(
        run_folder(tmp_path / "one", "layers", record={"own_numbers": OWN}, **tables)
    )


def test_the_first_figure_is_loudness_and_turning_of_both_modalities(page: str) -> None:
    ((norm, angle),) = drawn(page, "panels")
    for chart, column in ((norm, "norm_mean"), (angle, "angle_mean")):
        assert [series["name"] for series in chart["series"]] == ["visual", "text"]
        for series in chart["series"]:
            expected = LAYERS[LAYERS["group"] == series["name"]][column].tolist()
            assert series["x"] == [*range(7)]
            assert series["y"][1:] == pytest.approx(expected[1:], rel=1e-5)
    assert "L2 norm" in norm["label"]
    assert "Angle" in angle["label"]


def test_each_part_draws_its_table_above_its_legend(page: str) -> None:
    text = Reader(page).text
    of_layers, massive, accounted, branches, theory = charts(page)
    labels = [[chart["label"] for chart in part] for part in (massive, accounted, branches, theory)]
    assert "share of massive tokens" in labels[0]
    assert labels[1][0] == "parts of log(text angle / visual angle)"
    assert "L2 norm of the update, \u2016a\u2016" in labels[2]
    assert "cross-modal cosine" in labels[3]
    mine = of_layers[-1]
    assert mine["label"] == "a number of mine (share)"
    assert mine["series"][0]["y"] == [6.0 + layer for layer in range(7)]
    assert accounted[1]["series"][0]["x"] == list(range(1, 7))  # one layer a row alone
    arithmetic = ARITHMETIC.replace("`", "")  # code on the page
    order = ["Massive activations", f"add up to the logarithm. {arithmetic}", "Attention and MLP"]
    order.append(ASSUMPTIONS_LEGEND)
    text = text[text.index("Layer by layer") :]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert page.count(">Uniform Update Magnitude<") == 5  # numbers that judge it
    assert page.index(">verdict</th>") < page.index(">median</th>")
    assert page.count(">share at most</th>") == 1  # dimensions.csv, as it is


def test_heat_map_and_words(page: str) -> None:
    text = Reader(page).text
    assert "Visual tokens enter the decoder with 57 x the norm of text and turn up to 36 x" in text
    assert "Norm of visual tokens at the decoder input: 57 x as large as that of text" in text
    assert ">16.53</td>" in page
    shades = [float(s) for s in re.findall(r"rgba\(213,94,0,([\d.]+)\)", page)]
    assert min(shades) == 0.0
    assert max(shades) == pytest.approx(0.45)


def test_no_run_has_the_color_of_a_token_group() -> None:
    assert not set(SERIES_COLORS) & {look.color for look in GROUP_LOOKS.values()}


def test_a_text_only_model_and_an_empty_table_have_a_page(tmp_path: Path) -> None:
    layers = EVERYTHING["layers"]
    text = run_folder(tmp_path / "text", "layers", layers=layers[layers["group"] == "text"])
    empty = run_folder(tmp_path / "empty", "layers", layers=layers.iloc[:0])
    (found,) = charts(page_of_folders(text, empty))
    assert [series["name"] for series in found[0]["series"]] == ["text"]
