"""Samples to one batch: the text, the images, the padding, and what is refused."""

import json

import pytest
import torch
from PIL import Image

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.processor import load_processor


@pytest.fixture
def tiling(processor):
    """A processor whose images take a varying number of tokens."""
    from transformers import LlavaNextImageProcessor, LlavaNextProcessor

    return LlavaNextProcessor(
        LlavaNextImageProcessor(
            size={"shortest_edge": 64},
            crop_size={"height": 64, "width": 64},
            image_grid_pinpoints=[[64, 128], [128, 64], [128, 128]],
        ),
        processor.tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=processor.chat_template,
    )


def token_count(processor, ids, token):
    return (ids == processor.tokenizer.convert_tokens_to_ids(token)).sum(dim=1).tolist()


def test_batch_of_one_equals_transformers_own_path(specimen_processor, samples):
    sample = samples[0]
    content = [
        {"type": "image", "image": sample.image},
        {"type": "text", "text": sample.prompt},
    ]
    expected = specimen_processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    inputs = InputBuilder(specimen_processor).build([sample])
    assert inputs.keys() == expected.keys()
    assert all(torch.equal(inputs[name], expected[name]) for name in expected)


def test_batch_of_four_is_four_batches_of_one_padded_on_the_right(specimen_processor, samples):
    four = InputBuilder(specimen_processor).build(samples)
    for row, sample in enumerate(samples):
        one = InputBuilder(specimen_processor).build([sample])
        length = one["input_ids"].shape[1]
        assert torch.equal(four["input_ids"][row, :length], one["input_ids"][0])
        assert four["attention_mask"][row].sum() == length
        assert four["attention_mask"][row, :length].all()
        assert torch.equal(four["pixel_values"][row], one["pixel_values"][0])


def test_image_stands_before_the_prompt_and_behind_a_system_prompt(specimen_processor, samples):
    ids = InputBuilder(specimen_processor, system="Be very brief.").build(samples)["input_ids"]
    assert token_count(specimen_processor, ids, "<image>") == [64] * 4
    for text, sample in zip(specimen_processor.tokenizer.batch_decode(ids), samples, strict=True):
        places = [text.index(part) for part in ("Be very brief.", "<image>", sample.prompt)]
        assert places == sorted(places)


def test_left_padding_of_a_tokenizer_does_not_matter(processor, samples):
    expected = InputBuilder(processor).build(samples)
    processor.tokenizer.padding_side = "left"
    assert torch.equal(InputBuilder(processor).build(samples)["input_ids"], expected["input_ids"])


def test_tokenizer_without_padding_token(processor, samples):
    expected = InputBuilder(processor).build(samples)
    processor.tokenizer.pad_token = None
    inputs = InputBuilder(processor).build(samples)
    kept = expected["attention_mask"].bool()
    assert torch.equal(inputs["attention_mask"], expected["attention_mask"])
    assert torch.equal(inputs["input_ids"][kept], expected["input_ids"][kept])
    assert (inputs["input_ids"][~kept] == processor.tokenizer.eos_token_id).all()


def test_samples_with_and_without_image(specimen_processor, samples):
    text_only = Sample("x/1", "Which?")
    ids = InputBuilder(specimen_processor).build([samples[0], text_only])["input_ids"]
    assert token_count(specimen_processor, ids, "<image>") == [64, 0]
    alone = InputBuilder(specimen_processor).build([text_only])
    assert "pixel_values" not in alone


@pytest.mark.parametrize("bare", [False, True])
def test_without_a_template_prompts_are_plain(processor, samples, bare):
    processor.chat_template = processor.tokenizer.chat_template = None
    inputs = InputBuilder(processor.tokenizer if bare else processor).build(samples)
    texts = processor.tokenizer.batch_decode(inputs["input_ids"], skip_special_tokens=True)
    assert [text.strip() for text in texts] == [sample.prompt.strip() for sample in samples]
    assert token_count(processor, inputs["input_ids"], "<image>") == [0 if bare else 64] * 4
    assert set(inputs) >= {"input_ids", "attention_mask"}


def test_the_model_type_chooses_the_plain_layout(processor, samples):
    processor.chat_template = None
    ids = InputBuilder(processor, model_type="vipllava").build(samples[:1])["input_ids"]
    text = processor.tokenizer.decode(ids[0])
    assert text.endswith(f"{samples[0].prompt}###Assistant:")


@pytest.mark.parametrize("bare", [False, True])
def test_begin_token_of_a_template_is_there_once(processor, samples, bare):
    tokenizer = processor.tokenizer
    processor.chat_template = "<s>" + processor.chat_template
    tokenizer.chat_template = "<s>{{ messages[0].content }}"
    ids = InputBuilder(tokenizer if bare else processor).build(samples)["input_ids"]
    assert token_count(processor, ids, "<s>") == [1, 1, 1, 1]
    assert token_count(processor, ids, "<image>") == [0 if bare else 64] * 4


def test_bare_image_processor_reads_the_images(specimen_processor, samples):
    builder = InputBuilder(specimen_processor.image_processor)
    inputs = builder.build(samples)
    assert {name: tuple(value.shape) for name, value in inputs.items()} == {
        "pixel_values": (4, 3, 64, 64)
    }
    with pytest.raises(NormprobeError, match="x/1: a bare vision encoder needs one image"):
        builder.build([Sample("x/1", "Which?")])


def test_images_of_different_token_counts(tiling, samples):
    images = [Image.new("RGB", size) for size in ((64, 64), (400, 60))]
    mixed = [Sample(f"x/{i}", "Which?", (image,)) for i, image in enumerate(images)]
    counts = token_count(tiling, InputBuilder(tiling).build(mixed)["input_ids"], "<image>")
    alone = [InputBuilder(tiling).build([sample])["input_ids"] for sample in mixed]
    assert counts == [token_count(tiling, ids, "<image>")[0] for ids in alone]
    assert counts[0] != counts[1]


@pytest.mark.parametrize("size", [1, 2])
def test_image_that_the_processor_refuses_names_its_sample(tmp_path, samples, size):
    config = {"image_processor_type": "Qwen2VLImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    qwen = load_processor(str(tmp_path))
    line = Sample("pope/9", "What?", (Image.new("RGB", (4000, 10)),))
    with pytest.raises(NormprobeError, match=r"refuses pope/9 \(4000x10 px\): .*aspect ratio"):
        InputBuilder(qwen).build([samples[0], line][-size:])


def test_prompt_with_the_image_token_is_refused(specimen_processor, photo):
    sample = Sample("x/1", "What is <image>, and <image>?", (photo,))
    with pytest.raises(NormprobeError, match=r"x/1: the prompt contains .* '<image>'"):
        InputBuilder(specimen_processor).build([sample])


def test_token_ids_of_each_kind_of_processor(processor):
    from tokenizers import AddedToken

    tokenizer = processor.tokenizer
    before = InputBuilder(processor).special_token_ids
    assert set(before) >= {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    tokenizer.add_tokens([AddedToken("<|turn|>", special=True), AddedToken("plain")])
    marker = tokenizer.convert_tokens_to_ids("<|turn|>")
    for held in (processor, tokenizer):
        builder = InputBuilder(held)
        assert builder.tokenizer is tokenizer
        assert builder.special_token_ids == sorted([*before, marker])
        assert builder.vocabulary_ids == sorted(set(tokenizer.get_vocab().values()))
    bare = InputBuilder(processor.image_processor)
    assert (bare.tokenizer, bare.special_token_ids, bare.vocabulary_ids) == (None, [], [])
