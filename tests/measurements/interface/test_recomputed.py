"""Planted faults are found when a sample's norms are recomputed without hooks; which rows count."""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from support.cases import model_of
from support.plain_modules import EYE, Eye, Plain, Pooling, made
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import (
    ALL_TYPES,
    LANGUAGE_MODELS,
    NEEDS,
    VISION_ENCODERS,
    VLM_TYPES,
    WITHOUT_IMAGES,
)
from torch import Tensor, nn

from normprobe import NormprobeError, Probe, find_parts
from normprobe.hooks import on_call, on_input
from normprobe.measurements.interface import measure
from normprobe.measurements.interface.recomputed import (
    RowsFromPixels,
    differences,
    rows_from_pixels,
)
from normprobe.model import vision_stages
from normprobe.model.captured_states import ROWS, TOKENS, in_doubt
from normprobe.model.find.parts import Part
from normprobe.model.measured_model import MeasuredBatch, MeasuredModel
from normprobe.model.tracing.trace import find_or_trace, trace_parts, traced_example
from normprobe.schema import (
    DECODER_INPUT,
    PADDING,
    PROJECTOR_INPUT,
    PROJECTOR_OUTPUT,
    SPECIAL,
    TOKEN_GROUPS,
    VISION_ENCODER,
    VISUAL,
)
from normprobe.tidy import select

OF_IMAGES = {VISION_ENCODER, PROJECTOR_INPUT, PROJECTOR_OUTPUT}


def measured(model_type: str = "llava", **changed: Any) -> MeasuredModel:
    model = model_of(model_type)
    parts = replace(find_parts(model), **changed, named=frozenset(changed))
    return MeasuredModel(model, parts, SPECIAL_IDS, found_by="by hand")  # else refused before


def found_in(model: MeasuredModel) -> dict[str, float | str]:
    inputs = tiny_inputs(model.model)
    return differences(model, inputs, trace_parts(model.model, inputs))


def doubted(found: dict[str, float | str]) -> set[str]:
    return set(in_doubt(found, torch.float32))


def part(model_type: str, name: str) -> Part:
    return Part(name, model_of(model_type).get_submodule(name))


@pytest.mark.parametrize("model_type", VLM_TYPES)
def test_sound_norms_are_confirmed(model_type: str) -> None:
    found = found_in(measured(model_type))
    assert {*OF_IMAGES, DECODER_INPUT, ROWS, TOKENS} == set(found)
    assert max(value for value in found.values() if not isinstance(value, str)) < 1e-6


def test_the_tokens_of_a_tower_that_pools_them_too_are_confirmed() -> None:
    module = made(Pooling)
    ids = torch.tensor([[1, 8, 10, 3, 3, 3, 3, 9, 11, 2]])
    inputs = {"tokens": ids, "image": torch.randn(1, 3, 8, 8)}
    parts, found_by = find_or_trace(module, {}, lambda: inputs)
    model = MeasuredModel(module, parts, SPECIAL_IDS, found_by=found_by)
    found = differences(model, inputs, trace_parts(module, inputs))
    assert set(found) > OF_IMAGES
    assert max(value for value in found.values() if not isinstance(value, str)) < 1e-6


class Warming(Plain):
    """It projects zeros as well, as code of LLaVA 1.0 and OneChart does."""

    def forward(self, tokens: Tensor, image: Tensor) -> Tensor:
        self.connector(torch.zeros(7, EYE))
        return super().forward(tokens, image)


class Whole(Plain):
    """Its class row enters the decoder, too (Heron)."""

    def __init__(self) -> None:
        super().__init__()
        self.vision = WholeEye()


