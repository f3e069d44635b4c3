"""What a script imports is bridged before it uses it; what it asks for by old names is there."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    DynamicCache,
    GenerationMixin,
    ImageProcessingMixin,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from normprobe.remote_code_bridges import foreign_code
from normprobe.remote_code_bridges.configs import bridge_own_flat_config
from normprobe.remote_code_bridges.layers import bridge_place_keyword
from normprobe.remote_code_bridges.model_classes import (
    bridge_answers,
    bridge_class_attributes,
    bridge_first_weights,
    bridge_generation,
    bridge_kinds_of_tokens,
    bridge_trust_keyword,
)
from normprobe.specimen import SPECIMEN_DIR
from normprobe.versions import is_line_5

_MODEL = """
from transformers import BertConfig, PretrainedConfig, PreTrainedModel
from torch import nn


class {name}Config(PretrainedConfig):
    model_type = "{name}"

    def __init__(self, sizes={{}}, **kwargs):
        super().__init__(**kwargs)


class {name}Model(PreTrainedModel):
    config_class = {name}Config

    def __init__(self, config):
        super().__init__(config)
        self.part = nn.Linear(2, 2)  # and no post_init, as before 4.4
"""


def _package(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / f"{name}.py").write_text(_MODEL.format(name=name.title().replace("_", "")))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return name


def test_a_class_of_a_package_is_bridged_once_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = _package(tmp_path, "made_at_once", monkeypatch)
    bridges: list[str] = []
    with foreign_code(True, bridges, at_once=True):
        module: Any = __import__(name)
        model = module.MadeAtOnceModel(module.MadeAtOnceConfig())
        attributes = dir(model)
    assert "get_head_mask" in attributes
    assert model.get_head_mask(None, 3) == [None] * 3


def test_a_mask_hides_as_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = _package(tmp_path, "made_to_hide", monkeypatch)
    with foreign_code(True, []):
        module: Any = importlib.import_module(name)
    model = module.MadeToHideModel(module.MadeToHideConfig())
    mask = torch.tensor([[1, 1, 0]])
    added = model.get_extended_attention_mask(mask, (1, 3))
    assert added.shape == (1, 1, 1, 3)
    assert added[0, 0, 0].tolist() == [0, 0, torch.finfo(torch.float32).min]


def test_what_asks_for_no_bits_is_loaded(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    BertModel(BertConfig(**sizes, intermediate_size=8, vocab_size=9)).save_pretrained(tmp_path)
    bridges: list[str] = []
    with foreign_code(True, bridges):
        BertModel.from_pretrained(tmp_path, load_in_8bit=False, load_in_4bit=False)
    assert {"load_in_8bit", "load_in_4bit"} <= set(bridges)


@pytest.mark.skipif(not is_line_5(), reason="transformers 4 asks for no base class")
def test_an_image_processor_need_not_be_of_the_base_class_of_transformers() -> None:
    class OwnPictureConfig(PretrainedConfig):
        model_type = "own_picture_config"

    class OwnPictures(ImageProcessingMixin):
        pass

    with pytest.raises(ValueError, match="must inherit from"):
        AutoImageProcessor.register(OwnPictureConfig, OwnPictures)
    bridges: list[str] = []
    with foreign_code(True, bridges):
        AutoImageProcessor.register(OwnPictureConfig, OwnPictures)
    assert bridges == ["AutoImageProcessor.register"]


def test_the_name_of_a_config_for_docstrings_is_there() -> None:
    with foreign_code(True, []):
        llama: Any = importlib.import_module("transformers.models.llama.modeling_llama")
        assert llama._CONFIG_FOR_DOC == "LlamaConfig"


def test_weights_are_begun_as_their_class_does() -> None:
    """LLaDA-o's takes no module, of which transformers asks for each."""

    class OwnBegun(PreTrainedModel):
        config_class = PretrainedConfig

        def _init_weights(self) -> None:
            raise AssertionError("nobody asked the whole model")

    bridge_first_weights(OwnBegun)
    model = OwnBegun(PretrainedConfig())
    model._init_weights(nn.Linear(1, 1))
    with pytest.raises(AssertionError, match="nobody asked"):
        model._init_weights()


def test_an_answer_may_be_asked_for_by_no_kind() -> None:
    class Answers:
        def generate(self, **given: Any) -> dict[str, Any]:
            return given

    bridge_answers(Answers)
    assert Answers().generate(return_dict=None, top_k=1) == {"top_k": 1}
    assert Answers().generate(return_dict=True) == {"return_dict": True}


def test_a_pattern_of_names_that_are_left_out_is_one_and_not_letters() -> None:
    class Ignores(PreTrainedModel):
        _keys_to_ignore_on_load_missing = r"image_tokenizer\.*"

    bridge_class_attributes(Ignores)
    assert Ignores._keys_to_ignore_on_load_missing == [r"image_tokenizer\.*"]


