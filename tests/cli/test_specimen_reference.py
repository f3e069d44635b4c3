"""The CSV files of whole runs on the specimen against float64 NumPy, sample by sample."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from support.agreement import assert_agrees
from support.cases import Case, make_case
from support.expected_parts import ExpectedParts
from support.flat import flat
from support.reference import layers_table, merged
from support.reference_interface import interface_table, stage_rows
from transformers import AutoModelForImageTextToText, AutoProcessor
from typer.testing import Result

from normprobe.data.data_set import open_data
from normprobe.inputs.builder import InputBuilder
from normprobe.specimen import SPECIMEN_DIR

SAMPLES = 6
PARTS = ExpectedParts(
    vision_encoder="model.vision_tower",
    projector="model.multi_modal_projector",
    text_embedding="model.language_model.embed_tokens",
    decoder_layers="model.language_model.layers",
    image_token_ids=(3,),
    class_rows=1,
)


@cache
def cases(dtype: torch.dtype) -> list[Case]:
    model = AutoModelForImageTextToText.from_pretrained(SPECIMEN_DIR, dtype=dtype).eval()
    processor = AutoProcessor.from_pretrained(SPECIMEN_DIR)
    builder = InputBuilder(processor)
    made = []
    for sample in open_data("sample", limit=SAMPLES):
        inputs = dict(builder.build([sample]).to("cpu", dtype))
        made.append(make_case(model, inputs, PARTS, builder.special_token_ids))
    return made


# In bfloat16 the states themselves depend on the batch, so only batches of one have a reference.
@pytest.mark.parametrize(("dtype", "batch_size"), [("float32", 1), ("float32", 4), ("bfloat16", 1)])
def test_layers(dtype: str, batch_size: int, run: Callable[..., Result], tmp_path: Path) -> None:
    options = ["--dtype", dtype, "--batch-size", batch_size, "--limit", SAMPLES]
    assert run("layers", *options, "--output", "out").exit_code == 0
    table = flat(pd.read_csv(tmp_path / "out/layers.csv")).set_index(["layer", "group"])
    expected = layers_table(merged(case.observations for case in cases(getattr(torch, dtype))))
    assert set(expected) == set(table.index)
    for key, row in expected.items():
        assert_agrees(table.loc[key], row, key)


def test_interface(run: Callable[..., Result], tmp_path: Path) -> None:
    options = ["--dtype", "float32", "--limit", SAMPLES]
    assert run("interface", *options, "--output", "out").exit_code == 0
    table = flat(pd.read_csv(tmp_path / "out/interface.csv")).set_index(["stage", "group"])
    of_samples = [stage_rows(case) for case in cases(torch.float32)]
    rows = {
        key: np.concatenate([rows[key] for rows in of_samples if key in rows])
        if "table" not in key[0] and "effective" not in key[0]
        else of_samples[0][key]
        for key in {key for rows in of_samples for key in rows}
    }
    for key, row in interface_table(rows).items():
        assert_agrees(table.loc[key], row, key)


def test_embeddings(run: Callable[..., Result], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    assert run("embeddings", "--output", "out").exit_code == 0
    table = flat(pd.read_csv(tmp_path / "out/embeddings.csv")).set_index("rows")
    weights = load_file(SPECIMEN_DIR / "model.safetensors")
    (name,) = (key for key in weights if key.endswith("embed_tokens.weight"))
    norms = np.linalg.norm(weights[name].double().numpy(), axis=1)
    vocabulary = sorted(AutoProcessor.from_pretrained(SPECIMEN_DIR).tokenizer.get_vocab().values())
    scopes = {
        "all_rows": norms,
        "nonzero_rows": norms[norms > 0],
        "tokenizer_rows": norms[vocabulary],
    }
    for scope, values in scopes.items():
        assert table.loc[scope, "tokens"] == len(values)
        assert table.loc[scope, "norm_mean"] == pytest.approx(values.mean(), rel=1e-6)
        assert table.loc[scope, "norm_std"] == pytest.approx(values.std(), rel=1e-5)
    loudest = pd.read_csv(tmp_path / "out/tokens.csv").iloc[0]
    assert loudest["norm"] == pytest.approx(norms[vocabulary].max(), rel=1e-6)
