"""What the figures of the tables mark and say."""

import pandas as pd
import pytest
from support import made_tables
from support.flat import tidied

from normprobe.measurements.embeddings.figures import draw_embeddings, draw_shift


@pytest.mark.parametrize("factor", [0.1, 3.0])
def test_the_tokens_whose_norm_changed_most_are_marked(factor: float) -> None:
    """One that became quieter as well as one that became louder."""
    shift = made_tables.shift()
    at = shift.index[100]
    shift.loc[at, "norm"] = factor * shift.loc[at, "base_norm"]
    axes = draw_shift("", shift).axes[0]
    (dots,) = (line for line in axes.get_lines() if line.get_label() == "norm changed most")
    marked = pd.DataFrame({"base_norm": dots.get_xdata(), "norm": dots.get_ydata()})
    away = (shift["norm"] - shift["base_norm"]).abs().nlargest(len(marked)).index
    wanted = shift.loc[away, ["base_norm", "norm"]]
    assert sorted(marked["norm"]) == pytest.approx(sorted(wanted["norm"]))
    assert shift.loc[at, "norm"] in marked["norm"].to_list()


def test_how_far_rows_moved_with_those_that_did_not() -> None:
    shift = made_tables.shift()
    shift.loc[shift.index[200:230], "distance"] = 0.0
    axes = draw_shift("", shift).axes[1]
    shared = shift[shift["norm"].notna() & shift["base_norm"].notna()]
    label = axes.get_xlabel().split("\n")
    assert label[0] == "L2 distance from the base row"
    assert label[1] == f"dashed: median {shared['distance'].median():.3g}"
    assert label[2] == "30 did not move"
    (moved,) = axes.patches
    assert moved.get_data().values.sum() == (shared["distance"] > 0).sum()


def test_where_no_row_moved_that_is_said() -> None:
    axes = draw_shift("", made_tables.shift().assign(distance=0.0)).axes[1]
    assert [text.get_text() for text in axes.texts] == ["no row moved"]
    assert axes.get_xlabel() == "L2 distance from the base row"


def test_special_tokens_alone_are_hatched() -> None:
    tables = (made_tables.embeddings("text"), made_tables.tokens("text"))
    histogram = made_tables.histogram("text")
    axes = draw_embeddings("", tidied("embeddings", tables[0]), tables[1], histogram).axes[0]
    hatched = {bars.get_label(): bars.patches[0].get_hatch() for bars in axes.containers}
    assert hatched == {"text table": None, "special tokens": "/////"}