def test_what_processors_say_of_tokens_is_kept_from_code_that_takes_it_not() -> None:
    class Answers:
        def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None:
            if unknown := set(model_kwargs) - {"input_ids"}:
                raise ValueError(f"not used by the model: {unknown}")

    bridge_kinds_of_tokens(Answers)
    given = {"input_ids": 1, "mm_token_type_ids": 2}
    Answers()._validate_model_kwargs(given)
    assert given == {"input_ids": 1}
    with pytest.raises(ValueError, match="other"):
        Answers()._validate_model_kwargs({"other": 1})


@pytest.mark.skipif(not is_line_5(), reason="processors of transformers 4 do not say it")
def test_a_forward_gets_nothing_that_processors_say_of_tokens() -> None:
    class Reads(PreTrainedModel):
        def forward(self, input_ids: Any) -> Any:
            return input_ids

    bridge_place_keyword(Reads)
    assert Reads(PretrainedConfig())(input_ids=3, mm_token_type_ids=4) == 3
    with pytest.raises(TypeError, match="other"):
        Reads(PretrainedConfig())(input_ids=3, other=4)


def test_a_class_that_trusts_its_parts_is_not_told_to() -> None:
    class Loads(PreTrainedModel):
        @classmethod
        def from_pretrained(cls, path: str, **named: Any) -> Any:
            return dict(trust_remote_code=True, **named)

    bridge_trust_keyword(Loads)
    assert Loads.from_pretrained("a", trust_remote_code=True, b=1)["b"] == 1


def test_a_flat_config_is_that_of_its_language_model() -> None:
    class FlatConfig(PretrainedConfig):
        def __init__(self, vision_config: Any = None, num_hidden_layers: int = 2) -> None:
            super().__init__()
            self.vision_config, self.num_hidden_layers = vision_config, num_hidden_layers

    bridge_own_flat_config(FlatConfig)
    made = FlatConfig()
    assert made.text_config is made
    assert made.layer_types == ["full_attention"] * 2


@pytest.mark.skipif(is_line_5(), reason="one class by now, that tells its states")
def test_a_tower_by_itself_tells_its_hidden_states() -> None:
    torch.manual_seed(0)
    config = SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2
    )
    model = SiglipVisionModel(config).eval()
    pixels = torch.randn(1, 3, 224, 224)
    with foreign_code(True, []), torch.no_grad():
        whole = model(pixels, output_hidden_states=True)
        alone = model.vision_model(pixels, output_hidden_states=True)
    assert len(alone.hidden_states) == len(whole.hidden_states) == 4
    for ours, theirs in zip(alone.hidden_states, whole.hidden_states, strict=True):
        assert torch.equal(ours, theirs)


def test_names_that_went_are_found() -> None:
    with foreign_code(True, []):
        scope: dict[str, Any] = {}
        exec(
            "from transformers.modeling_utils import no_init_weights, restore_default_torch_dtype\n"
            "from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2RMSNorm",
            scope,
        )
        with scope["no_init_weights"](_enable=False):
            assert bool(nn.Linear(4, 4).weight.ne(0).any())
        assert scope["restore_default_torch_dtype"](len) is len
        assert scope["Qwen2RMSNorm"].__name__.endswith("RMSNorm")


def test_a_class_that_names_no_config_is_registered() -> None:
    class NamesNoneConfig(PretrainedConfig):
        model_type = "names_none_config"

    class NamesNone(PreTrainedModel):
        config_class = None

    NamesNone.config_class = None
    with foreign_code(True, []):
        AutoModel.register(NamesNoneConfig, NamesNone)
    assert NamesNone.config_class is NamesNoneConfig


def test_a_cache_that_holds_nothing_yet_is_false_and_any_mixin_has_no_state() -> None:
    with foreign_code(True, []):
        cache = DynamicCache(config=LlamaConfig(num_hidden_layers=2))
        assert not cache
        cache.update(torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 3, 4), 0)
        assert cache
        assert GenerationMixin._is_stateful is False  # type: ignore[attr-defined]


def test_a_class_that_asks_its_base_for_answers_has_one_that_gives_them() -> None:
    class Answers(PreTrainedModel):
        config_class = LlamaConfig

        def generate(self, *given: Any, **named: Any) -> Any:
            return super().generate(*given, **named)

    with foreign_code(True, []):
        bridge_generation(Answers)
    assert issubclass(Answers, GenerationMixin)


def test_a_tokenizer_is_loaded_by_the_name_of_its_argument() -> None:
    with foreign_code(True, []):
        found = AutoTokenizer.from_pretrained(pretrained_model_name_or_path=str(SPECIMEN_DIR))
    assert len(found) == len(AutoTokenizer.from_pretrained(SPECIMEN_DIR))


def test_a_module_that_code_forbids_to_import_is_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with foreign_code(True, []):
        monkeypatch.setitem(sys.modules, "forbidden_by_code", None)
