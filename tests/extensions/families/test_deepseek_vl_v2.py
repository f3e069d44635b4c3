"""DeepSeek-VL2: the code is an installed package, and the processor is its own."""

import sys
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from support.remote_code import plain_model
from support.remote_code.opened import opened

from normprobe import NormprobeError
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.find.norms import norm_placement_note
from normprobe.model.find.structure import find_parts
from normprobe.model.load.loading import load_model
from normprobe.model.measured_model import MeasuredModel
from normprobe.schema import STRUCTURAL, TOKEN_GROUPS, VISUAL

#: Of one image: two lines of two patches, the separator, two lines of four patches.
LINES = "vv|vv|-vvvv|vvvv|"


@pytest.fixture(scope="module")
def folder(repository):
    return repository("deepseek_vl_v2")


@pytest.fixture(scope="module")
def checkpoint(folder):
    return open_checkpoint(str(folder), trust_remote_code=True)


@pytest.fixture(scope="module")
def builder(folder):
    found = opened(folder)
    assert type(found.processor).__module__.startswith("deepseek_vl2.")
    return found


def test_without_the_package_the_error_says_how_to_install_it(folder):
    gone = {"deepseek_vl2": None, "deepseek_vl2.models": None}
    with patch.dict(sys.modules, gone), pytest.raises(NormprobeError) as caught:
        open_checkpoint(str(folder), trust_remote_code=True)
    assert "package deepseek_vl2" in caught.value.problem
    assert "pip install --no-deps git+https" in caught.value.remedy


def test_code_of_a_package_is_not_run_unasked(folder):
    with patch.dict(sys.modules, {"deepseek_vl2": None}), pytest.raises(NormprobeError) as caught:
        open_checkpoint(str(folder))
    assert "code of its own" in caught.value.problem


def test_every_class_of_the_package_is_bridged(checkpoint):
    """Also those of modules that the model's own module does not name."""
    assert checkpoint.config.language_config.rope_scaling is None
    load_model(checkpoint)
    assert {"post_init", "rope_scaling"} <= set(checkpoint.bridges)


def test_tables_are_those_of_init_in_every_run(folder, checkpoint):
    expected = dict(plain_model("deepseek_vl_v2", folder).named_buffers())
    assert len(expected) == 3 * 3
    for _ in range(2):
        found = dict(load_model(checkpoint).named_buffers())
        assert found.keys() == expected.keys()
        for name, table in expected.items():
            torch.testing.assert_close(found[name], table, rtol=0, atol=0)


def test_rows_of_each_image(checkpoint, builder, samples):
    """Positions are marked, and newlines and separators among them are structural."""
    model = load_model(checkpoint)
    several = replace(samples[0], prompt="Is it <image> or <image>?", images=2 * samples[0].images)
    inputs = builder.build([several, samples[1]])
    batch = MeasuredModel(model, find_parts(model)).batch(inputs)
    groups = batch.groups_at(batch.model.decoder_input(inputs))
    codes = {TOKEN_GROUPS.index(VISUAL): "v", TOKEN_GROUPS.index(STRUCTURAL): "s"}
    shown = ["".join(codes.get(code, " ") for code in row) for row in groups.tolist()]
    rows = LINES.replace("|", "s").replace("-", "s")
    assert [row.split() for row in shown] == [[rows, rows], [rows]]


def test_a_padded_batch_can_be_run(checkpoint, builder, samples):
    """Its mask comes out of the processor as numbers."""
    model, together = load_model(checkpoint), builder.build(samples)
    assert not together["attention_mask"].all()
    with torch.no_grad():
        both = model(**together, use_cache=False).logits
        alone = model(**builder.build(samples[:1]), use_cache=False).logits
    kept = together["attention_mask"][0]
    np.testing.assert_allclose(both[0, kept], alone[0], rtol=1e-4, atol=1e-4)


def test_the_placement_of_norms_is_told_by_a_layer_without_experts(checkpoint):
    model = load_model(checkpoint)
    assert norm_placement_note(model, find_parts(model)).startswith("pre")
