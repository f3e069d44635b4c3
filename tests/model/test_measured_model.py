"""Structural tokens: learned once by perturbing pixels, recognised by equality afterwards."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pandas as pd
import pytest
import torch
from PIL import Image
from support.processors import make_processor
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import BOS, EOS, INDICATORS, tiny_model
from torch import nn
from transformers import AutoModelForCausalLM

from normprobe import NormprobeError, Probe, find_parts, probe_interface, probe_layers
from normprobe.data.sample import Sample
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.processor import load_processor
from normprobe.measurements import measurement
from normprobe.model.measured_model import MeasuredBatch, MeasuredModel, layers_of_all_depths
from normprobe.schema import IMAGE_NUMBERS, STRUCTURAL, TOKEN_GROUPS, UNMOVED, VISUAL
from normprobe.tidy import select

layers, interface = measurement("layers"), measurement("interface")


def measured(model_type: str) -> MeasuredModel:
    """A tiny model of its own: tests change its weights."""
    model = tiny_model(model_type)
    return MeasuredModel(model, find_parts(model), SPECIAL_IDS)


def fresh(model: MeasuredModel) -> MeasuredModel:
    """The same, with nothing learned."""
    return MeasuredModel(model.model, model.parts, SPECIAL_IDS)


@contextmanager
def counted(module: torch.nn.Module) -> Iterator[list[object]]:
    """One entry for each time a module runs."""
    runs: list[object] = []
    handle = module.register_forward_hook(lambda *_: runs.append(None))
    try:
        yield runs
    finally:
        handle.remove()


def structural_tokens(rows: pd.DataFrame) -> int:
    at_input = rows[(rows["layer"] == 0) & (rows["group"] == STRUCTURAL)]
    return int(at_input["tokens"].sum())


@pytest.mark.parametrize(("model_type", "states"), [("llava", 0), ("llava_next", 1), ("ovis2", 2)])
def test_structural_states_are_the_learned_ones(model_type: str, states: int) -> None:
    model = tiny_model(model_type)
    inputs = tiny_inputs(model, batch_size=2)
    found = MeasuredModel(model, find_parts(model), [BOS, EOS]).batch(inputs).structural
    assert found is not None
    assert len(found) == states
    if model_type == "llava_next":
        torch.testing.assert_close(found[0], model.model.image_newline)
    if model_type == "ovis2":
        table = model.model.visual_embeddings_table.weight
        assert all((row == table).all(-1).any() for row in found)
        assert len(INDICATORS) >= states


def test_recognised_states_become_structural_and_no_others() -> None:
    visual, structural = TOKEN_GROUPS.index(VISUAL), TOKEN_GROUPS.index(STRUCTURAL)
    newline = torch.tensor([1.0, 2.0])
    states = torch.tensor([[[1.0, 2.0], [1.0, 2.5], [1.0, 2.0]]])
    groups = torch.tensor([[visual, visual, TOKEN_GROUPS.index("text")]], dtype=torch.int8)
    batch = MeasuredBatch(measured("llava"), {}, groups, newline[None])
    marked = batch.groups_at(states)
    assert marked.tolist() == [[structural, visual, TOKEN_GROUPS.index("text")]]


def test_rounding_and_other_kernels_hide_no_structural_state() -> None:
    """Rows of pixels stay visual, also those that lie near a learned row."""
    visual, structural = TOKEN_GROUPS.index(VISUAL), TOKEN_GROUPS.index(STRUCTURAL)
    generator = torch.Generator().manual_seed(0)
    newline, other = torch.randn(2, 1024, generator=generator)
    through_layers = newline.clone()
    for _ in range(8):  # as many roundings of every number as eight operations make
        scale = 1 + torch.rand(1024, generator=generator)
        through_layers = (through_layers * scale).bfloat16().float() / scale
    near = newline + 0.1 * other  # cosine 0.995
    states = torch.stack([newline.bfloat16().float(), through_layers, near, other])[None]
    batch = MeasuredBatch(measured("llava"), {}, torch.full((1, 4), visual), newline[None])
    expected = [structural, structural, visual, visual]
    for dtype in (torch.float32, torch.bfloat16):
        assert batch.groups_at(states.to(dtype))[0].tolist() == expected


@pytest.mark.parametrize(("measure", "more"), [(layers, 4), (interface, 4)])
@pytest.mark.parametrize("model_type", ["llava", "llava_next", "ovis2"])
def test_the_vision_side_runs_more_often_for_the_first_batch_alone(
    model_type, measure, more
) -> None:
    """Twice for structural tokens, and once where decoder layers run, to see that they do so.

    And once more, or twice, for the hook that counts could change states from call to call.
    """
    model = measured(model_type)
    first, second = (tiny_inputs(model.model, 1, seed=seed) for seed in (0, 1))
    with counted(model.parts.vision_encoder.module) as runs:
        measure.sample_rows(model, first, ["a"])
        assert len(runs) == 1 + more
        measure.sample_rows(model, second, ["b"])
        assert len(runs) == 2 + more


@pytest.mark.parametrize("measure", [layers, interface])
@pytest.mark.parametrize(
    "model_type", ["llava", "llava_next", "llava_onevision", "ovis2", "qwen3_vl"]
)
def test_a_model_measured_before_gives_the_rows_of_a_fresh_one(model_type, measure) -> None:
    model = measured(model_type)
    for seed in (0, 1, 0):
        inputs = tiny_inputs(model.model, 1, seed=seed)
        pd.testing.assert_frame_equal(
            measure.sample_rows(model, inputs), measure.sample_rows(fresh(model), inputs)
        )


def test_placeholders_that_come_later_are_asked_for_then() -> None:
    """Of Ovis, an image of several tiles has indicators that an image of one has not."""
    model = measured("ovis2")
    builder = InputBuilder(make_processor("ovis2"), model_type="ovis2")
    small, large = (
        builder.build([Sample("a", "What?", (Image.effect_noise(size, 64).convert("RGB"),))])
        for size in ((16, 16), (96, 64))
    )
    assert set(small["input_ids"][0].tolist()) < set(large["input_ids"][0].tolist())
    counts = [structural_tokens(layers.sample_rows(model, inputs)) for inputs in (small, large)]
    ids = [torch.isin(inputs["input_ids"], torch.tensor(INDICATORS)) for inputs in (small, large)]
    assert counts == [int(held.sum()) for held in ids]
    pd.testing.assert_frame_equal(
        layers.sample_rows(model, large), layers.sample_rows(fresh(model), large)
    )


def optimised(newline: torch.nn.Parameter, **options: object) -> None:
    newline.grad = torch.ones_like(newline)
    torch.optim.AdamW([newline], lr=0.1, **options).step()


def overwritten(newline: torch.nn.Parameter) -> None:
    newline.data.mul_(2)  # behind the back of autograd


CHANGES = {
    "optimizer": optimised,
    "fused optimizer": partial(optimised, fused=True),
    "data": overwritten,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_states_are_learned_again_when_the_newline_was_trained(change) -> None:
    model = measured("llava_next")
    inputs = tiny_inputs(model.model, 2)
    before = layers.sample_rows(model, inputs)
    newline = model.model.model.image_newline
    old = newline.detach().clone()
    change(newline)
    assert not torch.equal(newline, old)
    model.notice_changed_weights()
    with counted(model.parts.vision_encoder.module) as runs:
        after = layers.sample_rows(model, inputs)
        assert len(runs) == 3
        layers.sample_rows(model, inputs)
        assert len(runs) == 4
    assert structural_tokens(after) == structural_tokens(before) > 0
    torch.testing.assert_close(model.batch(inputs).structural, newline.detach()[None])
    pd.testing.assert_frame_equal(after, layers.sample_rows(fresh(model), inputs))


def test_a_model_without_structural_tokens_is_asked_once_whatever_changes() -> None:
    model = measured("llava")
    inputs = tiny_inputs(model.model, 2)
    layers.sample_rows(model, inputs)
    for weight in model.model.parameters():
        weight.data.mul_(1.1)
    model.notice_changed_weights()
    with counted(model.parts.vision_encoder.module) as runs:
        layers.sample_rows(model, inputs)
    assert len(runs) == 1


@pytest.mark.parametrize("measure", [layers, interface])
@pytest.mark.parametrize("model_type", ["llava", "llava_next", "qwen2_5_vl"])
def test_inference_mode_changes_nothing(model_type, measure) -> None:
    """Tensors of that mode count no writes: neither the model's nor those inside it."""
    plain = measured(model_type)
    inputs = tiny_inputs(plain.model, 1)
    expected = measure.sample_rows(plain, inputs)
    with torch.inference_mode():
        built = measured(model_type)
        pd.testing.assert_frame_equal(measure.sample_rows(fresh(plain), inputs), expected)
    assert all(weight.is_inference() for weight in built.model.parameters())
    for _ in range(2):
        pd.testing.assert_frame_equal(measure.sample_rows(built, inputs), expected)


