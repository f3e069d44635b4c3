"""What older code finds on transformers 5, bridge by bridge."""

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from inspect import signature
from io import BytesIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import sentencepiece
import torch
from safetensors.torch import save_file
from support.tiny_models import tiny_model
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    CLIPVisionConfig,
    CLIPVisionModel,
    DynamicCache,
    LlamaConfig,
    LlamaModel,
    LlavaConfig,
    MistralConfig,
    MistralModel,
    PretrainedConfig,
    PreTrainedModel,
    ProcessorMixin,
    Qwen2Config,
    Qwen2Model,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.clip.modeling_clip import CLIPEncoderLayer
from transformers.utils import import_utils

from normprobe import remote_code_bridges
from normprobe.remote_code_bridges import (
    attention,
    configs,
    layers,
    model_classes,
    moved_names,
    noted,
    processors,
)
from normprobe.versions import is_line_5


def older_config(**fields: Any) -> Any:
    """A config as code for transformers 4 writes them, bridged."""

    class OlderConfig(PretrainedConfig):
        model_type = "older"

        def __init__(self, rope_scaling: Any = None, rope_theta: float = 100.0, **kwargs: Any):
            self.rope_theta, self.rope_scaling = rope_theta, rope_scaling
            super().__init__(**kwargs)
            if self.rope_scaling is not None and self.rope_scaling.get("type") == "mrope":
                self.rope_scaling["type"] = "default"
                self.rope_scaling["rope_type"] = self.rope_scaling["type"]

    configs.bridge_rope_scaling(OlderConfig)
    configs.bridge_config_defaults(OlderConfig)
    return OlderConfig(**fields)


def test_a_config_has_the_fields_that_each_had() -> None:
    config = older_config()
    assert config.pad_token_id is None
    assert config.tie_word_embeddings is True
    assert older_config(pad_token_id=7).pad_token_id == 7
    assert older_config(tie_word_embeddings=False).tie_word_embeddings is False
    with pytest.raises(AttributeError, match="'OlderConfig' object has no attribute 'nonsense'"):
        config.nonsense  # noqa: B018


def test_plain_rotary_tables_have_no_scaling() -> None:
    assert older_config().rope_scaling is None
    assert older_config(rope_scaling={"type": "default"}).rope_scaling is None


@pytest.mark.skipif(not is_line_5(), reason="one field holds both since transformers 5")
def test_to_set_rope_scaling_to_none_leaves_the_table() -> None:
    """As the classes of LLaVA-NeXT and LongVA do while they are built."""
    config = type("Derived", (LlamaConfig,), {"model_type": "derived"})(rope_theta=77.0)
    configs.bridge_rope_scaling(type(config))
    config.rope_scaling = None
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 77.0}
    config.rope_scaling = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0}
    assert config.rope_parameters["factor"] == 2.0
    config.rope_scaling = None
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 5.0}


def test_what_is_loaded_before_there_is_memory_is_no_news(recwarn: Any) -> None:
    """Osprey loads its tower's file while it is built; the checkpoint's weights follow."""
    with remote_code_bridges.foreign_code(True, []):
        nn.Linear(2, 2, device="meta").load_state_dict(nn.Linear(2, 2).state_dict())
    assert not [each for each in recwarn if "no-op" in str(each.message)]


def test_rope_scaling_has_its_type_under_both_names() -> None:
    scaling = older_config(rope_scaling={"rope_type": "linear", "factor": 2.0}).rope_scaling
    assert (scaling["type"], scaling["rope_type"], scaling["factor"]) == ("linear", "linear", 2.0)


def test_what_older_code_writes_into_rope_scaling_stays() -> None:
    """As Keye-VL does: its sections stay, and its type becomes that of a plain table."""
    scaling = older_config(rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]}).rope_scaling
    assert scaling["type"] == scaling["rope_type"] == "default"
    assert scaling["mrope_section"] == [2, 3, 3]


