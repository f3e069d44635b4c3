"""Groups by token id, padding by the mask alone; positions of an image by marks, and its number."""

from dataclasses import replace

import pytest
import torch
from PIL import Image

from normprobe.data.sample import IMAGE_MARK, Sample, Turn
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.token_groups import (
    marked_positions,
    token_groups,
    with_image_numbers,
    with_turn_numbers,
)
from normprobe.schema import (
    AUDIO,
    IMAGE_NUMBERS,
    PADDING,
    SPECIAL,
    TEXT,
    TOKEN_GROUPS,
    VIDEO,
    VISUAL,
)

V, S, T, F, A, P = (
    *(TOKEN_GROUPS.index(group) for group in (VISUAL, SPECIAL, TEXT, VIDEO, AUDIO)),
    PADDING,
)


# Ids: 1 begin, 2 end, 9 image, 10 video, 11 and -10 sound, 0 padding; 5 to 8 text.
@pytest.mark.parametrize(
    ("ids", "mask", "expected"),
    [
        ([1, 9, 9, 5, 2, 0], [1, 1, 1, 1, 1, 0], [S, V, V, T, S, P]),
        ([0, 1, 9, 9, 5, 2], [0, 1, 1, 1, 1, 1], [P, S, V, V, T, S]),
        ([1, 9, 5, 2, 2, 2], [1, 1, 1, 1, 0, 0], [S, V, T, S, P, P]),  # padded with the end token
        ([1, 9, 5, 2, 0, 9], None, [S, V, T, S, S, V]),
        ([1, -1, -1, 5, -2, -100], [1, 1, 1, 1, 1, 0], [S, V, V, T, V, P]),  # never text
        ([5, 6, 7, 8, 5, 6], [1, 1, 1, 1, 1, 1], [T] * 6),
        ([1, 9, 10, 5, 11, 10], [1, 1, 1, 1, 1, 0], [S, V, F, T, A, P]),
        ([1, -10, -1, 5, 10, 10], None, [S, A, V, T, F, F]),
    ],
)
def test_token_groups(ids, mask, expected):
    mask = None if mask is None else torch.tensor([mask])
    groups = token_groups(torch.tensor([ids]), mask, [9], [0, 1, 2, 9, 10, 11], [10], [11, -10])
    assert groups.dtype == torch.int8
    assert groups.tolist() == [expected]
    no_ids = token_groups(torch.tensor([[1, 2]]), None, [], [])
    assert no_ids.tolist() == [[T, T]]


def test_token_groups_of_a_real_batch(specimen_processor, samples):
    builder = InputBuilder(specimen_processor)
    inputs = builder.build(samples)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    image = specimen_processor.tokenizer.convert_tokens_to_ids("<image>")
    groups = token_groups(ids, mask, [image], builder.special_token_ids)
    assert (groups == V).sum(dim=1).tolist() == [64] * 4
    assert ((groups == P) == (mask == 0)).all()


def test_a_turn_begins_behind_the_reply_before_it() -> None:
    """Every word is a token here, and nothing stands between turns."""

    def build(samples):
        texts = []
        for sample in samples:
            said = [text for turn in sample.earlier for text in (turn.user, turn.reply)]
            texts.append(" ".join([*said, sample.prompt]).split())
        longest = max(map(len, texts))
        padded = [text + [""] * (longest - len(text)) for text in texts]
        ids = torch.tensor([[sum(map(ord, word)) for word in text] for text in padded])
        return {"input_ids": ids, "attention_mask": (ids > 0).long()}

    short = Sample("a", "what now ?")
    turns = (Turn("who are you", "a dog"), Turn("really", "yes"))
    samples = [short, replace(short, earlier=turns)]
    numbers = with_turn_numbers(build(samples), samples, build)["turn_numbers"].tolist()
    assert numbers == [[1, 1, 1] + [0] * 7, [1] * 5 + [2] * 2 + [3] * 3]


def test_the_first_position_can_be_marked():
    inputs = {"image_input_idx": torch.tensor([[[0, 1]]])}
    assert marked_positions(inputs, torch.Size((1, 3))).tolist() == [[True, True, False]]


@pytest.mark.parametrize(
    "inputs",
    [
        {"images_seq_mask": torch.tensor([[0, 1, 1, 0], [0, 0, 0, 1]])},
        {"image_embeds_position_mask": torch.tensor([[0, 1, 1, 0], [0, 0, 0, 1]])},
        {"image_input_idx": torch.tensor([[[1, -100], [2, -1]], [[3, -1], [-1, -1]]])},
        {"data": {"image_bound": [torch.tensor([[1, 2], [2, 3]]), torch.tensor([[3, 4]])]}},
    ],
)
def test_positions_that_an_input_marks(inputs):
    marked = marked_positions(inputs, torch.Size((2, 4)))
    assert marked.tolist() == [[False, True, True, False], [False, False, False, True]]
    unmarked = {"input_ids": torch.zeros(1, 2), "image_input_idx": None}
    assert marked_positions(unmarked, torch.Size((1, 2))) is None


RED, BLUE = (Image.new("RGB", (40, 30), colour) for colour in ("red", "blue"))
ONE, NONE = Sample("one", "What?", (RED,)), Sample("text", "What?")
PAIR = Sample("pair", "Which?", (RED, BLUE))
MARKED = Sample("marked", "Is <image> like <image>?", (RED, BLUE))


def test_each_image_has_a_number(specimen_processor):
    """The placeholders of each are as many as those of one alone, in a batch as alone."""
    builder = InputBuilder(specimen_processor)
    image = specimen_processor.tokenizer.convert_tokens_to_ids(specimen_processor.image_token)
    count = int((builder.build([ONE])["input_ids"] == image).sum())
    batch = builder.build([PAIR, MARKED])[IMAGE_NUMBERS]
    for row, sample in enumerate((PAIR, MARKED)):
        inputs = builder.build([sample])
        numbers = inputs[IMAGE_NUMBERS][0]
        assert numbers[inputs["input_ids"][0] == image].tolist() == [1] * count + [2] * count
        assert torch.equal(batch[row, : len(numbers)], numbers)


def test_placeholders_may_follow_each_other_without_a_gap():
    def build(samples):
        (sample,) = samples
        ids = torch.tensor([[*map(ord, sample.prompt.replace(IMAGE_MARK, "##"))]])
        return {"input_ids": ids, "pixel_values": torch.rand(2, 3, 4, 4)}

    samples = [Sample("pair", f"{IMAGE_MARK}{IMAGE_MARK}?", (RED, BLUE))]
    inputs = with_image_numbers(build(samples), samples, build)
    assert inputs[IMAGE_NUMBERS].tolist() == [[1, 1, 2, 2, 2]]


def test_padding_and_text_alone_are_no_image(specimen_processor):
    inputs = InputBuilder(specimen_processor).build([PAIR, NONE, ONE])
    numbers, read = inputs[IMAGE_NUMBERS], inputs["attention_mask"].bool()
    assert not numbers[~read].any()
    assert not numbers[1].any()
    assert set(numbers[2, read[2]].tolist()) == {1}
    for sample in (ONE, NONE):  # nothing is to be told apart
        assert IMAGE_NUMBERS not in InputBuilder(specimen_processor).build([sample])
