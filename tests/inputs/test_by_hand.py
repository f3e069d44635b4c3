"""Ids and pixels where no processor makes them, beside what is counted by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.remote_code.tokenizer import byte_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import PreTrainedTokenizerFast
from transformers.image_processing_base import ImageProcessingMixin

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.by_hand import build_by_hand, normalised

CHAT = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
RED, BLUE = Image.new("RGB", (8, 4), "red"), Image.new("RGB", (4, 8), "blue")
HOW = {"image": "<image>\n", "image_ids": (7, 7, -5), "pixels": (2, (0.5,) * 3, (0.25,) * 3)}


def built(samples, template=None, model=None, system=None, begin=False, **how):
    tokenizer = byte_tokenizer((), template)
    if begin:
        tokenizer.bos_token = "B"
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="B $A", special_tokens=[("B", tokenizer.bos_token_id)]
        )
    made = build_by_hand(
        model or nn.Module(), tokenizer, samples, system, **{"turn": None, **HOW, **how}
    )
    return made, lambda text: tokenizer(text, add_special_tokens=False).input_ids


def test_pictures_stand_before_a_prompt_or_where_it_says() -> None:
    samples = [
        Sample("a", "Is <image> like <image>?", (RED, BLUE)),
        Sample("b", "What?", (BLUE,)),
        Sample("c", "No picture.", ()),
    ]
    made, ids_of = built(samples, turn="Q: {images}{prompt} A:")
    expected = [
        [*ids_of("Q: Is "), 7, 7, -5, *ids_of(" like "), 7, 7, -5, *ids_of("? A:")],
        [*ids_of("Q: "), 7, 7, -5, *ids_of("\nWhat? A:")],
        ids_of("Q: No picture. A:"),
    ]
    for number, ids in enumerate(expected):
        there = made["attention_mask"][number].bool()
        assert there.tolist() == [True] * len(ids) + [False] * (there.numel() - len(ids))
        assert made["input_ids"][number][there].tolist() == ids
    marked = torch.isin(made["input_ids"], torch.tensor([7, -5]))
    assert torch.equal(made["image_mask"], marked)
    red, blue = (np.array([2.0, -2, -2]), np.array([-2.0, -2, 2]))  # (1 - 0.5) / 0.25
    for found, colour in zip(made["pixel_values"], (red, blue, blue), strict=True):
        assert np.array_equal(found.numpy(), np.broadcast_to(colour[:, None, None], (3, 2, 2)))


def test_the_chat_template_writes_the_turn_where_none_is_said() -> None:
    made, ids_of = built([Sample("a", "What?", (RED,))], CHAT)
    assert made["input_ids"][0].tolist() == [*ids_of("[user]"), 7, 7, -5, *ids_of("\nWhat?")]
    made, ids_of = built([Sample("a", "What?")], CHAT, turn="{images}{prompt}")
    assert made["input_ids"][0].tolist() == ids_of("What?")
    assert set(made) == {"input_ids", "attention_mask", "image_mask"}
    with pytest.raises(NormprobeError, match="no chat template"):
        built([Sample("a", "What?")], system="Be short.")


def test_a_begin_token_is_written_once_in_front_where_the_tokenizer_adds_it() -> None:
    sample = Sample("a", "<image>What?", (RED,))
    made, ids_of = built([sample], begin=True, turn="{images}{prompt}")
    assert made["input_ids"][0].tolist() == [*ids_of("B"), 7, 7, -5, *ids_of("What?")]
    made, ids_of = built([sample], CHAT, begin=True)  # a template writes all that there is
    assert made["input_ids"][0].tolist() == [*ids_of("[user]"), 7, 7, -5, *ids_of("What?")]


@pytest.mark.parametrize("opens", ["", "{{ bos_token }}"])
def test_a_template_of_parts_leaves_the_begin_token_to_the_tokenizer(opens: str) -> None:
    """It is a processor's (VARGPT), unless it writes one itself."""
    said = "{% for c in m['content'] if c['type'] == 'text' %}{{ c['text'] }}{% endfor %}"
    template = opens + "{% for m in messages %}[{{ m['role'] }}]" + said + "{% endfor %}"
    made, ids_of = built([Sample("a", "<image>What?", (RED,))], template, begin=True)
    expected = [*ids_of("[user]"), 7, 7, -5, *ids_of("What?")]
    assert made["input_ids"][0].tolist() == [*ids_of("B"), *expected]


