import pytest
import torch
from PIL import Image

from normprobe.data.sample import IMAGE_MARK, Sample
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.token_groups import with_image_numbers
from normprobe.schema import IMAGE_NUMBERS

RED, BLUE = (Image.new("RGB", (40, 30), colour) for colour in ("red", "blue"))
PAIR = Sample("pair", "Which?", (RED, BLUE))
MARKED = Sample("marked", "Is <image> like <image>?", (RED, BLUE))


def placeholders(processor, inputs):
    return inputs["input_ids"] == processor.tokenizer.convert_tokens_to_ids(processor.image_token)


@pytest.mark.parametrize("sample", [PAIR, MARKED], ids=lambda sample: sample.id)
def test_each_image_has_the_placeholders_of_one(specimen_processor, sample):
    builder = InputBuilder(specimen_processor)
    inputs = builder.build([sample])
    alone = placeholders(specimen_processor, builder.build([Sample("one", "What?", (RED,))])).sum()
    numbers = inputs[IMAGE_NUMBERS][placeholders(specimen_processor, inputs)]
    assert numbers.tolist() == [1] * alone + [2] * alone


def test_placeholders_may_follow_each_other_without_a_gap():
    def build(samples):
        (sample,) = samples
        ids = torch.tensor([[*map(ord, sample.prompt.replace(IMAGE_MARK, "##"))]])
        return {"input_ids": ids, "pixel_values": torch.rand(2, 3, 4, 4)}

    samples = [Sample("pair", f"{IMAGE_MARK}{IMAGE_MARK}?", (RED, BLUE))]
    inputs = with_image_numbers(build(samples), samples, build)
    assert inputs[IMAGE_NUMBERS].tolist() == [[1, 1, 2, 2, 2]]


def test_padding_and_text_alone_are_no_image(specimen_processor):
    samples = [PAIR, Sample("text", "What?"), Sample("one", "What?", (RED,))]
    inputs = InputBuilder(specimen_processor).build(samples)
    numbers, read = inputs[IMAGE_NUMBERS], inputs["attention_mask"].bool()
    assert not numbers[~read].any()
    assert not numbers[1].any()
    assert set(numbers[2, read[2]].tolist()) == {1}


def test_the_same_in_a_batch_as_alone(specimen_processor):
    builder = InputBuilder(specimen_processor)
    batch = builder.build([PAIR, MARKED])[IMAGE_NUMBERS]
    for row, sample in enumerate((PAIR, MARKED)):
        alone = builder.build([sample])[IMAGE_NUMBERS][0]
        assert torch.equal(batch[row, : len(alone)], alone)


@pytest.mark.parametrize("samples", [[Sample("one", "What?", (RED,))], [Sample("text", "What?")]])
def test_nothing_is_added_where_nothing_is_to_be_told_apart(specimen_processor, samples):
    assert IMAGE_NUMBERS not in InputBuilder(specimen_processor).build(samples)