def test_an_image_without_a_placeholder_is_an_error() -> None:
    model = tiny_model("llava")
    inputs = tiny_inputs(model)
    inputs["input_ids"] = torch.full_like(inputs["input_ids"], 30)
    with pytest.raises(NormprobeError, match="holds no image token"):
        probe_layers(model, inputs)


def with_constant_row(_: object, __: object, features: torch.Tensor) -> torch.Tensor:
    """As a projector that ends an image with a learned newline."""
    return torch.cat([features[:, :-1], torch.ones_like(features[:, -1:])], dim=1)


def counts(table: pd.DataFrame) -> dict[str, int]:
    at_input = select(table, "norm", layer=0).set_index("group")["tokens"]
    return {group: int(at_input.get(group, 0)) for group in (VISUAL, STRUCTURAL)}


def test_structural_rows_of_a_model_without_known_placeholders(repository) -> None:
    """The trace finds its parts and other pixels its visual rows; an id is shared by both."""
    folder = repository("unseen")
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    processor = load_processor(str(folder), trust_remote_code=True)
    picture = Image.effect_noise((16, 16), 64).convert("RGB")
    inputs = InputBuilder(processor).build([Sample("a", "What is to be seen here?", (picture,))])
    assert counts(probe_layers(model, inputs)) == {VISUAL: 4, STRUCTURAL: 0}
    model.bridge.register_forward_hook(with_constant_row)
    assert counts(probe_layers(model, inputs)) == {VISUAL: 3, STRUCTURAL: 1}


