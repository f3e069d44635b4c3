"""``find_parts`` names what was read in the sources of each type, with weights and without."""

from dataclasses import replace

import pytest
import torch
from support.cases import model_of
from support.expected_parts import PARTS, ExpectedParts
from support.tiny_inputs import tiny_inputs
from support.tiny_models import LANGUAGE_MODELS, TINY, VISION_ENCODERS, build, tiny_model
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaForConditionalGeneration,
    PretrainedConfig,
    PreTrainedModel,
)

from normprobe import NormprobeError, find_parts
from normprobe.model.find.parts import Part
from normprobe.model.find.structure import other_projectors

NAMES = ("vision_encoder", "projector", "text_embedding", "decoder_layers")


def found(model):
    """The parts as names; each must be the module that has that name."""
    parts = find_parts(model)
    names = {}
    for role in NAMES:
        part = getattr(parts, role)
        names[role] = None if part is None else part.name
        assert part is None or part.module is model.get_submodule(part.name)
    return ExpectedParts(**names, image_token_ids=parts.image_token_ids)


def test_every_tiny_type_is_written_down():
    assert set(PARTS) == set(TINY)


@pytest.mark.parametrize("model_type", VISION_ENCODERS + LANGUAGE_MODELS)
def test_parts(model_type):
    """Those of the others: test_every_type.py."""
    with torch.device("meta"):
        bare = build(model_type)
    assert found(model_of(model_type)) == found(bare) == PARTS[model_type]


def test_what_makes_images_projects_none() -> None:
    """As in models that both read images and make them: a table of codes, and a head."""
    model = tiny_model("llava")
    model.model.gen_embed = nn.Embedding(99, 8)
    model.model.gen_aligner = nn.Linear(8, 8)
    assert found(model) == PARTS["llava"]


def test_a_second_tower_and_what_serves_it_project_nothing() -> None:
    """As in Mini-Gemini: queries of one tower look at another's maps before the projector."""
    model = tiny_model("llava")
    width = model.config.text_config.hidden_size
    model.model.vision_tower_aux = nn.Conv2d(3, 8, 4)
    model.model.query_projector = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, width + 1))
    assert found(model) == PARTS["llava"]


def test_a_second_table_of_words_is_no_projector() -> None:
    """As VCoder's, of the names of objects; a table of another size may be one of pictures."""
    model = tiny_model("llava")
    words = model.get_input_embeddings()
    model.model.names_of_objects = nn.Embedding(words.num_embeddings, words.embedding_dim)
    assert found(model) == PARTS["llava"]
    model.model.codes = nn.Embedding(words.num_embeddings + 1, words.embedding_dim)
    assert found(model).projector == "model.codes"


# --- parts named by hand, and errors that print the command to name them with ---------------------


class Odd(nn.Module):
    """Two stacks, no accessor, no config: nothing that discovery could go by."""

    name_or_path = "someone/odd"

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 4)
        self.seer = nn.Sequential(nn.Linear(3, 4))
        self.bridge = nn.Linear(4, 4)
        self.short = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.tall = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def get_input_embeddings(self) -> nn.Module:
        return self.words

    def forward(self, states: Tensor) -> Tensor:
        return states


def test_parts_named_by_hand_are_taken() -> None:
    model = Odd()
    parts = find_parts(
        model,
        named={
            "vision_encoder": "seer",
            "projector": "bridge",
            "decoder_layers": "short",
            "image_token_ids": (7,),
        },
    )
    assert dict(parts)["decoder_layers"].module is model.short
    assert parts.projector is not None
    assert parts.projector.module is model.bridge
    assert parts.image_token_ids == (7,)


def test_the_error_prints_the_option_with_the_best_candidate() -> None:
    with pytest.raises(NormprobeError) as failure:
        find_parts(Odd())
    assert "tall (3)" in failure.value.problem
    assert failure.value.remedy == (
        "name it by hand: add --part decoder_layers=tall (in Python: "
        "named={'decoder_layers': 'tall'})"
    )


def test_a_name_that_is_no_module_suggests_one_that_is() -> None:
    with pytest.raises(NormprobeError, match="no module 'tal'") as failure:
        find_parts(Odd(), named={"decoder_layers": "tal"})
    assert "tall" in failure.value.remedy


def test_a_config_without_an_image_token_is_an_error_with_the_way_out() -> None:
    model = tiny_model("llava")
    inputs = tiny_inputs(model)
    image_token_id = model.config.image_token_id
    model.config.image_token_id = None
    with pytest.raises(NormprobeError, match="names no image token") as failure:
        find_parts(model)
    assert "--part image_token_ids=ID" in failure.value.remedy
    parts = find_parts(model, named={"image_token_ids": (image_token_id,)})
    model.config.image_token_id = image_token_id
    assert parts == find_parts(model)
    assert torch.isin(inputs["input_ids"], torch.tensor(parts.image_token_ids)).any()


