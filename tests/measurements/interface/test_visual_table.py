"""Ovis: rows of the visual table and the tokens mixed from them, against states captured apart."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from normprobe.measurements.interface.visual_table import visual_table_histogram
from support.tiny_inputs import tiny_inputs
from support.tiny_models import BOS, EOS, tiny_model

from normprobe import find_parts
from normprobe.measurements import measurement
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import TEXT, TOKEN_GROUPS, VISUAL

WIDTH = 0.01  # relative: half a bin, and float32


def measured(model_type: str):
    model = tiny_model(model_type)
    inputs = tiny_inputs(model, batch_size=1)
    whole = MeasuredModel(model, find_parts(model), [BOS, EOS])
    rows = measurement("interface").sample_rows(whole, inputs, ["a"])
    groups = whole.prompt_groups(inputs)
    return model, inputs, groups, visual_table_histogram(rows, whole.parts)


@cache
def ovis():
    return measured("ovis2")


def spread(table: pd.DataFrame, source: str) -> np.ndarray:
    """The norms of a source, each at the middle of its bin, ascending."""
    rows = table[table["source"] == source]
    return np.repeat(np.sqrt(rows["left"] * rows["right"]), rows["count"]).to_numpy()


def seen_by_the_table(model, inputs) -> tuple[np.ndarray, np.ndarray]:
    """The probabilities that enter the table's module, and what leaves it."""
    calls = []
    embedding = model.model.visual_embeddings_table
    original = embedding.forward
    embedding.forward = lambda p: calls.append((p, original(p))) or calls[-1][1]
    try:
        with torch.no_grad():
            model(**inputs)
    finally:
        del embedding.forward
    entered, left = next(call for call in calls if call[0].is_floating_point())
    return entered.double().numpy(), left.double().numpy()


def test_rows_of_both_tables_are_counted_once() -> None:
    model, _, _, table = ovis()
    for source, weight in (
        ("visual table rows", model.model.visual_embeddings_table.weight),
        ("text table rows", model.get_input_embeddings().weight),
    ):
        norms = np.linalg.norm(weight.detach().double().numpy(), axis=1)
        np.testing.assert_allclose(
            spread(table, source), np.sort(norms[norms > 0]), rtol=WIDTH, err_msg=source
        )


def test_tokens_are_mixtures_of_the_rows() -> None:
    model, inputs, groups, table = ovis()
    weights, tokens = seen_by_the_table(model, inputs)
    mixed = np.linalg.norm(
        weights @ model.model.visual_embeddings_table.weight.detach().double().numpy(), axis=-1
    )
    np.testing.assert_allclose(np.linalg.norm(tokens, axis=-1), mixed, rtol=1e-5)
    # Indicator rows are rows of the table, not mixtures: they are structural and not counted.
    np.testing.assert_allclose(spread(table, "visual tokens"), np.sort(mixed.ravel()), rtol=WIDTH)
    assert len(mixed.ravel()) == int((groups == TOKEN_GROUPS.index(VISUAL)).sum()) - 2


def test_probabilities_tell_how_many_rows_a_token_is_mixed_from() -> None:
    model, inputs, _, table = ovis()
    weights, _ = seen_by_the_table(model, inputs)
    assert weights.sum(-1) == pytest.approx(1.0, abs=1e-5)
    rows = 1 / (weights**2).sum(-1).ravel()
    found = spread(table, "probabilities") ** -2.0
    np.testing.assert_allclose(found, np.sort(rows)[::-1], rtol=2 * WIDTH)


def test_text_tokens_are_those_of_the_prompt() -> None:
    _, _, groups, table = ovis()
    text = int((groups == TOKEN_GROUPS.index(TEXT)).sum())
    assert table.loc[table["source"] == "text tokens", "count"].sum() == text


def test_a_model_without_a_visual_table_has_no_histogram() -> None:
    assert measured("llava")[3].empty
