"""What is drawn of ``layers``: every declared number is one of its tables, and of quantities.toml.

How a panel is drawn has its tests in ``report/test_charts.py``; here are the figures of their own.
"""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from support import made_massive, made_tables
from support.border_tables import sample_rows, tables_of
from support.flat import flat, flat_theory, tidied

from experiments.theory import WORLDS, simulated
from normprobe.measurements.layers import branches, massive
from normprobe.measurements.layers.accounted import LOG_PARTS, accounted_table
from normprobe.measurements.layers.assumptions import CRITERIA
from normprobe.measurements.layers.figures import (
    ACCOUNTED,
    CROSSED,
    METRICS,
    THEORY,
    by_layer,
    draw_accounted,
    draw_directions,
    draw_theory,
    drawings,
    own_panels,
    story,
)
from normprobe.measurements.layers.table import layers_table
from normprobe.report.charts import Panel, charts
from normprobe.report.figures.lines import BAND_WORDS, INTERVAL_WORDS
from normprobe.runs.run_folder import RunStore
from normprobe.schema import PAIR, SPECIAL, TEXT, VISUAL
from normprobe.tidy import COUNTS, ESTIMATES, QUANTITY, declared, select

PANELS = {
    "layers": (*METRICS, *story(pd.DataFrame({"group": [VISUAL]}))),
    "theory": THEORY,
    "accounted": ACCOUNTED,
    "branches": branches.BRANCH_PANELS,
    "massive": massive.MASSIVE_PANELS,
}
DECLARED = [(table, panel) for table, panels in PANELS.items() for panel in panels]


@cache
def tables() -> dict[str, pd.DataFrame]:
    """Those of a run, made of sample rows."""
    made = tables_of(sample_rows(4), "pre: the paper's theory applies")
    return made | made_massive.tables(massive=True)


@pytest.mark.parametrize(("name", "panel"), DECLARED, ids=[f"{n}: {p.title}" for n, p in DECLARED])
def test_every_declared_number_is_written_and_described(name: str, panel: Panel) -> None:
    table, described = tables()[name], declared("normprobe.measurements.layers")[name]
    assert [*table][: len(described.keys) + 1] == [*described.keys, QUANTITY]
    assert {*table[QUANTITY]} <= {*described.numbers}
    table = by_layer(table) if name == "accounted" else table
    for curve in panel.curves:
        assert {*curve.where} <= {*described.keys}
        quantities = {curve.quantity, curve.doubted} - {""}
        assert quantities <= {*table[QUANTITY]} & {*described.numbers}
        rows = select(table, curve.quantity, **curve.where)
        told = described.numbers[curve.quantity]
        known = {name for name in ESTIMATES if rows[name].notna().any()}
        assert rows.empty or {curve.estimate, *curve.around(curve.rows(table))} <= known
        assert known - {*COUNTS} <= {*told.estimates}
    (chart,) = charts([panel], table)
    assert chart["label"] == panel.title


@pytest.mark.parametrize("panels", PANELS.values(), ids=PANELS)
def test_no_curve_is_drawn_twice(panels: tuple[Panel, ...]) -> None:
    for panel in panels:
        count = len(panel.curves)
        assert len({curve.look for curve in panel.curves}) == count, panel.title
        assert len({curve.name for curve in panel.curves}) == count, panel.title


def test_colours_of_branches_are_groups_and_line_styles_branches() -> None:
    for panel in branches.BRANCH_PANELS:
        by = {"group": "color", "branch": "linestyle"}
        for value, how in by.items():
            looks = {(curve.where[value], getattr(curve.look, how)) for curve in panel.curves}
            assert len(looks) == len({of for of, _ in looks}) == len({look for _, look in looks})
    keys = {key.where["branch"]: key.look for key in branches.BRANCH_KEYS if "branch" in key.where}
    for curve in branches.BRANCH_PANELS[0].curves:
        assert keys[curve.where["branch"]].linestyle == curve.look.linestyle