@pytest.mark.parametrize(
    ("single", "begins", "ends"),
    [("$A E", "", "E"), ("B $A E", "B", "E"), ("B $A B", "B", "B"), ("B $A", "B", "")],
)
def test_an_end_token_is_written_once_behind_where_the_tokenizer_adds_it(
    single: str, begins: str, ends: str
) -> None:
    """T5's (MMICL); one token may begin and end."""
    tokenizer = byte_tokenizer((), None)
    tokenizer.bos_token, tokenizer.eos_token = "B", "B" if single.endswith("B") else "E"
    known = [(token, tokenizer.convert_tokens_to_ids(token)) for token in "BE"]
    rule = TemplateProcessing(single=single, special_tokens=known)
    tokenizer.backend_tokenizer.post_processor = rule
    ids_of = lambda text: tokenizer(text, add_special_tokens=False).input_ids  # noqa: E731
    for turn in ("{images}{prompt}", f"{{images}}{{prompt}}{ends}"):
        sample = Sample("a", "<image>What?", (RED,))
        how = {**HOW, "turn": turn}
        made = build_by_hand(nn.Module(), tokenizer, [sample], None, **how)
        expected = [*ids_of(begins), 7, 7, -5, *ids_of(f"What?{ends}")]
        assert made["input_ids"][0].tolist() == expected
        assert made["image_mask"].sum() == 3 and made["image_mask"].shape == made["input_ids"].shape


def test_a_tower_s_own_image_processor_looks_at_the_pictures() -> None:
    class Look(ImageProcessingMixin):
        def __call__(self, images, return_tensors):
            return {"pixel_values": torch.zeros(len(images), 1), "sizes": [i.size for i in images]}

    model = nn.Sequential(nn.Identity())
    model[0]._looks = Look()
    made, _ = built([Sample("a", "What?", (RED, BLUE))], model=model)
    assert made["pixel_values"].shape == (2, 1)
    assert made["sizes"] == [(8, 4), (4, 8)]


@pytest.mark.parametrize("kind", [torch.clone, list, torch.Tensor.numpy])
def test_a_tower_s_plain_image_processor_looks_at_the_pictures(kind) -> None:
    """TinyLLaVA's of SigLIP is no class of transformers, and is never called itself."""

    class Look:
        image_mean = (0.5, 0.5, 0.5)

        def preprocess(self, images, return_tensors):
            """Of several the first, as OLA-VLM's."""
            return {"pixel_values": kind(torch.tensor([images[0].getpixel((0, 0))]))}

    class Settings(dict):
        __getattr__ = dict.__getitem__  # raises what no getattr looks for (WeMM)

    model = nn.Sequential(nn.Identity())
    model[0].settings, model[0].image_processor = Settings(), Look()
    made, _ = built([Sample("a", "What?", (RED, BLUE))], model=model)
    assert made["pixel_values"].tolist() == [[255, 0, 0], [0, 0, 255]]


def test_a_module_s_own_image_processor_looks_before_that_of_its_files() -> None:
    """Victor's tower resizes otherwise than the class that its folder names."""

    class Look(ImageProcessingMixin):
        def __init__(self, value: float) -> None:
            self.value = value

        def __call__(self, images, return_tensors):
            return {"pixel_values": torch.full((len(images), 1), self.value)}

    model, tokenizer = nn.Sequential(nn.Identity()), byte_tokenizer((), None)
    tokenizer.look = Look(2.0)
    for expected in (2.0, 1.0):
        made = build_by_hand(
            model, tokenizer, [Sample("a", "What?", (RED,))], None, turn=None, **HOW
        )
        assert made["pixel_values"].item() == expected
        model[0].image_processor = Look(1.0)


@pytest.mark.parametrize("holder", ["none", "transformers", "plain"])
def test_pictures_are_padded_to_squares_of_the_mean_colour(holder: str) -> None:
    """As LLaVA's code does where its config says ``image_aspect_ratio: pad``."""

    class Plain:
        image_mean = (0.25, 0.5, 0.75)

        def preprocess(self, images, return_tensors):
            return {"pixel_values": np.stack([np.asarray(each) for each in images])}

    class Look(ImageProcessingMixin):
        image_mean = (0.25, 0.5, 0.75)

        def __call__(self, images, return_tensors):
            return Plain().preprocess(images, return_tensors)

    model = nn.Sequential(nn.Identity())
    if holder != "none":
        model[0].look = Look() if holder == "transformers" else Plain()
    wide, tall = Image.new("RGB", (8, 3), "red"), Image.new("RGB", (3, 8), "blue")
    how = {"pixels": (8, (0.25, 0.5, 0.75), (1.0,) * 3), "padded": True}
    made, _ = built([Sample("a", "What?", (wide, tall))], model=model, **how)
    expected = np.empty((2, 8, 8, 3))
    expected[:] = (63, 127, 191)  # 255 times the mean
    expected[0, 2:5] = (255, 0, 0)  # (8 - 3) // 2 rows above
    expected[1, :, 2:5] = (0, 0, 255)
    if holder == "none":
        expected = (expected / 255 - (0.25, 0.5, 0.75)).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(made["pixel_values"], expected, atol=1e-6)


