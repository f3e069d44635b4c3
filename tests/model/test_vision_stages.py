"""Forks of published models in which a part is not what its place in the module tree suggests."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.cases import model_of
from support.expected_parts import PARTS
from support.flat import flat
from support.plain_modules import Attending, Eye, Plain, Pooling, made
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import TINY, tiny_model
from torch import nn
from transformers import Qwen2VLModel
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

from normprobe import NormprobeError, Probe, find_parts, probe_interface, schema
from normprobe.model import part_checks
from normprobe.model.find.overrides import IN_SEQUENCE
from normprobe.model.handed_rows import is_one_of_several, wrong_part
from normprobe.model.stage_states import projected_state
from normprobe.versions import is_line_5

WITH_PROJECTOR = [name for name in TINY if PARTS[name].projector and PARTS[name].decoder_layers]


def returning_the_wrapper(model: nn.Module) -> nn.Module:
    """As forks in the style of Qwen2-VL since 4.52: ``get_decoder`` gives what holds both sides."""
    kind = type(model)
    model.__class__ = type(f"Forked{kind.__name__}", (kind,), {"get_decoder": lambda s: s.model})
    return model


@pytest.mark.parametrize("model_type", WITH_PROJECTOR)
def test_a_wrapper_for_a_decoder_is_no_projector(model_type: str) -> None:
    if not hasattr(model_of(model_type), "model"):
        pytest.skip("wraps nothing")
    fork = returning_the_wrapper(tiny_model(model_type))
    assert fork.get_decoder() is fork.model
    parts, expected = find_parts(fork), PARTS[model_type]
    assert parts.projector is not None
    assert parts.projector.name == expected.projector
    assert parts.decoder_layers is not None
    assert parts.decoder_layers.name == expected.decoder_layers


class OldTower(Qwen2VisionTransformerPretrainedModel):
    """It returns what its merger makes, and nothing else, as before transformers 5."""

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return super().forward(*arguments, **named).pooler_output


class OldModel(Qwen2VLModel):
    """It takes what such a tower returns."""

    def get_image_features(
        self, pixel_values: torch.Tensor, image_grid_thw: Any = None, **_: Any
    ) -> Any:
        merged = self.visual(pixel_values, grid_thw=image_grid_thw)
        sizes = (image_grid_thw.prod(-1) // self.visual.spatial_merge_size**2).tolist()
        return BaseModelOutputWithPooling(pooler_output=torch.split(merged, sizes))


@pytest.mark.skipif(not is_line_5(), reason="the towers of transformers are such ones there")
def test_an_encoder_that_returns_merged_rows_is_measured_before_its_merger() -> None:
    model = model_of("qwen2_vl")
    inputs = tiny_inputs(model, 2)
    expected = probe_interface(model, inputs, special_token_ids=SPECIAL_IDS)
    fork = returning_the_wrapper(tiny_model("qwen2_vl"))
    fork.load_state_dict(model.state_dict())
    fork.model.__class__, fork.model.visual.__class__ = OldModel, OldTower
    # A class row that goes before the merger: no patch is one.
    fork.model.visual.class_embedding = nn.Parameter(torch.zeros(32))
    found = probe_interface(fork, inputs, special_token_ids=SPECIAL_IDS)
    expected, found = (flat(table).set_index(["stage", "group"]) for table in (expected, found))
    assert set(found.index) == set(expected.index)
    for column in ("tokens", "norm_mean", "norm_std"):
        np.testing.assert_allclose(found[column], expected.loc[found.index, column], rtol=1e-6)


@pytest.mark.parametrize(("role", "name"), [("projector", "model"), ("vision_encoder", "model")])
def test_a_part_that_holds_the_language_model_is_refused(role: str, name: str) -> None:
    model = model_of("llava")
    named = {"decoder_layers": "model.language_model.layers", role: name}
    with pytest.raises(NormprobeError, match=f"is no {role.replace('_', ' ')}") as e:
        find_parts(model, named=named)
    assert f"--part {role}=NAME" in e.value.remedy


@pytest.fixture
def rows() -> torch.Tensor:
    return torch.randn(300, 16, generator=torch.Generator().manual_seed(0))


def handed(projected: torch.Tensor, encoded: int = 300, taken: int = 300) -> dict:
    return {
        schema.VISION_ENCODER: torch.ones(encoded, 4),
        schema.PROJECTOR_INPUT: torch.ones(taken, 4),
        schema.PROJECTOR_OUTPUT: projected,
    }


def test_rows_may_be_scaled_reordered_left_out_and_rounded(rows: torch.Tensor) -> None:
    parts = find_parts(model_of("llava"))
    assert parts.fusion == IN_SEQUENCE
    entered = (3.7 * rows.flip(0)[:200]).bfloat16()
    assert wrong_part(parts, handed(rows), entered) is None
    broken = entered.clone()
    broken[0], broken[1, 3] = 0, torch.nan  # broken states are no question of parts
    assert wrong_part(parts, handed(rows), broken) is None


def test_what_speaks_against_a_part(rows: torch.Tensor) -> None:
    parts = find_parts(model_of("llava"))
    for expected, found in {
        "50 rows, and the projector takes 300": (handed(rows, encoded=50), rows),
        "100 rows, and 300 visual tokens": (handed(rows[:100]), rows),
        "rows of size 16, and the decoder reads 8": (handed(rows), rows[:, :8]),
        "other rows": (handed(rows), rows + 0.2 * rows.roll(1, 1)),
    }.items():
        _, why = wrong_part(parts, *found)
        assert expected in why


def test_one_row_that_comes_from_elsewhere_speaks_against_a_part(rows: torch.Tensor) -> None:
    parts = find_parts(model_of("llava"))
    last = rows.clone()
    last[-1] += 0.1 * rows[-1].norm() * torch.nn.functional.normalize(rows[0], dim=0)
    assert wrong_part(parts, handed(rows), rows) is None
    assert wrong_part(parts, handed(rows), last) is not None


@pytest.mark.parametrize(("encoded", "wrong"), [(149, True), (150, False), (280, False)])
def test_up_to_half_of_the_rows_may_be_learned_newlines(
    encoded: int, wrong: bool, rows: torch.Tensor
) -> None:
    parts = find_parts(model_of("llava"))
    assert (wrong_part(parts, handed(rows, encoded=encoded), rows) is not None) == wrong


# --- towers that return several states ------------------------------------------------------------

IDS = torch.tensor([[1, 8, 10, 3, 3, 3, 3, 9, 11, 2], [1, 4, 12, 3, 3, 3, 3, 5, 13, 2]])
SEEN = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
BY_HAND = {"vision_encoder": "vision", "projector": "connector"}
BY_HAND |= {"decoder_layers": "blocks", "text_embedding": "words"}


@pytest.mark.parametrize("named", [{}, BY_HAND], ids=["found", "named"])
@pytest.mark.parametrize("names", [(), ("pooled", "squares")], ids=["tuple", "dict"])
@pytest.mark.parametrize("row", [False, True])
@pytest.mark.parametrize("kind", [Pooling, Attending])
def test_the_tokens_are_measured_where_a_tower_pools_them_too(kind, row, names, named) -> None:
    """No row is special: its class row is not handed over."""
    module = made(kind)
    module.vision.row, module.vision.names = row, names
    inputs = {"tokens": IDS, "image": SEEN}
    if kind is Attending:
        inputs = {"lang_x": IDS, "vision_x": SEEN[:, None, None]}
        named = {**named, "fusion": "cross-attention"} if named else {}
    found = flat(probe_interface(module, inputs, named=named)).set_index(["stage", "group"])
    with torch.no_grad():
        squares = module.squares(SEEN)
        projected = module.connector(squares)
    expected = dict.fromkeys((schema.VISION_ENCODER, schema.PROJECTOR_INPUT), squares)
    for stage, state in {**expected, schema.PROJECTOR_OUTPUT: projected}.items():
        norms = np.linalg.norm(state.double().numpy(), axis=-1)
        assert set(found.loc[stage].index) == {schema.VISUAL}
        assert found.loc[(stage, schema.VISUAL), "tokens"] == norms.size
        assert found.loc[(stage, schema.VISUAL), "norm_mean"] == pytest.approx(norms.mean(), 1e-6)


class Earlier(Pooling):
    """Its tower returns the state of another layer first, row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.vision.register_forward_hook(
            lambda *given: (3 * given[-1][1].roll(1, -1), given[-1][1])
        )


