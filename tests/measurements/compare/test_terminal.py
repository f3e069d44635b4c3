"""What a terminal says of open ranks."""

from functools import partial
from typing import Any

import pandas as pd
from normprobe.measurements.compare.terminal import print_ranking
from support.printed import assert_fits, printed

from normprobe.measurements.compare.table import ranking

OVERLAP = "1 (1-3): first by its number; 95 % intervals leave ranks 1 to 3 open."
EQUAL = "1 (1-3): equal numbers share ranks 1 to 3."


def ranked(name: str, numbers: list[tuple[float, ...]]) -> pd.DataFrame:
    names = (name, f"{name}_ci_low", f"{name}_ci_high")
    measures: list[dict[str, Any]] = [dict(zip(names, n, strict=False)) for n in numbers]
    columns = {"disparity_middle": 1.0, "disparity_last": 1.0, "inertia_gap": 0.1}
    columns |= {"visual_ratio": 1.0, "text_norm": 1.0, "text_std": 1.0, "base_norm": 1.0}
    return ranking([measured | columns for measured in measures], list("abc")[: len(numbers)])


def shown(command: str, table: pd.DataFrame) -> str:
    assert_fits(partial(print_ranking, command), table)
    return printed(partial(print_ranking, command), table)


def test_an_open_rank_is_explained_by_what_leaves_it_open() -> None:
    intervals = shown("layers", ranked("disparity_input", [(5, 4, 6), (5.5, 4, 7), (2, 1.9, 2.1)]))
    assert OVERLAP in intervals
    assert "1 (1-2)" in intervals
    weights = shown("embeddings", ranked("loudest_ratio", [(5.0,), (5.0,)]))
    assert EQUAL in weights
    assert "interval" not in weights


def test_ranks_that_are_all_known_are_not_explained() -> None:
    text = shown("layers", ranked("disparity_input", [(5, 4.5, 6), (2, 1.9, 2.1)]))
    assert "(1-" not in text
    missing = shown("layers", ranked("disparity_input", [(5, 4.5, 6), (float("nan"),) * 3]))
    assert "(1-" not in missing
