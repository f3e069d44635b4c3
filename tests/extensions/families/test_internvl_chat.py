"""InternVL's chat layout: squares, their tokens and the conversation, written by hand."""

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from support.flat import flat
from support.remote_code.opened import opened

from normprobe import NormprobeError, Probe
from normprobe.data.data_set import open_data
from normprobe.data.sample import Sample
from normprobe.schema import MASKS

SIDE, TOKENS = 28, 4  # pixels and tokens of a square
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
OPENING = "<|im_start|>system\nYou are tiny.<|im_end|>\n"
TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def builder(repository):
    return opened(repository("internvl_chat"))


def picture(width, height, colour=(0, 0, 0)):
    return Image.new("RGB", (width, height), colour)


def image_tokens(squares):
    return f"<img>{'<IMG_CONTEXT>' * squares * TOKENS}</img>"


def whole(image):
    """All of an image in one square."""
    values = np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) / 255
    return ((values - MEAN) / STD).transpose(2, 0, 1)


def text_of(builder, sample):
    return builder.tokenizer.decode(builder.build([sample])["input_ids"][0])


@pytest.mark.parametrize(
    ("size", "grid"),
    [
        ((400, 300), (4, 3)),  # no other grid of up to 12 has this shape
        ((300, 400), (3, 4)),
        ((1200, 100), (12, 1)),
        ((5000, 100), (12, 1)),
        ((100, 220), (2, 4)),  # its half has the same shape
        ((10, 10), (1, 1)),  # not even one is half filled
        ((28, 28), (1, 1)),  # 2 x 2 would be filled to a quarter
        ((39, 39), (1, 1)),  # to 0.485
        ((40, 40), (2, 2)),  # to 0.51
        ((90, 90), (3, 3)),
    ],
)
def test_squares(builder, size, grid):
    squares = grid[0] * grid[1] + (grid != (1, 1))  # and the whole image where it is cut
    inputs = builder.build([Sample("a", "What?", (picture(*size),))])
    assert inputs["pixel_values"].shape == (squares, 3, SIDE, SIDE)
    assert inputs["image_flags"].tolist() == [[1]] * squares
    assert inputs["visual_mask"].sum() == squares * TOKENS


def test_squares_come_in_reading_order_and_the_whole_last(builder):
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (90, 90, 90), (10, 20, 30), (200, 100, 50)]
    image = picture(3 * SIDE, 2 * SIDE)
    for place, colour in enumerate(colours):
        image.paste(picture(SIDE, SIDE, colour), (place % 3 * SIDE, place // 3 * SIDE))
    pixels = builder.build([Sample("a", "What?", (image,))])["pixel_values"].double().numpy()
    expected = (np.array(colours) / 255 - MEAN) / STD
    for square, colour in zip(pixels[:6], expected, strict=True):
        np.testing.assert_allclose(
            square, np.broadcast_to(colour[:, None, None], square.shape), rtol=1e-6
        )
    np.testing.assert_allclose(pixels[6], whole(image), atol=1e-6)


def test_the_whole_is_made_of_the_image_itself_not_of_the_one_that_is_cut(builder):
    noise = torch.randint(256, (300, 400, 3), dtype=torch.uint8)  # no multiple of a square
    image = Image.fromarray(noise.numpy())
    pixels = builder.build([Sample("a", "What?", (image,))])["pixel_values"]
    np.testing.assert_allclose(pixels[-1], whole(image), atol=1e-6)


def test_the_conversation_is_that_of_the_repository(builder):
    sample = Sample("a", "What is it?", (picture(56, 28),))
    expected = OPENING + TURN.format(f"{image_tokens(3)}\nWhat is it?")
    assert text_of(builder, sample) == expected


def test_images_stand_where_the_prompt_marks_them(builder):
    images = (picture(28, 28), picture(56, 28))
    marked = Sample("a", "Is <image> like <image>?", images)
    turn = f"Is {image_tokens(1)} like {image_tokens(3)}?"
    assert text_of(builder, marked) == OPENING + TURN.format(turn)
    first = Sample("a", "Alike?", images)
    turn = f"{image_tokens(1)}\n{image_tokens(3)}\nAlike?"
    assert text_of(builder, first) == OPENING + TURN.format(turn)
    both = builder.build([marked, first])
    np.testing.assert_array_equal(both["pixel_values"][:4], both["pixel_values"][4:])


@pytest.mark.parametrize(
    ("system", "opening"),
    [("none", ""), ("Be brief.", "<|im_start|>system\nBe brief.<|im_end|>\n")],
)
def test_the_system_prompt_is_replaced_or_left_out(builder, system, opening):
    text = text_of(replace(builder, system=system), Sample("a", "What?"))
    assert text == opening + TURN.format("What?")
    assert text_of(builder, Sample("a", "What?")) == OPENING + TURN.format("What?")


@torch.no_grad()
def test_text_alone_is_what_the_language_model_reads_alone(builder):
    inputs = builder.build([Sample("a", "What is it?")])
    assert not inputs["visual_mask"].any()
    alone = builder.model.language_model(inputs["input_ids"]).logits
    taken = {name: value for name, value in inputs.items() if name not in MASKS}
    torch.testing.assert_close(builder.model(**taken).logits, alone)


def test_the_blank_square_of_text_alone_is_no_image(builder):
    probe = Probe(builder.model, builder.processor)
    (with_image,) = open_data("sample", limit=1)
    vision = {"vision_encoder", "projector_input", "projector_output"}
    for sample, stages in ((Sample("a", "What is it?"), set()), (with_image, vision)):
        table = probe.interface(builder.build([sample])).table
        assert "decoder_input" in set(table["stage"])
        assert vision & set(table["stage"]) == stages


def test_samples_with_and_without_an_image_fit_into_one_batch(builder, capsys):
    (sample,) = open_data("sample", limit=1)
    probe = Probe(builder.model, builder.processor)
    table = probe.layers(builder.build([Sample("a", "What is it?"), sample])).table
    assert (flat(table)["nonfinite"] == 0).all()
    assert "warning" not in capsys.readouterr().out  # the code would go on without the image


def test_a_template_is_taken_by_its_name_where_the_model_holds_none(builder, monkeypatch):
    """Mono-InternVL makes it in each ``chat``, of ``conversation`` beside its class."""
    expected = text_of(builder, Sample("a", "What?"))
    held, said = builder.model.conv_template, builder.model.system_message
    kind = type(builder.model)
    beside = SimpleNamespace(get_conv_template={"tiny": held.copy()}.__getitem__)
    beside.get_conv_template("tiny").system_message = said
    monkeypatch.setattr(builder.model, "conv_template", None)
    with pytest.raises(NormprobeError, match="holds no conv_template") as told:
        monkeypatch.setattr(kind, "__module__", "nobodys.own.modeling")
        builder.build([Sample("a", "What?")])
    assert "prepare(model, processor)" in told.value.remedy
    monkeypatch.setattr(builder.model, "template", "tiny", raising=False)
    monkeypatch.setitem(sys.modules, "nobodys", ModuleType("nobodys"))
    monkeypatch.setitem(sys.modules, "nobodys.conversation", beside)
    assert text_of(builder, Sample("a", "What?")) == expected
