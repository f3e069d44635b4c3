"""What ranks runs of ``interface``, by tables made by hand."""

import numpy as np
import pandas as pd

from normprobe.measurements.compare.table import ranking
from normprobe.measurements.interface.compared import measures


def table(ratio: float) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "stage": ["decoder_input", "decoder_input", "projector_output"],
            "group": ["visual", "text", "visual"],
            "norm_mean": [ratio * 2, 2.0, 99.0],
            "geometric_ratio_to_prompt": [ratio, 1.0, 99.0],
            "ratio_to_table": [ratio / 2, 0.5, 99.0],
        }
    )


def test_the_decoder_input_ranks() -> None:
    found = ranking([measures(table(3.0)), measures(table(5.0))], ["three", "five"])
    assert found["run"].tolist() == ["five", "three"]
    assert found.loc[0, ["disparity_input", "ratio_to_table", "text_norm"]].tolist() == [5, 2.5, 2]


def test_the_intervals_are_those_of_the_table() -> None:
    interval = table(3.0).assign(
        geometric_ratio_to_prompt_ci_low=2.5, geometric_ratio_to_prompt_ci_high=3.5
    )
    found = measures(interval)
    assert (found["disparity_input_ci_low"], found["disparity_input_ci_high"]) == (2.5, 3.5)
    assert np.isnan(found["text_norm_ci_low"])
