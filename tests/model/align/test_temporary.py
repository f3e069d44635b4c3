"""A norm that is there for a while: afterwards the model has the norm that it had, itself."""

import pandas as pd
import pytest
import torch
from support.tiny_inputs import tiny_inputs
from support.tiny_models import tiny_model

from normprobe import NormprobeError, align_norms, find_parts
from normprobe.measurements import measurement
from normprobe.model.align.norm import inserted_norm
from normprobe.model.align.target import aligned
from normprobe.model.config import CONFIG_ENTRY
from normprobe.model.measured_model import MeasuredModel


@pytest.mark.parametrize("target", [3.0, "table"])
def test_a_model_without_a_norm_has_none_afterwards(target: str | float) -> None:
    model = tiny_model("llava")
    measured = MeasuredModel(model, find_parts(model))
    with aligned(measured, target, [tiny_inputs(model)]) as alignment:
        assert inserted_norm(model) is alignment.norm
    assert inserted_norm(model) is None
    assert not hasattr(model.config, CONFIG_ENTRY)


@pytest.mark.parametrize("target", [3.0, "loud"])
def test_an_optimizer_goes_on_with_the_norm_it_holds(target: str | float) -> None:
    model = tiny_model("llava").train()
    norm = align_norms(model, 7.0)
    optimizer = torch.optim.SGD(norm.parameters(), lr=0.1)
    inputs = tiny_inputs(model)
    try:
        with aligned(MeasuredModel(model, find_parts(model)), target, [inputs]) as alignment:
            assert inserted_norm(model) is alignment.norm is not norm
    except NormprobeError as refusal:
        assert "unknown alignment target" in refusal.problem
    assert inserted_norm(model) is norm
    before = norm.weight.detach().clone()
    model(**inputs).logits.sum().backward()
    optimizer.step()
    assert not torch.equal(norm.weight, before)


def test_newlines_that_pass_the_norm_stay_structural() -> None:
    """HunYuan-VL writes them before its last projection: aligned, they are other states."""
    model = tiny_model("hunyuan_vl")
    measured = MeasuredModel(model, find_parts(model))
    inputs = tiny_inputs(model)
    plain = measurement("layers").sample_rows(measured, inputs)
    with aligned(measured, "table", [inputs]):
        inside = measurement("layers").sample_rows(measured, inputs)
    after = measurement("layers").sample_rows(measured, inputs)
    counts = [
        rows[rows["layer"] == 0].set_index("group")["tokens"].dropna().to_dict()
        for rows in (plain, inside, after)
    ]
    assert counts[0]["structural"] > 0
    assert counts[0] == counts[1] == counts[2]
    pd.testing.assert_frame_equal(after, plain)
