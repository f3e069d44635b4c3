"""Plain modules, rows inserted inside forward, embeddings alone: beside float64 NumPy."""

import numpy as np
import pandas as pd
import pytest
import torch
from support.capture import Layer, States
from support.plain_modules import PLACE, SPECIAL, Embedded, Inserting, Plain, made
from support.reference import layers_table, observe_layers
from torch import Tensor

from normprobe import NormprobeError, Probe, probe_interface, probe_layers, schema

PATCHES = 4


def pictures(count: int) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def prompts(rows: list[list[int]], side: str) -> tuple[Tensor, Tensor]:
    """Ids and their mask, padded with 0 on a side."""
    longest = max(map(len, rows))
    ids, mask = torch.zeros(len(rows), longest).long(), torch.zeros(len(rows), longest).long()
    for number, row in enumerate(rows):
        at = slice(longest - len(row), None) if side == "left" else slice(len(row))
        ids[number, at], mask[number, at] = torch.tensor(row), 1
    return ids, mask


def assert_right(module: Plain, inputs: dict, groups, found: pd.DataFrame) -> None:
    """Every norm, cosine, angle and update by layer and group, to 1e-6."""
    with torch.no_grad():
        module(**inputs)  # the measurement stops at its last layer
    pairs = zip(module.seen[:-1], module.seen[1:], strict=True)
    expected = layers_table(observe_layers(States([Layer(*pair) for pair in pairs]), groups))
    measured = found.set_index(["layer", "group"])
    assert set(measured.index) == set(expected)
    for key, row in expected.items():
        assert measured.loc[key, "tokens"] == row["tokens"], key
        for name, value in row.items():
            if name.endswith("_mean") and not name.startswith("pooled") and key[0]:
                assert measured.loc[key, name] == pytest.approx(value, rel=1e-6, abs=1e-7), key
        assert measured.loc[key, "norm_mean"] == pytest.approx(row["norm_mean"], rel=1e-6)


def groups_of(ids: Tensor, mask: Tensor) -> np.ndarray:
    """Those of prompts in which each row has its place."""
    groups = np.full(ids.shape, schema.TEXT, dtype="<U16")
    groups[np.isin(ids, SPECIAL)] = schema.SPECIAL
    groups[ids.numpy() == Plain.place] = schema.VISUAL
    groups[mask.numpy() == 0] = ""
    return groups


IN_PLACE = [
    [1, 8, 10, 4, *[Plain.place] * PATCHES, 5, 9, 11, 12, 14, 2],
    [1, 9, 4, *[Plain.place] * PATCHES, 5, 13, 15, 2],
]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("given", ["mapping", "tuple", "function", "arrays"])
def test_a_plain_module(side: str, given: str) -> None:
    module, (ids, mask), image = made(Plain), prompts(IN_PLACE, side), pictures(2)
    inputs = {
        "mapping": {"tokens": ids, "image": image, "mask": mask},
        "tuple": (ids, image, mask),
        "function": lambda m: m(ids, mask=mask, image=image),
        "arrays": {"tokens": ids.numpy(), "image": image.double().numpy(), "mask": mask.numpy()},
    }[given]
    found = probe_layers(module, inputs, special_token_ids=SPECIAL)
    assert_right(module, {"tokens": ids, "image": image, "mask": mask}, groups_of(ids, mask), found)


def test_a_plain_module_in_half_precision_and_by_hand() -> None:
    """``named`` takes lists; floats become the module's own type."""
    module, (ids, mask) = made(Plain).bfloat16(), prompts(IN_PLACE, "right")
    named = {"vision_encoder": "vision", "projector": "connector", "decoder_layers": "blocks"}
    named |= {"text_embedding": "words", "image_token_ids": [Plain.place]}
    inputs = {"tokens": ids, "image": pictures(2).numpy().astype("float64"), "mask": mask}
    found = probe_layers(module, inputs, named=named)
    assert found["norm_mean"].notna().all()
    probe = Probe(module, named=named, special_token_ids=SPECIAL)
    run = probe.layers((ids, pictures(2), mask))
    assert run.record["dtype"] == "bfloat16"
    assert set(run.table["group"]) >= {schema.VISUAL, schema.TEXT, schema.SPECIAL}
    assert run.verdict


def test_the_interface_of_a_plain_module() -> None:
    """Its tower holds a class token and hands over patches alone."""
    module, (ids, mask), image = made(Plain), prompts(IN_PLACE, "right"), pictures(2)
    found = probe_interface(module, (ids, image, mask)).set_index(["stage", "group"])
    with torch.no_grad():
        encoded = module.vision(image)
        projected = module.connector(encoded)
    for stage, state in (("vision_encoder", encoded), ("projector_output", projected)):
        norms = np.linalg.norm(state.double().numpy(), axis=-1)
        assert found.loc[(stage, "visual"), "tokens"] == norms.size
        assert found.loc[(stage, "visual"), "norm_mean"] == pytest.approx(norms.mean(), rel=1e-6)
    weight = module.words.weight.detach().double().numpy()
    scale = found.loc[("effective_embedding", "all_rows"), "norm_mean"]
    assert scale == pytest.approx(np.linalg.norm(weight, axis=1).mean(), rel=1e-5)