def test_the_figures_of_a_run_stand_in_order_and_its_own_numbers_come_last() -> None:
    facts = {"words": "a number", "unit": "share", "per": "token"}
    plain, own = RunStore({}), RunStore({"own_numbers": {"mine": facts, "other": facts}})
    names = [drawing.name for drawing in drawings(plain)]
    assert names[:2] == ["layers", "turning"]
    assert [drawing.name for drawing in drawings(own)] == [*names, "own"]
    mine, other = own_panels(own)
    assert mine.title == "a number (share)"
    assert {(curve.quantity, curve.estimate) for curve in mine.curves} == {("mine", "mean")}
    assert {(curve.quantity, curve.estimate) for curve in other.curves} == {("other", "mean")}
    assert own_panels(plain) == []


def test_panels_without_a_number_are_not_drawn() -> None:
    """Of text alone there is no ratio."""
    of_text = made_massive.tables(groups=(TEXT,), massive=True)["massive"]
    (drawing,) = (one for one in drawings(RunStore({})) if one.name == "massive")
    titles = [axes.get_title(loc="left") for axes in drawing.draw("", of_text).axes]
    assert titles == [
        "(a) share of |h|² in largest dim.",
        "(b) share of |h|² in 10 largest dim.",
        "(c) share of massive tokens",
    ]


def test_a_page_shows_special_tokens_where_there_are_no_visual_ones() -> None:
    for groups, shown in (((VISUAL, TEXT, SPECIAL), {VISUAL, TEXT}), ((TEXT, SPECIAL), {SPECIAL})):
        (loudness, _) = story(pd.DataFrame({"group": groups}))
        assert shown <= {curve.name for curve in loudness.curves}


# --- theory --------------------------------------------------------------------------------------

RANGES = {criterion.quantity: (criterion.low, criterion.high) for criterion in CRITERIA}


def test_every_judged_number_is_drawn_once_in_the_range_of_its_panel() -> None:
    judged = {(criterion.quantity, criterion.group) for criterion in CRITERIA}
    pairs = [
        (curve.quantity, curve.where.get("group", PAIR))
        for panel in THEORY
        for curve in panel.curves
    ]
    assert sorted(pair for pair in pairs if pair[0] in RANGES) == sorted(judged)
    for panel in THEORY:
        of_curves = [RANGES.get(curve.quantity) for curve in panel.curves]
        assert set(of_curves) == {RANGES.get(panel.judged)}, panel.title
        assert not (panel.judged in RANGES and panel.title.startswith("cross-modal"))


def drawn_theory(theory: pd.DataFrame) -> list[Axes]:
    """The panels of a flat theory.csv."""
    made = draw_theory("made", tidied("theory", theory), made_tables.assumptions(theory))
    return list(made.axes)


def test_each_panel_shows_its_range_where_it_has_a_number() -> None:
    axes = drawn_theory(made_tables.theory(cosine_residual_mean=np.nan))
    for panel, axis in zip(THEORY, axes, strict=True):
        shown = panel.judged in RANGES and panel.judged != "cosine_residual"
        assert len(axis.patches) == shown, panel.title
        if shown:
            low, high = RANGES[panel.judged]
            (patch,), (bottom, top) = axis.patches, axis.get_ylim()
            ends = patch.get_y(), patch.get_y() + patch.get_height()
            assert ends == pytest.approx((max(low, bottom), min(high, top))), panel.title


def test_the_theory_of_one_layer_and_one_image_can_be_drawn() -> None:
    theory = made_tables.theory(1)
    theory.loc[:, theory.columns.str.contains("_ci_|_band_")] = np.nan
    table = tidied("theory", theory)
    for panel, axis in zip(THEORY, drawn_theory(theory), strict=True):
        known = [curve for curve in panel.curves if curve.rows(table)["mean"].notna().any()]
        assert len(axis.get_lines()) == len(known)


# --- accounted -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["nothing", "larger visual updates"])
def accounted(request: pytest.FixtureRequest) -> pd.DataFrame:
    rows = simulated(WORLDS[request.param][0], 0)
    return accounted_table(rows, layers_table(rows))


