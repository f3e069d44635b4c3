"""What attention is made with, where modules say it in their own way."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import CLIPVisionConfig, CLIPVisionModel, Gemma2Config, Gemma2ForCausalLM

from normprobe import Probe
from normprobe.model.attention_weights import attend_eagerly_where_asked, attention_in
from normprobe.versions import is_line_5


def test_a_property_that_raises_says_nothing() -> None:
    """The tower of LLaVA-Rad has a ``config`` that is not implemented."""

    class Raising(nn.Module):
        @property
        def config(self) -> object:
            raise NotImplementedError

    class Telling(nn.Module):
        config = SimpleNamespace(_attn_implementation="sdpa")

    assert attention_in(nn.ModuleList([Raising(), Telling()])) == {"sdpa"}


@pytest.mark.parametrize(("attention", "doubted"), [("sdpa", True), ("eager", False)])
def test_a_cap_of_scores_that_sdpa_leaves_out_is_in_doubt(attention: str, doubted: bool) -> None:
    """Gemma 2, which transformers 4.57 runs so; the states are others, as eager shows."""
    if doubted and is_line_5():
        pytest.skip("transformers 5 refuses it")
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": 60}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    config = Gemma2Config(**sizes, **heads, attn_logit_softcapping=0.001)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(config).eval()
    model.config._attn_implementation = attention
    inputs = {"input_ids": torch.tensor([[3, 8, 21, 5]])}
    probe = Probe(model)
    for _ in range(2):  # it is used again
        told = " ".join(probe.layers(inputs).record.get("doubts", []))
        assert ("leaves out the cap of scores, 0.001, that its config" in told) == doubted
        assert ("--attn-implementation eager" in told) == doubted
    states = [model(**inputs, output_hidden_states=True).hidden_states[1] for _ in "."]
    model.config._attn_implementation = "eager"
    states += [model(**inputs, output_hidden_states=True).hidden_states[1]]
    assert torch.allclose(*states, rtol=1e-3) != doubted


class Asking(nn.Module):
    """As FasterVLM's tower, which chooses patches by what the class token attends to."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
        config = CLIPVisionConfig(**sizes, num_attention_heads=2, image_size=4, patch_size=2)
        config._attn_implementation = "sdpa"
        self.tower = CLIPVisionModel(config)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.tower(pixels, output_attentions=True).attentions[-1]


class Leaving(Asking):
    """It asks for nothing."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.tower(pixels).last_hidden_state


def test_a_tower_hands_over_the_attention_that_code_around_it_reads() -> None:
    pixels = torch.randn(1, 3, 4, 4)
    model = nn.ModuleDict({"seen": Asking(), "left": Leaving()})
    with torch.no_grad():
        left = model["left"](pixels)
        (told,) = attend_eagerly_where_asked(model)
        assert told == "seen attends eagerly: its code reads attention weights"
        assert model["seen"](pixels).sum().item() == pytest.approx(2 * 5)
        assert attention_in(model["left"]) == {"sdpa"}
        assert torch.equal(model["left"](pixels), left)
    assert attend_eagerly_where_asked(model) == []
    # A model of transformers, or one that is derived from it, has its own way.
    assert attend_eagerly_where_asked(model["left"].tower) == []
