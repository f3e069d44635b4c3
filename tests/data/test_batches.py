import json

import pytest
import torch
from PIL import Image

from normprobe.data.bad_rows import BadRows
from normprobe.data.batches import (
    batches,
    build_inputs,
    load_processor,
    special_token_ids,
    token_groups,
)
from normprobe.data.datasets import open_data
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.schema import PADDING, SPECIAL, TEXT, TOKEN_GROUPS, VISUAL

V, S, T, P = *(TOKEN_GROUPS.index(group) for group in (VISUAL, SPECIAL, TEXT)), PADDING


@pytest.fixture(scope="module")
def samples():
    """Four questions of different length, images of different size and shape."""
    return list(open_data("sample", limit=4))


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
    inputs = build_inputs(specimen_processor, [sample])
    assert inputs.keys() == expected.keys()
    assert all(torch.equal(inputs[name], expected[name]) for name in expected)


def test_batch_of_four_is_four_batches_of_one_padded_on_the_right(specimen_processor, samples):
    four = build_inputs(specimen_processor, samples)
    for row, sample in enumerate(samples):
        one = build_inputs(specimen_processor, [sample])
        length = one["input_ids"].shape[1]
        assert torch.equal(four["input_ids"][row, :length], one["input_ids"][0])
        assert four["attention_mask"][row].sum() == length
        assert four["attention_mask"][row, :length].all()
        assert torch.equal(four["pixel_values"][row], one["pixel_values"][0])


def test_image_stands_before_the_prompt(specimen_processor, samples):
    ids = build_inputs(specimen_processor, samples[:1])["input_ids"]
    text = specimen_processor.tokenizer.decode(ids[0])
    assert token_count(specimen_processor, ids, "<image>") == [64]
    assert text.index("<image>") < text.index(samples[0].prompt)


def test_left_padding_of_a_tokenizer_does_not_matter(processor, samples):
    expected = build_inputs(processor, samples)
    processor.tokenizer.padding_side = "left"
    assert torch.equal(build_inputs(processor, samples)["input_ids"], expected["input_ids"])


def test_tokenizer_without_padding_token(processor, samples):
    expected = build_inputs(processor, samples)
    processor.tokenizer.pad_token = None
    inputs = build_inputs(processor, samples)
    kept = expected["attention_mask"].bool()
    assert torch.equal(inputs["attention_mask"], expected["attention_mask"])
    assert torch.equal(inputs["input_ids"][kept], expected["input_ids"][kept])
    assert (inputs["input_ids"][~kept] == processor.tokenizer.eos_token_id).all()


def test_system_prompt_reaches_every_row(specimen_processor, samples):
    inputs = build_inputs(specimen_processor, samples, system="Be very brief.")
    for row in specimen_processor.tokenizer.batch_decode(inputs["input_ids"]):
        assert row.index("Be very brief.") < row.index("<image>")


def test_begin_token_is_there_once(processor, samples):
    processor.chat_template = "<s>" + processor.chat_template
    ids = build_inputs(processor, samples)["input_ids"]
    assert token_count(processor, ids, "<s>") == [1, 1, 1, 1]


def test_samples_with_and_without_image(specimen_processor, samples):
    text_only = Sample("x/1", "Which?", None, None)
    ids = build_inputs(specimen_processor, [samples[0], text_only])["input_ids"]
    assert token_count(specimen_processor, ids, "<image>") == [64, 0]
    alone = build_inputs(specimen_processor, [text_only])
    assert "pixel_values" not in alone


def test_processor_without_template(processor, samples):
    processor.chat_template = None
    inputs = build_inputs(processor, samples)
    texts = processor.tokenizer.batch_decode(inputs["input_ids"], skip_special_tokens=True)
    assert [text.strip() for text in texts] == [sample.prompt.strip() for sample in samples]
    assert token_count(processor, inputs["input_ids"], "<image>") == [64] * 4


def test_bare_tokenizer_reads_the_prompts(processor, samples):
    tokenizer = processor.tokenizer
    tokenizer.chat_template = None
    inputs = build_inputs(tokenizer, samples)
    texts = tokenizer.batch_decode(inputs["input_ids"], skip_special_tokens=True)
    assert [text.strip() for text in texts] == [sample.prompt.strip() for sample in samples]
    assert set(inputs) >= {"input_ids", "attention_mask"}