def test_a_class_of_ones_own_leaves_its_table_to_the_language_model_inside() -> None:
    """Janus, which 4.57 asks in vain: it was taken for a bare vision encoder."""
    wide = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2}
    wide |= {"num_attention_heads": 2}

    class Own(PreTrainedModel):
        config_class = LlamaConfig

        def __init__(self, config):
            super().__init__(config)
            seen = CLIPVisionConfig(**wide, image_size=4, patch_size=2)
            self.vision_model = CLIPVisionModel(seen)
            self.aligner = nn.Linear(8, 8)
            self.language_model = LlamaForCausalLM(config)

        def get_input_embeddings(self):
            raise NotImplementedError

    config = LlamaConfig(**wide, vocab_size=9)
    config.image_token_id = 7
    parts = find_parts(Own(config))
    assert parts.text_embedding is not None
    assert parts.text_embedding.name == "language_model.model.embed_tokens"
    assert parts.decoder_layers is not None


def test_ids_of_pictures_in_a_language_model_are_not_passed_over_in_silence() -> None:
    """Pictures may come as ids of one table with the words (SEED-LLaMA)."""
    model = tiny_model("llama")
    with pytest.raises(NormprobeError, match="image_token_ids are named, and no part of Llama"):
        find_parts(model, named={"image_token_ids": (7, 8)})
    assert find_parts(model).vision_encoder is None


def test_as_many_projections_as_layers_are_no_layers() -> None:
    """INF-LLaVA's, where layers are few and narrow."""
    model = build("llava")
    before, language = find_parts(model).decoder_layers, model.model.language_model
    language.attended = nn.ModuleList(nn.Linear(512, 512) for _ in language.layers)
    assert find_parts(model).decoder_layers == before


class OfItsOwn(LlavaForConditionalGeneration):
    """Code of a package."""

    def forward(self, **inputs):
        return super().forward(**inputs)


def test_the_projector_of_an_encoder_inside_its_tower_is_further_out() -> None:
    """PPLLaVA's tower holds tables of its own, one called an adapter."""
    model = OfItsOwn(tiny_model("llava").config)
    outer = nn.Module()
    outer.body = nn.Module()
    outer.body.encoder = model.model.vision_tower
    outer.body.encoder.adapter_embed = nn.Embedding(4, 32)
    model.model.vision_tower = outer
    parts = find_parts(model, named={"vision_encoder": "model.vision_tower.body.encoder"})
    assert parts.projector is not None
    assert parts.projector.name == "model.multi_modal_projector"
    assert parts.visual_embedding is None


def test_a_merger_in_the_tower_is_another_projector() -> None:
    """DexVLA has modules of the decoder's width beside its tower, which project actions."""
    model = tiny_model("qwen2_vl")
    parts = find_parts(model)
    width = model.config.get_text_config().hidden_size
    model.model.film = nn.Linear(8, width)
    guessed = replace(parts, projector=Part("model.film", model.model.film))
    assert [part.name for part in other_projectors(model, guessed)] == ["model.visual.merger"]


def test_a_decoder_of_masks_is_not_where_the_layers_are() -> None:
    """PixelLM's holds as many small layers as its language model."""

    class Masking(LlamaForCausalLM):
        def __init__(self, config):
            super().__init__(config)
            self.mask_decoder = nn.Module()
            self.mask_decoder.layers = nn.ModuleList(
                nn.Sequential(nn.Linear(4, 4)) for _ in range(2)
            )

        def get_decoder(self, modality=None):
            return self.mask_decoder

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 9}
    parts = find_parts(Masking(LlamaConfig(**sizes, num_attention_heads=2)))
    assert parts.decoder_layers is not None
    # The forward is transformers' own: what it says of its decoder holds.
    assert parts.decoder_layers.name == "mask_decoder.layers"

    class Own(Masking):
        def forward(self, input_ids):
            return super().forward(input_ids=input_ids)

    model = Own(LlamaConfig(**sizes, num_attention_heads=2))
    parts = find_parts(model)
    assert parts.decoder_layers is not None
    assert parts.decoder_layers.name == "model.layers"
    # SAM's, in LISA and its kin: as many as there are layers, here larger, and without a norm.
    model.networks = nn.ModuleList(nn.Sequential(nn.Linear(512, 512)) for _ in range(2))
    assert find_parts(model).decoder_layers == parts.decoder_layers


class AroundConfig(PretrainedConfig):
    model_type = "around_a_whole"

    def __init__(self, mllm_config=None, **fields):
        super().__init__(**fields)
        self.mllm_config = mllm_config


class AroundWhole(PreTrainedModel):
    """As GAR: a class of its own around a model that reads pictures and words."""

    config_class, main_input_name = AroundConfig, "pixel_values"

    def __init__(self, config, whole):
        super().__init__(config)
        self.mllm = whole

    def forward(self, data):
        raise NotImplementedError


def test_a_class_around_a_whole_model_is_no_bare_encoder():
    whole = tiny_model("llava")
    with pytest.raises(NormprobeError, match=r"candidates: .*mllm\.model\.language_model\.layers"):
        find_parts(AroundWhole(AroundConfig(whole.config), whole))
    # Its first input is the picture (OneCAT), and what it holds writes text.
    with pytest.raises(NormprobeError, match=r"candidates: .*mllm\.model\.layers"):
        find_parts(AroundWhole(AroundConfig(vision_config={}), tiny_model("llama")))
    bare = find_parts(AroundWhole(AroundConfig(), tiny_model("siglip")))
    assert bare.vision_encoder.name == "" and bare.decoder_layers is None
