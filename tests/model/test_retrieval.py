"""Types that search by the states of a vision-language model: ColPali, ColQwen2."""

from pathlib import Path

import numpy as np
import pytest
import transformers
from support.capture import capture
from support.expected_parts import ExpectedParts
from support.flat import flat
from support.reference import layers_table, observe_layers
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import tiny_model
from transformers import AutoModelForPreTraining

from normprobe import Probe, schema
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.loading import load_model
from normprobe.model.model_kind import auto_class


@pytest.mark.parametrize(("name", "inside"), [("ColPali", "paligemma"), ("ColQwen2", "qwen2_vl")])
def test_a_page_is_measured_in_the_model_that_it_stands_on(
    name: str, inside: str, tmp_path: Path
) -> None:
    within = tiny_model(inside)
    config = getattr(transformers, f"{name}Config")(vlm_config=within.config, embedding_dim=8)
    getattr(transformers, f"{name}ForRetrieval")(config).save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    assert checkpoint.kind == schema.VISION_LANGUAGE
    assert auto_class(checkpoint.kind, checkpoint.config) is AutoModelForPreTraining
    model, inputs = load_model(checkpoint, device="cpu"), dict(tiny_inputs(within, 1))
    if name == "ColQwen2":  # takes the patches of each page by themselves
        inputs["pixel_values"] = inputs["pixel_values"][None]
    run = Probe(model, special_token_ids=SPECIAL_IDS).layers(inputs)
    assert not run.record.get("doubts")
    ids = inputs["input_ids"].numpy()
    groups = np.where(np.isin(ids, SPECIAL_IDS), schema.SPECIAL, schema.TEXT).astype("<U16")
    groups[ids == within.config.image_token_id] = schema.VISUAL
    taken = {key: value for key, value in inputs.items() if key != "mm_token_type_ids"}
    stack = ExpectedParts(None, None, None, "vlm.language_model.layers")
    expected = layers_table(observe_layers(capture(model, taken, stack), groups))
    found = flat(run.table).set_index(["layer", "group"])
    assert set(found.index) == set(expected)
    for key, row in expected.items():
        for quantity in ("norm_mean", *["cosine_mean", "angle_mean"] * bool(key[0])):
            assert found.loc[key, quantity] == pytest.approx(row[quantity], rel=1e-5), key
