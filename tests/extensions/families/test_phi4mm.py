"""Phi-4-multimodal: the adapter for vision, padding, and where separators stand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.capture import replaced_forward
from support.remote_code.opened import opened

from normprobe import NormprobeError
from normprobe.extensions.families.prompts import PHI4MM
from normprobe.schema import MASKS


@pytest.fixture(scope="module")
def builder(repository):
    return opened(repository("phi4mm"))


def test_images_decide_the_weights(builder, samples):
    """So prompts with and without an image cannot share a batch."""
    with pytest.raises(NormprobeError, match="run with different weights"):
        builder.build([samples[0], replace(samples[1], images=())])


def test_an_image_prompt_runs_with_the_adapter(builder, samples):
    inputs = builder.build(samples[:1])
    inputs = {name: value for name, value in inputs.items() if name not in MASKS}
    projection = builder.model.get_submodule("model.layers.0.self_attn.o_proj")
    seen = []
    with torch.no_grad(), replaced_forward(projection, lambda x, y: seen.append((x, y))):
        builder.model(**inputs)
    ((entered, left),) = seen
    x = torch.from_numpy(entered)
    names = ("base_layer", "lora_A.vision", "lora_B.vision")
    base, down, up = (projection.get_submodule(name).weight.double() for name in names)
    expected = x @ base.T + 8 / 2 * x @ down.T @ up.T
    torch.testing.assert_close(left.double(), expected, rtol=1e-4, atol=1e-4)


def test_positions_count_from_the_first_token(builder, samples):
    inputs = builder.build([samples[0], replace(samples[1], prompt="Why?")])
    mask = inputs["attention_mask"]
    assert not mask[1, 0]  # padded on the left
    for positions, kept in zip(inputs["position_ids"], mask.bool(), strict=True):
        assert positions[kept].tolist() == list(range(int(kept.sum())))


@pytest.mark.parametrize(
    ("order", "expected"),
    [("sub_glb", "vvs vvs vvs s vvs vvs"), ("glb_sub", "vvs vvs s vvs vvs vvs")],
)
def test_padding_of_an_image_has_no_tokens(order, expected, samples):
    """Two crops, one above the other, of 2 x 2 tokens; the last row of the image is padding."""
    kept = torch.ones(1, 3, 4, 4)
    kept[0, 2, 2:] = 0
    pattern = expected.replace(" ", "")
    made = {
        "input_ids": torch.tensor([[5, *[200010] * len(pattern), 6]]),
        "attention_mask": torch.ones(1, len(pattern) + 2, dtype=torch.bool),
        "input_image_embeds": torch.zeros(1, 3, 3, 28, 28),
        "image_sizes": torch.tensor([[56, 28]]),
        "image_attention_mask": kept,
    }
    layer = {"image_embd_layer": {"hd_transform_order": order}}
    model = SimpleNamespace(config=SimpleNamespace(embd_layer=layer))
    inputs = PHI4MM.build(model, lambda **_: made, samples[:1], None)
    found = ["s" if structural else "v" for structural in inputs["structural_mask"][0, 1:-1]]
    assert "".join(found) == pattern
    assert inputs["visual_mask"].tolist() == [[False, *[True] * len(pattern), False]]
