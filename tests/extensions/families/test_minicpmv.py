"""MiniCPM-V 2.6 takes one dict, and knows the positions of its images by their bounds."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from support.remote_code.expected import PARTS
from support.remote_code.opened import opened

from normprobe import Probe
from normprobe.model.checkpoint import open_checkpoint
from normprobe.model.load.loading import load_model
from normprobe.model.tracing.trace import trace_parts
from normprobe.schema import IMAGE_NUMBERS


@pytest.fixture(scope="module")
def folder(repository):
    return str(repository("minicpmv"))


@pytest.fixture(scope="module")
def builder(repository):
    return opened(repository("minicpmv"))


def text_of(builder, inputs):
    return builder.tokenizer.decode(inputs["data"]["input_ids"][0]).replace("<unk>", "")


def test_each_image_has_a_line_of_its_own(builder, samples):
    first, second = samples[0].image, samples[1].image
    slices = "<image></image><slice></slice>"
    unmarked = builder.build([replace(samples[0], prompt="Which?", images=(first, second))])
    assert f"{slices}\n{slices}\nWhich?" in text_of(builder, unmarked)
    marked = replace(samples[0], prompt="Is <image> or <image> red?", images=(first, second))
    assert f"Is \n{slices}\n or \n{slices}\n red?" in text_of(builder, builder.build([marked]))


def test_the_model_takes_one_dict(builder, samples):
    inputs = builder.build(samples)
    assert set(inputs) == {"data", "attention_mask"}
    positions, mask = inputs["data"]["position_ids"], inputs["attention_mask"]
    for row, kept in zip(positions, mask.bool(), strict=True):
        assert row[kept].tolist() == list(range(int(kept.sum())))


def test_images_of_a_sample_are_told_apart(builder, samples):
    several = replace(samples[0], prompt="Is <image> or <image> red?", images=2 * samples[0].images)
    inputs = builder.build([several, samples[1]])
    for row, number_of_image in ((0, [1, 1, 2, 2]), (1, [1, 1])):  # an overview and a slice each
        bounds, numbers = inputs["data"]["image_bound"][row], inputs[IMAGE_NUMBERS][row]
        assert [set(numbers[start:end].tolist()) for start, end in bounds] == [
            {number} for number in number_of_image
        ]


def test_id_0_is_masked_and_not_counted(builder, samples):
    """Here it is ``<pad>``; in the vocabulary of the model it is the exclamation mark."""
    inputs = builder.build([replace(samples[0], prompt="Wait<pad> what?")])
    ids, mask = inputs["data"]["input_ids"][0], inputs["attention_mask"][0]
    (place,) = (ids == 0).nonzero().flatten().tolist()
    assert 0 < place < len(ids) - 1
    assert mask.tolist() == [int(position != place) for position in range(len(ids))]
    counted = inputs["data"]["position_ids"][0][mask.bool()]
    assert counted.tolist() == list(range(len(ids) - 1))


def test_a_class_that_generates_is_finished_whichever_way_it_is_loaded(folder):
    """AutoModel makes a class of it with ``generate``; a partial load, a class of that one."""
    record = Probe(folder, trust_remote_code=True).embeddings().record
    assert "post_init" in record["bridges"]
    assert record["weights"]["everything_because"] is None
    table = load_file(f"{folder}/model.safetensors")["llm.model.embed_tokens.weight"]
    assert record["weights"]["bytes"] == table.nbytes


def test_the_table_of_places_is_that_of_init(folder):
    made = load_model(open_checkpoint(folder, trust_remote_code=True)).resampler.pos_embed
    places = torch.linspace(0, 3, 32)[:, None] * torch.linspace(0.5, 1.5, made.shape[1])
    torch.testing.assert_close(made, places.sin(), rtol=0, atol=0)


def test_a_trace_reads_ids_inside_a_dict(folder, builder, samples):
    model = load_model(open_checkpoint(folder, trust_remote_code=True))
    traced, parts = trace_parts(model, builder.build(samples[:1])), PARTS["minicpmv"]
    assert traced.decoder_layers == parts.decoder_layers
    assert traced.text_embedding == parts.text_embedding
    assert traced.projector == parts.projector
