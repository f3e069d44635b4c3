"""Which towers have blocks, whose the rows of a batch are, and what is refused."""

import pytest
import torch
from support.cases import model_of
from support.tiny.media import EARS
from support.tiny_inputs import collate, heard_and_seen, tiny_inputs, tiny_media, tiny_samples
from support.tiny_models import ALL_TYPES, EVERY, NEEDS, WITHOUT_IMAGES, tiny_model
from torch import nn

from normprobe import NormprobeError, Probe, find_parts
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.tower import TowerModel, blocks_of
from normprobe.schema import IMAGE_NUMBERS, PADDING, SPECIAL, TOKEN_GROUPS, VISUAL
from normprobe.tidy import select
from normprobe.versions import is_line_5

#: Types whose vision side has no list of transformer blocks that it calls, and why.
WITHOUT_BLOCKS = {
    "chameleon": "an image tokenizer of convolutions",
    "emu3": "likewise",
    "fast_vlm": "convolutions of timm",
    "florence2": "DaViT: stages of windows and channels, merged in between",
    "inkling_mm_model": "one layer of patches",
    "lfm3_vl": "one layer of patches",
}
#: Types without a vision encoder: their projector is given pixels.
WITHOUT_TOWER = ("fuyu", "gemma4_unified", "udop")
#: Types that merge rows between blocks.
MERGING = ("minicpmv4_6", "minicpmv4_7")


def tower_of(model: nn.Module, modality: str = "vision") -> TowerModel:
    return TowerModel(MeasuredModel(model, find_parts(model)), modality)


@pytest.mark.parametrize("model_type", [*WITHOUT_BLOCKS, *WITHOUT_TOWER, *MERGING])
def test_a_tower_without_blocks_is_refused_in_one_sentence(model_type: str) -> None:
    if model_type not in EVERY or not is_line_5():
        pytest.skip("another line of transformers")
    model = tiny_model(model_type)
    with pytest.raises(NormprobeError) as failure:
        Probe(model).layers(tiny_inputs(model), tower="vision")
    said = "no transformer blocks"
    if model_type in WITHOUT_TOWER:
        said = "has no vision tower"
    assert ("rows are merged" if model_type in MERGING else said) in failure.value.problem
    assert failure.value.remedy


@pytest.mark.parametrize("model_type", [t for t in ALL_TYPES if t not in {*NEEDS, *WITHOUT_IMAGES}])
def test_every_other_tower_runs_once_in_a_forward(model_type: str) -> None:
    """All rows of all pictures pass through it: whoever reads the first call has seen all."""
    left_out = {*WITHOUT_BLOCKS, *WITHOUT_TOWER, *MERGING}
    model = tiny_model(model_type)
    parts = find_parts(model)
    if model_type in left_out or parts.vision_encoder is None:
        return
    blocks = blocks_of(parts.vision_encoder, parts.projector)
    assert blocks is not None
    calls, inputs = [], tiny_inputs(model)  # which runs the tower to count its tokens
    first = next(iter(blocks.module.children()))
    first.register_forward_hook(lambda *_: calls.append(1))
    run = model if parts.decoder_layers is not None else parts.vision_encoder.module
    with torch.no_grad():
        run(**inputs)
    assert calls == [1]


@pytest.mark.parametrize("model_type", ["llava", "internvl", "qwen2_vl", "idefics3", "mistral3"])
def test_several_pictures_of_a_sample_are_its_own(model_type: str) -> None:
    """Two samples of which the first has two pictures: as many rows as each has alone."""
    model = model_of(model_type)
    one, two, three = tiny_samples(model, 3)
    tower = tower_of(model)
    alone = [tower.batch(each).prompt_groups.shape[1] for each in (one, two, three)]
    texts = ("input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids")
    joined = collate([one, two])
    first = {
        name: torch.cat([one[name], two[name]], dim=1) if name in texts else value
        for name, value in joined.items()
    }
    if model_type == "idefics3":
        for name in ("pixel_values", "pixel_attention_mask"):
            if name in one:
                first[name] = torch.cat([one[name], two[name]], dim=1)
    both = collate([first, three])
    numbers = torch.zeros_like(both["input_ids"])
    numbers[0, 0], numbers[0, 1], numbers[1, 0] = 1, 2, 1
    batch = tower.batch({**both, IMAGE_NUMBERS: numbers})
    held = (batch.prompt_groups != PADDING).sum(-1).tolist()
    assert held == [alone[0] + alone[1], alone[2]]


@pytest.mark.parametrize("model_type", ["ovis2", "nemotron_h_omni"])
def test_rows_that_nothing_tells_apart_are_refused(model_type: str) -> None:
    if not is_line_5():
        pytest.skip("another line of transformers")
    model = tiny_model(model_type)
    with pytest.raises(NormprobeError, match="nothing tells whose they are") as failure:
        Probe(model).layers(tiny_inputs(model, 3), tower="vision")
    assert failure.value.remedy == "measure with --batch-size 1"
    assert len(Probe(model).layers(tiny_inputs(model), tower="vision").table)


