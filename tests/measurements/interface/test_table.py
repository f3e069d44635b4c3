"""interface.csv and histogram.csv: ratios, intervals against repeating rows, a visual table."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
import torch
from support.flat import flat, tidied
from support.slow_bootstrap import SAMPLES, assert_intervals, slow_draws, use_few_draws
from support.tiny_inputs import tiny_inputs
from support.tiny_models import BOS, EOS, tiny_model

from normprobe import find_parts
from normprobe.measurements import measurement
from normprobe.measurements.interface.table import interface_table, visual_table_histogram
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import (
    DECODER_INPUT,
    PROJECTOR_INPUT,
    PROJECTOR_OUTPUT,
    TEXT,
    TOKEN_GROUPS,
    VISION_ENCODER,
    VISUAL,
)
from normprobe.statistics.sample_statistics import statistics_of


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    use_few_draws(monkeypatch)


def interface_rows(scale: float) -> pd.DataFrame:
    random = np.random.default_rng(1)
    made = [
        {"sample_id": sample, "image_hash": image, "stage": DECODER_INPUT, "group": group}
        | {"hidden_size": 16, "embedding_scale": scale}
        | statistics_of(random.gamma(3.0, 1.0, (1, random.integers(2, 9))), ["norm"])
        for sample, image in SAMPLES
        for group in ((VISUAL, TEXT) if image else (TEXT,))
    ]
    return pd.DataFrame(made)


EMBEDDING = tidied(
    "interface",
    pd.DataFrame(
        {"stage": "text_embedding_table", "group": ["all_rows", "nonzero_rows"], "tokens": 9}
        | {"hidden_size": 16, "norm_mean": [1.0, 1.5], "norm_std": 0.1}
    ),
)


def without_intervals(rows: pd.DataFrame, embedded: pd.DataFrame = EMBEDDING) -> pd.DataFrame:
    return flat(interface_table(rows, embedded, intervals=False))


def test_the_scale_of_the_table_is_the_median_of_the_samples() -> None:
    rows = interface_rows(2.0)
    rows.loc[[0, len(rows) - 1], "embedding_scale"] = [1.5, 7.0]
    table = without_intervals(rows).set_index("stage")
    effective = table.loc["effective_embedding", ["norm_mean", "norm_std"]]
    np.testing.assert_allclose(effective, [[2.0, 0.2], [3.0, 0.2]], rtol=1e-12)


def test_quantiles_of_the_table_are_scaled_as_its_mean_is() -> None:
    quantiles = {"norm_q05": [0.5, 0.6], "norm_q50": [0.9, 1.4], "norm_q95": [1.6, 2.5]}
    first = {"stage": "text_embedding_table", "group": ["all_rows", "nonzero_rows"], "tokens": 9}
    embedding = pd.DataFrame(first | {"hidden_size": 16, "norm_mean": [1.0, 1.5], **quantiles})
    table = without_intervals(interface_rows(3.0), tidied("interface", embedding))
    effective = table.set_index("stage").loc["effective_embedding"]
    assert effective["tokens"].tolist() == [9, 9]
    for name, of_rows in quantiles.items():
        np.testing.assert_allclose(effective[name], 3 * np.array(of_rows), rtol=1e-12)


@pytest.mark.parametrize("scale", [2.0, float("nan")])
def test_means_and_ratios_have_their_intervals(scale: float) -> None:
    """With a scale the table's norms are constants; without, the prompts' rows stand for them."""
    rows = interface_rows(scale)
    table = flat(interface_table(rows, EMBEDDING))
    at_decoder = table[table["stage"] == DECODER_INPUT]
    keys = ["stage", "group"]
    slow = slow_draws(
        rows, lambda drawn: without_intervals(drawn).query("stage == 'decoder_input'"), keys
    )
    columns = ["norm_mean", "norm_sample_mean", "rms_mean", "ratio_to_table", "ratio_to_prompt"]
    assert_intervals(at_decoder, slow, keys, columns)
    weights = table[table["stage"] == "text_embedding_table"]
    assert weights["norm_mean_ci_low"].isna().all()
    assert weights["ratio_to_prompt_ci_low"].notna().all()


@pytest.mark.parametrize("before", [PROJECTOR_INPUT, VISION_ENCODER])
def test_what_the_projector_changes_is_drawn_in_pairs(before: str) -> None:
    """Every image's norm is halved: whatever images are drawn, so is their mean."""
    rows = interface_rows(2.0).query("group == 'visual'").assign(stage=before)
    halved = rows.assign(stage=PROJECTOR_OUTPUT, norm_mean=rows["norm_mean"] / 2)
    both = pd.concat([rows, halved], ignore_index=True)
    table = flat(interface_table(both, pd.DataFrame()))
    column = "ratio_to_before_projector"
    after = table.loc[table["stage"] == PROJECTOR_OUTPUT, table.columns.str.startswith(column)]
    np.testing.assert_allclose(after.to_numpy(), 0.5, rtol=1e-12)