def test_structural_rows_before_the_prompt() -> None:
    model = tiny_model("git")
    inputs = tiny_inputs(model, 1)
    before = counts(probe_layers(model, inputs))
    assert before[STRUCTURAL] == 0
    model.git.visual_projection.register_forward_hook(with_constant_row)
    after = counts(probe_layers(model, inputs))
    assert after == {VISUAL: before[VISUAL] - 1, STRUCTURAL: 1}


@pytest.mark.parametrize("measure", [probe_layers, probe_interface])
def test_placeholders_without_an_image_are_an_error(measure) -> None:
    model = tiny_model("llava")
    inputs = tiny_inputs(model)
    visual = int((inputs["input_ids"] == model.config.image_token_id).sum())
    del inputs["pixel_values"]
    with pytest.raises(NormprobeError, match=f"{visual} image placeholders, and the inputs no"):
        measure(model, inputs)


def test_a_tensor_is_no_inputs() -> None:
    with pytest.raises(NormprobeError, match="the inputs are a Tensor; expected a dict"):
        probe_layers(tiny_model("llava"), torch.zeros(1, 3, dtype=torch.long))


def test_inputs_without_ids_are_an_error() -> None:
    model = tiny_model("llava")
    with pytest.raises(NormprobeError, match="no input_ids"):
        probe_layers(model, {"pixel_values": torch.zeros(1, 3, 16, 16)})


