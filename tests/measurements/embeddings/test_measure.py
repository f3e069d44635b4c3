"""Embedding statistics against NumPy over the file they were saved in."""

from pathlib import Path

import numpy as np
import pytest
import torch
from normprobe.measurements.embeddings.text_table import TextTable, text_table
from safetensors import safe_open
from safetensors.torch import save_file
from support.tiny_models import tiny_model

from normprobe import NormprobeError, embedding_statistics, find_parts
from normprobe.measurements.embeddings.measure import (
    measure_embeddings,
    named_tokens,
    norm_histogram,
    token_ranking,
)
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
    table = embedding_statistics(weight, tokenizer_ids=ids).set_index("rows")
    scopes = {"all_rows": norms, "nonzero_rows": norms[:-100], "tokenizer_rows": norms[::3]}
    assert list(table.index) == list(scopes)
    for scope, expected in scopes.items():
        row = table.loc[scope]
        assert row["count"] == len(expected)
        assert row["norm_mean"] == pytest.approx(expected.mean(), rel=1e-6)
        assert row["norm_std"] == pytest.approx(expected.std(), rel=1e-5)
        assert row["norm_max"] == pytest.approx(expected.max(), rel=1e-6)
        exact = np.quantile(expected, 0.25, method="inverted_cdf")
        assert row["norm_q25"] == pytest.approx(exact, rel=1e-5)


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


def test_the_histogram_holds_every_row_once(weight: torch.Tensor) -> None:
    norms = row_norms(weight)
    table = norm_histogram(norms, {1, 2})
    assert table["count"].sum() == ROWS
    assert table.loc[table["special"], "count"].sum() == 2


def test_non_finite_rows_are_counted_and_left_out() -> None:
    weight = torch.ones(4, 3)
    weight[1, 0] = float("nan")
    row = embedding_statistics(weight).iloc[0]
    assert (row["count"], row["nonfinite"]) == (3, 1)
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
    table = measured["embeddings"].set_index(["table", "rows"])
    norms = np.linalg.norm(model.get_input_embeddings().weight.detach().double().numpy(), axis=1)
    assert table.loc[("visual", "all_rows"), "count"] == len(codes)
    assert table.loc[("visual", "all_rows"), "norm_mean"] == pytest.approx(norms[codes].mean())
    assert table.loc[("text", "all_rows"), "norm_mean"] == pytest.approx(norms.mean())
    assert measured["histogram"].groupby("table")["count"].sum().to_dict() == {
        "text": 192,
        "visual": 64,
    }


def test_other_models_write_no_image_rows() -> None:
    assert image_token_rows(tiny_model("llava")) == []