def test_bare_tokenizer_with_a_template_adds_no_special_tokens(processor, samples):
    tokenizer = processor.tokenizer
    tokenizer.chat_template = "<s>{{ messages[0].content }}"
    ids = build_inputs(tokenizer, samples)["input_ids"]
    assert token_count(processor, ids, "<s>") == [1, 1, 1, 1]
    assert token_count(processor, ids, "<image>") == [0, 0, 0, 0]


def test_bare_image_processor_reads_the_images(specimen_processor, samples):
    inputs = build_inputs(specimen_processor.image_processor, samples)
    assert {name: tuple(value.shape) for name, value in inputs.items()} == {
        "pixel_values": (4, 3, 64, 64)
    }
    with pytest.raises(NormprobeError, match="x/1: a bare vision encoder needs an image"):
        build_inputs(specimen_processor.image_processor, [Sample("x/1", "Which?", None, None)])


def test_images_of_different_token_counts(tiling, samples):
    images = [Image.new("RGB", size) for size in ((64, 64), (400, 60))]
    mixed = [Sample(f"x/{i}", "Which?", image, None) for i, image in enumerate(images)]
    counts = token_count(tiling, build_inputs(tiling, mixed)["input_ids"], "<image>")
    alone = [build_inputs(tiling, [sample])["input_ids"] for sample in mixed]
    assert counts == [token_count(tiling, ids, "<image>")[0] for ids in alone]
    assert counts[0] != counts[1]


@pytest.mark.parametrize("size", [1, 2])
def test_image_that_the_processor_refuses_names_its_sample(tmp_path, samples, size):
    config = {"image_processor_type": "Qwen2VLImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    qwen = load_processor(str(tmp_path))
    line = Sample("pope/9", "What?", Image.new("RGB", (4000, 10)), None)
    with pytest.raises(NormprobeError, match=r"refuses pope/9 \(4000x10 px\): .*aspect ratio"):
        build_inputs(qwen, [samples[0], line][-size:])


def test_samples_that_the_processor_refuses_can_be_left_out(tmp_path, samples):
    config = {"image_processor_type": "Qwen2VLImageProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    qwen = load_processor(str(tmp_path))
    line = Image.new("RGB", (4000, 10))
    lines = [Sample(f"pope/{number}", "What?", line, None) for number in (7, 8, 9)]
    bad = BadRows(skip=True)
    parts = [part for part, _ in batches([*samples[:3], *lines], qwen, 2, bad=bad)]
    assert [[sample.id for sample in part] for part in parts] == [
        [samples[0].id, samples[1].id],
        [samples[2].id],
    ]
    assert [row.sample for row in bad.skipped] == ["pope/7", "pope/8", "pope/9"]
    assert all("aspect ratio" in row.reason for row in bad.skipped)
    with pytest.raises(NormprobeError, match="refuses pope/7"):
        list(batches([*samples[:3], *lines], qwen, 2))


def test_prompt_with_the_image_token_is_refused(specimen_processor, photo):
    sample = Sample("x/1", "What is <image>?", photo, None)
    with pytest.raises(NormprobeError, match=r"x/1: the prompt contains .* '<image>'"):
        build_inputs(specimen_processor, [sample])


def test_batches_cover_the_data_in_order(specimen_processor):
    data = open_data("sample", limit=5)
    parts = list(batches(data, specimen_processor, 2))
    assert [len(part) for part, _ in parts] == [2, 2, 1]
    assert [sample.id for part, _ in parts for sample in part] == data.ids
    assert [inputs["input_ids"].shape[0] for _, inputs in parts] == [2, 2, 1]


@pytest.fixture
def checkpoint(tmp_path, specimen_processor):
    specimen_processor.save_pretrained(tmp_path)
    return tmp_path


def test_load_bare_language_model(checkpoint, specimen_processor):
    folder = checkpoint / "llm"
    specimen_processor.tokenizer.save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("processor_class", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    tokenizer = load_processor(str(folder))
    assert not hasattr(tokenizer, "image_processor")
    assert tokenizer("a")["input_ids"]


def test_load_bare_vision_encoder(checkpoint, specimen_processor, samples):
    folder = checkpoint / "vision"
    specimen_processor.image_processor.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "clip_vision_model"}')
    assert build_inputs(load_processor(str(folder)), samples)["pixel_values"].shape[0] == 4


@pytest.mark.parametrize("missing", ["tokenizer.json", "processor_config.json"])
def test_half_a_processor_is_refused(checkpoint, missing):
    (checkpoint / "config.json").write_text('{"model_type": "llava"}')
    (checkpoint / missing).unlink()
    with pytest.raises(NormprobeError, match="cannot be loaded") as refusal:
        load_processor(str(checkpoint))
    assert "processor files" in refusal.value.remedy


def test_checkpoint_without_processor_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(NormprobeError, match="cannot be loaded"):
        load_processor(str(tmp_path))
    with pytest.raises(NormprobeError, match="nobody/nothing cannot be loaded"):
        load_processor("nobody/nothing")


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (ImportError("\nXVideoProcessor requires the Torchvision library"), "normprobe[vision]"),
        (RuntimeError("operator torchvision::nms does not exist"), "normprobe[vision]"),
        (ImportError("X requires the sentencepiece library"), "Install the library"),
        (ValueError("custom code ... `trust_remote_code=True`"), "--trust-remote-code"),
    ],
)
def test_loading_remedies(monkeypatch, error, remedy):
    from transformers import AutoProcessor

    def from_pretrained(*_, **__):
        raise error

    monkeypatch.setattr(AutoProcessor, "from_pretrained", from_pretrained)
    with pytest.raises(NormprobeError) as refusal:
        load_processor("some/model")
    assert remedy in refusal.value.remedy
    assert "\n" not in refusal.value.problem