@pytest.mark.parametrize("named", [{}, BY_HAND], ids=["found", "named"])
def test_of_several_states_with_as_many_rows_the_one_that_is_projected_is_measured(named) -> None:
    module = made(Earlier)
    found = probe_interface(module, {"tokens": IDS, "image": SEEN}, named=named)
    found = flat(found).set_index(["stage", "group"])
    with torch.no_grad():
        norms = np.linalg.norm(module.squares(SEEN).double().numpy(), axis=-1)
    for stage in (schema.VISION_ENCODER, schema.PROJECTOR_INPUT):
        mean = found.loc[(stage, schema.VISUAL), "norm_mean"]
        assert mean == pytest.approx(norms.mean(), 1e-6)


class Normed(Pooling):
    """A norm between tower and projector: no state of the tower enters it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(24)
        nn.init.uniform_(self.norm.weight, 0.1, 3)

    def squares(self, image: torch.Tensor) -> torch.Tensor:
        return self.norm(super().squares(image))


@pytest.mark.parametrize("named", [{}, BY_HAND], ids=["found", "named"])
@pytest.mark.parametrize("row", [False, True])
def test_a_pooled_row_is_no_token_where_a_norm_stands_before_the_projector(row, named) -> None:
    module = made(Normed)
    module.vision.row = row
    found = probe_interface(module, {"tokens": IDS, "image": SEEN}, named=named)
    found = flat(found).set_index(["stage", "group"]).loc[schema.VISION_ENCODER]
    with torch.no_grad():
        norms = np.linalg.norm(Pooling.squares(module, SEEN).double().numpy(), axis=-1)
    assert set(found.index) == {schema.VISUAL}
    assert found.loc[schema.VISUAL, "tokens"] == norms.size
    assert found.loc[schema.VISUAL, "norm_mean"] == pytest.approx(norms.mean(), 1e-6)


def test_without_a_projector_the_state_with_several_rows_an_image_is_measured() -> None:
    """Text attends to what the tower hands over."""
    module = made(Attending)
    module.connector = nn.Identity()
    for block in module.blocks:
        block.look = nn.MultiheadAttention(32, 4, kdim=24, vdim=24, batch_first=True)
    named = {**BY_HAND, "projector": None, "fusion": "cross-attention"}
    inputs = {"lang_x": IDS, "vision_x": SEEN[:, None, None]}
    found = flat(probe_interface(module, inputs, named=named)).set_index(["stage", "group"])
    with torch.no_grad():
        norms = np.linalg.norm(module.squares(SEEN).double().numpy(), axis=-1)
    row = found.loc[(schema.VISION_ENCODER, schema.VISUAL)]
    assert row["tokens"] == norms.size
    assert row["norm_mean"] == pytest.approx(norms.mean(), 1e-6)


def test_what_is_pooled_beside_the_rows_of_a_projector_is_not_taken_for_them() -> None:
    rows, pooled = torch.ones(2, 5, 4), torch.zeros(2, 3)
    held = BaseModelOutputWithPooling(last_hidden_state=rows, pooler_output=pooled)
    assert projected_state(held) is rows
    features = torch.ones(10, 4)  # as transformers hands them over: a row a token
    held = BaseModelOutputWithPooling(last_hidden_state=rows, pooler_output=features)
    assert projected_state(held) is features


def test_a_projector_whose_rows_are_joined_by_others() -> None:
    visual = torch.randn(17, 8, generator=torch.Generator().manual_seed(0))
    assert is_one_of_several(visual[1:], visual)
    assert not is_one_of_several(visual, visual)
    assert not is_one_of_several(-visual[1:], visual)
    assert not is_one_of_several(visual[1:, :4], visual)
    assert not is_one_of_several(visual[:3], visual)
    assert is_one_of_several(visual[:3], visual, named=True)
    assert not is_one_of_several(visual, visual, named=True)
    assert not is_one_of_several(None, visual)


class MappingTower(nn.Module):
    """A tower that returns maps, as ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.norm = nn.Conv2d(3, 24, 4, 4), nn.BatchNorm2d(24)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.norm(self.cut(image))


class OfMaps(Pooling):
    def __init__(self) -> None:
        super().__init__()
        self.vision = MappingTower()

    def squares(self, image: torch.Tensor) -> torch.Tensor:
        return self.vision(image).flatten(2).transpose(1, 2)


