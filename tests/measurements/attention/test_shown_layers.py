"""Which layers have heat maps where none were chosen: those that the sentence names, too."""

import re

import pandas as pd
import pytest
from support.pictured import loaded, sample

from normprobe.measurements.attention.measure import attention_of
from normprobe.measurements.attention.words import attention_verdict, focused_and_wide
from normprobe.model.depths import layers_of_all_depths


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


def test_the_layers_of_the_sentence_have_maps_and_chosen_ones_stand_alone(monkeypatch):
    monkeypatch.setattr("normprobe.measurements.attention.measure._SHOWN", 1)
    model, builder = loaded("llava")
    found = attention_of(model, builder, sample())
    numbers = found.table.set_index("layer")["entropy_mean"]
    count = len(model.decoder_layers)
    expected = {numbers.idxmin(), numbers.idxmax(), *layers_of_all_depths(count, 1)}
    assert set(found.heatmaps["layer"]) == expected
    assert count > 1
    named = re.search(
        r"entropy .*?\(layer (\d+)\) to .*?\(layer (\d+)\)", attention_verdict(found.table)
    )
    assert named is not None
    assert {int(layer) for layer in named.groups()} <= expected
    chosen = attention_of(model, builder, sample(), layers=[2])
    assert set(chosen.heatmaps["layer"]) == {2}
