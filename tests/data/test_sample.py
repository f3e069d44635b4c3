import numpy as np
import pytest
from PIL import Image

from normprobe.data.images import image_hash
from normprobe.data.sample import Sample, Turn, as_sample, is_region, spans_of_word

RED, BLUE = (Image.new("RGB", (4, 3), colour) for colour in ("red", "blue"))


def placeholder(number):
    return f"<{number}>"


def test_text_alone_keeps_its_marks():
    sample = Sample("a", "What is <image>?")
    assert sample.pieces == ["What is <image>?"]
    assert sample.text_with(placeholder, "\n") == "What is <image>?"
    assert (sample.image, sample.image_hashes, sample.image_hash) == (None, (), None)


def test_images_stand_before_a_prompt_without_marks():
    sample = Sample("a", "Alike?", (RED, BLUE))
    assert sample.pieces == [RED, BLUE, "Alike?"]
    assert sample.text_with(placeholder, "\n") == "<1>\n<2>\nAlike?"


def test_marks_say_where_images_stand():
    sample = Sample("a", "<image>and <image><image>: alike?", (RED, BLUE, RED))
    assert sample.pieces == [RED, "and ", BLUE, RED, ": alike?"]
    assert sample.text_with(placeholder, "\n") == "<1>and <2><3>: alike?"


def test_marks_that_are_not_one_an_image_are_text():
    sample = Sample("a", "<image> or <image>?", (RED,))
    assert sample.pieces == [RED, "<image> or <image>?"]
    assert sample.text_with(placeholder) == "<1><image> or <image>?"


def test_each_turn_is_a_sample_of_what_it_is_about():
    earlier = (Turn("Is <image> old?", "Yes."), Turn("Why?", "It is worn."))
    sample = Sample("a", "And <image>?", (RED, BLUE), earlier=earlier)
    assert [turn.pieces for turn in sample.turns] == [
        ["Is ", RED, " old?"],
        ["Why?"],
        ["And ", BLUE, "?"],
    ]
    assert sample.pieces == ["Is ", RED, " old?", "Why?", "And ", BLUE, "?"]
    assert sample.texts == ["Is ", " old?", "Why?", "And ", "?", "Yes.", "It is worn."]
    with pytest.raises(ValueError, match="several turns need a chat template"):
        sample.text_with(placeholder)
    unmarked = Sample("a", "And now?", (RED, BLUE), earlier=(Turn("Is it?", "No."),))
    assert [turn.pieces for turn in unmarked.turns] == [[RED, BLUE, "Is it?"], ["And now?"]]
    alone = Sample("a", "Why?", (RED,))
    assert alone.turns == [alone]


def test_hashes():
    red, blue = image_hash(RED), image_hash(BLUE)
    assert Sample("a", "", (RED, BLUE)).image_hashes == (red, blue)
    assert Sample("a", "", (RED,)).image_hash == red
    assert len({Sample("a", "", images).image_hash for images in ((RED, BLUE), (BLUE, RED))}) == 2


def test_spans_are_whole_words():
    assert spans_of_word("cat", "A cat, a catfish, the CAT") == [(2, 5), (22, 25)]
    assert spans_of_word(" red cup ", "the red cup") == [(4, 11)]
    assert spans_of_word(" ", "a b") == []


def test_a_region_lies_in_the_picture():
    assert is_region((0, 0, 32, 24), (32, 24))
    assert not is_region((0, 0, 32, 24.1), (32, 24))
    assert not is_region((0, 3, 32, 3), (32, 24))


def test_a_picture_in_memory_is_the_same_as_its_file(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = Image.effect_noise((5, 4), 90).convert("RGB")
    clear = upright.copy()
    clear.putalpha(100)
    wide = Image.fromarray((np.arange(20, dtype=np.uint16) * 3000).reshape(4, 5))
    for name, picture in (("turned.png", upright), ("clear.png", clear), ("wide.png", wide)):
        file = tmp_path / name
        picture.save(file, exif=exif)
        with Image.open(file) as held:
            in_memory = as_sample(held, "What?")
        assert in_memory.image_hash == as_sample(file, "What?").image_hash, name