class Bare(MappingTower):
    """Its last convolution has neither a bias nor a norm behind it, as SAM's in OneChart."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Conv2d(24, 24, 1, bias=False)
        self.cut, self.norm = nn.Conv2d(3, 12, 4, 4), nn.Conv2d(12, 24, 1, bias=False)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.cut(image)))


class OfBareMaps(OfMaps):
    def __init__(self) -> None:
        super().__init__()
        self.vision = Bare()


@pytest.mark.parametrize("kind", [OfMaps, OfBareMaps])
@pytest.mark.parametrize("named", [{}, BY_HAND], ids=["found", "named"])
def test_maps_of_a_tower_are_read_by_their_places(named: dict[str, str], kind: type[Plain]) -> None:
    """Nothing says which axis is the hidden one (MG-LLaVA)."""
    module = made(kind)
    inputs = {"tokens": IDS, "image": SEEN}
    found = flat(probe_interface(module, inputs, named=named)).set_index(["stage", "group"])
    with torch.no_grad():
        norms = np.linalg.norm(module.squares(SEEN).double().numpy(), axis=-1)
    row = found.loc[(schema.VISION_ENCODER, schema.VISUAL)]
    assert (row["tokens"], row["hidden_size"]) == (norms.size, 24)
    assert row["norm_mean"] == pytest.approx(norms.mean(), 1e-6)


# --- a projector inside the tower, behind what joins rows (GLM-4V, CogVLM2) -----------------------


class Rows(Eye):
    """Its blocks in a module of their own, and a class row of a name of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Sequential(*self.blocks)
        del self.blocks, self.cls_token
        self.cls_embedding = nn.Parameter(torch.randn(1, 24))
        self.conv, self.project = nn.Conv2d(24, 24, 2, 2), nn.Linear(24, 32)

    def stacked(self, image: torch.Tensor) -> torch.Tensor:
        squares = self.cut(image).flatten(2).transpose(1, 2)
        return self.stack(torch.cat([self.cls_embedding.expand(len(squares), 1, -1), squares], 1))

    def joined(self, image: torch.Tensor) -> torch.Tensor:
        rows = self.stacked(image)[:, 1:]
        side = int(rows.shape[1] ** 0.5)
        squares = rows.transpose(1, 2).unflatten(2, (side, side))
        return self.conv(squares).flatten(2).transpose(1, 2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.project(self.joined(image))


class Joining(Plain):
    """One token a picture of four squares."""

    def __init__(self) -> None:
        super().__init__()
        self.vision, self.connector = Rows(), nn.Identity()


ONE_EACH = torch.tensor([[1, 8, 10, 3, 9, 11, 2], [1, 4, 12, 3, 5, 13, 2]])


@pytest.mark.parametrize("named", [{}, {"vision_encoder": "vision.stack"}], ids=["found", "named"])
def test_rows_that_a_tower_joins_before_its_projector_are_told(named) -> None:
    module = made(Joining)
    inputs = {"tokens": ONE_EACH, "image": SEEN}
    run = Probe(module, named=named).interface(inputs)
    table = flat(run.table).set_index(["stage", "group"]).loc[schema.VISION_ENCODER]
    with torch.no_grad():
        stacked, joined = module.vision.stacked(SEEN), module.vision.joined(SEEN)
    expected = {schema.VISUAL: stacked[:, 1:], schema.SPECIAL: stacked[:, :1]}
    for group, rows in (expected if named else {schema.VISUAL: joined}).items():
        norms = np.linalg.norm(rows.double().numpy(), axis=-1)
        assert table.loc[group, "tokens"] == norms.size
        assert table.loc[group, "norm_mean"] == pytest.approx(norms.mean(), 1e-6)
    assert set(table.index) == (set(expected) if named else {schema.VISUAL})
    told = "vision makes one of several rows before vision.project reads them"
    said = [text for text in run.record.get("doubts", []) if text.startswith(told)]
    assert len(said) == (not named)
    assert named or ", or the last of them, vision." in said[0]
    assert not Probe(module, named=named).layers(inputs).record.get("doubts")


class OfLayers(Pooling):
    """As LHRS-Bot: its tower hands over the patches of several layers, without the class row."""

    def squares(self, image: torch.Tensor) -> torch.Tensor:
        return self.vision(image)


class Halving(nn.Linear):
    """One row of each two, as a resampler makes fewer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.unflatten(1, (-1, 2)).mean(2))


class Layered(Eye):
    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.cut(image).flatten(2).transpose(1, 2)
        x, handed = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1), []
        for block in self.blocks:
            x = block(x)
            handed.append(x[:, 1:])
        return torch.cat(handed, 1)


@pytest.mark.parametrize("named", [{}, BY_HAND], ids=["found", "named"])
def test_no_patch_of_several_layers_is_a_class_row(named: dict[str, str]) -> None:
    module = made(OfLayers)
    module.vision, module.connector = Layered(), Halving(24, 32)
    run = Probe(module, named=named).interface({"tokens": IDS, "image": SEEN})
    found = flat(run.table).set_index(["stage", "group"]).loc[schema.VISION_ENCODER]
    with torch.no_grad():
        norms = np.linalg.norm(module.squares(SEEN).double().numpy(), axis=-1)
    assert set(found.index) == {schema.VISUAL}
    assert found.loc[schema.VISUAL, "tokens"] == norms.size == 16
    assert found.loc[schema.VISUAL, "norm_mean"] == pytest.approx(norms.mean(), 1e-6)


def check_squares(module: Any, named: dict[str, str]) -> None:
    """The encoder's visual rows are those of its squares, one by one."""
    run = Probe(module, named=named).interface({"tokens": IDS, "image": SEEN})
    found = flat(run.table).set_index(["stage", "group"]).loc[schema.VISION_ENCODER]
    with torch.no_grad():
        norms = np.linalg.norm(module.squares(SEEN).double().numpy(), axis=-1)
    assert found.loc[schema.VISUAL, "tokens"] == norms.size
    assert found.loc[schema.VISUAL, "norm_mean"] == pytest.approx(norms.mean(), 1e-6)


class Gated(Eye):
    """As MOSS-Video's: behind a gate it joins states of each picture's only tile."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.full((1,), 0.5))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = super().forward(image)
        return torch.cat([x, self.gate * x, x, x], -1)[:, None, None]


class OfGated(Pooling):
    def squares(self, image: torch.Tensor) -> torch.Tensor:
        return self.vision(image).flatten(0, 2)


def test_a_gate_is_no_width_of_a_map() -> None:
    module = made(OfGated)
    module.vision, module.connector = Gated(), nn.Linear(96, 32)
    check_squares(module, named=BY_HAND)


class AllLayers(Eye):
    """As MolmoAct's: it hands over a list of what each of its layers leaves."""

    whole = True

    def forward(self, image: torch.Tensor) -> list[torch.Tensor]:
        x = self.cut(image).flatten(2).transpose(1, 2)
        x, handed = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1), []
        for block in self.blocks:
            x = block(x)
            handed.append(x if self.whole else x[:, 1:])
        return handed


