"""Language models of before 4.50 answer although nothing that answers is in their class."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from normprobe.remote_code_bridges import noted
from normprobe.remote_code_bridges.model_classes import bridge_generation


class AnsweringConfig(PretrainedConfig):
    model_type = "answering"
    vocab_size, hidden_size, num_hidden_layers, num_attention_heads = 7, 4, 1, 1


def answering() -> Any:
    """A class as code of 4.37 writes it: states of words before are tuples, which it counts."""

    class Answering(PreTrainedModel):
        config_class = AnsweringConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.words, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)
            self.post_init()

        def prepare_inputs_for_generation(
            self, input_ids: Any, past_key_values: Any = None, inputs_embeds: Any = None, **_: Any
        ) -> dict[str, Any]:
            if past_key_values is not None:
                input_ids = input_ids[:, past_key_values[0][0].shape[1] :]
            return {"input_ids": input_ids, "past_key_values": past_key_values}

        def forward(self, input_ids: Any, past_key_values: Any = None, **_: Any) -> Any:
            states = self.words(input_ids)
            before = [states] if past_key_values is None else [past_key_values[0][0], states]
            return CausalLMOutputWithPast(
                logits=self.head(states), past_key_values=((torch.cat(before, 1),),)
            )

    return Answering


def test_a_language_model_of_its_own_cache_answers() -> None:
    """AIGV-Assessor's is InternLM2 inside another model: the loader gives it nothing."""
    torch.manual_seed(0)
    kind = answering()
    assert not hasattr(kind(AnsweringConfig()), "generate")
    bridge_generation(kind)
    model = kind(AnsweringConfig()).eval()
    notes: list[str] = []
    noted.noting.append(notes)
    try:
        found = model.generate(input_ids=torch.tensor([[1, 2, 3]]), max_new_tokens=2)
    finally:
        noted.noting.pop()
    assert notes == ["generate"]
    first = int(model(torch.tensor([[3]])).logits[0, -1].argmax())
    second = int(model(torch.tensor([[first]])).logits[0, -1].argmax())
    assert found.tolist() == [[1, 2, 3, first, second]]


def test_settings_that_are_refused_by_now_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask whether there is a ``generate`` raises nothing."""

    def refuse(_config: Any) -> Any:
        raise ValueError("temperature")

    kind = answering()
    bridge_generation(kind)
    model = kind(AnsweringConfig())
    monkeypatch.setattr(GenerationConfig, "from_model_config", staticmethod(refuse))
    assert hasattr(model, "generate")


def test_a_model_without_a_head_prepares_inputs_and_does_not_answer() -> None:
    kind = answering()
    del kind.prepare_inputs_for_generation
    bridge_generation(kind)
    model = kind(AnsweringConfig())
    prepare = model.prepare_inputs_for_generation
    assert prepare.func is GenerationMixin.prepare_inputs_for_generation
    with pytest.raises(AttributeError, match="generate"):
        model.generate  # noqa: B018