def test_a_turn_without_its_prompt_is_refused() -> None:
    with pytest.raises(NormprobeError, match=r"lacks \{images\} and \{prompt\}"):
        built([Sample("a", "What?", (RED,))], turn="USER: {turn}")
    with pytest.raises(NormprobeError, match="no tokenizer"):
        build_by_hand(nn.Module(), None, [], None, turn=None, **HOW)


@pytest.mark.parametrize("image", ["", "\n"])
def test_a_picture_without_a_text_is_refused(image: str) -> None:
    """An empty text is in every prompt (PandaGPT)."""
    with pytest.raises(NormprobeError, match="the text of a picture, IMAGE, is empty"):
        build_by_hand(
            nn.Module(), byte_tokenizer((), None), [], None, turn=None, **{**HOW, "image": image}
        )


def test_pixels_are_brought_to_their_mean_and_spread() -> None:
    random = np.random.default_rng(0)
    values = random.integers(0, 256, (3, 5, 3), dtype=np.uint8)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    expected = ((values / 255 - mean) / std).transpose(2, 0, 1)
    found = normalised(Image.fromarray(values), mean, std)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ids", [(-200,), (7, -200)])
def test_special_tokens_around_a_picture_do_not_go_without_a_word(ids: tuple[int, ...]) -> None:
    """Ids take the place of all of the text (LISA)."""
    tokenizer = byte_tokenizer(("<im_start>", "<im_end>"), None)
    around = tokenizer.convert_tokens_to_ids(["<im_start>", "<im_end>"])
    how = {"turn": None, **HOW, "image": "<im_start><image><im_end>\n"}
    samples = [Sample("a", "What?", (RED,))]
    with pytest.raises(NormprobeError, match=r"<im_start> and <im_end> are no IMAGE_IDS"):
        build_by_hand(nn.Module(), tokenizer, samples, None, **{**how, "image_ids": ids})
    whole = (around[0], *ids, around[1])
    made = build_by_hand(nn.Module(), tokenizer, samples, None, **{**how, "image_ids": whole})
    assert made["input_ids"][0, : len(whole)].tolist() == [*whole]


def test_marks_around_a_picture_that_are_words_do_not_go_either() -> None:
    """LongLLaVA's tokenizer has no tokens for them."""
    tokenizer = byte_tokenizer((), None)
    samples = [Sample("a", "What?", (RED,))]
    how = {"turn": "{images}{prompt}", **HOW, "image_ids": (-200,)}
    with pytest.raises(NormprobeError, match="<img> and <image> and </img> are no") as told:
        build_by_hand(
            nn.Module(), tokenizer, samples, None, **{**how, "image": "<img><image></img>\n"}
        )
    assert "around {images} in TURN" in told.value.remedy
    around = {**how, "turn": "<img>{images}</img>{prompt}", "image": "<image>"}
    (ids,) = build_by_hand(nn.Module(), tokenizer, samples, None, **around)["input_ids"].tolist()
    before, behind = tokenizer(["<img>", "</img>What?"], add_special_tokens=False).input_ids
    assert ids == [*before, -200, *behind]


def test_the_text_behind_a_picture_is_read_as_in_the_whole_where_words_stand_for_it() -> None:
    """SentencePiece opens a text with a space, and not what follows a token (Muffin, u-LLaVA)."""
    letters = ["<unk>", "<patch>", "\u2581", *"abc"]
    known = {letter: number for number, letter in enumerate(letters)}
    model = Tokenizer(models.BPE(known, [], unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=model, unk_token="<unk>", additional_special_tokens=["<patch>"]
    )
    (whole,) = (tokenizer("a<patch><patch>bc", add_special_tokens=False).input_ids,)
    assert whole == [2, 3, 1, 1, 4, 5]
    samples = [Sample("one", "bc", images=(Image.new("RGB", (4, 4)),))]
    how: dict[str, Any] = {"turn": "a{images}{prompt}", "pixels": (4, [0.5] * 3, [0.5] * 3)}
    how["image"] = "%"
    made = build_by_hand(nn.Module(), tokenizer, samples, None, image_ids=[1, 1], **how)
    assert made["input_ids"][0].tolist() == whole
    assert made["image_mask"][0].tolist() == [each == 1 for each in whole]
    # An id of no word is put between texts that are read alone, as LLaVA's code does.
    made = build_by_hand(nn.Module(), tokenizer, samples, None, image_ids=[-200], **how)
    assert made["input_ids"][0].tolist() == [2, 3, -200, 2, 4, 5]