def test_pictures_and_videos_are_not_read_together() -> None:
    model = model_of("qwen2_vl")
    inputs = tiny_media(model)
    with pytest.raises(NormprobeError, match="one after the other"):
        Probe(model).layers(inputs, tower="vision")


def test_the_rows_of_a_video_alone_are_visual() -> None:
    model = model_of("qwen2_vl")
    inputs = {name: each for name, each in tiny_media(model).items() if name != "pixel_values"}
    inputs.pop("image_grid_thw")
    tower = tower_of(model)
    assert tower.reads(inputs) == "video"
    groups = tower.batch(inputs).prompt_groups
    assert set(groups.flatten().tolist()) == {TOKEN_GROUPS.index(VISUAL)}


def test_zero_rows_are_padding_and_class_rows_special() -> None:
    """Mllama fills each tile up to a whole number of eights, behind its class row."""
    if not is_line_5():
        pytest.skip("another line of transformers")
    model = tiny_model("mllama")
    tower = tower_of(model)
    inputs = tiny_inputs(model)
    batch = tower.batch(inputs)
    state, _ = tower._entering(inputs)
    groups = batch.groups_at(tower.read_stream(state))[0]
    tiles, patches = 2, 16
    assert int((groups == TOKEN_GROUPS.index(SPECIAL)).sum()) == tiles
    assert int((groups == 0).sum()) == tiles * patches
    assert int((groups == PADDING).sum()) == groups.numel() - tiles * (patches + 1)


# --- sounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["dots3_note", "gemma4", "qwen2_5_omni_thinker"])
def test_the_tower_of_sounds_is_measured_likewise(model_type: str) -> None:
    if model_type not in EVERY or not is_line_5():
        pytest.skip("another line of transformers")
    model = heard_and_seen(model_type) if model_type in EARS else tiny_model(model_type)
    inputs = tiny_media(model)
    blocks = model.model.audio_tower.layers
    states = []
    handle = blocks[-1].register_forward_hook(
        lambda _, args, output: states.append(output[0] if isinstance(output, tuple) else output)
    )
    run = Probe(model).layers(inputs, tower="audio")
    handle.remove()
    norms = states[-1].double().reshape(-1, states[-1].shape[-1]).norm(dim=-1)
    last = select(run.table, "norm", layer=len(blocks))
    assert last["group"].tolist() == ["audio"]
    if model_type != "gemma4":  # which masks what pads its sounds
        assert last["tokens"].tolist() == [len(norms)]
        assert last["mean"].iloc[0] == pytest.approx(float(norms.mean()), rel=1e-4)
    assert str(run.verdict).startswith("In the audio tower rows of a sound have a mean norm of")


def test_a_mask_that_fits_no_row_is_refused() -> None:
    from normprobe.model.tower import _unpadded_rows

    mask = torch.ones(1, 15, dtype=torch.long)
    mask[0, 10:] = 0
    state = torch.zeros(1, 8, 4)
    with pytest.raises(NormprobeError, match="does not tell which of"):
        _unpadded_rows({"feature_attention_mask": mask}, state)
    mask = torch.ones(2, 16, dtype=torch.long)
    mask[1, 6:] = 0
    told = _unpadded_rows({"feature_attention_mask": mask}, torch.zeros(2, 8, 4))
    assert told.view(2, 8).sum(-1).tolist() == [8, 3]


# --- code of a repository -----------------------------------------------------------------------


def test_a_tower_that_runs_picture_by_picture_is_refused() -> None:
    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Linear(48, 8)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)
            )

        def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
            x = self.embed(pixel_values.reshape(len(pixel_values), 4, 48))
            for block in self.blocks:
                x = block(x)
            return x

    class Model(nn.Module):
        def __init__(self, apart: bool) -> None:
            super().__init__()
            self.apart, self.tower, self.projector = apart, Tower(), nn.Linear(8, 8)
            self.embed = nn.Embedding(10, 8)
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)
            )

        def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor) -> torch.Tensor:
            parts = pixel_values.split(1) if self.apart else [pixel_values]
            rows = torch.cat([self.projector(self.tower(each)) for each in parts]).flatten(0, 1)
            x = self.embed(input_ids)
            x = torch.where((input_ids == 9).unsqueeze(-1), 0.0, x)
            x = torch.cat([rows.unsqueeze(0), x], dim=1)
            for layer in self.layers:
                x = layer(x)
            return x

    named = {
        "vision_encoder": "tower",
        "projector": "projector",
        "text_embedding": "embed",
        "decoder_layers": "layers",
    }
    inputs = {"input_ids": torch.arange(1, 5)[None], "pixel_values": torch.randn(2, 3, 8, 8)}
    assert len(Probe(Model(False).eval(), named=named).layers(inputs, tower="vision").table)
    with pytest.raises(NormprobeError, match="1 of 2 pictures at a time"):
        Probe(Model(True).eval(), named=named).layers(inputs, tower="vision")


def test_a_language_model_has_no_tower() -> None:
    model = model_of("llama")
    with pytest.raises(NormprobeError, match="has no vision tower that was found"):
        Probe(model).layers(tiny_inputs(model), tower="vision")
