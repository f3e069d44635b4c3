"""A bare vision encoder and a bare language model: the side that exists is reported."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from cli.conftest import assert_two_lines
from support.flat import flat
from transformers import AutoTokenizer, LlamaForCausalLM, LlavaForConditionalGeneration
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from typer.testing import Result

from normprobe.schema import (
    DECODER_INPUT,
    EFFECTIVE_EMBEDDING,
    TEXT_EMBEDDING_TABLE,
    VISION_ENCODER,
    VISUAL,
)
from normprobe.specimen import SPECIMEN_DIR

Run = Callable[..., Result]
Measured = Callable[..., Path]

INTERFACE = ("-n", "3", "--dtype", "float32")


@pytest.fixture(scope="module")
def specimen() -> LlavaForConditionalGeneration:
    return LlavaForConditionalGeneration.from_pretrained(SPECIMEN_DIR)


@pytest.fixture
def encoder(specimen: LlavaForConditionalGeneration, tmp_path: Path) -> Path:
    specimen.model.vision_tower.save_pretrained(tmp_path / "encoder")
    size = {"height": 64, "width": 64}
    processor = CLIPImageProcessorPil(size={"shortest_edge": 64}, crop_size=size)
    processor.save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.fixture
def language_model(specimen: LlavaForConditionalGeneration, tmp_path: Path) -> Path:
    model = LlamaForCausalLM(specimen.config.text_config)
    model.model.load_state_dict(specimen.model.language_model.state_dict())
    model.lm_head.load_state_dict(specimen.lm_head.state_dict())
    model.save_pretrained(tmp_path / "language")
    AutoTokenizer.from_pretrained(SPECIMEN_DIR).save_pretrained(tmp_path / "language")
    return tmp_path / "language"


def interface(run: Run, model: object, out: Path) -> pd.DataFrame:
    result = run("interface", model, *INTERFACE, "-o", out)
    assert result.exit_code == 0, result.output
    return stages_of(out)


def stages_of(folder: Path) -> pd.DataFrame:
    return flat(pd.read_csv(folder / "interface.csv")).set_index(["stage", "group"])


def test_a_bare_encoder_gives_what_it_gives_inside_its_model(
    run: Run, measured: Measured, encoder: Path, tmp_path: Path
) -> None:
    alone = interface(run, encoder, tmp_path / "alone")
    whole = stages_of(measured("interface", *INTERFACE))
    assert set(alone.index.get_level_values("stage")) == {VISION_ENCODER}
    for group in (VISUAL, "special"):
        found, expected = alone.loc[(VISION_ENCODER, group)], whole.loc[(VISION_ENCODER, group)]
        assert found["tokens"] == expected["tokens"]
        assert found["norm_mean"] == pytest.approx(expected["norm_mean"], rel=1e-5)


def test_a_bare_language_model_gives_its_table_and_prompts(
    run: Run, measured: Measured, language_model: Path, tmp_path: Path
) -> None:
    alone = interface(run, language_model, tmp_path / "alone")
    warnings = json.loads((tmp_path / "alone/run.json").read_text())["warnings"]
    assert "no vision encoder and no projector found: pictures of sample are left out" in warnings
    whole = stages_of(measured("interface", *INTERFACE))
    stages = {DECODER_INPUT, TEXT_EMBEDDING_TABLE, EFFECTIVE_EMBEDDING}
    assert set(alone.index.get_level_values("stage")) == stages
    key = (TEXT_EMBEDDING_TABLE, "nonzero_rows")
    assert alone.loc[key, "norm_mean"] == pytest.approx(whole.loc[key, "norm_mean"], rel=1e-6)
    assert run("embeddings", language_model, "-o", tmp_path / "table").exit_code == 0


@pytest.mark.parametrize("has_template", [True, False])
def test_the_layers_of_a_language_model(
    run: Run, language_model: Path, tmp_path: Path, has_template: bool
) -> None:
    prompts = ["Is there a red circle?", "What?", "How many squares are there in the picture?"]
    (tmp_path / "mine.txt").write_text("\n".join(prompts))
    if not has_template:
        (language_model / "chat_template.jinja").unlink()
    out = tmp_path / "out"
    result = run(
        *("layers", language_model, "--data", tmp_path / "mine.txt"),
        *("-b", "2", "--dtype", "float32", "-o", out),
    )
    assert result.exit_code == 0, result.output

    tokenizer = AutoTokenizer.from_pretrained(language_model)
    model = LlamaForCausalLM.from_pretrained(language_model, dtype=torch.float32)
    norms: list[list[np.ndarray]] = []  # by prompt and layer; the last is after the final norm
    for prompt in prompts:
        message = [{"role": "user", "content": prompt}]
        ids = (
            tokenizer.apply_chat_template(
                message, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )["input_ids"]
            if has_template
            else tokenizer(prompt, return_tensors="pt")["input_ids"]
        )
        is_text = ~np.isin(ids[0].numpy(), tokenizer.all_special_ids)
        with torch.no_grad():
            states = model(ids, output_hidden_states=True).hidden_states[:-1]
        norms.append([np.linalg.norm(h[0].double().numpy(), axis=-1)[is_text] for h in states])
    table = flat(pd.read_csv(out / "layers.csv")).set_index(["layer", "group"])
    for layer in range(len(norms[0])):
        expected = np.concatenate([of_prompt[layer] for of_prompt in norms])
        found = table.loc[(layer, "text")]
        assert found["tokens"] == len(expected)
        assert found["norm_mean"] == pytest.approx(expected.mean(), rel=1e-5)
        assert found["norm_std"] == pytest.approx(expected.std(), rel=1e-4)
    assert VISUAL not in table.index.get_level_values("group")
    assert pd.read_csv(out / "theory.csv").empty
    assert {path.name for path in out.glob("plots/*.png")} == {"layers.png", "turning.png"}


def test_what_a_bare_model_cannot_show_is_an_error(
    run: Run, encoder: Path, language_model: Path, tmp_path: Path
) -> None:
    assert_two_lines(run("layers", encoder), "vision encoder", "normprobe interface")
    assert_two_lines(run("layers", language_model), "language model", "--data text")
    assert_two_lines(run("interface", encoder, "--data", "text"), "vision encoder", "no images")
    assert_two_lines(run("embeddings", encoder, "-o", "out"), "no text embedding")
    assert not (tmp_path / "out").exists()


def test_the_map_of_an_encoder_is_that_of_its_stage(
    run: Run, encoder: Path, measured: Measured, tmp_path: Path
) -> None:
    options = ("--dtype", "float32", "-n", "2", "--map", "1")
    assert run("interface", encoder, *options, "-o", "alone").exit_code == 0
    alone, whole = (
        pd.read_csv(folder / "map.csv")
        for folder in (tmp_path / "alone", measured("interface", *options))
    )
    assert alone["stage"].unique().tolist() == [VISION_ENCODER]
    expected = whole[whole["stage"] == VISION_ENCODER]
    pd.testing.assert_frame_equal(alone, expected, rtol=1e-4)


def test_a_language_model_has_no_map_and_says_so(
    run: Run, language_model: Path, tmp_path: Path
) -> None:
    result = run("interface", language_model, *INTERFACE, "--map", "4", "-o", "alone")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("no map of decoder input: 0 visual tokens are too few") == 1
    assert not (tmp_path / "alone/map.csv").exists()
