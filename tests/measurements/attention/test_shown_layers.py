"""Which layers have heat maps where none were chosen: those that the sentence names, too."""

import numpy as np
import pandas as pd
import pytest
from support.pictured import loaded, sample

from normprobe.measurements.attention.measure import attention_of, layers_to_show
from normprobe.measurements.attention.words import attention_verdict, focused_and_wide


def table(*entropies):
    return pd.DataFrame(
        {"layer": range(1, len(entropies) + 1), "query": "all text", "entropy_mean": entropies}
    )


@pytest.mark.parametrize(
    ("entropies", "layers"),
    [
        ((0.5, 0.2, 0.9), [2, 3]),
        ((0.5,), [1]),
        ((float("nan"), 0.4, 0.4), [2]),
        ((float("nan"),), []),
    ],
)
def test_the_narrowest_and_the_widest_layer(entropies, layers):
    assert focused_and_wide(table(*entropies)) == layers


def test_another_query_has_no_say():
    words = table(0.5, 0.6, 0.55).assign(query="cup", entropy_mean=[0.1, 0.9, 0.5])
    assert focused_and_wide(pd.concat([table(0.5, 0.6, 0.55), words])) == [1, 2]


def test_the_layers_of_the_sentence_are_shown_beside_those_of_all_depths():
    entropies = [0.5] * 32
    entropies[4], entropies[18] = 0.2, 0.9
    attention = table(*entropies).assign(heads=1, share_mean=0.5, even_share_mean=0.5)
    attention = attention.assign(signal_to_noise=np.nan, score_gap=np.nan)
    sentence = attention_verdict(attention)
    assert "0.20 (layer 5) to 0.90 (layer 19)" in sentence
    assert layers_to_show(attention) == [5, 8, 16, 19, 24, 32]


def test_layers_that_were_chosen_stand_alone():
    model, builder = loaded("llava")
    found = attention_of(model, builder, sample())
    assert sorted(found.heatmaps["layer"].unique()) == layers_to_show(found.table)
    chosen = attention_of(model, builder, sample(), layers=[2])
    assert set(chosen.heatmaps["layer"]) == {2}
