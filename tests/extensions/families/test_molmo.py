"""Molmo-7B-D: the processor takes one sample, and features are added to placeholders."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from support.flat import flat
from support.remote_code.opened import opened

from normprobe import Probe
from normprobe.data.rows import RefusedSample
from normprobe.errors import NormprobeError
from normprobe.extensions.families.molmo import stacked


@pytest.fixture(scope="module")
def builder(repository):
    return opened(repository("molmo"))


def test_it_pads_on_the_right(builder, samples):
    processor, batch = builder.processor, builder.build(samples)
    numbers_of_crops = []
    for row, sample in enumerate(samples):
        own = processor.process(images=[sample.image], text=sample.prompt)
        length, crops = len(own["input_ids"]), len(own["images"])
        assert batch["input_ids"][row, :length].tolist() == own["input_ids"].tolist()
        assert batch["attention_mask"][row].sum() == length
        assert torch.equal(batch["images"][row, :crops], own["images"])
        assert torch.equal(batch["image_input_idx"][row, :crops], own["image_input_idx"])
        assert (batch["images"][row, crops:] == -1).all()
        assert (batch["image_input_idx"][row, crops:] < 0).all()
        numbers_of_crops.append(crops)
    assert len(set(numbers_of_crops)) == 2  # so one of them was padded


def test_it_does_not_mix_samples_with_and_without_images(builder, samples):
    mixed = [samples[0], replace(samples[1], images=())]
    with pytest.raises(NormprobeError, match="with and without an image"):
        builder.build(mixed)


def test_text_alone_is_what_the_processor_would_make_of_it(builder, samples):
    """It fails without an image; behind an image it writes the same."""
    (sample,) = samples[:1]
    assert sample.images
    (text,) = builder.build([replace(sample, images=())])["input_ids"].tolist()
    (ids,) = builder.build([sample])["input_ids"].tolist()
    assert text[0] == ids[0] == builder.tokenizer.eos_token_id
    assert text[1:] == ids[1 - len(text) :]
    assert builder.tokenizer.decode(text[1:]) == f" User: {sample.prompt} Assistant:"


def test_one_image_before_the_prompt(builder, samples):
    (sample,) = samples[:1]
    marked = replace(sample, prompt=f"<image>{sample.prompt}")
    assert builder.build([marked])["input_ids"].equal(builder.build([sample])["input_ids"])
    for bad in (
        replace(marked, prompt="Is <image> red?"),
        replace(sample, images=sample.images * 2),
    ):
        with pytest.raises(RefusedSample, match="one image, and then the prompt"):
            builder.build([bad])


def test_both_tables_of_the_embedding_are_one(repository):
    folder = str(repository("molmo"))
    record = Probe(folder, trust_remote_code=True).embeddings()
    weights = load_file(f"{folder}/model.safetensors")
    tables = [weights[f"model.transformer.wte.{name}"] for name in ("embedding", "new_embedding")]
    row = flat(record.table).set_index(["table", "rows"]).loc[("text", "all_rows")]
    assert row["tokens"] == sum(map(len, tables))
    assert row["norm_mean"] == pytest.approx(torch.cat(tables).norm(dim=-1).mean().item(), rel=1e-6)
    assert record.record["weights"]["bytes"] == sum(table.nbytes for table in tables)
    assert {"post_init", "tie_weights"} <= set(record.record["bridges"])


def test_stacked_pads_every_axis_at_its_end():
    samples = [
        {"x": torch.ones(1, 2), "y": torch.ones(1)},
        {"x": torch.ones(2, 1), "y": torch.ones(2)},
    ]
    batch = stacked(samples, {"x": -1})
    assert batch["x"].tolist() == [[[1, 1], [-1, -1]], [[1, -1], [1, -1]]]
    assert batch["y"].tolist() == [[1, 0], [1, 1]]
