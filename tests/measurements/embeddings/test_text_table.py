"""What the rows of a text table spell, told by a vocabulary and a config made by hand."""

from types import SimpleNamespace

import pytest
import torch
from normprobe.measurements.embeddings.text_table import text_table
from transformers import PretrainedConfig

from normprobe import NormprobeError
from normprobe.model.find.parts import Part, Parts
from normprobe.model.measured_model import MeasuredModel


def test_visual_tokens_are_named_by_the_config_or_by_their_special_spelling() -> None:
    model = torch.nn.Module()
    model.embed = torch.nn.Embedding(8, 4)
    vocabulary = {"image": 0, "<|vision_start|>": 1, "<boi>": 2, "<s>": 3, "<soft>": 4, "late": 9}
    config = {"image_token_id": 4, "bos_token_id": 3, "image_size": 0, "vision_end_token_id": None}
    model.config = PretrainedConfig(**config)
    parts = Parts(None, None, Part("embed", model.embed), None, None, ())
    tokenizer = SimpleNamespace(get_vocab=lambda: vocabulary)
    found = text_table(MeasuredModel(model, parts, [1, 2, 3]), tokenizer)
    assert found.visual == {1, 2, 4}
    assert found.special == {1, 2, 3}
    assert "late" not in found.vocabulary


def test_a_vision_encoder_is_no_base() -> None:
    encoder = MeasuredModel(torch.nn.Module(), Parts(None, None, None, None, None, ()))
    with pytest.raises(NormprobeError, match="no text embedding table"):
        text_table(encoder)
