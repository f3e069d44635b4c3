"""A class that marks images by negative ids, changes its inputs in place and prints while it runs.

Its config speaks of images in dicts alone, and its decoder layers return tuples.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from cli.conftest import assert_two_lines
from safetensors.torch import load_file
from support.flat import flat
from transformers import AutoModelForCausalLM
from typer.testing import Result

from normprobe import Probe, probe_interface, probe_layers
from normprobe.data.data_set import open_data
from normprobe.errors import NormprobeError
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.processor import load_processor
from normprobe.schema import PROJECTOR_INPUT, PROJECTOR_OUTPUT, STRUCTURAL, VISUAL

Run = Callable[..., Result]
Repository = Callable[[str], Path]

TRUST = "--trust-remote-code"
NAMES = {
    "vision_encoder": "picture.tower",
    "projector": "picture.projection",
    "text_embedding": "embed_tokens",
    "decoder_layers": "layers",
}
#: Rows of an image: two patches and a separator, twice.
SEPARATORS = [2, 5]


@pytest.fixture
def model_and_inputs(repository: Repository) -> tuple[Any, dict[str, Any]]:
    """The model as its class builds it, and a batch of two samples."""
    folder = repository("inplace")
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    processor = load_processor(str(folder), trust_remote_code=True)
    samples = list(open_data("sample", limit=2, seed=42))
    return model, dict(InputBuilder(processor).build(samples))


def expected(model: Any, inputs: Mapping[str, Any]) -> dict[tuple[int, str], tuple[int, float]]:
    """Count and mean norm of visual and structural rows by layer, in float64."""
    states: list[np.ndarray] = []
    hooks = [
        layer.register_forward_hook(
            lambda _, args, output: states.append(np.stack([args[0].numpy(), output[0].numpy()]))
        )
        for layer in model.layers
    ]
    copies = {name: value.clone() for name, value in inputs.items()}
    copies["pixel_values"] = copies["pixel_values"].double()
    with torch.no_grad():
        model.double()(**copies)
    model.float()
    for hook in hooks:
        hook.remove()
    of_image = (inputs["input_ids"] == -1).numpy()
    separator = np.zeros_like(of_image)
    for row, marked in zip(separator, of_image, strict=True):
        row[np.flatnonzero(marked)[SEPARATORS]] = True
    groups = {VISUAL: of_image & ~separator, STRUCTURAL: separator}
    layers = [states[0][0], *(pair[1] for pair in states)]
    return {
        (number, group): (int(mask.sum()), float(np.linalg.norm(state[mask], axis=-1).mean()))
        for number, state in enumerate(layers)
        for group, mask in groups.items()
    }


def assert_expected(table: pd.DataFrame, model: Any, inputs: Mapping[str, Any]) -> None:
    rows = flat(table).set_index(["layer", "group"])
    for key, (count, mean) in expected(model, inputs).items():
        assert rows.loc[key, "tokens"] == count, key
        assert rows.loc[key, "norm_mean"] == pytest.approx(mean, rel=2e-6), key


@pytest.mark.parametrize("size", ["1", "2"])
def test_layers_print_json_alone(
    size: str,
    run: Run,
    repository: Repository,
    tmp_path: Path,
    model_and_inputs: tuple[Any, dict[str, Any]],
) -> None:
    results = [
        run(
            "layers", repository("inplace"), TRUST, "-n2", "-b", size, "--format", "json", "-o", out
        )
        for out in ("one", "two", "three")
    ]
    for result in results:
        assert result.exit_code == 0, result.output
        assert "a message on stdout while the model runs" in result.stderr
        assert json.loads(result.stdout)["table"] == json.loads(results[0].stdout)["table"]
    assert json.loads((tmp_path / "one/run.json").read_text())["parts"] == NAMES
    assert_expected(pd.read_csv(tmp_path / "one/layers.csv"), *model_and_inputs)


def test_one_batch_in_python(model_and_inputs: tuple[Any, dict[str, Any]]) -> None:
    model, inputs = model_and_inputs
    before = {name: value.clone() for name, value in inputs.items()}
    traced = probe_layers(model, inputs)
    assert_expected(traced, model, inputs)
    named = {**NAMES, "positions": "perturbation"}
    pd.testing.assert_frame_equal(probe_layers(model, inputs, named=named), traced)
    run = Probe(model).layers(inputs)
    assert run.record["parts_found_by"] == "trace"
    assert_expected(run.table, model, inputs)
    stages = flat(probe_interface(model, inputs)).set_index(["stage", "group"])
    # The projector sees the separators as well, and they are told apart.
    for stage in (PROJECTOR_INPUT, PROJECTOR_OUTPUT):
        tokens = stages.loc[stage]["tokens"]
        assert (tokens[VISUAL], tokens[STRUCTURAL]) == (8, 4)
    for name, value in before.items():
        assert torch.equal(inputs[name], value), name


def test_an_image_that_is_left_out_is_told(model_and_inputs: tuple[Any, dict[str, Any]]) -> None:
    model, inputs = model_and_inputs
    del inputs["pixel_values"]
    with pytest.raises(NormprobeError, match="12 image placeholders, and the inputs no pixels"):
        probe_layers(model, inputs, named={**NAMES, "image_token_ids": (-1,)})


def test_inspect_calls_it_no_language_model(
    run: Run, repository: Repository, tmp_path: Path
) -> None:
    folder = repository("inplace")
    result = run("inspect", folder, TRUST)
    option = "add --part vision_encoder=NAME --part projector=NAME"
    command = f"normprobe inputs {folder} {TRUST} --write inputs.py"
    assert_two_lines(result, "speaks of images", "img_processor", "embd_layer", option, command)
    named = [f"--part={role}={name}" for role, name in NAMES.items()]
    result = run("inspect", folder, TRUST, *named, "--part=image_token_ids=-1")
    assert result.exit_code == 0, result.output
    assert "vision-language model" in result.stdout
    mine = tmp_path / "mine.py"  # a file may name other parts: what is typed wins
    mine.write_text(f"parts = {{'projector': {NAMES['vision_encoder']!r}}}\n")
    typed = (*named, "--part=image_token_ids=-1", "--inputs", mine, "--format", "json")
    found = json.loads(run("inspect", folder, TRUST, *typed).stdout)
    assert {row["part"]: row["name"] for row in found["parts"]}["projector"] == NAMES["projector"]
    result = run("layers", folder, TRUST, "--part", "kind=vision-encoder")
    assert_two_lines(result, "vision encoder", f"normprobe interface {folder} {TRUST}")


@pytest.fixture
def without_processor(repository: Repository, tmp_path: Path) -> Path:
    """The repository, whose preprocessor_config.json names a processor of another model."""
    folder = shutil.copytree(repository("inplace"), tmp_path / "without_processor")
    (folder / "processor_config.json").unlink()
    named = {"processor_class": "SiglipProcessor", "image_processor_type": "NoSuchProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(named))
    return folder


def test_embeddings_need_no_processor(run: Run, without_processor: Path, tmp_path: Path) -> None:
    result = run("embeddings", without_processor, TRUST, "-o", "out")
    assert result.exit_code == 0, result.output
    table = flat(pd.read_csv(tmp_path / "out/embeddings.csv")).set_index("rows")
    weight = load_file(without_processor / "model.safetensors")["embed_tokens.weight"]
    norms = np.linalg.norm(weight.double().numpy(), axis=-1)
    assert table.loc["all_rows", "norm_mean"] == pytest.approx(norms.mean(), rel=1e-6)
    tokens = pd.read_csv(tmp_path / "out/tokens.csv", keep_default_na=False)
    assert tokens["token"].str.len().gt(0).all()
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["weights"]["bytes"] == weight.nbytes  # and no more of the model


def test_embeddings_without_a_tokenizer_have_ids(
    run: Run, without_processor: Path, tmp_path: Path
) -> None:
    for file in without_processor.glob("*token*"):
        file.unlink()
    result = run("embeddings", without_processor, TRUST, "-o", "out")
    assert result.exit_code == 0, result.output
    notes = [line for line in result.stderr.splitlines() if "tokenizer" in line]
    assert len(notes) == 1
    assert "ids and no names" in notes[0]
    tokens = pd.read_csv(tmp_path / "out/tokens.csv", keep_default_na=False)
    assert (tokens["token"] == "").all()
    assert len(tokens) == 20


@pytest.mark.parametrize("line", ["import a_package_that_is_nowhere", "a_name_that_is_nowhere"])
@pytest.mark.parametrize(
    ("file", "before"),
    [
        ("configuration_inplace.py", "        self.vocab_size ="),
        ("modeling_inplace.py", "        self.picture ="),
        ("modeling_inplace.py", "        place ="),
    ],
    ids=["config", "build", "forward"],
)
def test_code_that_fails_is_told(
    file: str, before: str, line: str, run: Run, repository: Repository, tmp_path: Path
) -> None:
    folder = tmp_path / line.split()[-1]
    shutil.copytree(repository("inplace"), folder)
    text = (folder / file).read_text()
    assert before in text
    (folder / file).write_text(text.replace(before, f"        {line}\n{before}", 1))
    result = run("layers", folder, TRUST, "-n1")
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)  # and no other, whose traceback would show
    assert "nowhere" in result.stderr
