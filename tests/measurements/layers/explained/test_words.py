"""What is said of causes, at the borders of what may be said."""

import numpy as np
import pandas as pd

from normprobe.measurements.layers.explained.table import PARTS
from normprobe.measurements.layers.explained.words import explained_verdict

SHARES = (0.81, 0.12, 0.03, 0.04)


def explained(
    *scopes: str, layers: str = "1-2", ratio: float = 3.1, shares: tuple[float, ...] = SHARES
) -> pd.DataFrame:
    row: dict[str, object] = {"layers": layers, "angle_ratio": ratio}
    row |= {"angle_ratio_ci_low": 0.9 * ratio, "angle_ratio_ci_high": 1.1 * ratio}
    for part, share in zip(PARTS, shares, strict=True):
        row[f"{part}_share"] = share
        row |= {f"{part}_share_ci_low": share - 0.02, f"{part}_share_ci_high": share + 0.02}
    return pd.DataFrame([{"scope": scope, **row} for scope in ("layer", *scopes)])


def test_the_shares_with_their_intervals() -> None:
    assert explained_verdict(explained("slower")) == (
        "Why more slowly in layers 1-2 (geometric means: 3.1 x [2.8, 3.4])? Norms explain 81 % "
        "[79, 83], sizes of updates 12 % [10, 14], their directions 3 % [1, 5], the rest 4 % "
        "[2, 6] (Eq. 13)."
    )


def test_a_part_that_works_against_it_is_called_that() -> None:
    sentence = explained_verdict(explained("slower", shares=(1.3, -0.3, 0.0, 0.0)))
    assert "Norms explain 130 % [128, 132], sizes of updates -30 % [-32, -28], " in sentence
    assert sentence.endswith("(Eq. 13; below 0: against it).")
    # An interval that holds 0 works neither way.
    assert "against" not in explained_verdict(explained("slower", shares=(1.0, -0.01, 0.0, 0.01)))


def test_faster_visual_tokens_are_told_by_the_inverse_ratio() -> None:
    sentence = explained_verdict(explained("faster", layers="3", ratio=0.5))
    assert sentence.startswith("Why more quickly in layer 3 (geometric means: 2.0 x [1.82, 2.2])?")


def test_where_nothing_differs_nothing_is_said() -> None:
    assert explained_verdict(explained()) == ""
    assert explained_verdict(pd.DataFrame(columns=["scope", "layers"])) == ""


def test_one_image_has_no_brackets() -> None:
    table = explained("slower")
    table[[name for name in table if "_ci_" in name]] = np.nan
    assert "(geometric means: 3.1 x)? Norms explain 81 %, sizes" in explained_verdict(table)