def test_the_bars_of_a_layer_add_up_to_the_measured_ratio(accounted: pd.DataFrame) -> None:
    parts, _ = draw_accounted("made", accounted).axes
    rows = flat(accounted[accounted["scope"] == "layer"])
    bars = [bar for group in parts.containers if hasattr(group, "patches") for bar in group.patches]
    for place, row in rows.iterrows():
        drawn = bars[place :: len(rows)]
        heights = [bar.get_height() for bar in drawn]
        assert heights == pytest.approx([row[f"log_{part}"] for part in LOG_PARTS])
        assert sum(heights) == pytest.approx(np.log(row["angle_ratio"]))
        up = [(bar.get_y(), bar.get_height()) for bar in drawn if bar.get_height() > 0]
        ends = [0.0, *(start + height for start, height in up)]
        assert [start for start, _ in up] == pytest.approx(ends[:-1])  # each on the one below


@pytest.mark.parametrize("span", [0.1, 0.3, 1.0, 3.0, 9.0])
def test_the_axis_names_some_ratios_whatever_they_span(
    accounted: pd.DataFrame, span: float
) -> None:
    logs = [f"log_{part}" for part in LOG_PARTS]
    scaled = flat(accounted)
    layers = scaled["scope"] == "layer"
    scaled = scaled.assign(**dict.fromkeys(logs, 0.0), angle_ratio_ci_low=np.nan)
    scaled = scaled.assign(log_norm=np.where(layers, span, 0.0), angle_ratio_ci_high=np.nan)
    scaled.loc[scaled.index[0], "log_norm"] = -span
    scaled = scaled.assign(angle_ratio=np.exp(scaled["log_norm"]))
    parts, _ = draw_accounted("made", tidied("accounted", scaled)).axes
    assert 3 <= len(parts.get_yticks()) <= 10
    assert 0 in parts.get_yticks()
    for tick, label in zip(parts.get_yticks(), parts.get_yticklabels(), strict=True):
        assert float(label.get_text().removesuffix(" x")) == pytest.approx(np.exp(tick))


def test_one_layer_is_drawn_too(accounted: pd.DataFrame) -> None:
    parts, angles = draw_accounted("made", accounted[accounted["layers"] == "1"]).axes
    assert len(angles.get_lines()) == 3
    assert parts.get_xlim()[0] < 1 < parts.get_xlim()[1]


# --- directions ----------------------------------------------------------------------------------


def test_directions_are_columns_of_both_tables() -> None:
    theory, layers = flat_theory(tables()["theory"]), flat(tables()["layers"])
    norms, cosines = draw_directions("made", tables()["theory"], tables()["layers"]).axes
    of_pairs = {
        f"visual, text: {curve.name}": theory[f"{curve.quantity}_mean"] for curve in CROSSED.curves
    }
    expected = {}
    for group in (TEXT, VISUAL):
        rows = layers[layers["group"] == group]
        expected[f"within {group}"] = rows["within_modal_cosine_mean"]
        assert_line(norms, group, rows["norm_mean"])
        assert_line(norms, f"{group}, attention input", rows["attention_input_norm_mean"])
    for name, numbers in (expected | of_pairs).items():
        assert_line(cosines, name, numbers)
    assert [line for line in names(cosines) if line[0] != "_"] == [*expected, *of_pairs]
    named = [text.get_text() for text in norms.get_legend().get_texts()]
    assert named[-2:] == [INTERVAL_WORDS, BAND_WORDS]


def names(axes: Axes) -> list[str]:
    return [str(line.get_label()) for line in axes.get_lines()]


def assert_line(axes: Axes, name: str, numbers: pd.Series) -> None:
    line = axes.get_lines()[names(axes).index(name)]
    np.testing.assert_allclose(line.get_ydata(), numbers)


def test_directions_of_a_run_of_an_older_version_go_as_far_as_it_does() -> None:
    new = ("attention_input", "within_modal", "centered")
    older = [
        table[~table[QUANTITY].str.startswith(new)]
        for table in (tables()["theory"], tables()["layers"])
    ]
    norms, cosines = draw_directions("made", *older).axes
    assert [name for name in names(cosines) if name[0] != "_"] == ["visual, text: states"]
    assert {name for name in names(norms) if name[0] != "_"} == {TEXT, VISUAL}