def test_older_code_asks_for_plain_rotary_tables_by_none() -> None:
    """As the original LLaVA-NeXT and Oryx do, while their model is made."""
    config = older_config(rope_scaling={"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0})
    config.rope_scaling = None
    assert config.rope_scaling is None
    if is_line_5():
        assert config.rope_parameters["rope_type"] == "default"
        assert config.rope_parameters["rope_theta"] == 7.0


def test_a_copy_of_a_config_puts_the_token_of_the_hub_among_its_arguments(
    monkeypatch: Any,
) -> None:
    class Older(PretrainedConfig):
        pass

    monkeypatch.delattr(PretrainedConfig, "_set_token_in_kwargs", raising=False)
    configs.bridge_token_of_config(Older)
    Older._set_token_in_kwargs(arguments := {"revision": "main"})
    assert arguments == {"revision": "main"}


def test_plain_rotary_tables_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLaVA-OneVision-1.5's code outside of a repository."""
    code = "from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS\nclass Rotary: ...\n"
    (tmp_path / "of_plain_tables.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with remote_code_bridges.foreign_code(True, []):
        package = importlib.import_module("of_plain_tables")
    assert "default" in package.ROPE_INIT_FUNCTIONS


def test_the_function_of_plain_rotary_tables() -> None:
    module: Any = ModuleType("older")
    module.ROPE_INIT_FUNCTIONS = ROPE_INIT_FUNCTIONS
    configs.bridge_default_rope(module)
    config = older_config(hidden_size=64, num_attention_heads=4, partial_rotary_factor=0.5)
    table, factor = module.ROPE_INIT_FUNCTIONS["default"](config, "cpu")
    assert factor == 1.0
    np.testing.assert_allclose(table, [100.0 ** -(i / 8) for i in (0, 2, 4, 6)], rtol=1e-6)
    assert "default" not in ROPE_INIT_FUNCTIONS  # transformers itself would take it for its own


@pytest.mark.parametrize("installed", [False, True])
def test_flash_attention_is_asked_for_where_it_is(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_utils, "is_flash_attn_2_available", lambda: installed)
    config = older_config(attn_implementation="flash_attention_2")
    config.vision_config = older_config(attn_implementation="flash_attention_2")
    config.other = older_config(attn_implementation="sdpa")
    attention.bridge_missing_flash_attention(config)
    expected = "flash_attention_2" if installed else "eager"
    assert config._attn_implementation == config.vision_config._attn_implementation == expected
    assert config.other._attn_implementation == "sdpa"


def test_names_that_moved_or_went_are_found_where_older_code_imports_them(monkeypatch: Any) -> None:
    import transformers.modeling_utils as older
    from transformers import pytorch_utils

    names = ("apply_chunking_to_forward", "prune_linear_layer", "find_pruneable_heads_and_indices")
    for name in names:
        monkeypatch.delattr(older, name, raising=False)
    imported: dict[str, Any] = {}
    with remote_code_bridges.foreign_code(True, []):
        exec(f"from transformers.modeling_utils import {', '.join(names)}", imported)
    assert imported.keys() >= set(names)
    found: Any = vars(older)["apply_chunking_to_forward"]
    assert found is pytorch_utils.apply_chunking_to_forward


@pytest.mark.parametrize(
    ("home", "name"),
    [
        ("models.bloom.modeling_bloom", "_expand_mask"),
        ("models.opt.modeling_opt", "_make_causal_mask"),
        ("utils.hub", "is_remote_url"),
    ],
)
def test_names_that_are_imported_for_another_model_are_there(home: str, name: str) -> None:
    """LLaVA's code imports its MPT beside its Llama (TokenPacker)."""
    with remote_code_bridges.foreign_code(True, []):
        assert hasattr(importlib.import_module(f"transformers.{home}"), name)


@pytest.mark.parametrize(
    ("home", "name", "now"),
    [
        ("tokenization_utils", "PaddingStrategy", "PaddingStrategy"),
        ("tokenization_utils", "TruncationStrategy", "TruncationStrategy"),
        ("cache_utils", "HybridCache", "StaticCache"),
        ("models.siglip.modeling_siglip", "SiglipVisionTransformer", "SiglipVisionModel"),
        ("models.clip.modeling_clip", "_expand_mask", "_prepare_4d_attention_mask"),
        ("models.clip.modeling_clip", "clip_loss", "image_text_contrastive_loss"),
        ("deepspeed", "is_deepspeed_zero3_enabled", "is_deepspeed_zero3_enabled"),
        ("modeling_utils", "find_adapter_config_file", "find_adapter_config_file"),
        ("modeling_utils", "Conv1D", "Conv1D"),
        ("tokenization_utils", "TensorType", "TensorType"),
    ],
)
def test_a_name_stands_for_what_it_became(home: str, name: str, now: str) -> None:
    imported: dict[str, Any] = {}
    with remote_code_bridges.foreign_code(True, []):
        exec(f"from transformers.{home} import {name}", imported)
    assert imported[name].__name__ in (name, now)  # transformers 4 may have it still


@pytest.mark.parametrize(
    "name",
    [
        "AdamW",
        "AutoModelForVision2Seq",
        "CLIPFeatureExtractor",
        "LogitsWarper",
        "TRANSFORMERS_CACHE",
        "ViTFeatureExtractor",
    ],
)
def test_what_transformers_itself_held_is_imported_from_there(name: str) -> None:
    """VideoLLaMA2 imports where the cache lies, MiniCPM-o what its sampling is derived from."""
    with remote_code_bridges.foreign_code(True, []):
        exec(f"from transformers import {name}", {})


def test_a_part_of_transformers_own_says_where_its_rotary_tables_begin() -> None:
    """Phantom's code reads it of the Qwen2 config inside its own."""

    class Around(PretrainedConfig):
        model_type = "around"

        def __init__(self, **kwargs: Any) -> None:
            self.inside = LlamaConfig(rope_theta=77.0)
            super().__init__(**kwargs)

    Around.__module__ = "foreign.around"
    remote_code_bridges._bridge_class(Around)
    assert Around().inside.rope_theta == 77.0


def test_no_scaling_that_is_written_into_a_config_leaves_its_plain_tables() -> None:
    """H2OVL updates the config of its decoder with what its file says: rope_scaling null."""
    config = LlamaConfig(rope_theta=77.0)
    with remote_code_bridges.foreign_code(True, []):
        config.update({"rope_scaling": None, "hidden_size": 8})
        if is_line_5():
            assert config.rope_parameters == {"rope_theta": 77.0, "rope_type": "default"}
        config.update({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}})
    assert config.rope_scaling["factor"] == 2.0


def test_a_cache_of_tuples_is_one_of_today() -> None:
    with remote_code_bridges.foreign_code(True, []):
        assert not DynamicCache.from_legacy_cache(None).get_seq_length()
        keys = [torch.randn(2, 4, rows, 8) for rows in (3, 3)]
        cache: Any = DynamicCache.from_legacy_cache([(each, 2 * each) for each in keys])
        assert cache.get_usable_length(5, 1) == cache.get_seq_length(1) == 3
        found, _ = cache.update(keys[1], keys[1], 1)
    assert torch.equal(found, torch.cat([keys[1], keys[1]], dim=2))


def test_a_type_that_transformers_took_since_stays_its_own() -> None:
    """A package that registers it is imported nevertheless (Video-LLaVA); its classes are named."""

    class Older(LlamaConfig):
        model_type = "llava"

    notes: list[str] = []
    with remote_code_bridges.foreign_code(True, notes):
        AutoConfig.register("llava", Older)
        with pytest.raises(ValueError, match="model_type"):  # a mistake stays one
            AutoConfig.register("free", Older)
    assert notes == ["AutoConfig.register('llava')"]
    assert CONFIG_MAPPING["llava"] is LlavaConfig
    with pytest.raises(ValueError, match="already used"):
        AutoConfig.register("llava", Older)


def test_a_type_of_two_classes_of_a_package_is_that_of_the_last() -> None:
    """As before (Vary registers one of an OPT, and one of a Qwen)."""
    first, last = (type("Own", (PretrainedConfig,), {"model_type": "of_two"}) for _ in range(2))
    notes: list[str] = []
    with remote_code_bridges.foreign_code(True, notes):
        AutoConfig.register("of_two", first)
        AutoConfig.register("of_two", last)
    assert CONFIG_MAPPING["of_two"] is last
    assert notes == []
    vars(CONFIG_MAPPING)["_extra_content"].pop("of_two")


def test_each_attention_is_the_one_that_is_left() -> None:
    with remote_code_bridges.foreign_code(True, []):
        module = importlib.import_module("transformers.models.llama.modeling_llama")
        classes = module.LLAMA_ATTENTION_CLASSES
    assert classes["sdpa"] is classes["eager"] is module.LlamaAttention
    assert module.LlamaSdpaAttention is module.LlamaFlashAttention2 is module.LlamaAttention


def test_a_list_or_dict_of_a_config_class_stays_its_attribute() -> None:
    needed: list[str] = []
    with remote_code_bridges.foreign_code(True, needed):

        class Listed(PretrainedConfig):
            model_type = "listed"
            sizes: list = [1, 2]  # noqa: RUF012
            vision: dict = {"depth": 3}  # noqa: RUF012
            width: int = 7

            def __init__(self, width: int = 7, **kwargs: Any) -> None:
                super().__init__(**kwargs)
                self.width = width

    config = Listed(width=9)
    assert (config.sizes, config.vision, config.width) == ([1, 2], {"depth": 3}, 9)
    assert needed == (["mutable defaults"] if is_line_5() else [])


@pytest.mark.parametrize(
    ("keys", "made_by"),
    [
        (["AutoModelForVision2Seq"], "AutoModelForVision2Seq"),
        (["AutoModelForVision2Seq", "AutoModelForCausalLM"], None),
        (["AutoModel"], None),
    ],
)
def test_a_key_of_an_older_auto_class_is_that_of_its_heir(
    keys: list[str], made_by: str | None
) -> None:
    config: Any = SimpleNamespace(auto_map={key: f"modeling.{key}" for key in keys})
    configs.bridge_auto_map(config)
    found = config.auto_map.get("AutoModelForImageTextToText")
    assert found == (None if made_by is None else f"modeling.{made_by}")


def test_a_generation_setting_is_in_a_config_only_while_older_code_runs() -> None:
    config = older_config()
    with remote_code_bridges.foreign_code(True, []):
        assert config.max_length == 20
    assert not hasattr(config, "max_length")  # transformers refuses to save a config that has it


def test_a_generation_setting_of_the_file_is_read_by_older_code() -> None:
    config = older_config(max_length=4096)
    with remote_code_bridges.foreign_code(True, []):
        assert config.max_length == 4096
    assert not hasattr(config, "max_length")


@pytest.mark.skipif(not is_line_5(), reason="memory without values since transformers 5")
def test_what_older_code_loads_itself_keeps_its_buffers(tmp_path: Path) -> None:
    class Older(PreTrainedModel):
        config_class = PretrainedConfig
        _keys_to_ignore_on_load_missing = ("bias",)

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.read = nn.Linear(64, 64, bias=False)
            self.bias = nn.Parameter(torch.full((4096,), 5.0))
            self.register_buffer("saved", torch.arange(4096).expand(1, -1))
            self.register_buffer("unsaved", torch.arange(4096), persistent=False)
            self.post_init()

        def _init_weights(self, module: Any) -> None:
            pass

    remote_code_bridges._bridge_class(Older)
    built = Older(PretrainedConfig())
    built.config.save_pretrained(tmp_path)
    save_file({"read.weight": built.read.weight.detach()}, tmp_path / "model.safetensors")
    loaded = Older.from_pretrained(tmp_path)
    assert torch.equal(loaded.read.weight, built.read.weight)
    assert loaded.saved[0].tolist() == loaded.unsaved.tolist() == [*range(4096)]
    assert not loaded.bias.any()


def test_every_model_has_what_all_models_had(monkeypatch: Any) -> None:
    monkeypatch.delattr(PreTrainedModel, "get_head_mask", raising=False)
    model_classes.bridge_model_attributes(PreTrainedModel)
    model: Any = object.__new__(type("Older", (PreTrainedModel,), {}))
    assert vars(PreTrainedModel)["get_head_mask"](model, None, 3) == [None, None, None]


def test_a_mask_is_inverted_as_every_model_could(monkeypatch: Any) -> None:
    monkeypatch.delattr(PreTrainedModel, "invert_attention_mask", raising=False)
    model_classes.bridge_model_attributes(PreTrainedModel)
    invert = vars(PreTrainedModel)["invert_attention_mask"]
    kept, least = torch.tensor([[1, 1, 0]]), torch.finfo(torch.float32).min
    found = invert(SimpleNamespace(dtype=torch.float32), kept)
    assert found.tolist() == [[[[0.0, 0.0, least]]]]
    assert invert(SimpleNamespace(dtype=torch.float32), kept[:, None]).shape == (1, 1, 1, 3)


@pytest.mark.skipif(not is_line_5(), reason="what transformers 5 passes")
def test_a_processor_that_loads_its_parts_by_their_path() -> None:
    class Older(ProcessorMixin):
        @classmethod
        def _get_arguments_from_pretrained(cls, path: str, **options: Any) -> Any:
            return cls.__name__, path, options

    processors.bridge_processor_parts(Older)
    load: Any = Older._get_arguments_from_pretrained
    assert load("folder", {"a": 1}, revision="main") == ("Older", "folder", {"revision": "main"})
    processors.bridge_processor_parts(Older)  # once
    assert load("folder", {}) == ("Older", "folder", {})


@pytest.mark.skipif(not is_line_5(), reason="what transformers 5 passes")
def test_a_processor_that_lists_its_parts_keeps_others_by_itself(monkeypatch: Any) -> None:
    """As that of the original Emu3, whose image tokenizer is a model."""

    class Parts(ProcessorMixin):
        pass

    class Older(Parts):
        attributes: ClassVar = ["image_processor", "tokenizer"]

        def __init__(
            self, image_processor: Any = None, vision_tokenizer: Any = None, tokenizer: Any = None
        ) -> None:
            self.vision_tokenizer = vision_tokenizer
            super().__init__(image_processor, tokenizer)

    monkeypatch.setattr(Parts, "check_argument_for_proper_class", lambda *_: None)
    processors.bridge_listed_parts(Parts)
    made = Older("images", "codes", "words")
    assert (made.image_processor, made.tokenizer) == ("images", "words")  # type: ignore[attr-defined]
    assert made.vision_tokenizer == "codes"
    assert Parts.get_attributes() == ProcessorMixin.get_attributes()


@pytest.mark.skipif(not is_line_5(), reason="one class since transformers 5")
def test_a_tower_that_became_its_own_model() -> None:
    class Tower(nn.Module):
        pass

    layers.bridge_tower_inside(Tower)
    tower: Any = Tower()
    assert tower.vision_model is tower
    assert [*tower.modules()] == [tower]
    tower.vision_model = inside = nn.Linear(1, 1)
    assert tower.vision_model is inside


@pytest.mark.skipif(not is_line_5(), reason="one class since transformers 5")
def test_a_tower_whose_forward_calls_the_one_inside_runs_what_it_overrides() -> None:
    """Elysium's returns the last state alone; the tower inside was another module for it."""

    class Base(nn.Module):
        width = 3

        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [x + 1]

    class Derived(Base):
        def forward(self, x: torch.Tensor) -> Any:
            assert self.vision_model.width == 3
            return self.vision_model(x)[0]

    layers.bridge_tower_inside(Base)
    assert Derived()(torch.zeros(1)).item() == 1
    plain: Any = Base()
    assert plain.vision_model is plain


def test_flash_attention_that_a_part_asks_for_is_eager_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """360VL and Eagle 2.5 say so in code, where no config tells it."""
    monkeypatch.setattr(import_utils, "is_flash_attn_2_available", lambda: False)
    config = CLIPVisionConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    config._attn_implementation = "flash_attention_2"
    with pytest.raises(ImportError):
        CLIPVisionModel(config)
    notes: list[str] = []
    with remote_code_bridges.foreign_code(True, notes):
        config._attn_implementation = "flash_attention_2"
        tower = CLIPVisionModel(config)
    assert tower.config._attn_implementation == "eager"
    assert "eager attention (flash_attn is not installed)" in notes


def test_a_rank_that_is_asked_of_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """EgoGPT prints which process loads its ears."""
    notes: list[str] = []
    with remote_code_bridges.foreign_code(True, notes):
        assert torch.distributed.get_rank() == 0
        assert torch.distributed.get_world_size() == 1
    assert "torch.distributed" in notes
    with remote_code_bridges.foreign_code(True, []):
        pass
    assert torch.distributed.get_rank.__wrapped__.__module__ != remote_code_bridges.__name__


def test_an_import_that_asks_for_all_messages_is_forgotten() -> None:
    """Elysium's: hundreds of lines would follow."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    with remote_code_bridges.foreign_code(True, []):
        logging.set_verbosity_debug()
    assert logging.get_verbosity() == before


@pytest.mark.skipif(not is_line_5(), reason="one class since transformers 5")
def test_a_tower_of_a_derived_class_reads_weights_by_their_older_names() -> None:
    config = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 2, "image_size": 4, "patch_size": 2}

    class TowerOfSomebody(CLIPVisionModel):
        pass

    class Older(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.seen = TowerOfSomebody(CLIPVisionConfig(**config.tower))

    for older in (TowerOfSomebody, Older):
        remote_code_bridges._bridge_class(older)
    model = Older(PretrainedConfig(tower=config))
    weights = {name: torch.full_like(weight, 3.0) for name, weight in model.named_parameters()}
    released = {name.replace("seen.", "seen.vision_model."): w for name, w in weights.items()}
    loaded, report = Older.from_pretrained(
        None, config=model.config, state_dict=released, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert {w.unique().item() for w in loaded.parameters()} == {3.0}


def test_a_config_that_needs_those_of_its_parts_is_printed() -> None:
    class Older(PretrainedConfig):
        is_composition = True

        def __init__(self, part: Any, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.part = part

    remote_code_bridges._bridge_class(Older)
    assert '"part": 3' in str(Older(3))


@pytest.mark.skipif(not is_line_5(), reason="post_init is needed since transformers 5")
def test_weights_that_older_code_initialises_before_it_is_finished() -> None:
    class Older(PreTrainedModel):
        config_class = PretrainedConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.read = nn.Linear(2, 2)
            self.init_weights()

        def _init_weights(self, module: Any) -> None:
            if isinstance(module, nn.Linear):
                nn.init.constant_(module.weight, 3.0)

    remote_code_bridges._bridge_class(Older)
    assert Older(PretrainedConfig()).read.weight.unique().tolist() == [3.0]


def test_a_config_class_that_inherits_its_init_keeps_it() -> None:
    """Such as one that names another type (Vary): transformers 5 makes one of its fields."""
    notes: list[str] = []
    with remote_code_bridges.foreign_code(True, notes):

        class Written(PretrainedConfig):
            model_type = "written"

            def __init__(self, width: int = 7, **kwargs: Any) -> None:
                super().__init__(**kwargs)
                self.width = width

        class Heir(Written):
            model_type = "heir"

        class Fields(LlamaConfig):
            model_type = "fields"

    assert Heir().width == 7
    assert Heir(width=9, pad_token_id=3).to_dict()["width"] == 9
    assert Fields(hidden_size=8, other=2).other == 2
    assert notes == (["inherited __init__"] if is_line_5() else [])


def test_a_model_is_offered_for_a_config_class_whose_name_transformers_has() -> None:
    """VILA has its own ``SiglipVisionConfig``, and offers a tower for it."""
    config = type("SiglipVisionConfig", (PretrainedConfig,), {"model_type": "of_a_package"})
    model = type("Tower", (PreTrainedModel,), {"config_class": config})
    with pytest.raises(ValueError, match="already used"):
        AutoModel.register(config, model)
    with remote_code_bridges.foreign_code(True, []):
        AutoModel.register(config, model)
    offered: Any = vars(AutoModel)["_model_mapping"]
    assert offered._extra_content.pop(config) is model


def test_weights_may_stay_as_they_are_made() -> None:
    with remote_code_bridges.foreign_code(True, []):
        without = vars(importlib.import_module("transformers.modeling_utils"))["no_init_weights"]
    weight = torch.ones(2)
    with without(_enable=True):
        torch.nn.init.zeros_(weight)
    assert weight.sum() == 2
    with without(_enable=False):
        torch.nn.init.zeros_(weight)
    assert weight.sum() == 0


def test_a_tower_inside_a_decoder_returns_each_state_once() -> None:
    """transformers 5 watches it anew when states of the decoder are asked for (NExT-Chat)."""
    tower = tiny_model("clip_vision_model")
    decoder = tiny_model("llama").model
    decoder.tower = tower
    pixels = torch.ones(1, 3, *[tower.config.image_size] * 2)
    layers.bridge_capturing()
    layers.bridge_capturing()
    with torch.no_grad():
        for _ in range(2):
            states = tower(pixels, output_hidden_states=True).hidden_states
            assert len(states) == tower.config.num_hidden_layers + 1
            asked = decoder(torch.ones(1, 3).long(), output_hidden_states=True).hidden_states
            assert len(asked) == decoder.config.num_hidden_layers + 1


def test_a_part_that_is_moved_while_it_is_made_stays_without_memory() -> None:
    notes: list[str] = []
    with remote_code_bridges.foreign_code(True, notes), torch.device("meta"):
        moved = nn.Linear(2, 2).to("cpu")
        cast = nn.Linear(2, 2).to("cpu", torch.float16)
        assert nn.Linear(2, 2, device="cpu").to(torch.float64).weight.dtype == torch.float64
    assert moved.weight.is_meta and moved.weight.dtype == torch.float32
    assert cast.weight.is_meta and cast.weight.dtype == torch.float16
    assert notes == ["Module.to"]
    with pytest.raises(NotImplementedError):
        moved.to("cpu")


def test_a_tied_name_that_no_weight_has_is_passed_over() -> None:
    """Florence-2's list names an encoder's table that its text model lacks."""
    model = tiny_model("llama")
    model._tied_weights_keys = ["lm_head.weight", "encoder.embed_tokens.weight"]
    model.config.tie_word_embeddings = True
    model_classes.bridge_tied_keys(model)
    assert model._tied_weights_keys == {"lm_head.weight": "model.embed_tokens.weight"}


def test_weights_of_a_model_inside_a_plain_module_stay_tied() -> None:
    """StarVector's head, which no file holds: transformers 5 asks the children of a model alone."""
    inner = tiny_model("llama")
    inner.all_tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    outer = nn.Module()
    outer.holder = nn.ModuleDict({"language": inner})
    outer.all_tied_weights_keys = {"a": "b"}
    model_classes.bridge_nested_ties(outer)
    name = "holder.language"
    assert outer.all_tied_weights_keys == {
        "a": "b",
        f"{name}.lm_head.weight": f"{name}.model.embed_tokens.weight",
    }


def test_a_plain_rotary_module_has_the_method_that_its_loader_asks_for() -> None:
    """Code of PaddleOCR-VL has the type ``default``, and keeps its table twice."""

    class RotaryEmbedding(nn.Module):
        original_inv_freq = torch.zeros(2)

    class Scaled(RotaryEmbedding):
        compute_default_rope_parameters = "its own"

    rotary = RotaryEmbedding()
    Scaled.__name__ = "ScaledRotaryEmbedding"
    model = nn.ModuleList([rotary, Scaled(), nn.Linear(1, 1)])
    configs.bridge_rotary_modules(model)
    config = LlamaConfig(hidden_size=8, num_attention_heads=2)
    config.rope_theta = 100.0
    frequencies, factor = rotary.compute_default_rope_parameters(config)
    assert frequencies.tolist() == pytest.approx([1.0, 0.1]) and factor == 1.0
    assert model[1].compute_default_rope_parameters == "its own"


def test_a_tower_is_made_with_the_older_keyword_of_flash_attention() -> None:
    """NativeRes-LLaVA's own code makes its tower so."""

    class Tower(LlamaModel):
        pass

    Tower.__module__ = "foreign.tower"
    noted: list[str] = []
    with remote_code_bridges.foreign_code(True, noted):
        remote_code_bridges._bridge_class(Tower)
        config = LlamaConfig(
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            vocab_size=9,
        )
        made = Tower._from_config(config, use_flash_attention_2=True)
    assert type(made) is Tower
    assert "use_flash_attention_2" in noted
    with pytest.raises(TypeError, match="use_flash_attention_2"):
        LlamaModel._from_config(config, use_flash_attention_2=True)


SENTENCES = ["Is there a cat in the picture?", "a dog and a cat", "the end of a line, then another"]


@pytest.fixture(scope="session")
def only_pieces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The tokenizer of a folder as LLaVA's own code was released: a SentencePiece file alone."""
    folder, file = tmp_path_factory.mktemp("pieces"), BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3),
        model_writer=file,
        model_type="bpe",
        vocab_size=320,
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(file.getvalue())
    files = {
        "config.json": {"model_type": "llava", "architectures": ["LlavaLlamaForCausalLM"]},
        "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "legacy": False},
    }
    for name, fields in files.items():
        (folder / name).write_text(json.dumps(fields), encoding="utf-8")
    yield folder


@pytest.mark.parametrize("trusted", [True, False])
def test_pieces_that_stand_alone_are_read_as_their_library_does(only_pieces: Path, trusted) -> None:
    """LLaVA 1.5: without the space that opens a text each prompt has other ids."""
    pieces = sentencepiece.SentencePieceProcessor(str(only_pieces / "tokenizer.model"))
    bridges: list[str] = []
    with remote_code_bridges.foreign_code(trusted, bridges):
        tokenizer = AutoTokenizer.from_pretrained(only_pieces)
    said = [tokenizer(text, add_special_tokens=False).input_ids for text in SENTENCES]
    assert (said == pieces.encode(SENTENCES)) == (trusted or not is_line_5())
    assert bridges == ["LlamaTokenizer by its name"] * (trusted and is_line_5())


def test_other_tokenizers_are_as_transformers_reads_them(only_pieces: Path, tmp_path: Path) -> None:
    with remote_code_bridges.foreign_code(True, []):
        AutoTokenizer.from_pretrained(only_pieces).save_pretrained(tmp_path)  # a tokenizer.json
        (tmp_path / "config.json").write_bytes((only_pieces / "config.json").read_bytes())
        bridges: list[str] = []
        with remote_code_bridges.foreign_code(True, bridges):
            again = AutoTokenizer.from_pretrained(tmp_path)
    assert not bridges
    assert type(again) is type(AutoTokenizer.from_pretrained(tmp_path))


def test_modules_that_a_copy_lacks_are_kept_in_no_dtype() -> None:
    """Husky's vision model names one of T5; transformers 4.57 refuses it."""

    class Keeping(PreTrainedModel):
        config_class = PretrainedConfig
        _keep_in_fp32_modules: ClassVar = ["wo", "read"]

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.read = nn.Linear(2, 2)
            self.post_init()

    if not is_line_5():
        with pytest.raises(ValueError, match="wo was specified"):
            Keeping(PretrainedConfig())
        remote_code_bridges._bridge_class(Keeping)
    assert set(Keeping(PretrainedConfig())._keep_in_fp32_modules) >= {"read"}


def test_older_code_asks_for_the_first_flash_attention() -> None:
    """EmbodiedGPT's; there is none of it here."""
    for module_name, name, there in moved_names.MOVED:
        if name == "is_flash_attn_available":
            moved_names.bridge_moved_name(module_name, name, there)
            assert not importlib.import_module(module_name).is_flash_attn_available()
            return
    pytest.fail("no such bridge")


def _older_loop(model: Any, ids: torch.Tensor, mask: torch.Tensor, use_cache: bool) -> torch.Tensor:
    """As transformers 4.37 ran its decoder layers, which copies of it do still."""
    states = model.embed_tokens(ids)
    cache = DynamicCache() if use_cache else None
    places = torch.arange(ids.shape[1])[None]
    masks = model._update_causal_mask(mask, states, places[0], cache, False)
    for layer in model.layers:
        left = layer(
            states,
            attention_mask=masks,
            position_ids=places,
            past_key_value=cache,
            output_attentions=False,
            use_cache=use_cache,
        )
        states = left[0]
        if use_cache:
            assert left[1] is cache
    return model.norm(states)


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize(
    ("config_class", "model_class"),
    [(LlamaConfig, LlamaModel), (MistralConfig, MistralModel), (Qwen2Config, Qwen2Model)],
)
def test_decoder_layers_run_as_older_code_calls_them(
    config_class: Any, model_class: Any, use_cache: bool
) -> None:
    """Copies of a decoder's forward pass no tables, and take a tuple (DeepStack, ViSpeak)."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 20}
    model = model_class(config_class(**sizes, attn_implementation="eager")).eval()
    ids, mask = torch.arange(12).view(2, 6), torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).last_hidden_state
        bridges: list[str] = []
        with remote_code_bridges.foreign_code(True, bridges):
            found = _older_loop(model, ids, mask, use_cache)
        again = model(ids, attention_mask=mask).last_hidden_state
    assert torch.equal(again, expected)
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-6)
    assert f"{model_class.__name__[:-5]}DecoderLayer without rotary tables" in bridges
    assert not [name for name, _ in model.named_modules() if "normprobe" in name]


def test_layers_of_a_tower_run_as_older_code_calls_them() -> None:
    torch.manual_seed(0)
    config = CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    config._attn_implementation = "eager"
    with remote_code_bridges.foreign_code(True, []):
        layer = CLIPEncoderLayer(config).eval()
        state = torch.randn(2, 5, 16)
        with torch.no_grad():
            by_place = layer(state, None, None)
            by_name = layer(state, attention_mask=None, causal_attention_mask=None)
            today = layer(state, None) if is_line_5() else layer(state, None, None)[0]
    assert isinstance(by_place, tuple) and isinstance(by_name, tuple)
    assert torch.equal(by_place[0], today) and torch.equal(by_name[0], today)


def test_a_forward_of_older_code_is_not_told_where_its_rows_are() -> None:
    class Copied(LlamaModel):
        def forward(self, input_ids: Any = None, use_cache: Any = None) -> Any:
            return self.embed_tokens(input_ids)

    config = LlamaConfig(vocab_size=9, hidden_size=32, num_attention_heads=4, num_hidden_layers=1)
    layers.bridge_place_keyword(Copied)
    assert list(signature(Copied.forward).parameters) == ["self", "input_ids", "use_cache"]
    model = Copied(config)
    with nullcontext() if not is_line_5() else pytest.raises(TypeError):  # 5 tells nobody
        model(input_ids=torch.arange(3)[None], cache_position=torch.arange(3))


@pytest.mark.parametrize("name", ["LLAMA_INPUTS_DOCSTRING", "QWEN2_START_DOCSTRING"])
def test_a_docstring_that_a_copy_of_a_model_imports_is_there(name: str) -> None:
    with remote_code_bridges.foreign_code(True, []):
        module = importlib.import_module(moved_names.modeling(name.split("_")[0]))
    assert isinstance(getattr(module, name), str)


def test_classes_of_an_import_that_failed_are_bridged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another import, with what lacked, finds its modules as they are (VisCoT)."""
    monkeypatch.syspath_prepend(tmp_path)
    inner = (
        "from transformers import PretrainedConfig\n\n\nclass Inner(PretrainedConfig):\n    pass\n"
    )
    (tmp_path / "half_imported_inner.py").write_text(inner)
    (tmp_path / "half_imported.py").write_text("import half_imported_inner\nimport of_nobody\n")
    with pytest.raises(ImportError), remote_code_bridges.foreign_code(True, []):
        importlib.import_module("half_imported")
    kept = sys.modules.pop("half_imported_inner").Inner
    assert noted.BRIDGED in vars(kept)


def test_a_class_that_a_package_put_there_keeps_its_forward(monkeypatch: Any) -> None:
    """DocOwl sets its own decoder layer in the module of Llama: it makes its tables itself."""

    class Layer(nn.Module):
        def forward(self, hidden_states: Any, position_ids: Any = None) -> tuple[Any]:
            return (hidden_states,)

    module = importlib.import_module(moved_names.modeling("Llama"))
    own = Layer.forward
    monkeypatch.setattr(module, "LlamaDecoderLayer", Layer)
    with remote_code_bridges.foreign_code(True, []):
        assert Layer.forward is own


def test_all_public_names_are_imported_by_a_star(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules of transformers list few of theirs by now (mPLUG-Owl2, DocOwl)."""
    monkeypatch.syspath_prepend(tmp_path)
    place = moved_names.modeling("Llama")
    star = f"from {place} import *\nfound = BaseModelOutputWithPast, LlamaMLP\n"
    (tmp_path / "imports_a_star.py").write_text(star)
    with remote_code_bridges.foreign_code(True, []):
        assert importlib.import_module("imports_a_star").found


def test_names_of_types_come_with_a_star_and_dataclasses_begin_as_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Python 3.10 and older transformers (MiniGPT-5, Grounded-VideoLLM)."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "as_it_was_in_3_10.py").write_text(
        "from dataclasses import dataclass\n"
        "from transformers.generation.utils import *\n\n"
        "@dataclass\nclass Slot:\n    text: str = 'a'\n\n"
        "@dataclass\nclass Template:\n    slot: Slot = Slot('b')\n\n"
        "def ask(words: List[Union[str, int]], to: Optional[Dict] = None) -> Tuple: ...\n"
    )
    bridged: list[str] = []
    with remote_code_bridges.foreign_code(True, bridged):
        module = importlib.import_module("as_it_was_in_3_10")
    assert module.Template().slot == module.Slot("b")
    assert "defaults of dataclasses" in bridged


def test_a_table_that_grows_while_it_is_made_has_no_mean_without_memory() -> None:
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
    with remote_code_bridges.foreign_code(True, []), torch.device("meta"):
        model = LlamaModel(LlamaConfig(vocab_size=9, **sizes))
        model.resize_token_embeddings(11)
    assert model.get_input_embeddings().weight.shape == (11, 32)


class _Masking(LlamaModel):
    def _update_causal_mask(self, *_: Any) -> None: ...


class _Calling(_Masking):
    def forward(self, ids: Any) -> Any:
        return self._update_causal_mask(ids)


@pytest.mark.parametrize("kind", [LlamaModel, _Masking, _Calling])
def test_a_mask_that_code_overrides_and_nothing_makes_is_told(kind: Any) -> None:
    """ET Chat lets rows of a picture see each other so, in older transformers."""
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
    model = nn.Sequential(kind(LlamaConfig(vocab_size=9, **sizes)))
    told = attention.uncalled_masks(model)
    assert told == (["_Masking._update_causal_mask"] if kind is _Masking else [])


def test_weights_that_code_draws_on_the_cpu_have_no_memory_while_it_is_made() -> None:
    weight = torch.ones(3)
    with remote_code_bridges.foreign_code(True, []):
        empty = torch.empty(3, device="meta")
        assert empty.cpu() is empty
        assert torch.equal(weight.cpu(), weight)


@pytest.mark.parametrize("name", ["is_torchdynamo_compiling", "QuantizedCacheConfig"])
def test_what_a_copy_of_generate_imports_is_there(name: str) -> None:
    with remote_code_bridges.foreign_code(True, []):
        found = getattr(importlib.import_module("transformers.generation.utils"), name)
    assert not name.startswith("is_") or not found()


def test_a_config_without_a_spread_of_weights_has_one() -> None:
    with remote_code_bridges.foreign_code(True, []):
        assert PretrainedConfig().initializer_range == 0.02
    assert LlamaConfig(initializer_range=0.5).initializer_range == 0.5
    assert "initializer_range" not in PretrainedConfig().to_dict()


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl"])
def test_a_block_makes_its_rotary_tables_of_angles(kind: str) -> None:
    """Kanana-V runs the blocks of Qwen2-VL's tower by itself."""
    torch.manual_seed(0)
    module: Any = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    sizes = {"embed_dim": 16, "hidden_size": 16, "num_heads": 2, "mlp_ratio": 2, "depth": 1}
    config_class = getattr(module, layers.BLOCKS[kind].replace("VisionBlock", "VisionConfig"))
    config = config_class(**sizes, intermediate_size=32)
    config._attn_implementation = "eager"
    with remote_code_bridges.foreign_code(True, []):
        turn = module.VisionRotaryEmbedding(4)
        block = getattr(module, layers.BLOCKS[kind])(config).eval()
        angles = turn(6)[:, None].expand(-1, 2, -1).flatten(1)
        state, cuts = torch.randn(6, 16), torch.tensor([0, 6], dtype=torch.int32)
        both = torch.cat((angles, angles), -1)
        with torch.no_grad():
            given = block(state, cu_seqlens=cuts, position_embeddings=(both.cos(), both.sin()))
            by_angles = block(state, cu_seqlens=cuts, rotary_pos_emb=angles)
    powers = torch.tensor([1.0, 0.01])
    assert torch.allclose(turn(3), torch.arange(3.0)[:, None] * powers)
    assert torch.equal(given, by_angles)


def test_trusted_code_is_not_asked_for_its_own_folder(tmp_path: Path) -> None:
    """LLaVA-OneVision-2's processor loads a tokenizer, and forgets to say that it is trusted."""
    auto: Any = importlib.import_module("transformers.models.auto.tokenization_auto")
    ask = auto.resolve_trust_remote_code
    with remote_code_bridges.foreign_code(True, []):
        assert auto.resolve_trust_remote_code(None, str(tmp_path), False, True) is True
        assert auto.resolve_trust_remote_code(False, str(tmp_path), True, True) is False
    assert auto.resolve_trust_remote_code is ask
    with remote_code_bridges.foreign_code(False, []):
        assert auto.resolve_trust_remote_code is ask


@pytest.mark.skipif(not is_line_5(), reason="4.57 renames by the name of a class of its own")
def test_weights_of_a_derived_model_are_found_by_their_older_names() -> None:
    """jina-reranker is Qwen2-VL with a score in place of its head."""
    native = tiny_model("qwen2_vl")

    class ScoresOfSomebody(type(native)):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.score = nn.Linear(config.hidden_size, 1)

    older = {
        name.replace("model.visual.", "visual.").replace("model.language_model.", "model."): weight
        for name, weight in native.state_dict().items()
    } | {"score.weight": torch.ones(1, native.config.text_config.hidden_size)}
    needed: list[str] = []
    with remote_code_bridges.foreign_code(True, needed):
        remote_code_bridges._bridge_class(ScoresOfSomebody)
        loaded, report = ScoresOfSomebody.from_pretrained(
            None, config=native.config, state_dict=older, output_loading_info=True
        )
    assert set(report["missing_keys"]) <= {"score.bias"}
    for name, weight in native.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight)
    assert "config.hidden_size" in needed
    with pytest.raises(AttributeError, match="no_such_field"):
        _ = native.config.no_such_field


def test_plain_rotary_tables_are_made_of_numbers() -> None:
    """As transformers 4.51 made them; Cheers passes no config."""
    module = SimpleNamespace(ROPE_INIT_FUNCTIONS=dict(ROPE_INIT_FUNCTIONS))
    configs.bridge_default_rope(module)
    make = module.ROPE_INIT_FUNCTIONS["default"]
    made, factor = make(None, None, rope_type="default", dim=8, base=100.0)
    expected = 100.0 ** -(torch.arange(0, 8, 2) / 8)
    assert torch.allclose(made, expected) and factor == 1.0
    config = older_config(hidden_size=16, num_attention_heads=2)
    of_config, _ = make(config, None)
    assert torch.allclose(of_config, expected)


def test_code_that_asks_for_its_own_transformers_runs_all_the_same() -> None:
    """GME's asks for one below 4.52; other packages are asked for as before."""
    versions: Any = importlib.import_module("transformers.utils.versions")
    needed: list[str] = []
    with remote_code_bridges.foreign_code(True, needed):
        versions.require_version("transformers<4.0")
        with pytest.raises(ImportError):
            versions.require_version("torch<1.0")
    assert needed == ["transformers<4.0"]
    with pytest.raises(ImportError):
        versions.require_version("transformers<4.0")


@pytest.mark.parametrize(
    ("module_name", "name"),
    [
        ("transformers.image_utils", "VideoInput"),
        ("transformers.modeling_utils", "Conv1D"),
        ("transformers.modeling_utils", "PretrainedConfig"),
        ("transformers.models.gpt2.tokenization_gpt2", "bytes_to_unicode"),
        ("transformers.tokenization_utils", "TensorType"),
        ("transformers.models.llava.processing_llava", "LlavaConfig"),
    ],
)
def test_a_name_that_moved_is_found_under_its_own_name(
    module_name: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(module_name)
    monkeypatch.delattr(module, name, raising=False)
    needed: list[str] = []
    found: dict[str, Any] = {}
    code = f"from {module_name} import {name}"
    with remote_code_bridges.foreign_code(True, needed):
        exec(code, found)
    named = getattr(found[name], "__name__", name).lower()
    assert named == name.lower() or name == "VideoInput"
    assert f"{module_name}.{name}" in needed


@pytest.mark.skipif(not is_line_5(), reason="4.57 reads a list")
def test_ties_that_a_property_tells_are_taken_from_it() -> None:
    """MolmoPoint's says by its config which weights are tied."""

    class TellingOfTies(PreTrainedModel):
        config_class = LlamaConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.table = nn.Embedding(4, 2)
            self.head = nn.Linear(2, 4, bias=False)
            self.post_init()

        @property
        def _tied_weights_keys(self) -> list[str]:
            return ["head.weight"]

        def get_input_embeddings(self) -> nn.Module:
            return self.table

    with remote_code_bridges.foreign_code(True, []):
        remote_code_bridges._bridge_class(TellingOfTies)
        model = TellingOfTies(LlamaConfig(tie_word_embeddings=True))
    assert model.all_tied_weights_keys == {"head.weight": "table.weight"}


def test_a_name_that_nothing_has_is_missed_as_ever() -> None:
    """And one of another model's is not taken: it may do another thing."""
    import_code = "from transformers.models.clip.modeling_clip import {}"
    with remote_code_bridges.foreign_code(True, needed := list[str]()):
        for name in ("of_nobody", "LlamaRotaryEmbedding"):
            with pytest.raises(ImportError, match=name):
                exec(import_code.format(name), {})
    assert not needed
    with pytest.raises(ImportError), remote_code_bridges.foreign_code(False, needed):
        exec("from transformers.image_utils import Conv1D", {})


def test_a_module_is_bridged_once() -> None:
    """Its functions would be wrapped once more with each class that it holds."""
    module = ModuleType("of_many_classes")
    module.ROPE_INIT_FUNCTIONS = dict(ROPE_INIT_FUNCTIONS)  # type: ignore[attr-defined]
    for _ in range(2):
        remote_code_bridges._bridge_module(module)
        seen = module.ROPE_INIT_FUNCTIONS["default"]  # type: ignore[attr-defined]
        assert vars(module).setdefault("first", seen) is seen


def test_a_weight_that_is_computed_before_there_is_memory_has_no_value() -> None:
    """RWKV-7 computes some of its weights while it is made."""
    made = nn.Parameter(torch.zeros(3, device="meta"))
    held = nn.Parameter(torch.zeros(3))
    with remote_code_bridges.foreign_code(True, []):
        made.data = torch.ones(3)
        held.data = torch.ones(3)
        assert made.data.is_meta and held.data.tolist() == [1.0, 1.0, 1.0]
    assert made.is_meta and made.shape == (3,)
    with pytest.raises(RuntimeError):
        made.data = torch.ones(3)


@pytest.mark.skipif(not is_line_5(), reason="it lists them itself")
def test_parts_are_in_the_order_in_which_a_processor_takes_them() -> None:
    """ModRWKV's lists them the other way round."""

    class Turned(ProcessorMixin):
        attributes: ClassVar[list[str]] = ["image_processor", "tokenizer", "vq_model"]

        def __init__(self, tokenizer: Any = None, image_processor: Any = None) -> None: ...

    processors.bridge_listed_parts(ProcessorMixin)
    assert Turned.get_attributes() == ["tokenizer", "image_processor", "vq_model"]
