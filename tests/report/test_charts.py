"""Declared panels: what paper and page draw of them is what the table holds."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import same_color, to_hex
from support.flat import tidied
from support.made_bands import with_bands

from normprobe.report.charts import (
    PLAIN,
    Chart,
    Curve,
    Panel,
    by_group,
    draw_panels,
    drawn_rows,
    metric_panel,
)
from normprobe.report.charts import charts as tidy_charts
from normprobe.report.figures.lines import BAND_WORDS, INTERVAL_WORDS
from normprobe.report.figures.style import GROUP_LOOKS, image_bytes
from normprobe.schema import SPECIAL, STRUCTURAL, TEXT, VISUAL

LAYERS = 5
LOUDNESS = {VISUAL: 4.0, TEXT: 1.0, SPECIAL: 2.0, STRUCTURAL: 3.0}
ENDS = ("_ci_low", "_ci_high", "_band_low", "_band_high")


def made(**columns: object) -> pd.DataFrame:
    """Each group has numbers of its own; layer 0 has a size alone, and the rows are shuffled.

    It is flat, as all tables here: what is drawn of them is tidy.
    """
    layer = np.arange(LAYERS + 1)
    parts = []
    for group, loud in LOUDNESS.items():
        size = loud * 1.1**layer
        turn = np.where(layer > 0, 0.1 * loud + 0.01 * layer, np.nan)
        numbers = {"size_mean": size, "size_q05": 0.8 * size, "size_q95": 1.5 * size}
        parts.append(pd.DataFrame({"layer": layer, "group": group, **numbers, "turn_mean": turn}))
    table = with_bands(pd.concat(parts, ignore_index=True), ["size_mean", "turn_mean"])
    return table.assign(doubted=False, **columns).sample(frac=1.0, random_state=0)


TABLE = made()
SIZE = metric_panel("size", "size of it")
TURN = Panel("its turn", by_group("turn", doubted="doubted"))


def one(*numbers: float) -> pd.DataFrame:
    """A column alone, a number a layer."""
    return pd.DataFrame({"layer": range(len(numbers)), "n": numbers})


def panel(scale: str = "signed", **more: object) -> Panel:
    return Panel("n", (Curve("n", "n", PLAIN[0]),), scale, **more)


def axes_of(table: pd.DataFrame, *panels: Panel, **more: object) -> list[Axes]:
    options = {"columns": 2, "height": 2.0, **more}
    return draw_panels("made", panels, tidied("layers", table), **options).axes


def charts(panels: Sequence[Panel], table: pd.DataFrame) -> list[Chart]:
    return tidy_charts(panels, tidied("layers", table))


def lines(axes: Axes) -> dict[str, object]:
    return {str(line.get_label()): line for line in axes.get_lines()}


def legend(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.figure.legends[0].get_texts()]


def fills(axes: Axes) -> list[tuple[str, float, float]]:
    """Colour, lowest and highest of each filled band."""
    bands = [band for band in axes.collections if isinstance(band, PolyCollection)]
    heights = [(band, band.get_paths()[0].vertices[:, 1]) for band in bands]
    return [(to_hex(band.get_facecolor()[0]), y.min(), y.max()) for band, y in heights]


# --- the rows of a curve -------------------------------------------------------------------------


def test_a_curve_takes_the_rows_that_hold_all_its_values_in_order() -> None:
    louder = TABLE.assign(size_mean=TABLE["size_mean"] + 100)
    runs = [tidied("layers", TABLE).assign(run="a"), tidied("layers", louder).assign(run="b")]
    table = pd.concat(runs, ignore_index=True)
    rows = Curve("", "size", PLAIN[0], {"run": "b", "group": TEXT}).rows(table)
    assert rows["layer"].tolist() == list(range(LAYERS + 1))
    assert rows["mean"].tolist() == pytest.approx(100 + 1.1 ** np.arange(LAYERS + 1))
    assert len(Curve("", "size", PLAIN[0]).rows(table)) == 2 * len(TABLE)


def test_a_row_without_the_number_breaks_the_line() -> None:
    """A tidy table has none there; of layers that no row is of nothing is drawn."""
    flat = TABLE[TABLE["layer"] != 4]
    flat.loc[flat["layer"] == 2, "turn_mean"] = np.nan
    rows = drawn_rows(tidied("layers", flat), "turn", {"group": TEXT})
    assert rows["layer"].tolist() == [0, 1, 2, 3, 5]
    assert rows["mean"].isna().tolist() == [True, False, True, False, False]
    assert drawn_rows(tidied("layers", flat), "turn", {"group": "none"}).empty


def test_ends_that_a_number_has_nowhere_are_no_columns() -> None:
    rows = drawn_rows(tidied("layers", TABLE), "turn", {"group": TEXT})
    assert {"low", "band_low"} < {*rows} and "q05" not in rows
    one_image = TABLE.drop(columns=[f"turn_mean{end}" for end in ENDS])
    rows = drawn_rows(tidied("layers", one_image), "turn", {"group": TEXT})
    assert "mean" in rows and not {"low", "high", "band_low", "band_high"} & {*rows}


def test_a_number_that_the_table_lacks_is_drawn_nowhere() -> None:
    (empty,) = axes_of(TABLE, Panel("none", by_group("no")), columns=1)
    assert [text.get_text() for text in empty.texts] == ["no number"]
    assert not empty.get_yticks().size
    assert charts([Panel("none", by_group("no"))], TABLE) == []


# --- paper and page ------------------------------------------------------------------------------


@pytest.mark.parametrize("group", LOUDNESS)
@pytest.mark.parametrize(("place", "column"), [(0, "size_mean"), (1, "turn_mean")])
def test_both_draw_the_numbers_of_the_table(place: int, column: str, group: str) -> None:
    rows = TABLE[TABLE["group"] == group].sort_values("layer").dropna(subset=[column])
    line = lines(axes_of(TABLE, SIZE, TURN)[place])[group]
    np.testing.assert_array_equal(line.get_xdata(), rows["layer"])
    np.testing.assert_array_equal(line.get_ydata(), rows[column])
    assert to_hex(line.get_color()) == GROUP_LOOKS[group].color.lower()
    chart = charts([SIZE, TURN], TABLE)[place]
    assert chart["label"] == (SIZE, TURN)[place].title
    assert [series["name"] for series in chart["series"]] == [VISUAL, TEXT, SPECIAL, STRUCTURAL]
    (series,) = (series for series in chart["series"] if series["name"] == group)
    assert (series["color"], series["x"]) == (GROUP_LOOKS[group].color, list(range(LAYERS + 1)))
    assert series["y"][place:] == pytest.approx(rows[column].tolist(), rel=1e-5)
    assert series["y"][:place] == [None] * place  # layer 0 turns nothing
    for name, end in zip(("low", "high", "band_low", "band_high"), ENDS, strict=True):
        assert series[name][place:] == pytest.approx(rows[column + end].tolist(), rel=1e-5)
    for name, column_of in (("least", "size_q05"), ("most", "size_q95")):
        drawn = series.get(name)
        assert drawn == (None if place else pytest.approx(rows[column_of].tolist(), rel=1e-5))


def test_intervals_are_filled_and_the_spread_of_tokens_lies_behind() -> None:
    size, turn = axes_of(TABLE, SIZE, TURN)
    visual = TABLE[TABLE["group"] == VISUAL]
    color = GROUP_LOOKS[VISUAL].color.lower()
    spread, interval = fills(size)[-2:]  # visual comes last, on top
    assert spread == (color, visual["size_q05"].min(), visual["size_q95"].max())
    ends = visual["size_mean_ci_low"].min(), visual["size_mean_ci_high"].max()
    assert interval == (color, *ends)
    assert (len(fills(size)), len(fills(turn))) == (8, 4)
    outlines = [line for line in size.get_lines() if line.get_label() == f"_{BAND_WORDS}"]
    assert len({to_hex(line.get_color()) for line in outlines}) == 4
    groups = [VISUAL, TEXT, SPECIAL, STRUCTURAL]
    assert legend(size) == [*groups, "5-95 % of tokens", INTERVAL_WORDS, BAND_WORDS]


def test_what_is_not_in_the_table_is_not_in_the_legend() -> None:
    (turn, *_) = axes_of(TABLE[TABLE["group"] != STRUCTURAL], TURN)
    assert legend(turn) == [VISUAL, TEXT, SPECIAL, INTERVAL_WORDS, BAND_WORDS]
    one_image = TABLE.assign(**dict.fromkeys((f"turn_mean{end}" for end in ENDS), np.nan))
    (turn, *_) = axes_of(one_image, TURN)
    assert legend(turn) == [VISUAL, TEXT, SPECIAL, STRUCTURAL]
    assert not fills(turn)


def test_a_band_that_leaves_a_panel_leaves_the_layout_as_it_is() -> None:
    wide = TABLE.assign(turn_mean_band_low=-9.0, turn_mean_band_high=9.0)
    heights = []
    for table in (TABLE, wide):
        (turn, *_) = axes_of(table, replace(TURN, scale="cosine"))
        image_bytes(turn.figure, "png")  # the layout that collapses is a warning, here an error
        heights.append(turn.get_position().height)
    assert heights[1] == pytest.approx(heights[0], rel=0.05)


@pytest.mark.parametrize("group", [VISUAL, TEXT])
def test_doubted_points_alone_are_hollow(group: str) -> None:
    doubted = (TABLE["group"] == group) & TABLE["layer"].isin([0, 2])  # layer 0 has no number
    table = TABLE.assign(doubted=doubted)
    size, turn = axes_of(table, SIZE, TURN)
    hollow = [line for line in turn.get_lines() if line.get_markerfacecolor() == "white"]
    value = table.loc[doubted & (table["layer"] == 2), "turn_mean"].item()
    assert [line.get_xydata().tolist() for line in hollow] == [[[2.0, value]]]
    assert to_hex(hollow[0].get_color()) == GROUP_LOOKS[group].color.lower()
    assert not [line for line in size.get_lines() if line.get_markerfacecolor() == "white"]
    assert legend(turn)[-1] == "below resolution"


# --- scales --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "numbers", "log", "bottom", "top"),
    [
        ("zero", (3.0, 4.0, 5.0), False, lambda low: low == 0, lambda high: high > 5),
        ("zero", (0.3, 4.0, 5.0), True, lambda low: 0 < low < 0.3, lambda high: high > 5),
        ("zero", (0.0, 4.0, 500.0), False, lambda low: low == 0, lambda high: high > 500),
        ("ratio", (3.0, 4.0, 5.0), False, lambda low: 2 < low < 3, lambda high: high > 5),
        ("ratio", (0.3, 4.0, 5.0), True, lambda low: 0 < low < 0.3, lambda high: high > 5),
        ("signed", (-2.0, 0.1, 9.0), False, lambda low: low < -2, lambda high: high > 9),
        ("signed", (0.1, 4.0, 9.0), False, lambda low: low < 0.1, lambda high: high > 9),
        ("share", (0.1, 0.2, 0.5), False, lambda low: -0.1 < low < 0, lambda high: 0.5 < high < 1),
        ("cosine", (0.5, 0.9, 0.99), False, lambda low: 0.4 < low < 0.5, lambda high: high == 1),
        ("cosine", (-0.8, 0.9, 1.0), False, lambda low: -1 < low < -0.8, lambda high: high == 1),
    ],
)
def test_scales(scale, numbers, log, bottom, top) -> None:
    (axes, *_) = axes_of(one(*numbers), panel(scale))
    assert axes.get_yscale() == ("log" if log else "linear")
    low, high = axes.get_ylim()
    assert bottom(low) and top(high), (low, high)


@pytest.mark.parametrize(
    ("scale", "numbers", "log"),
    [
        ("zero", (0.3, 5.0), True),
        ("signed", (0.3, 5.0), True),  # a reader can change it
        ("zero", (1.0, 5.0), False),
        ("zero", (0.0, 5.0), False),
        ("cosine", (0.01, 1.0), False),
    ],
)
def test_how_the_page_first_shows_a_chart(scale, numbers, log) -> None:
    (chart,) = charts([panel(scale)], one(*numbers))
    assert chart["log"] == log
    assert chart["zero"] == (scale != "cosine")


def test_shares_are_per_cent_and_one_of_nothing_has_a_zero_alone() -> None:
    some, none = (axes_of(one(*n), panel("share"))[0] for n in ((0.25, 0.5), (0.0, 0.0)))
    some.figure.draw_without_rendering()
    assert all(tick.get_text().endswith("%") for tick in some.get_yticklabels())
    assert none.get_yticks().tolist() == [0.0]


@pytest.mark.parametrize("column", ["size_q05", "size_mean_ci_low"])
def test_an_axis_holds_the_spread_and_the_intervals(column: str) -> None:
    table = made(**{column: -0.9})
    cosine = replace(SIZE, scale="cosine")
    assert axes_of(table, cosine)[0].get_ylim()[0] < -0.9
    assert cosine.values(tidied("layers", table)).min() == -0.9


def test_gaps_and_infinities_do_not_hide_the_rest() -> None:
    table = TABLE.copy()
    table.loc[table["layer"] == 2, ["size_q05", "turn_mean"]] = np.nan
    table.loc[table["layer"] == 3, ["size_q95", "size_mean_ci_high"]] = np.inf
    for axes in axes_of(table, SIZE, TURN):
        assert np.isfinite(axes.get_ylim()).all()
    size, turn = charts([SIZE, TURN], table)
    assert size["series"][0]["most"][3] is None
    assert turn["series"][0]["y"][:4] == [None, pytest.approx(0.41), None, pytest.approx(0.43)]


@pytest.mark.parametrize("last", [1, 6, 28, 80, 126])
def test_ticks_are_whole_layers(last: int) -> None:
    (axes, *_) = axes_of(one(*range(last + 1)), panel())
    ticks = axes.get_xticks()
    assert all(float(tick).is_integer() for tick in ticks)
    assert ticks[0] == 0 and 2 <= len(ticks) <= 10
    assert axes.get_xlim()[1] >= last


# --- legends, ranges and places ------------------------------------------------------------------


def test_a_panel_that_names_other_things_has_its_own_legend() -> None:
    two = Panel("two", (Curve("all", "n", PLAIN[0]), Curve("some", "m", PLAIN[1])))
    table = one(1.0, 2.0).assign(m=[3.0, 4.0])
    first, second, *_ = axes_of(table, two, panel())
    assert [text.get_text() for text in first.get_legend().get_texts()] == ["all", "some"]
    assert second.get_legend() is None  # its title says it
    assert not first.figure.legends
    keys = (Curve("dark", "", PLAIN[0]),)
    first, *_ = axes_of(table, two, legend=keys)
    assert first.get_legend() is None
    assert legend(first) == ["dark"]


@pytest.mark.parametrize(
    ("scale", "roomy"), [("signed", True), ("share", False), ("cosine", False)]
)
def test_room_for_a_legend_is_made_where_numbers_may_be_larger(scale: str, roomy: bool) -> None:
    curves = tuple(Curve(name, "n", look) for name, look in zip("abc", PLAIN, strict=True))
    alone, named = axes_of(one(1.0, 0.5), panel(scale), Panel("n", curves, scale))
    assert (named.get_ylim()[1] > alone.get_ylim()[1] + 0.1) == roomy


def test_a_key_is_named_where_the_table_has_its_rows() -> None:
    keys = [Curve(group, "", GROUP_LOOKS[group], {"group": group}) for group in (TEXT, SPECIAL)]
    (axes, *_) = axes_of(TABLE[TABLE["group"] != SPECIAL], SIZE, legend=keys)
    assert legend(axes)[0] == TEXT
    assert SPECIAL not in legend(axes)


@pytest.mark.parametrize(("low", "high"), [(0.8, 1.25), (-np.inf, 0.5), (1.25, np.inf)])
def test_the_range_in_which_a_number_holds_is_in_sight(low: float, high: float) -> None:
    judged, other, *_ = axes_of(
        one(2.0, 3.0), panel(judged="n"), panel(), ranges={"n": (low, high)}
    )
    (patch,) = judged.patches
    assert same_color(patch.get_facecolor(), "#F7EFC6")
    bottom, top = judged.get_ylim()
    ends = patch.get_y(), patch.get_y() + patch.get_height()
    assert ends == pytest.approx((max(low, bottom), min(high, top)))
    assert all(bottom < end < top for end in (low, high) if np.isfinite(end))
    assert not other.patches
    assert legend(judged) == ["range in which each line holds"]


def test_panels_are_lettered_and_the_lowest_of_each_column_names_the_layers() -> None:
    *panels, empty = axes_of(one(1.0, 2.0), *[panel()] * 5, columns=3)
    assert [axes.get_title(loc="left") for axes in panels] == [
        f"({letter}) n" for letter in "abcde"
    ]
    assert [axes.get_xlabel() for axes in panels] == ["", "", *["decoder layer"] * 3]
    numbered = [axes.xaxis.get_tick_params()["labelbottom"] for axes in panels]
    assert numbered == [False, False, True, True, True]
    assert not empty.axison


def test_the_looks_of_the_groups_differ_in_colour_marker_and_line() -> None:
    for looks in zip(*(GROUP_LOOKS[group] for group in LOUDNESS), strict=True):
        assert len(set(looks)) == len(LOUDNESS)
