"""A package that registers no class, writes into its config and loads a part inside of itself."""

import json
from pathlib import Path

import numpy as np
import pytest
from model.test_decoder_rows import IN_PLACE, SPECIAL, assert_right, groups_of, pictures, prompts
from safetensors.torch import save_file
from support.plain_modules import EYE, Plain, made
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    CLIPVisionConfig,
    CLIPVisionModel,
    LlavaConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from normprobe import NormprobeError, Probe
from normprobe.inputs.inputs_file import InputsFile
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.loading import load_model
from normprobe.remote_code_bridges import foreign_code
from normprobe.schema import VISION_LANGUAGE
from normprobe.versions import is_line_5


def setup() -> None:
    with foreign_code(True, []):  # as where an inputs file is read
        import support.unregistered_package  # noqa: F401


@pytest.fixture
def checkpoint(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, Plain]:
    """Its folder, and the module inside of it."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    tower = CLIPVisionModel(CLIPVisionConfig(hidden_size=EYE, image_size=8, patch_size=4, **sizes))
    tower.save_pretrained(tmp_path / "tower")
    setup()
    from support.unregistered_package import FOLDER, Tower

    FOLDER["root"] = tmp_path
    body = made(Plain)
    body.vision = Tower(str(tmp_path / "tower")).eval()
    weights = {f"body.{name}": value.contiguous() for name, value in body.state_dict().items()}
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["UnregisteredForCausalLM"],
        "mm_vision_tower": "tower",
        **request.param,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path, body


@pytest.mark.skipif(not is_line_5(), reason="4.57 has no class that became its own tower")
@pytest.mark.parametrize("checkpoint", [{"model_type": "llava"}, {}], indirect=True)
def test_what_setup_imports_is_found_by_its_name(checkpoint: tuple[Path, Plain]) -> None:
    folder, body = checkpoint
    with pytest.raises(NormprobeError, match=r"UnregisteredForCausalLM"):
        open_checkpoint(str(folder), trust_remote_code=True)
    file = InputsFile(setup=setup)
    opened = open_checkpoint(str(folder), trust_remote_code=True, inputs_file=file)
    assert (type(opened.config).__name__, opened.kind) == ("UnregisteredConfig", VISION_LANGUAGE)
    assert not opened.doubt  # the class that config.json names
    model = load_model(opened, device="cpu", dtype="float32")
    positions = model.body.vision.clip.embeddings.position_ids
    assert np.array_equal(positions, np.arange(5)[None])
    ids, mask = prompts(IN_PLACE, "right")
    inputs = {"input_ids": ids, "images": pictures(2), "attention_mask": mask}
    run = Probe(model, special_token_ids=SPECIAL).layers(inputs)
    expected = {"tokens": ids, "image": pictures(2).double(), "mask": mask}
    assert_right(body.double(), expected, groups_of(ids, mask), run.table)

    with foreign_code(True, []):  # the type is still that of transformers
        assert type(AutoConfig.for_model("llava")) is LlavaConfig


@pytest.mark.skipif(not is_line_5(), reason="4.57 has no class that became its own tower")
@pytest.mark.parametrize(
    "checkpoint",
    [{"model_type": "llava", "architectures": ["LlamaForCausalLM"]}],
    indirect=True,
)
def test_a_config_saved_over_that_of_its_base_names_the_class_of_that_one(
    checkpoint: tuple[Path, Plain],
) -> None:
    """Robin's folders: the type is that of the package, and setup() imports it."""
    folder, _ = checkpoint
    opened = open_checkpoint(
        str(folder), trust_remote_code=True, inputs_file=InputsFile(setup=setup)
    )
    assert (type(opened.config).__name__, opened.kind) == ("UnregisteredConfig", VISION_LANGUAGE)
    model = load_model(opened, device="cpu", dtype="float32")
    assert type(model).__name__ == "UnregisteredForCausalLM"


def test_of_two_classes_of_one_name_that_which_is_registered_for_the_type(tmp_path: Path) -> None:
    """MoCHA's package holds LLaVA's class, too, under the name of its own."""

    def a_class(kind: str) -> tuple[type, type]:
        config = type("TwiceConfig", (PretrainedConfig,), {"model_type": kind})
        return config, type("TwiceForCausalLM", (PreTrainedModel,), {"config_class": config})

    (own, its_model), (other, _) = a_class("twice-of-its-own"), a_class("twice-of-another")
    settings = {"model_type": "twice-of-its-own", "architectures": ["TwiceForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps({**settings, "mm_vision_tower": "tower"}))
    AutoConfig.register("twice-of-its-own", own)
    AutoModelForCausalLM.register(own, its_model)
    opened = open_checkpoint(
        str(tmp_path), trust_remote_code=True, inputs_file=InputsFile(setup=lambda: None)
    )
    assert type(opened.config) is own is not other