class WholeEye(Eye):
    def forward(self, pixels: Tensor) -> Tensor:
        x = self.cut(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize(("kind", "rows"), [(Warming, 4), (Whole, 5)])
def test_rows_of_a_projector_that_runs_on_zeros_or_class_rows_are_confirmed(
    kind: type[Plain], rows: int
) -> None:
    module = made(kind)
    inputs = {"tokens": torch.tensor([[1, 8, 10, *[3] * rows, 9, 11, 2]])}
    inputs["image"] = torch.randn(1, 3, 8, 8)
    run = Probe(module).interface(inputs, verify=True)
    assert not run.record.get("doubts")
    found = run.record["recomputed"]
    assert set(found) > OF_IMAGES
    assert max(value for value in found.values() if not isinstance(value, str)) < 1e-6
    table = select(run.table, "norm").set_index(["stage", "group"])
    assert table.loc[(VISION_ENCODER, VISUAL), "tokens"] == rows


@pytest.mark.slow
@pytest.mark.parametrize(
    "model_type",
    [
        pytest.param(name, marks=pytest.mark.skipif(missing, reason=f"needs {NEEDS.get(name)}"))
        for name in ALL_TYPES
        if name not in (*VLM_TYPES, *WITHOUT_IMAGES)
        for missing in [name in NEEDS and find_spec(NEEDS[name]) is None]
    ],
)
def test_sound_norms_of_every_type_are_confirmed(model_type: str) -> None:
    found = found_in(measured(model_type))
    assert not doubted(found)
    assert not isinstance(found[DECODER_INPUT], str)
    unconfirmed = {name for name, value in found.items() if isinstance(value, str)} - {TOKENS}
    assert unconfirmed == (OF_IMAGES if model_type == "mllama" else set())


@pytest.mark.parametrize("model_type", VISION_ENCODERS + LANGUAGE_MODELS)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_the_side_that_exists_is_confirmed(model_type: str, batch_size: int) -> None:
    model = measured(model_type)
    inputs = tiny_inputs(model.model, batch_size)
    found = differences(model, inputs, traced_example(model.model, model.parts, inputs))
    stages = {VISION_ENCODER} if model_type in VISION_ENCODERS else {DECODER_INPUT, TOKENS}
    assert set(found) == {*stages, ROWS}
    assert not doubted(found)


def test_what_is_not_recomputed_says_why() -> None:
    found = found_in(measured("mllama"))
    assert {found[stage] for stage in OF_IMAGES} == {
        "rows that no pixel changes may have gone into it"
    }
    assert str(found[TOKENS]).startswith("text attends to the image")


def test_the_model_is_left_as_it_was() -> None:
    model = measured()
    found_in(model)
    assert not any("forward" in vars(module) for module in model.model.modules())


# --- planted faults -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wrong"), [("linear_1", PROJECTOR_OUTPUT), ("linear_2", PROJECTOR_INPUT)]
)
def test_another_module_for_the_projector(name: str, wrong: str) -> None:
    other = part("llava", f"model.multi_modal_projector.{name}")
    assert wrong in doubted(found_in(measured(projector=other)))


def test_another_module_for_the_vision_encoder() -> None:
    other = part("llava", "model.vision_tower.encoder.layers.0")
    assert VISION_ENCODER in doubted(found_in(measured(vision_encoder=other)))


def test_a_hook_on_the_wrong_module(monkeypatch: pytest.MonkeyPatch) -> None:
    projector = model_of("llava").model.multi_modal_projector

    def elsewhere(module: nn.Module, *watched: Any) -> Any:
        return on_call(module.act if module is projector else module, *watched)

    monkeypatch.setattr(vision_stages, "on_call", elsewhere)
    assert {PROJECTOR_INPUT, PROJECTOR_OUTPUT} <= doubted(found_in(measured()))


def test_a_norm_counted_in_at_the_decoder_input(monkeypatch: pytest.MonkeyPatch) -> None:
    norm = model_of("llava").model.language_model.norm

    def normed(layer: nn.Module, see: Callable[[Tensor], None]) -> Any:
        return on_input(layer, lambda state: see(norm(state)))

    monkeypatch.setattr(measure, "on_input", normed)
    assert DECODER_INPUT in doubted(found_in(measured()))


def test_a_wrong_image_token_id() -> None:
    ids = tiny_inputs(model_of("llava"))["input_ids"]
    known = torch.tensor(find_parts(model_of("llava")).image_token_ids)
    other = int(ids[~torch.isin(ids, known)][-1])
    with pytest.raises(NormprobeError, match="that are taken for text"):
        found_in(measured(image_token_ids=(other,)))


