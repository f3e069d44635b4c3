"""Embedding statistics against NumPy: rows, the tokens that they spell, a base beside them."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support.flat import flat
from support.tiny_models import tiny_model
from transformers import PretrainedConfig

from normprobe import NormprobeError, embedding_statistics, find_parts
from normprobe.measurements.embeddings.measure import (
    TextTable,
    aligned_ids,
    measure_embeddings,
    measure_shift,
    named_tokens,
    norm_histogram,
    text_table,
    token_ranking,
)
from normprobe.model.find.parts import Part, Parts
from normprobe.model.find.structure import image_token_rows
from normprobe.model.measured_model import MeasuredModel
from normprobe.statistics.weights import row_norms

ROWS, WIDTH = 40_000, 12


@pytest.fixture(params=[torch.float32, torch.bfloat16, torch.float16])
def weight(request: pytest.FixtureRequest, tmp_path: Path) -> torch.Tensor:
    made = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
    made[-100:] = 0
    save_file({"embed": made.to(request.param)}, tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        return file.get_tensor("embed")


def test_statistics_equal_numpy(weight: torch.Tensor) -> None:
    norms = np.linalg.norm(weight.double().numpy(), axis=1)
    ids = range(0, ROWS + 500, 3)  # some ids lie beyond the table
    table = flat(embedding_statistics(weight, tokenizer_ids=ids)).set_index("rows")
    scopes = {"all_rows": norms, "nonzero_rows": norms[:-100], "tokenizer_rows": norms[::3]}
    assert list(table.index) == list(scopes)
    for scope, expected in scopes.items():
        row = table.loc[scope]
        assert row["tokens"] == len(expected)
        assert row["norm_mean"] == pytest.approx(expected.mean(), rel=1e-6)
        assert row["norm_std"] == pytest.approx(expected.std(), rel=1e-5)
        assert row["norm_max"] == pytest.approx(expected.max(), rel=1e-6)
        exact = np.quantile(expected, 0.25, method="inverted_cdf")
        assert row["norm_q25"] == pytest.approx(exact, rel=1e-5)


def test_an_id_of_two_tokens_is_one_row() -> None:
    """Some tokenizers name an id twice."""
    table = torch.tensor([[3.0, 4.0], [6.0, 8.0], [0.0, 1.0]])
    found = flat(embedding_statistics(table, tokenizer_ids=[1, 0, 1, 1])).set_index("rows")
    assert found.loc["tokenizer_rows", ["tokens", "norm_mean"]].tolist() == [2, 7.5]


def test_ranking_names_both_ends(weight: torch.Tensor) -> None:
    norms = row_norms(weight)
    table = token_ranking(norms, range(ROWS - 100), {3}, top=5)
    order = np.argsort(norms[:-100], kind="stable")
    top = table[table["end"] == "top"]
    bottom = table[table["end"] == "bottom"]
    assert top["norm"].tolist() == sorted(norms[:-100])[::-1][:5]
    assert bottom["token_id"].tolist() == order[:5].tolist()
    assert top["rank"].tolist() == [1, 2, 3, 4, 5]


def test_equal_norms_rank_by_id_at_both_ends() -> None:
    table = token_ranking(np.ones(4), [3, 0, 2, 1], {1}, top=2)
    assert table["token_id"].tolist() == [0, 1, 0, 1]
    assert table["special"].tolist() == [False, True, False, True]


class _Letters:
    """Id 0 is ``a``, id 1 ``b``; ids 2 and 3 read the same."""

    def convert_ids_to_tokens(self, id_: int) -> str:
        return "abcc"[id_]

    def decode(self, ids: list[int]) -> str:
        return "abcc"[ids[0]]


def test_named_tokens_rank_in_the_whole_vocabulary() -> None:
    weight = torch.diag(torch.tensor([1.0, 4.0, 3.0, 2.0, 9.0]))
    table = TextTable(weight, {}, frozenset({1}), frozenset(), _Letters())
    found = named_tokens(table, range(4), ["a", "c", "absent"])  # row 4 is no token
    assert found[["token", "token_id", "rank", "norm"]].to_numpy().tolist() == [
        ["c", 2, 2, 3.0],
        ["c", 3, 3, 2.0],
        ["a", 0, 4, 1.0],
    ]
    assert set(found["end"]) == {"named"}
    assert set(found["table"]) == {"text"}


def test_the_histogram_holds_every_row_once(weight: torch.Tensor) -> None:
    norms = row_norms(weight)
    table = norm_histogram(norms, {1, 2})
    assert table["count"].sum() == ROWS
    assert table.loc[table["special"], "count"].sum() == 2


def test_non_finite_rows_are_counted_and_left_out() -> None:
    weight = torch.ones(4, 3)
    weight[1, 0] = float("nan")
    row = flat(embedding_statistics(weight)).iloc[0]
    assert (row["tokens"], row["nonfinite"]) == (3, 1)
    assert row["norm_mean"] == pytest.approx(3**0.5)


@pytest.mark.parametrize("weight", [torch.ones(3), torch.ones(3, 3, dtype=torch.long)])
def test_what_is_no_table_is_an_error(weight: torch.Tensor) -> None:
    with pytest.raises(NormprobeError, match="two-dimensional float tensor"):
        embedding_statistics(weight)


@pytest.mark.parametrize("model_type", ["chameleon", "emu3"])
def test_rows_of_an_image_tokenizer_are_told_apart(model_type: str) -> None:
    model = tiny_model(model_type)
    codes = range(128, 192)  # what the tiny vocabulary maps image codes to
    assert image_token_rows(model) == list(codes)
    whole = MeasuredModel(model, find_parts(model), vocabulary_ids=range(192))
    measured = measure_embeddings(whole, text_table(whole), 3)
    table = flat(measured["embeddings"]).set_index(["table", "rows"])
    norms = np.linalg.norm(model.get_input_embeddings().weight.detach().double().numpy(), axis=1)
    assert table.loc[("visual", "all_rows"), "tokens"] == len(codes)
    assert table.loc[("visual", "all_rows"), "norm_mean"] == pytest.approx(norms[codes].mean())
    assert table.loc[("text", "all_rows"), "norm_mean"] == pytest.approx(norms.mean())
    assert measured["histogram"].groupby("table")["count"].sum().to_dict() == {
        "text": 192,
        "visual": 64,
    }


def test_other_models_write_no_image_rows() -> None:
    assert image_token_rows(tiny_model("llava")) == []


def test_visual_tokens_are_named_by_the_config_or_by_their_special_spelling() -> None:
    model = torch.nn.Module()
    model.embed = torch.nn.Embedding(8, 4)
    vocabulary = {"image": 0, "<|vision_start|>": 1, "<boi>": 2, "<s>": 3, "<soft>": 4, "late": 9}
    config = {"image_token_id": 4, "bos_token_id": 3, "image_size": 0, "vision_end_token_id": None}
    model.config = PretrainedConfig(**config)
    parts = Parts(None, None, Part("embed", model.embed), None, None, ())
    tokenizer = SimpleNamespace(get_vocab=lambda: vocabulary)
    found = text_table(MeasuredModel(model, parts, [1, 2, 3]), tokenizer)
    assert found.visual == {1, 2, 4}
    assert found.special == {1, 2, 3}
    assert "late" not in found.vocabulary


def test_a_vision_encoder_is_no_base() -> None:
    encoder = MeasuredModel(torch.nn.Module(), Parts(None, None, None, None, None, ()))
    with pytest.raises(NormprobeError, match="no text embedding table"):
        text_table(encoder)


#: Byte-level spellings: "Ġ" a space; "âĢ" and "âĤ" are fragments that decode to the same character.
HERE = {"Ġthe": 0, "s": 1, "âĢ": 2, "âĤ": 3, "<|vision_start|>": 5, "<|im_end|>": 4, "new": 7}
THERE = {"<|im_end|>": 0, "âĤ": 1, "âĢ": 2, "s": 3, "Ġthe": 4, "old": 6}
SHARED = [("Ġthe", 0, 4), ("s", 1, 3), ("âĢ", 2, 2), ("âĤ", 3, 1), ("<|im_end|>", 4, 0)]


def table(
    vocabulary: dict[str, int],
    rows: int,
    width: int = 8,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> TextTable:
    weight = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return TextTable(weight, vocabulary, frozenset({4, 5}), frozenset({5}))


def test_tokens_are_aligned_by_spelling_whatever_their_index() -> None:
    ids = aligned_ids(HERE, THERE)
    both = ids.dropna()
    assert [tuple(row) for row in both.to_numpy()] == [(own, base) for _, own, base in SHARED]
    assert ids[ids["base_id"].isna()]["token_id"].tolist() == [5, 7]
    assert ids[ids["token_id"].isna()]["base_id"].tolist() == [6]
    assert len(ids) == len(HERE.keys() | THERE.keys())


def test_vocabularies_without_a_common_token_are_refused() -> None:
    with pytest.raises(NormprobeError, match="share no token"):
        aligned_ids({"Ġthe": 0}, {"▁the": 0})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_number_of_a_shared_token(dtype: torch.dtype) -> None:
    here, there = table(HERE, 9, seed=1, dtype=dtype), table(THERE, 7, seed=2, dtype=dtype)
    shift = measure_shift(here, there, top=2)["shift"].set_index("token_id")
    own, base = here.weight.double().numpy(), there.weight.double().numpy()
    for _, token_id, base_id in SHARED:
        row, before = own[token_id], base[base_id]
        found = shift.loc[token_id]
        lengths = np.linalg.norm(row), np.linalg.norm(before)
        assert found["norm"] == pytest.approx(lengths[0], rel=1e-6)
        assert found["base_norm"] == pytest.approx(lengths[1], rel=1e-6)
        assert found["norm_change"] == pytest.approx(lengths[0] - lengths[1], abs=1e-6)
        assert found["distance"] == pytest.approx(np.linalg.norm(row - before), rel=1e-6)
        assert found["cosine"] == pytest.approx(row @ before / lengths[0] / lengths[1], abs=1e-6)


def test_a_token_of_one_vocabulary_has_the_norm_of_its_own_row_alone() -> None:
    here, there = table(HERE, 9, seed=1), table(THERE, 7, seed=2)
    shift = measure_shift(here, there, top=2)["shift"]
    new = shift[shift["token_id"].eq(7).fillna(False)].iloc[0]
    assert new["norm"] == pytest.approx(float(here.weight[7].norm()))
    assert new[["base_norm", "base_rank", "distance", "cosine", "norm_change"]].isna().all()
    old = shift[shift["base_id"].eq(6).fillna(False)].iloc[0]
    assert old["base_norm"] == pytest.approx(float(there.weight[6].norm()))
    assert old[["norm", "rank", "distance"]].isna().all()
    assert not old["emerging"]


def test_ranks_and_emerging_outliers() -> None:
    here, there = table(HERE, 9), table(THERE, 7)
    here.weight[:] = torch.arange(9.0)[:, None] + 1  # rows 8 and 6 spell nothing
    there.weight[:] = torch.tensor([9.0, 1, 8, 7, 2, 99, 3])[:, None]  # row 5 spells nothing
    shift = measure_shift(here, there, top=3)["shift"]
    ranks = shift.dropna(subset="token_id").set_index("token_id")["rank"]
    assert ranks.sort_values().index.tolist() == [7, 5, 4, 3, 2, 1, 0]
    base_ranks = shift.dropna(subset="base_id").set_index("base_id")["base_rank"]
    assert base_ranks.sort_values().index.tolist() == [0, 2, 3, 6, 4, 1]
    # Loudest here: 7 and 5, which the base lacks, and 4, which is its loudest too.
    assert shift.loc[shift["emerging"], "token_id"].tolist() == [5, 7]
    assert shift.loc[shift["visual_token"], "token_id"].dropna().tolist() == [5]


def test_another_hidden_size_keeps_the_norms_and_leaves_distances_empty() -> None:
    here, there = table(HERE, 9, width=8), table(THERE, 7, width=4)
    measured = measure_shift(here, there, top=2)
    shift = measured["shift"]
    assert shift["distance"].isna().all()
    assert shift["cosine"].isna().all()
    assert shift["norm_change"].notna().sum() == len(SHARED)
    assert set(flat(measured["base"])["hidden_size"]) == {4}


def test_the_base_table_counts_the_rows_its_tokenizer_can_emit() -> None:
    there = table(THERE, 7)
    there.weight[5] = 0
    rows = flat(measure_shift(table(HERE, 9), there, top=2)["base"]).set_index("rows")
    assert rows["tokens"].to_dict() == {"all_rows": 7, "nonzero_rows": 6, "tokenizer_rows": 6}
    norms = there.weight.norm(dim=1).double().numpy()
    assert rows.loc["nonzero_rows", "norm_mean"] == pytest.approx(norms[norms > 0].mean())
    assert rows.loc["nonzero_rows", "norm_std"] == pytest.approx(norms[norms > 0].std(), rel=1e-5)


def test_a_zero_row_has_a_distance_and_no_direction() -> None:
    here, there = table(HERE, 9), table(THERE, 7)
    here.weight[0] = 0
    row = measure_shift(here, there, top=2)["shift"].set_index("token_id").loc[0]
    assert row["distance"] == pytest.approx(float(there.weight[4].norm()))
    assert np.isnan(row["cosine"])


def test_a_large_table_is_compared_in_pieces_without_a_seam() -> None:
    vocabulary = {f"t{id_}": id_ for id_ in range(40_000)}
    other = {f"t{id_}": 39_999 - id_ for id_ in range(40_000)}
    here, there = table(vocabulary, 40_000, 4, seed=1), table(other, 40_000, 4, seed=2)
    shift = measure_shift(here, there, top=1)["shift"]
    expected = (here.weight - there.weight.flip(0)).double().norm(dim=1).numpy()
    np.testing.assert_allclose(shift["distance"], expected, rtol=1e-5)


def test_numbers_survive_the_csv(tmp_path) -> None:
    from normprobe.runs.run_folder import RunFolder, read_table

    shift = measure_shift(table(HERE, 9), table(THERE, 7), top=2)["shift"]
    run = RunFolder.create(tmp_path / "run", overwrite=False, record={})
    run.write_table("shift", shift.assign(token="nan"))
    back = read_table(tmp_path / "run", "shift")
    assert back["token"].eq("nan").all()
    pd.testing.assert_series_equal(back["distance"], shift["distance"])
    assert back["base_id"].isna().sum() == 2


def test_rows_of_the_base_are_those_of_its_own_vocabulary() -> None:
    def made(vocabulary: dict[str, int], rows: int) -> TextTable:
        weight = torch.arange(1.0, rows + 1)[:, None]
        return TextTable(weight, vocabulary, frozenset(), frozenset())

    here, there = made({"a": 0, "b": 1}, 3), made({"a": 4, "c": 2, "b": 0}, 5)
    rows = flat(measure_shift(here, there, top=1)["base"]).set_index("rows").loc["tokenizer_rows"]
    assert (rows["tokens"], rows["norm_mean"]) == (3, pytest.approx((5 + 3 + 1) / 3))
