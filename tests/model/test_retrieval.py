"""Types that search by the states of a vision-language model: ColPali, ColQwen2."""

from pathlib import Path

import pytest
import transformers
from support.flat import flat
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs
from support.tiny_models import tiny_model
from transformers import AutoModelForPreTraining

from normprobe import Probe
from normprobe.model.checkpoint import auto_class, open_checkpoint
from normprobe.model.load.loading import load_model
from normprobe.schema import VISION_LANGUAGE


@pytest.mark.parametrize(("name", "inside"), [("ColPali", "paligemma"), ("ColQwen2", "qwen2_vl")])
def test_numbers_are_those_of_the_model_that_it_stands_on(
    name: str, inside: str, tmp_path: Path
) -> None:
    within = tiny_model(inside)
    config = getattr(transformers, f"{name}Config")(vlm_config=within.config, embedding_dim=8)
    model = getattr(transformers, f"{name}ForRetrieval")(config)
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    assert checkpoint.kind == VISION_LANGUAGE
    assert auto_class(checkpoint.kind, checkpoint.config) is AutoModelForPreTraining
    inputs = dict(tiny_inputs(within, 1))
    inputs.pop("mm_token_type_ids", None)  # ColQwen2 hands none on
    given = dict(inputs)
    if name == "ColQwen2":  # takes the patches of each page by themselves
        given["pixel_values"] = inputs["pixel_values"][None]
    loaded = load_model(checkpoint, device="cpu")
    found = Probe(loaded, special_token_ids=SPECIAL_IDS).layers(given)
    alone = Probe(model.vlm.eval(), special_token_ids=SPECIAL_IDS).layers(inputs)
    columns = ["layer", "group", "tokens", "norm_mean"]
    assert flat(found.table)[columns].equals(flat(alone.table)[columns])
    assert not found.record.get("doubts")
