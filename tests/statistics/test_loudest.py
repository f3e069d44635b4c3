"""Which token of a group holds most of its norms."""

import numpy as np
import pandas as pd
import pytest

from normprobe.statistics.loud_tokens import loudest_token, loudest_tokens, twins_of


def test_it_has_a_place_in_the_prompt_an_id_and_a_share() -> None:
    norms = np.array([[1.0, 6.0, 3.0], [5.0, np.inf, 0.0]])
    found = loudest_token(norms, np.array([4, 7, 9]), np.array([30, 40, 50]))
    assert found["loudest_share"] == pytest.approx([0.6, 1.0])  # what is not finite has no say
    assert found["loudest_position"] == [7, 4]
    assert found["loudest_id"] == [40, 30]


def test_a_table_names_the_token_of_most_samples() -> None:
    rows = pd.DataFrame({"group": "text", "loudest_share": [0.2, 0.4, 0.9]})
    rows = rows.assign(loudest_position=[7, 7, 1], loudest_id=[40, 40, 30])
    other = pd.DataFrame({"group": ["none", "visual"], "loudest_position": [np.nan, 3.0]})
    rows = pd.concat([other, rows])  # a group without such a token has no row
    table = loudest_tokens(rows, ["group"], {30: "<s>", 40: "."}.__getitem__)
    assert list(table) == ["group", "token", "position", "samples"]
    row = table.set_index("group").loc["text"]
    assert (row["token"], row["position"], row["samples"]) == (".", 7, 2)
    visual = table.set_index("group").loc["visual"]
    assert pd.isna(visual["token"]) and (visual["position"], visual["samples"]) == (3, 1)
    assert table["group"].tolist() == ["visual", "text"]
    assert loudest_tokens(rows, ["group"], None)["token"].isna().all()


def test_a_loud_token_before_and_behind_all_quiet_ones_has_the_nearest_for_a_twin() -> None:
    norms = np.array([9.0, 1.0, 2.0, 1.5, 8.0])
    first, last = twins_of(np.array([0, 4]), norms, None)
    assert (first.tolist(), last.tolist()) == ([1], [3])
