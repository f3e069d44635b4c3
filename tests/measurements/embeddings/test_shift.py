"""Tables of different length, order and width against hand-made vocabularies and NumPy."""

import numpy as np
import pandas as pd
import pytest
import torch
from normprobe.measurements.embeddings.shift import aligned_ids, measure_shift
from normprobe.measurements.embeddings.text_table import TextTable

from normprobe import NormprobeError

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
    assert set(measured["base"]["hidden_size"]) == {4}


def test_the_base_table_counts_the_rows_its_tokenizer_can_emit() -> None:
    there = table(THERE, 7)
    there.weight[5] = 0
    rows = measure_shift(table(HERE, 9), there, top=2)["base"].set_index("rows")
    assert rows["count"].to_dict() == {"all_rows": 7, "nonzero_rows": 6, "tokenizer_rows": 6}
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