def test_images_that_cannot_be_told_apart_have_no_tokens() -> None:
    model = measured("llava")
    inputs = tiny_inputs(model.model, 2)
    inputs[IMAGE_NUMBERS] = torch.ones_like(inputs["input_ids"])
    inputs[IMAGE_NUMBERS][0] = 2  # all of them the second image's, none the first's
    batch = model.batch(inputs)
    groups = batch.groups_at(model.decoder_input(inputs))
    images = batch.images_at(groups)
    assert images is not None
    assert not images[0].any()
    assert torch.equal(images[1] == 1, groups[1] == TOKEN_GROUPS.index(VISUAL))


# --- layers that stand for all depths -------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "shown", "expected"),
    [(32, 4, [8, 16, 24, 32]), (6, 4, [2, 3, 4, 6]), (3, 4, [1, 2, 3]), (1, 4, [1])],
)
def test_they_are_spread_and_end_with_the_last(layers, shown, expected):
    assert layers_of_all_depths(layers, shown) == expected


def test_pixels_that_change_no_token_are_a_doubt() -> None:
    """A picture of zeros is taken for no tile: noise does not reach it."""
    model = tiny_model("llava")
    inputs = dict(tiny_inputs(model))
    inputs["pixel_values"] = torch.zeros_like(inputs["pixel_values"])
    run = Probe(model, special_token_ids=SPECIAL_IDS).layers(inputs)
    (doubt,) = run.record["doubts"]
    assert UNMOVED in doubt
    assert UNMOVED.capitalize() in str(run.verdict)


class Twice(nn.Module):
    """A projector that projects something else as well: its output, or the rows that it makes."""

    def __init__(self, inner: nn.Module, other: Callable[[Any], Any], before: bool) -> None:
        super().__init__()
        self.inner, self.other, self.before = inner, other, before

    def forward(self, rows: Any) -> Any:
        if self.before:
            self.inner(self.other(rows))
        made = self.inner(rows)
        if not self.before:
            self.inner(self.other(rows))
        return made


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("same", "doubts"), [(True, 0), (False, 1)])
def test_a_call_of_the_projector_of_which_nothing_enters_is_a_doubt(
    same: bool, doubts: int, before: bool
) -> None:
    """As MoAI, which also projects what another module reads."""
    model = copy.deepcopy(tiny_model("llava"))
    other = (lambda rows: rows) if same else torch.randn_like
    model.model.multi_modal_projector = Twice(model.model.multi_modal_projector, other, before)
    named = {"projector": "model.multi_modal_projector.inner"}
    probe = Probe(model, special_token_ids=SPECIAL_IDS, named=named)
    said = probe.interface(tiny_inputs(model)).record.get("doubts", [])
    told = [doubt for doubt in said if "runs 2 times a forward" in doubt]
    assert len(told) == doubts
    assert all("of 1 no row enters the decoder" in doubt for doubt in told)


@pytest.mark.parametrize("model_type", ["llava", "blip-2", "qwen2_vl", "paligemma", "mllama"])
@pytest.mark.parametrize("said", [None, [], [BOS]])
def test_the_token_that_begins_prompts_is_special_where_nobody_says_which_are(model_type, said):
    """Of a model in memory without its tokenizer; its config knows that one."""
    model = copy.deepcopy(tiny_model(model_type))
    model.config.get_text_config(decoder=True).bos_token_id = BOS
    inputs = tiny_inputs(model)
    ids, begin = inputs["input_ids"], inputs["attention_mask"].argmax(-1, keepdim=True)
    assert (ids.gather(1, begin) == BOS).all()
    inside = (ids != EOS) & (ids != BOS) & (inputs["attention_mask"] == 1)
    ids[0, int(inside[0].nonzero().max())] = BOS  # a word as any other, as far as the config knows
    counted = Probe(model, special_token_ids=said).layers(inputs).wide("norm", "tokens").loc[1]
    special = len(ids) if said is None else int(torch.isin(ids, torch.tensor(said)).sum())
    assert counted.get("special", 0) == special
    for probe in (probe_layers, probe_interface):
        table = probe(model, inputs, special_token_ids=said)
        where = table.get("layer", 0) == 0
        where &= table.get("stage", "decoder_input") == "decoder_input"
        norms = table[where & (table["quantity"] == "norm")].set_index("group")
        assert norms["tokens"].get("special", 0) == special