def test_special_token_ids(processor):
    tokenizer = processor.tokenizer
    before = special_token_ids(processor)
    assert set(before) >= {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}
    from tokenizers import AddedToken

    tokenizer.add_tokens([AddedToken("<|turn|>", special=True), AddedToken("plain")])
    marker = tokenizer.convert_tokens_to_ids("<|turn|>")
    assert special_token_ids(processor) == sorted([*before, marker])
    assert special_token_ids(tokenizer) == special_token_ids(processor)
    assert special_token_ids(processor.image_processor) == []


# Ids: 1 begin, 2 end, 9 image, 0 padding; 5 to 8 text.
@pytest.mark.parametrize(
    ("ids", "mask", "expected"),
    [
        ([1, 9, 9, 5, 2, 0], [1, 1, 1, 1, 1, 0], [S, V, V, T, S, P]),
        ([0, 1, 9, 9, 5, 2], [0, 1, 1, 1, 1, 1], [P, S, V, V, T, S]),
        ([1, 9, 5, 2, 2, 2], [1, 1, 1, 1, 0, 0], [S, V, T, S, P, P]),  # padded with the end token
        ([1, 9, 5, 2, 0, 9], None, [S, V, T, S, S, V]),
        ([5, 6, 7, 8, 5, 6], [1, 1, 1, 1, 1, 1], [T] * 6),
    ],
)
def test_token_groups(ids, mask, expected):
    groups = token_groups(
        torch.tensor([ids]),
        None if mask is None else torch.tensor([mask]),
        image_token_ids=[9],
        special_token_ids=[0, 1, 2, 9],
    )
    assert groups.dtype == torch.int8
    assert groups.tolist() == [expected]


def test_token_groups_without_any_ids():
    assert token_groups(torch.tensor([[1, 2]]), None, [], []).tolist() == [[T, T]]


def test_token_groups_of_a_real_batch(specimen_processor, samples):
    inputs = build_inputs(specimen_processor, samples)
    groups = token_groups(
        inputs["input_ids"],
        inputs["attention_mask"],
        [specimen_processor.tokenizer.convert_tokens_to_ids("<image>")],
        special_token_ids(specimen_processor),
    )
    assert (groups == V).sum(dim=1).tolist() == [64] * 4
    assert ((groups == P) == (inputs["attention_mask"] == 0)).all()
