"""Which tokens the figure of a shift marks."""

import pandas as pd
import pytest
from support import made_tables

from normprobe.measurements.embeddings.figures import draw_shift


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
