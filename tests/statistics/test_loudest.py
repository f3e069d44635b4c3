"""Which token of a group holds most of its norms."""

import numpy as np
import pandas as pd
import pytest

from normprobe.statistics.loud_tokens import loudest_columns, loudest_token


def test_it_has_a_place_in_the_prompt_an_id_and_a_share() -> None:
    norms = np.array([[1.0, 6.0, 3.0], [5.0, np.inf, 0.0]])
    found = loudest_token(norms, np.array([4, 7, 9]), np.array([30, 40, 50]))
    assert found["loudest_share"] == pytest.approx([0.6, 1.0])  # what is not finite has no say
    assert found["loudest_position"] == [7, 4]
    assert found["loudest_id"] == [40, 30]


def test_a_table_names_the_token_of_most_samples() -> None:
    rows = pd.DataFrame({"group": "text", "loudest_share": [0.2, 0.4, 0.9]})
    rows = rows.assign(loudest_position=[7, 7, 1], loudest_id=[40, 40, 30])
    row = loudest_columns(rows, ["group"], {30: "<s>", 40: "."}.__getitem__).iloc[0]
    assert row["loudest_share"] == pytest.approx(0.5)
    assert (row["loudest_token"], row["loudest_position"], row["loudest_samples"]) == (".", 7, 2)