class OfAllLayers(Pooling):
    def squares(self, image: torch.Tensor) -> torch.Tensor:
        return self.vision(image)[-1][:, -4:]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("named", [{}, BY_HAND], ids=["found", "named"])
def test_of_a_list_of_all_layers_states_the_last_is_the_encoder_s(
    named: dict[str, str], whole: bool
) -> None:
    module = made(OfAllLayers)
    module.vision, module.connector = AllLayers(), nn.Linear(24, 32)
    module.vision.whole = whole
    check_squares(module, named=named)


class Lines(nn.Module):
    """As Tarsier's: reads the last of several states, and ends each picture with a learned row."""

    def __init__(self, side_by_side: bool) -> None:
        super().__init__()
        self.project, self.newline = nn.Linear(24, 32), nn.Parameter(torch.randn(32))
        self.side_by_side = side_by_side

    def forward(self, states: tuple[torch.Tensor, ...] | torch.Tensor) -> torch.Tensor:
        rows = self.project(states[-1] if self.side_by_side else states)
        return torch.cat([rows, self.newline.expand(len(rows), 1, -1)], 1)


class Ended(Plain):
    """Of a tower all states are passed on, or the last."""

    def __init__(self, side_by_side: bool = True) -> None:
        super().__init__()
        self.connector = Lines(side_by_side)

    def forward(self, tokens: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        last = self.vision(image)
        rows = self.connector((last / 3, last / 2, last) if self.connector.side_by_side else last)
        there = (tokens == self.place).unsqueeze(-1)
        return self.think(self.words(tokens).masked_scatter(there, rows), None)


@pytest.mark.parametrize("side_by_side", [True, False])
def test_rows_that_end_a_picture_are_structural_behind_the_projector_too(side_by_side) -> None:
    torch.manual_seed(0)
    module = Ended(side_by_side).eval()
    places = [Plain.place] * 5
    ids = torch.tensor([[1, *places, 8, 11, 12, 14, 9], [1, 6, 13, 15, *places, 9, 10]])
    named = {"vision_encoder": "vision", "projector": "connector", "decoder_layers": "blocks"}
    named["text_embedding"] = "words"
    run = Probe(module, named=named).interface({"tokens": ids, "image": SEEN}, verify=True)
    assert max(run.record["recomputed"].values()) < 1e-6
    table = flat(run.table).set_index(["stage", "group"])
    with torch.no_grad():
        seen = module.vision(SEEN)
        made = module.connector.project(seen).double().norm(dim=-1)
    expected = {schema.VISUAL: made, schema.STRUCTURAL: module.connector.newline.norm().expand(2)}
    for stage in (schema.PROJECTOR_OUTPUT, schema.DECODER_INPUT):
        for group, norms in expected.items():
            assert table.loc[(stage, group), "tokens"] == norms.numel()
            assert table.loc[(stage, group), "norm_mean"] == pytest.approx(
                norms.mean().item(), 1e-6
            )
    assert "enter no position" not in " ".join(run.record.get("doubts", []))
    told = "connector is given 3 states side by side, and nothing tells which it reads"
    assert (told in " ".join(run.record.get("doubts", []))) == side_by_side
    assert (schema.PROJECTOR_INPUT in table.index.levels[0]) == (not side_by_side)
    if not side_by_side:
        read = table.loc[(schema.PROJECTOR_INPUT, schema.VISUAL), "norm_mean"]
        assert read == pytest.approx(seen.double().norm(dim=-1).mean().item(), 1e-6)
    than = "that of the vision encoder" if side_by_side else "that before it"
    assert f"smaller than {than}, from " in str(run.verdict)


class TwoEyes(nn.Module):
    """As URSA's: what its two encoders see is returned side by side, and projected together."""

    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = Eye(), Eye()

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.near(image), self.far(image)


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = nn.Linear(24, 32), nn.Linear(24, 32)

    def forward(self, seen: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return self.near(seen[0]) + self.far(seen[1])


class OfTwoEyes(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.vision, self.connector = TwoEyes(), Both()


def test_of_two_encoders_neither_stands_for_both() -> None:
    torch.manual_seed(0)
    module = OfTwoEyes().eval()
    ids = torch.tensor([[1, *[Plain.place] * 4, 8, 11, 12, 14, 9]])
    named = {"vision_encoder": "vision", "projector": "connector", "decoder_layers": "blocks"}
    named["text_embedding"] = "words"
    inputs = {"tokens": ids, "image": SEEN[:1]}
    run = Probe(module, named=named).interface(inputs, verify=True)
    table = flat(run.table).set_index(["stage", "group"])
    assert {schema.VISION_ENCODER, schema.PROJECTOR_INPUT}.isdisjoint(table.index.levels[0])
    told = "the stages vision_encoder and projector_input are left out"
    assert told in " ".join(run.record["doubts"])
    with torch.no_grad():
        left = module.connector(module.vision(SEEN[:1])).double().norm(dim=-1).mean()
    read = table.loc[(schema.PROJECTOR_OUTPUT, schema.VISUAL), "norm_mean"]
    assert read == pytest.approx(left.item(), 1e-6)


class EndingTower(nn.Module):
    """As those of GeoPixel and EVEv2: it ends the rows of a picture with a learned one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.eye, self.grow = Eye(), nn.Linear(24, width)
        self.newline = nn.Parameter(torch.randn(width))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        rows = self.grow(self.eye(image))
        return torch.cat([rows, self.newline.expand(len(rows), 1, -1)], 1)


class EndedByTower(Plain):
    def __init__(self, projects: bool) -> None:
        super().__init__()
        self.vision = EndingTower(24 if projects else 32)
        self.connector = nn.Linear(24, 32) if projects else nn.Identity()


@pytest.mark.parametrize("projects", [True, False])
def test_rows_that_a_tower_adds_are_structural_where_it_hands_them_over(
    projects: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_checks, "retraced", lambda *_: None)  # that projector is in the tower
    torch.manual_seed(0)
    module = EndedByTower(projects).eval()
    places = [Plain.place] * 5
    ids = torch.tensor([[1, *places, 8, 11, 12, 14, 9], [1, 6, 13, 15, *places, 9, 10]])
    named = {"vision_encoder": "vision", "decoder_layers": "blocks", "text_embedding": "words"}
    if projects:
        named["projector"] = "connector"
    named["class_rows"] = 0  # the tower leaves its class row out
    run = Probe(module, named=named).interface({"tokens": ids, "image": SEEN}, verify=projects)
    assert not projects or max(run.record["recomputed"].values()) < 1e-6
    table = flat(run.table).set_index(["stage", "group"])
    with torch.no_grad():
        handed = module.vision(SEEN)
        states = {schema.VISION_ENCODER: handed, schema.DECODER_INPUT: module.connector(handed)}
    if projects:
        states[schema.PROJECTOR_INPUT] = handed
        states[schema.PROJECTOR_OUTPUT] = states[schema.DECODER_INPUT]
    for stage, rows in states.items():
        norms = rows.double().norm(dim=-1)
        for group, expected in ((schema.VISUAL, norms[:, :-1]), (schema.STRUCTURAL, norms[:, -1:])):
            assert table.loc[(stage, group), "tokens"] == expected.numel()
            mean = table.loc[(stage, group), "norm_mean"]
            assert mean == pytest.approx(expected.mean().item(), 1e-6)


class Patches(nn.Module):
    """As Mono-InternVL's: patches alone, of an encoder that holds a class token and no block."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.cut, self.class_embedding = Eye().cut, nn.Parameter(torch.randn(1, 1, 24))
        self.classes = classes

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        rows = self.cut(image).flatten(2).transpose(1, 2)
        leading = self.class_embedding.expand(len(rows), self.classes, -1)
        return torch.cat([leading, rows + image.mean()], 1)


class Four(nn.Linear):
    """One token of four patches."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows.flatten(1)[:, None])


class OfPatches(Plain):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.vision, self.connector = Patches(classes), Four(4 * 24, 32)

    def forward(self, tokens: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        rows = self.connector(self.vision(image)[:, self.vision.classes :])
        there = (tokens == self.place).unsqueeze(-1)
        return self.think(self.words(tokens).masked_scatter(there, rows), None)


@pytest.mark.parametrize("classes", [0, 1])
def test_patches_of_an_encoder_without_blocks_are_no_class_rows(classes: int) -> None:
    torch.manual_seed(0)
    module = OfPatches(classes).eval()
    run = Probe(module).interface({"tokens": ONE_EACH, "image": SEEN})
    table = flat(run.table).set_index(["stage", "group"]).loc[schema.VISION_ENCODER]
    with torch.no_grad():
        norms = module.vision(SEEN).double().norm(dim=-1)
    assert table.loc[schema.VISUAL, "tokens"] == norms[:, classes:].numel()
    mean = norms[:, classes:].mean().item()
    assert table.loc[schema.VISUAL, "norm_mean"] == pytest.approx(mean, 1e-6)
    assert (schema.SPECIAL in table.index) == bool(classes)


# --- pictures of several sizes in one batch, or one after another (LLaVA-UHD v2) ------------------


class PaddedTower(nn.Module):
    """Rows of all pictures in one batch; a mask hides what pads them from its layers."""

    def __init__(self, hides: str) -> None:
        super().__init__()
        self.cut, self.hides = nn.Conv2d(3, 24, 4, 4), hides
        self.blocks = nn.ModuleList(Masked() for _ in range(2))

    def forward(self, pictures: list[torch.Tensor]) -> torch.Tensor:
        cut = [self.cut(picture[None]).flatten(2).transpose(1, 2)[0] for picture in pictures]
        state = nn.utils.rnn.pad_sequence(cut, batch_first=True)
        there = torch.arange(state.shape[1]) < torch.tensor([[len(rows)] for rows in cut])
        attended = there[:, None, None].expand(-1, 1, state.shape[1], -1)
        masks = {
            "bias": {"mask": attended.logical_not() * -1e9},
            "kept": {"mask": attended},
            "hidden": {"mask": ~attended},
            "padding": {"attention_mask": there.long()},
        }
        for block in self.blocks:
            state = block(state, **masks[self.hides])
        return state


class Masked(nn.Linear):
    """A layer that is given a mask, in one way or another."""

    def __init__(self) -> None:
        super().__init__(24, 24)

    def forward(self, state: torch.Tensor, **masks: torch.Tensor) -> torch.Tensor:
        return state + super().forward(state)


class OfSizes(nn.Module):
    """The rows of each picture enter behind the words, without what padded them."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.vision, self.connector = tower, nn.Linear(24, 32)
        self.words = nn.Embedding(20, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 2, 32, batch_first=True) for _ in range(2)
        )

    def rows(self, pictures: list[torch.Tensor]) -> torch.Tensor:
        counts = [picture[0].numel() // 16 for picture in pictures]
        state = self.vision(pictures)
        return torch.cat([rows[:count] for rows, count in zip(state, counts, strict=True)])

    def forward(self, ids: torch.Tensor, pictures: list[torch.Tensor]) -> torch.Tensor:
        state = torch.cat([self.words(ids), self.connector(self.rows(pictures))[None]], 1)
        for layer in self.layers:
            state = layer(state)
        return state


BY_NAME = {
    "vision_encoder": "vision",
    "projector": "connector",
    "text_embedding": "words",
    "decoder_layers": "layers",
}


def of_encoder(module: nn.Module, inputs: dict[str, Any]) -> pd.DataFrame:
    run = Probe(module, named=BY_NAME).interface(inputs)
    return flat(run.table).set_index(["stage", "group"]).loc[schema.VISION_ENCODER]


@pytest.mark.parametrize("hides", ["bias", "kept", "hidden", "padding"])
def test_rows_that_pad_a_picture_in_its_batch_count_nowhere(hides: str) -> None:
    torch.manual_seed(0)
    module = OfSizes(PaddedTower(hides)).eval()
    pictures = [torch.randn(3, 16, 16), torch.randn(3, 8, 12)]
    table = of_encoder(module, {"ids": torch.arange(9)[None], "pictures": pictures})
    with torch.no_grad():
        norms = np.linalg.norm(module.rows(pictures).double().numpy(), axis=-1)
    if hides == "hidden":  # of two masks that are not told apart: all rows are counted
        assert table.loc[schema.VISUAL, "tokens"] == 32
        return
    assert table.loc[schema.VISUAL, "tokens"] == norms.size == 22
    assert table.loc[schema.VISUAL, "norm_mean"] == pytest.approx(norms.mean(), 1e-6)


class CuttingTower(nn.Module):
    """It hands over each picture's patches, as many as it has, without the class row."""

    def __init__(self) -> None:
        super().__init__()
        self.eye, self.counts = Eye(), (13, 8)

    def forward(self, pictures: torch.Tensor) -> list[torch.Tensor]:
        each = zip(pictures, self.counts, strict=True)
        return [self.eye(picture[None])[0, :count] for picture, count in each]


class Cutting(OfSizes):
    def rows(self, pictures: torch.Tensor) -> torch.Tensor:
        return torch.cat(self.vision(pictures))

    def forward(self, ids: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
        state = [self.words(ids)[0], *map(self.connector, self.vision(pictures))]
        state = torch.cat(state)[None]
        for layer in self.layers:
            state = layer(state)
        return state


def test_no_patch_of_pictures_in_a_row_is_a_class_row() -> None:
    torch.manual_seed(0)
    module, pictures = Cutting(CuttingTower()).eval(), torch.randn(2, 3, 16, 16)
    table = of_encoder(module, {"ids": torch.arange(9)[None], "pictures": pictures})
    with torch.no_grad():
        norms = np.linalg.norm(module.rows(pictures).double().numpy(), axis=-1)
    assert list(table.index) == [schema.VISUAL]
    assert table.loc[schema.VISUAL, "tokens"] == norms.size == 21
    assert table.loc[schema.VISUAL, "norm_mean"] == pytest.approx(norms.mean(), 1e-6)


class MergingTower(nn.Module):
    """It hands over the mean of each four patches, and no class row."""

    def __init__(self) -> None:
        super().__init__()
        self.eye = Eye()

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.eye(pictures).unflatten(1, (-1, 4)).mean(dim=2)


class Merging(OfSizes):
    def rows(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.vision(pictures).flatten(0, 1)

    def forward(self, ids: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
        state = torch.cat([self.words(ids)[0], self.connector(self.rows(pictures))])[None]
        for layer in self.layers:
            state = layer(state)
        return state


def test_no_row_of_merged_patches_is_a_class_row() -> None:
    torch.manual_seed(0)
    module, pictures = Merging(MergingTower()).eval(), torch.randn(2, 3, 16, 16)
    table = of_encoder(module, {"ids": torch.arange(9)[None], "pictures": pictures})
    with torch.no_grad():
        norms = np.linalg.norm(module.rows(pictures).double().numpy(), axis=-1)
    assert list(table.index) == [schema.VISUAL]
    assert table.loc[schema.VISUAL, "tokens"] == norms.size == 8
    assert table.loc[schema.VISUAL, "norm_mean"] == pytest.approx(norms.mean(), 1e-6)


class MapTower(MergingTower):
    """Its last state is a map of patches; the class row went before."""

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.eye(pictures).unflatten(1, (4, 4)).movedim(-1, 1)


class OfMaps(Merging):
    def rows(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.vision(pictures).flatten(2).mT.flatten(0, 1)


def test_no_row_of_a_map_is_a_class_row() -> None:
    torch.manual_seed(0)
    module, pictures = OfMaps(MapTower()).eval(), torch.randn(2, 3, 16, 16)
    table = of_encoder(module, {"ids": torch.arange(9)[None], "pictures": pictures})
    with torch.no_grad():
        norms = np.linalg.norm(module.rows(pictures).double().numpy(), axis=-1)
    assert list(table.index) == [schema.VISUAL]
    assert table.loc[schema.VISUAL, "tokens"] == norms.size == 32
    assert table.loc[schema.VISUAL, "norm_mean"] == pytest.approx(norms.mean(), 1e-6)


class MakingUp(Merging):
    """Rows of a picture that its code makes up are handed over, and enter nothing."""

    def __init__(self, made_up: int) -> None:
        super().__init__(Eye())
        self.made_up = made_up

    def forward(self, ids: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
        fake = torch.zeros(self.made_up, *pictures.shape[1:])
        rows = self.connector(self.vision(torch.cat([pictures, fake])).flatten(0, 1))
        rows = rows[: len(rows) - 16 * self.made_up]
        state = torch.cat([self.words(ids)[0], rows])[None]
        for layer in self.layers:
            state = layer(state)
        return state


@pytest.mark.parametrize("made_up", [0, 1])
def test_rows_that_enter_no_position_are_a_doubt(made_up: int) -> None:
    torch.manual_seed(0)
    module, pictures = MakingUp(made_up).eval(), torch.randn(2, 3, 16, 16)
    inputs = {"ids": torch.arange(9)[None], "pictures": pictures}
    run = Probe(module, named=BY_NAME).interface(inputs)
    told = "of 48 rows that connector hands over 16 enter no position of the decoder"
    assert (told in " ".join(run.record.get("doubts", []))) == (made_up == 1)


class TwoViews(nn.Module):
    """Takes the patches of a picture, and those of a smaller one beside them (Ola)."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Linear(24, 32)

    def forward(self, rows: torch.Tensor, few: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.near(rows), self.near(few) / 2], dim=1)


class OfViews(Merging):
    def __init__(self) -> None:
        super().__init__(Eye())
        self.connector = TwoViews()

    def forward(self, ids: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
        seen = self.vision(pictures)
        rows = self.connector(seen[:, :15], seen[:, 15:]).flatten(0, 1)
        state = torch.cat([self.words(ids)[0], rows])[None]
        for layer in self.layers:
            state = layer(state)
        return state


def test_rows_in_a_second_argument_of_a_projector_are_taken() -> None:
    torch.manual_seed(0)
    inputs = {"ids": torch.arange(9)[None], "pictures": torch.randn(2, 3, 16, 16)}
    run = Probe(OfViews().eval(), named=BY_NAME).interface(inputs)
    assert "class rows or padding" not in " ".join(run.record.get("doubts", []))


class Returning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = nn.Linear(24, 32), nn.Linear(24, 32)

    def forward(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.near(rows), self.far(rows)


class OfReturned(Merging):
    def __init__(self) -> None:
        super().__init__(Eye())
        self.connector = Returning()

    def forward(self, ids: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
        near, far = self.connector(self.vision(pictures))
        state = torch.cat([self.words(ids)[0], (near + far).flatten(0, 1)])[None]
        for layer in self.layers:
            state = layer(state)
        return state


def test_of_states_that_a_projector_returns_one_is_read() -> None:
    """HumanOmni's are three, which are mixed behind it."""
    torch.manual_seed(0)
    inputs = {"ids": torch.arange(9)[None], "pictures": torch.randn(2, 3, 16, 16)}
    named = {**BY_NAME, "behind": "two states are added"}
    run = Probe(OfReturned().eval(), named=named).interface(inputs)
    told = "connector returns 2 states side by side: its stage holds the first alone"
    assert told in " ".join(run.record["doubts"])


class Scales(nn.Module):
    """It hands over patches of one width, and fewer of another."""

    def __init__(self) -> None:
        super().__init__()
        self.eye, self.wider = Eye(), nn.Linear(24, 48)

    def forward(self, pictures: torch.Tensor) -> list[torch.Tensor]:
        rows = self.eye(pictures)
        return [rows, self.wider(rows[:, ::4])]


class BothScales(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.near, self.far = nn.Linear(24, 32), nn.Linear(48, 32)

    def forward(self, scales: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat([self.near(scales[0]), self.far(scales[1])], dim=1)


class OfScales(Merging):
    def __init__(self) -> None:
        super().__init__(Scales())
        self.connector = BothScales()

    def rows(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.connector(self.vision(pictures)).flatten(0, 1)

    def forward(self, ids: torch.Tensor, pictures: torch.Tensor) -> torch.Tensor:
        state = torch.cat([self.words(ids)[0], self.rows(pictures)])[None]
        for layer in self.layers:
            state = layer(state)
        return state


def test_states_of_several_widths_are_left_out_with_a_doubt() -> None:
    torch.manual_seed(0)
    module, pictures = OfScales().eval(), torch.randn(1, 3, 16, 16)
    inputs = {"ids": torch.arange(9)[None], "pictures": pictures}
    run = Probe(module, named=BY_NAME).interface(inputs, verify=True)
    assert max(run.record["recomputed"].values()) < 1e-6
    table = flat(run.table).set_index(["stage", "group"])
    assert {schema.VISION_ENCODER, schema.PROJECTOR_INPUT}.isdisjoint(table.index.levels[0])
    with torch.no_grad():
        norms = module.rows(pictures).double().norm(dim=-1)
    for stage in (schema.PROJECTOR_OUTPUT, schema.DECODER_INPUT):
        assert table.loc[(stage, schema.VISUAL), "tokens"] == len(norms) == 20
        read = table.loc[(stage, schema.VISUAL), "norm_mean"]
        assert read == pytest.approx(norms.mean().item(), 1e-6)
    told = "vision hands over states of several widths, 24 and 48: the stages vision_encoder"
    assert told in " ".join(run.record["doubts"])


class Writing(nn.Linear):
    """It adds positions to what it takes, in place (360VL)."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        rows += 1
        return super().forward(rows)


class WritingInto(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.connector = Writing(24, 32)


def test_what_enters_a_projector_is_read_before_it_writes_into_it() -> None:
    module = made(WritingInto)
    found = flat(probe_interface(module, {"tokens": IDS, "image": SEEN}))
    table = found.set_index(["stage", "group"])
    with torch.no_grad():
        expected = module.vision(SEEN).double().norm(dim=-1).mean().item()
    for stage in (schema.VISION_ENCODER, schema.PROJECTOR_INPUT):
        mean = table.loc[(stage, schema.VISUAL), "norm_mean"]
        assert mean == pytest.approx(expected, 1e-6)


class Levels(Eye):
    """A tower that hands over several levels, each with its class row (WeMM)."""

    def forward(self, pixels: torch.Tensor) -> list[torch.Tensor]:
        x = self.cut(pixels).flatten(2).transpose(1, 2)
        x, found = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1), []
        for block in self.blocks:
            x = block(x)
            found.append(x)
        return found


class OfLevels(OfSizes):
    def rows(self, pictures: torch.Tensor) -> torch.Tensor:
        return torch.cat([level[0, 1:] for level in self.vision(pictures)])


def test_each_level_of_a_tower_has_its_class_row() -> None:
    torch.manual_seed(0)
    module = OfLevels(Levels()).eval()
    table = of_encoder(module, {"ids": torch.arange(9)[None], "pictures": SEEN[:1]})
    with torch.no_grad():
        levels = torch.cat(module.vision(SEEN[:1])).double().norm(dim=-1)
    for group, norms in ((schema.VISUAL, levels[:, 1:]), (schema.SPECIAL, levels[:, :1])):
        assert table.loc[group, "tokens"] == norms.numel()
        assert table.loc[group, "norm_mean"] == pytest.approx(norms.mean().item(), 1e-6)


# --- several states that a projector reads, and rows of all pictures in one list ------------------


class Deep(nn.Module):
    """As Florence-VL's tower: of each patch a state, and a wider one of the layers behind."""

    def __init__(self) -> None:
        super().__init__()
        self.eye, self.behind = Eye(), nn.Linear(24, 48)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.eye(image)
        return rows, self.behind(rows)


class Joined(nn.Module):
    """It joins the two that it is given, or adds what it makes of each."""

    def __init__(self, joins: bool) -> None:
        super().__init__()
        self.joins = joins
        parts = [nn.Linear(72, 32)] if joins else [nn.Linear(24, 32), nn.Linear(48, 32)]
        self.parts = nn.ModuleList(parts)

    def forward(self, near: torch.Tensor, deep: torch.Tensor) -> torch.Tensor:
        if self.joins:
            return self.parts[0](torch.cat([deep, near], dim=-1))
        return self.parts[0](near) + self.parts[1](deep)


class OfTwoStates(Plain):
    def __init__(self, joins: bool) -> None:
        super().__init__()
        self.vision, self.connector = Deep(), Joined(joins)

    def forward(self, tokens: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        rows = self.connector(*self.vision(image))
        there = (tokens == self.place).unsqueeze(-1)
        return self.think(self.words(tokens).masked_scatter(there, rows), None)


@pytest.mark.parametrize("joins", [True, False])
def test_states_that_a_projector_joins_are_read_together(joins: bool) -> None:
    torch.manual_seed(0)
    module = OfTwoStates(joins).eval()
    ids = torch.tensor([[1, *[Plain.place] * 4, 8, 11, 12, 14, 9]])
    named = {"vision_encoder": "vision", "projector": "connector", "decoder_layers": "blocks"}
    named["text_embedding"] = "words"
    run = Probe(module, named=named).interface({"tokens": ids, "image": SEEN[:1]})
    table = flat(run.table).set_index(["stage", "group"])
    said = " ".join(run.record["doubts"])
    if not joins:
        assert schema.PROJECTOR_INPUT not in table.index.levels[0]
        assert "connector is given 2 states side by side, and nothing tells which" in said
        return
    with torch.no_grad():
        both = torch.cat(module.vision(SEEN[:1]), dim=-1).double().norm(dim=-1)
    read = table.loc[(schema.PROJECTOR_INPUT, schema.VISUAL)]
    assert (read["hidden_size"], read["tokens"]) == (72, both.numel())
    assert read["norm_mean"] == pytest.approx(both.mean().item(), 1e-6)
    assert "vision hands over 2 states, which the projector joins" in said


class RowsFirst(nn.Module):
    """As MiniMax-VL's tower: its layers take the rows of all pictures as one list."""

    def __init__(self) -> None:
        super().__init__()
        self.eye = Eye()

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.eye.cut(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.eye.cls_token.expand(len(x), -1, -1), x], 1)
        rows = x.flatten(0, 1)[:, None]
        for block in self.eye.blocks:
            rows = block(rows)
        return rows.transpose(0, 1)


class OfRowsFirst(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.vision = RowsFirst()

    def rows(self, image: torch.Tensor) -> torch.Tensor:
        return self.vision(image)[0].unflatten(0, (len(image), -1))

    def forward(self, tokens: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        rows = self.connector(self.rows(image)[:, 1:])
        there = (tokens == self.place).unsqueeze(-1)
        return self.think(self.words(tokens).masked_scatter(there, rows), None)


def test_each_picture_has_its_class_row_where_layers_take_one_list() -> None:
    torch.manual_seed(0)
    module = OfRowsFirst().eval()
    places = [Plain.place] * 4
    ids = torch.tensor([[1, *places, 8, 11, 12], [1, 6, 13, 15, *places]])
    run = Probe(module).interface({"tokens": ids, "image": SEEN})
    table = flat(run.table).set_index(["stage", "group"]).loc[schema.VISION_ENCODER]
    with torch.no_grad():
        norms = module.rows(SEEN).double().norm(dim=-1)
    for group, seen in ((schema.SPECIAL, norms[:, :1]), (schema.VISUAL, norms[:, 1:])):
        assert table.loc[group, "tokens"] == seen.numel()
        assert table.loc[group, "norm_mean"] == pytest.approx(seen.mean().item(), 1e-6)


class Beside(Eye):
    """As Moondream's tower: its own projector reads each patch beside what all of them show."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(40, 32)

    def beside(self, image: torch.Tensor) -> torch.Tensor:
        rows = super().forward(image)
        return torch.cat([rows, rows.mean(1, keepdim=True).expand_as(rows)[..., :16]], dim=-1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.project(self.beside(image))


class OfBeside(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.vision, self.connector = Beside(), nn.Identity()


def test_states_that_a_tower_joins_for_its_own_projector_are_told() -> None:
    torch.manual_seed(0)
    ids = torch.tensor([[1, *[Plain.place] * 4, 8, 11, 12, 14, 9]])
    named = {"vision_encoder": "vision", "projector": "vision.project"}
    run = Probe(OfBeside().eval(), named=named).interface({"tokens": ids, "image": SEEN[:1]})
    told = "vision.project reads rows of size 40, which no norm of vision has"
    assert sum(text.startswith(told) for text in run.record["doubts"]) == 1


class Around(nn.Module):
    """As Nemotron-Parse's encoder: a neck around the tower, which is given pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.tower, self.neck = Eye(), nn.Linear(24, 32)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.neck(self.tower(image))


class OfAround(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.vision, self.connector = nn.Identity(), Around()


def test_pixels_are_no_input_of_a_projector_around_its_encoder() -> None:
    torch.manual_seed(0)
    ids = torch.tensor([[1, *[Plain.place] * 4, 8, 11, 12, 14, 9]])
    named = {"vision_encoder": "connector.tower", "projector": "connector"}
    named |= {"decoder_layers": "blocks", "text_embedding": "words"}
    run = Probe(OfAround().eval(), named=named).interface({"tokens": ids, "image": SEEN[:1]})
    stages = set(flat(run.table)["stage"])
    assert schema.PROJECTOR_INPUT not in stages
    assert {schema.VISION_ENCODER, schema.PROJECTOR_OUTPUT} <= stages
    told = "connector holds connector.tower, and is given pixels"
    assert told in " ".join(run.record["doubts"])


class Unpadded(PaddedTower):
    """As Phi-4-reasoning-vision's: what padded a picture is gone where it is handed over."""

    def forward(self, pictures: list[torch.Tensor]) -> list[torch.Tensor]:
        (picture,) = pictures
        cut = self.cut(picture[None]).flatten(2).transpose(1, 2)
        state = nn.functional.pad(cut, (0, 0, 0, 10))
        there = torch.arange(state.shape[1])[None] < cut.shape[1]
        for block in self.blocks:
            state = block(state, attention_mask=there.long())
        return [state[0, : cut.shape[1]]]


class OfUnpadded(OfSizes):
    def rows(self, pictures: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(self.vision(pictures))


def test_rows_whose_padding_is_gone_all_count() -> None:
    torch.manual_seed(0)
    module = OfUnpadded(Unpadded("padding")).eval()
    pictures = [torch.randn(3, 8, 12)]
    table = of_encoder(module, {"ids": torch.arange(9)[None], "pictures": pictures})
    with torch.no_grad():
        norms = np.linalg.norm(module.rows(pictures).double().numpy(), axis=-1)
    assert table.loc[schema.VISUAL, "tokens"] == norms.size == 6
    assert table.loc[schema.VISUAL, "norm_mean"] == pytest.approx(norms.mean(), 1e-6)
