"""``embeddings --base``: the specimen against a language model with other rows and other ids."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli.conftest import assert_two_lines
from safetensors.torch import load_file
from support.flat import flat
from transformers import AutoModelForImageTextToText, LlamaForCausalLM
from typer.testing import Result

from normprobe.specimen import SPECIMEN_DIR

Run = Callable[..., Result]
TABLE = "language_model.model.embed_tokens.weight"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The specimen's language model alone: rows half as long, two ids swapped, one token renamed.

    Its table has one row more than its tokenizer has tokens.
    """
    folder = tmp_path / "base-llm"
    whole = AutoModelForImageTextToText.from_pretrained(SPECIMEN_DIR)
    model = LlamaForCausalLM(whole.config.text_config).to(whole.dtype)
    model.model.load_state_dict(whole.model.language_model.state_dict())
    weight = model.get_input_embeddings().weight.data
    weight /= 2
    weight[[425, 426]] = weight[[426, 425]]
    model.resize_token_embeddings(len(weight) + 1)
    model.save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    tokenizer = json.loads((SPECIMEN_DIR / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    spelling = {id_: token for token, id_ in vocabulary.items()}
    vocabulary[spelling[425]], vocabulary[spelling[426]] = 426, 425
    vocabulary["<pause>"] = vocabulary.pop("<image>")
    tokenizer["added_tokens"][3]["content"] = "<pause>"
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def test_tokens_are_compared_by_name(run: Run, base: Path, tmp_path: Path) -> None:
    result = run("embeddings", "--base", base, "-o", "out")
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert "432 tokens in both, 1 in the model alone, 1 in the base." in result.stdout
    shift = pd.read_csv(tmp_path / "out/shift.csv", keep_default_na=False, na_values=[""])
    shared = shift.dropna(subset=["token_id", "base_id"])
    by_name = shared.set_index("token_id")["base_id"]
    assert (by_name[425], by_name[426], by_name[300]) == (426, 425, 300)

    weight = load_file(SPECIMEN_DIR / "model.safetensors")[TABLE].double().numpy()
    older = load_file(base / "model.safetensors")["model.embed_tokens.weight"].double().numpy()
    rows = weight[shared["token_id"].astype(int)]
    before = older[shared["base_id"].astype(int)]
    np.testing.assert_allclose(
        shared["distance"], np.linalg.norm(rows - before, axis=1), rtol=1e-5, atol=1e-9
    )
    # Half the length and no turn, if and only if each row met its own.
    moved = shared[shared["norm"] > 0]
    np.testing.assert_allclose(moved["cosine"], 1.0, atol=1e-5)
    np.testing.assert_allclose(moved["distance"], moved["base_norm"], rtol=2e-2)

    table = flat(pd.read_csv(tmp_path / "out/embeddings.csv")).set_index(["table", "rows"])
    assert table.loc[("base", "all_rows"), "tokens"] == len(older) == 434
    assert table.loc[("base", "tokenizer_rows"), "tokens"] == 433
    assert (tmp_path / "out/plots/shift.png").is_file()
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["base"] == "base-llm"


def test_without_a_base_there_is_no_shift(run: Run, tmp_path: Path) -> None:
    assert run("embeddings", "-q", "-o", "out").exit_code == 0
    assert not (tmp_path / "out/shift.csv").exists()
    assert not (tmp_path / "out/plots/shift.png").exists()


def test_a_base_that_is_not_there_or_holds_no_text(run: Run, tmp_path: Path) -> None:
    assert_two_lines(run("embeddings", "--base", "./nowhere", "-o", "out"), "./nowhere")
    from transformers import CLIPVisionConfig, CLIPVisionModel

    encoder = CLIPVisionModel(
        CLIPVisionConfig(
            hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1
        )
    )
    encoder.save_pretrained(tmp_path / "encoder")
    shutil.copy(SPECIMEN_DIR / "processor_config.json", tmp_path / "encoder")
    preprocessor = json.loads((SPECIMEN_DIR / "processor_config.json").read_text())
    (tmp_path / "encoder/preprocessor_config.json").write_text(
        json.dumps(preprocessor["image_processor"])
    )
    result = run("embeddings", "--base", "./encoder", "-o", "out")
    assert_two_lines(result, "no text embedding table")
    assert not (tmp_path / "out").exists()


def test_vocabularies_of_nothing_in_common(run: Run, base: Path, tmp_path: Path) -> None:
    tokenizer = json.loads((base / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = {
        f"other{id_}": id_ for id_ in tokenizer["model"]["vocab"].values()
    }
    tokenizer["model"]["merges"] = []
    tokenizer["added_tokens"] = []
    tokenizer["post_processor"] = None
    (base / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert_two_lines(run("embeddings", "--base", base, "-o", "out"), "share no token", "--base")
    assert not (tmp_path / "out").exists()