INSERTED = {
    "one": [[1, 8, PLACE, 10, 9, 11, 2], [1, PLACE, 12, 2]],
    "several": [[1, 8, PLACE, 10, PLACE, 9, 2], [1, PLACE, PLACE, 12, 13, 14, 15, 2]],
    "some": [[1, 8, PLACE, 10, 9, 2], [1, 12, 13, 2]],
    "none": [[1, 8, 10, 9, 2], [1, 12, 2]],
}


@pytest.mark.parametrize("prompt_side", ["left", "right"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", INSERTED)
def test_rows_inserted_inside_forward(name: str, side: str, prompt_side: str) -> None:
    module = made(Inserting)
    module.side = side
    ids, mask = prompts(INSERTED[name], prompt_side)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if count := int((ids == PLACE).sum()):
        inputs["images"] = pictures(count)
    found = probe_layers(module, inputs, special_token_ids=SPECIAL)
    assert_right(module, inputs, module.origins, found)


def test_the_same_layout_runs_no_more_than_one_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    module, (ids, mask) = made(Inserting), prompts(INSERTED["one"], "right")
    inputs = {"input_ids": ids, "attention_mask": mask, "images": pictures(2)}
    probe = Probe(module)
    first = probe.layers(inputs).table
    calls = []
    module.register_forward_pre_hook(lambda *_: calls.append(1))
    again = probe.layers({**inputs, "images": pictures(2)}).table
    assert len(calls) == 1
    pd.testing.assert_frame_equal(first, again)


@pytest.mark.parametrize("side", ["left", "right"])
def test_embeddings_alone(side: str) -> None:
    module, (ids, mask) = made(Embedded), prompts(IN_PLACE, side)
    embeds = module.words(ids).detach()
    visual = ids == Plain.place
    inputs = {"inputs_embeds": embeds, "attention_mask": mask}
    found = probe_layers(module, {**inputs, "visual_mask": visual})
    groups = groups_of(ids, mask)
    groups[groups == schema.SPECIAL] = schema.TEXT  # no id tells them
    assert_right(module, inputs, groups, found)
    with pytest.raises(NormprobeError, match="no visual_mask") as raised:
        probe_layers(module, inputs, named={"decoder_layers": "blocks"})
    assert "visual_mask, bool" in raised.value.remedy


def test_pixels_that_reach_no_row_are_refused() -> None:
    class Blind(Plain):
        def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
            return self.think(self.words(input_ids), None) + self.vision(pixel_values).sum()

    named = {"vision_encoder": "vision", "projector": "connector", "decoder_layers": "blocks"}
    inputs = {"input_ids": torch.tensor([[1, 8, 3, 9, 2]]), "pixel_values": pictures(1)}
    with pytest.raises(NormprobeError, match="other pixels change no row"):
        probe_layers(made(Blind), inputs, named={**named, "text_embedding": "words"})


def test_a_picture_in_whole_numbers_is_seen() -> None:
    module, (ids, mask) = made(Plain), prompts(IN_PLACE, "right")
    image = (pictures(2) * 40 + 120).round().clamp(0, 255)
    found = probe_layers(module, (ids, image, mask), special_token_ids=SPECIAL)
    inputs = {"tokens": ids, "image": image, "mask": mask}
    assert_right(module, inputs, groups_of(ids, mask), found)


def test_declared_ids_that_are_not_all_are_refused() -> None:
    """The last row of each picture has an id of its own, which nobody named."""

    class Named(Plain):
        def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
            rows = self.connector(self.vision(pixel_values))
            there = ((input_ids == 3) | (input_ids == 6)).unsqueeze(-1)
            return self.think(self.words(input_ids).masked_scatter(there, rows), None)

    module = made(Named)
    ids = torch.tensor([[1, 8, 3, 3, 3, 6, 9, 11, 12, 2]])
    named = {"vision_encoder": "vision", "projector": "connector", "decoder_layers": "blocks"}
    named |= {"text_embedding": "words", "image_token_ids": (3,)}
    inputs = {"input_ids": ids, "pixel_values": pictures(1)}
    with pytest.raises(NormprobeError, match="other pixels change 1 rows") as raised:
        probe_layers(module, inputs, named=named)
    assert "image_token_ids=ID,ID" in raised.value.remedy
    found = probe_layers(module, inputs, named={**named, "image_token_ids": [3, 6]})
    groups = np.full((1, 10), schema.TEXT, dtype="<U16")
    groups[0, 2:6] = schema.VISUAL
    assert_right(module, inputs, groups, found)
