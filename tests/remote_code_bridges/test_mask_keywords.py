"""Masks that code of 4.57 asks transformers to make, by the names that they had."""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, masking_utils

from normprobe import remote_code_bridges
from normprobe.versions import is_line_5


@pytest.mark.skipif(not is_line_5(), reason="4.57 has them by these names")
@pytest.mark.parametrize("name", ["create_causal_mask", "create_bidirectional_mask"])
def test_a_mask_is_made_by_the_names_of_before(name: str) -> None:
    """EO-1's copy of Qwen2.5-VL passes input_embeds, and where a cache stands."""
    module: Any = ModuleType("of_masks")
    module.make = getattr(masking_utils, name)
    sys.modules["of_masks"] = module
    needed: list[str] = []
    config = LlamaConfig(hidden_size=8, num_attention_heads=2)
    config._attn_implementation = "eager"
    rows, mask = torch.zeros(2, 4, 8), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    given: dict[str, Any] = {"config": config, "attention_mask": mask}
    if "causal" in name:
        given["past_key_values"] = None
    expected = getattr(masking_utils, name)(inputs_embeds=rows, **given)
    with remote_code_bridges.foreign_code(True, needed):
        remote_code_bridges._bridge_module(module)
        found = module.make(input_embeds=rows, cache_position=torch.arange(4), **given)
    assert torch.equal(found, expected)
    assert needed == [f"{name}(input_embeds=)"]
    del sys.modules["of_masks"]