def test_a_shifted_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    groups_at = MeasuredBatch.groups_at

    def shifted(batch: MeasuredBatch, state: Tensor) -> Tensor:
        groups = groups_at(batch, state)
        return torch.where(groups == PADDING, PADDING, groups.roll(1, dims=-1))

    monkeypatch.setattr(MeasuredBatch, "groups_at", shifted)
    assert {TOKENS, DECODER_INPUT} <= doubted(found_in(measured()))


@pytest.mark.parametrize("model_type", ["llava", "internvl"])
def test_a_class_row_counted_as_a_patch(model_type: str) -> None:
    assert {VISION_ENCODER, ROWS} <= doubted(found_in(measured(model_type, class_rows=0)))


def test_a_patch_counted_as_a_class_row() -> None:
    assert {VISION_ENCODER, ROWS} <= doubted(found_in(measured("gemma3", class_rows=1)))


def test_padded_patches_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_masks(module: nn.Module, see: Callable[..., None], *left: Any) -> Any:
        return on_call(module, lambda entered, left, _: see(entered, left, {}), *left)

    monkeypatch.setattr(vision_stages, "on_call", without_masks)
    model = measured("siglip2_vision_model")
    inputs = tiny_inputs(model.model, 4)
    found = differences(model, inputs, traced_example(model.model, model.parts, inputs))
    assert doubted(found) == {VISION_ENCODER, ROWS}


V, S, P = TOKEN_GROUPS.index(VISUAL), TOKEN_GROUPS.index(SPECIAL), PADDING


def tiles(*moved: list[int]) -> tuple[list[Tensor], list[Tensor]]:
    """One call, whose rows change where ``moved`` is 1."""
    state = torch.arange(len(moved) * len(moved[0]) * 4.0).reshape(len(moved), -1, 4)
    return [state], [state + torch.tensor(moved)[..., None] * torch.tensor([0, 0, 1, 0])]


def rows_of(*moved: list[int]) -> RowsFromPixels:
    found = rows_from_pixels(*tiles(*moved))
    assert found is not None
    return found


def test_class_rows_come_first_and_padding_is_what_remains() -> None:
    found = rows_of([0, 0, 1, 1, 1], [0, 0, 1, 0, 1])
    np.testing.assert_array_equal(found.groups, [S, S, V, V, V, S, S, V, P, V])


def test_an_empty_tile_has_no_class_row() -> None:
    found = rows_of([0, 0, 1, 1, 1], [0, 0, 0, 0, 0])
    np.testing.assert_array_equal(found.groups, [S, S, V, V, V, P, P, P, P, P])


def test_calls_follow_each_other() -> None:
    (one, other), (two, three) = tiles([0, 1]), tiles([1, 1, 1])
    found = rows_from_pixels([*one, *two], [*other, *three])
    assert found is not None
    np.testing.assert_array_equal(found.groups, [S, V, V, V, V])


def test_stages_behind() -> None:
    padded = rows_of([0, 0, 1, 1, 1], [0, 0, 1, 0, 1])
    np.testing.assert_array_equal(padded.in_stage(10), padded.groups)
    np.testing.assert_array_equal(padded.in_stage(6), [V, V, V, V, P, V])  # class rows dropped
    np.testing.assert_array_equal(padded.in_stage(5), np.full(5, V))  # padding, too
    assert padded.in_stage(3) is None, "one of three pairs may hold the padded patch"
    full = rows_of([0, 0, 1, 1, 1], [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(full.in_stage(3), np.full(3, V))
    np.testing.assert_array_equal(full.in_stage(16), np.full(16, V))  # of a resampler


def test_images_that_cannot_be_compared() -> None:
    states, others = tiles([0, 1, 1])
    assert rows_from_pixels(states, states) is None
    assert rows_from_pixels(states, [others[0][:, :2]]) is None
    assert rows_from_pixels(states, []) is None