WIDTH = 0.01  # relative: half a bin, and float32


def measured_table(model_type: str):
    model = tiny_model(model_type)
    inputs = tiny_inputs(model, batch_size=1)
    whole = MeasuredModel(model, find_parts(model), [BOS, EOS])
    rows = measurement("interface").sample_rows(whole, inputs, ["a"])
    groups = whole.placed(inputs).groups
    return model, inputs, groups, visual_table_histogram(rows, whole.parts)


@cache
def ovis():
    return measured_table("ovis2")


def norms_of(table: pd.DataFrame, source: str) -> np.ndarray:
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
            norms_of(table, source), np.sort(norms[norms > 0]), rtol=WIDTH, err_msg=source
        )


def test_tokens_are_mixtures_of_the_rows() -> None:
    model, inputs, groups, table = ovis()
    weights, tokens = seen_by_the_table(model, inputs)
    mixed = np.linalg.norm(
        weights @ model.model.visual_embeddings_table.weight.detach().double().numpy(), axis=-1
    )
    np.testing.assert_allclose(np.linalg.norm(tokens, axis=-1), mixed, rtol=1e-5)
    # Indicator rows are rows of the table, not mixtures: they are structural and not counted.
    np.testing.assert_allclose(norms_of(table, "visual tokens"), np.sort(mixed.ravel()), rtol=WIDTH)
    assert len(mixed.ravel()) == int((groups == TOKEN_GROUPS.index(VISUAL)).sum()) - 2


def test_probabilities_tell_how_many_rows_a_token_is_mixed_from() -> None:
    model, inputs, _, table = ovis()
    weights, _ = seen_by_the_table(model, inputs)
    assert weights.sum(-1) == pytest.approx(1.0, abs=1e-5)
    rows = 1 / (weights**2).sum(-1).ravel()
    found = norms_of(table, "probabilities") ** -2.0
    np.testing.assert_allclose(found, np.sort(rows)[::-1], rtol=2 * WIDTH)


def test_text_tokens_are_those_of_the_prompt() -> None:
    _, _, groups, table = ovis()
    text = int((groups == TOKEN_GROUPS.index(TEXT)).sum())
    assert table.loc[table["source"] == "text tokens", "count"].sum() == text


def test_a_model_without_a_visual_table_has_no_histogram() -> None:
    assert measured_table("llava")[3].empty


def test_what_the_projector_reads_comes_before_the_encoder() -> None:
    norms = {"vision_encoder": 1.0, "projector_input": 2.0, "projector_output": 8.0}
    rows = [
        {"sample_id": "a", "image_hash": "p", "stage": stage, "group": "visual", "hidden_size": 4}
        | statistics_of(np.full((1, 3), norm), ["norm"])
        for stage, norm in norms.items()
    ]
    table = without_intervals(pd.DataFrame(rows), pd.DataFrame()).set_index("stage")
    for column in ("ratio_to_before_projector", "geometric_ratio_to_before_projector"):
        assert table.loc["projector_output", column] == pytest.approx(4.0)
