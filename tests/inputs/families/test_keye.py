"""Keye-VL: without flash attention its vision encoder sees one image at a time."""

from types import SimpleNamespace

import pytest
from support.remote_code.opened import opened

from normprobe.data.data_set import open_data
from normprobe.errors import NormprobeError
from normprobe.inputs.families import keye


def model_with(attention):
    config = SimpleNamespace(_attn_implementation=attention)
    return SimpleNamespace(visual=SimpleNamespace(config=config))


@pytest.fixture(scope="module")
def processor(repository):
    """One that is called as that of Keye-VL is."""
    return opened(repository("unseen")).processor


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_images_that_would_mix_are_refused(attention, processor):
    samples = list(open_data("sample", limit=2))
    with pytest.raises(NormprobeError, match=f"mixes the images of a batch under {attention}"):
        keye.build(model_with(attention), processor, samples, None)
    assert len(keye.build(model_with(attention), processor, samples[:1], None)["input_ids"]) == 1


def test_flash_attention_keeps_images_apart(processor):
    samples = list(open_data("sample", limit=2))
    made = keye.build(model_with("flash_attention_2"), processor, samples, None)
    assert len(made["input_ids"]) == 2
