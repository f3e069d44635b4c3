"""What stands before decoder layer 1, against the sources of types and against planted norms."""

from copy import deepcopy

import pytest
import torch
from support.cases import model_of
from support.tiny_inputs import tiny_inputs
from support.tiny_models import EVERY, tiny_model
from torch import nn

from normprobe import Probe, find_parts
from normprobe.model.entry_norms import EQUAL, by_construction, entries_of
from normprobe.model.measured_model import MeasuredModel
from normprobe.versions import is_line_5

#: What their sources say of visual and of text rows.
EXPECTED = {
    "llava": ("none", "none"),
    "qwen2_vl": ("none", "none"),
    "mistral3": ("none", "none"),
    "internvl": ("none", "none"),
    "gemma3": ("none", "none, times sqrt d"),
    "paligemma": ("none", "none, times sqrt d"),
    "idefics2": ("RMSNorm", "none"),
    "ernie4_5_vl_moe": ("RMSNorm", "none"),
    "florence2": ("LayerNorm", "LayerNorm"),
    "git": ("LayerNorm", "LayerNorm"),
    "granite_docling": ("LayerNorm, times 12", "none, times 12"),
    "muse_glimmer": ("RMSNorm, scale-free", "RMSNorm, scale-free"),
    "muse_spark": ("RMSNorm, scale-free", "RMSNorm, scale-free"),
    "chameleon": ("none", "none"),
}
BY_CONSTRUCTION = ("florence2", "git", "muse_glimmer", "muse_spark")


def found_of(model: nn.Module, inputs=None):
    inputs = tiny_inputs(model, 2) if inputs is None else inputs
    return entries_of(MeasuredModel(model, find_parts(model)), inputs)


@pytest.mark.parametrize("model_type", EXPECTED)
def test_what_rows_pass_before_layer_one(model_type: str) -> None:
    if model_type not in EVERY or not is_line_5():
        pytest.skip("another line of transformers")
    found = found_of(tiny_model(model_type))
    assert tuple(str(found[group]) for group in ("visual", "text")) == EXPECTED[model_type]
    assert by_construction(found) == (model_type in BY_CONSTRUCTION)


@pytest.mark.parametrize("model_type", ["muse_glimmer", "muse_spark"])
def test_scale_free_norms_set_every_norm_to_the_root_of_the_width(model_type: str) -> None:
    if model_type not in EVERY or not is_line_5():
        pytest.skip("another line of transformers")
    model = tiny_model(model_type)
    states = []
    layer = find_parts(model).decoder_layers.module[0]
    layer.register_forward_pre_hook(
        lambda _, args, kwargs: states.append(args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True,
    )
    inputs = tiny_inputs(model)
    with torch.no_grad():
        model(**inputs)
    norms = states[0].double().norm(dim=-1)
    expected = [states[0].shape[-1] ** 0.5] * int((norms > 0).sum())
    assert norms[norms > 0].tolist() == pytest.approx(expected, rel=1e-3)


class Normed(nn.Module):
    """A module with a norm behind it, of a name that tells it or not."""

    def __init__(self, inner: nn.Module, norm: nn.Module | None) -> None:
        super().__init__()
        self.inner, self.norm = inner, norm

    @property
    def weight(self):
        return self.inner.weight

    def forward(self, *args):
        rows = self.inner(*args)
        return nn.functional.normalize(rows, dim=-1) if self.norm is None else self.norm(rows)


@pytest.mark.parametrize(
    ("norm", "said"),
    [
        (lambda: nn.LayerNorm(64), "LayerNorm"),
        (lambda: nn.RMSNorm(64), "RMSNorm"),
        (lambda: nn.RMSNorm(64, elementwise_affine=False), "RMSNorm, scale-free"),
        (lambda: nn.LayerNorm(64, elementwise_affine=False), "LayerNorm, scale-free"),
        (lambda: None, f"{EQUAL}, of 1"),
    ],
)
def test_a_norm_behind_the_projection_is_found(norm, said: str) -> None:
    model = deepcopy(model_of("llava"))
    width = model.config.text_config.hidden_size
    assert width == 64
    model.model.multi_modal_projector.linear_2 = Normed(
        model.model.multi_modal_projector.linear_2, norm()
    )
    inputs = tiny_inputs(model, 2)
    found = found_of(model, inputs)
    assert str(found["visual"]) == said
    assert str(found["text"]) == "none"
    assert not by_construction(found)
    run = Probe(model).interface(tiny_inputs(model))
    assert run.record["before_layer_1"]["visual"]["norm"] == said
    assert not run.record["input_by_construction"]
    assert "by construction" not in str(run.verdict)


@pytest.mark.parametrize("norm", [nn.LayerNorm, lambda shape: nn.BatchNorm1d(shape[0])])
def test_a_norm_over_tokens_and_width_makes_no_row_equal(norm) -> None:
    """As StarVector's, which cannot take one row either."""
    model = deepcopy(model_of("llava"))
    inputs = tiny_inputs(model, 2)
    projector = model.model.multi_modal_projector
    shapes: list[torch.Size] = []
    handle = projector.linear_2.register_forward_hook(lambda *told: shapes.append(told[2].shape))
    model(**inputs)
    handle.remove()
    projector.linear_2 = Normed(projector.linear_2, norm(shapes[0][1:]).eval())
    assert str(found_of(model, inputs)["visual"]) == "none"


def test_interface_says_where_the_ratio_is_by_construction() -> None:
    if not is_line_5():
        pytest.skip("another line of transformers")
    run = Probe(tiny_model("florence2")).interface(tiny_inputs(tiny_model("florence2")))
    assert run.record["input_by_construction"]
    told = "Both pass a norm right before layer 1 (visual: LayerNorm; text: LayerNorm)."
    assert told in str(run.verdict)
    assert "Their ratio there is by construction" in str(run.verdict)


def test_a_norm_that_ran_on_no_row_closes_nothing() -> None:
    """LLaVA-3D's encoder of clicks runs where there are none."""
    model = deepcopy(tiny_model("llava"))
    width = model.config.text_config.hidden_size
    model.clicks = nn.LayerNorm(width)
    language, expected = model.model.language_model, found_of(model)

    def look_at_none(*_: object) -> None:
        model.clicks(torch.zeros(0, width))

    language.layers[0].register_forward_pre_hook(look_at_none)
    assert found_of(model) == expected
