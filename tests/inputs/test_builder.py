"""Samples to one batch: the text, the images, the padding, and what is refused."""

import copy
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support.processors import make_processor
from tokenizers.processors import TemplateProcessing
from transformers import LlavaProcessor, PretrainedConfig, PreTrainedTokenizerFast

from normprobe import Probe
from normprobe.data.media import Audio, Video
from normprobe.data.rows import RefusedSample
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.inputs_file import InputsFile
from normprobe.inputs.processor import load_processor
from normprobe.inputs.standard import build_documented
from normprobe.specimen import SPECIMEN_DIR
from normprobe.versions import is_line_5


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
    begin = [("<s>", tokenizer.bos_token_id)]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing("<s> $A", None, begin)
    assert tokenizer.bos_token_id in tokenizer("Which?")["input_ids"]  # unless told not to
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


def hearing():
    """A builder for a model of sounds alone."""
    if not is_line_5():
        pytest.skip("tiny processors are those of transformers 5")
    return InputBuilder(make_processor("qwen2_audio"), model_type="qwen2_audio")


def heard(*seconds, name="x/1"):
    noise = np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    return Sample(
        name, "What?", audios=tuple(Audio(noise[: int(16000 * s)], 16000) for s in seconds)
    )


@pytest.mark.parametrize("others", [[], [heard(1, name="x/2")]])
@pytest.mark.parametrize("seconds", [(0.0006,), (1, 0.0006)])
def test_a_sound_that_is_too_short_for_a_token_is_refused_in_every_batch(seconds, others):
    """Beside a longer one it is padded."""
    builder, fault = hearing(), r"x/1 \(.*0.000562 s\): no token stands for so short a sound"
    with pytest.raises(RefusedSample, match=fault) as refusal:
        builder.build([heard(*seconds), *others])
    assert refusal.value.remedy == "leave the sample out of the data"
    ids = builder.build([heard(0.1), *others])["input_ids"]
    assert all(token_count(builder.processor, ids, "<|AUDIO|>"))


def test_a_sound_that_would_become_huge_names_its_sample():
    slow = Sample("x/3", "What?", audios=(Audio(np.zeros(2**16, np.float32), 1),))
    with pytest.raises(RefusedSample, match="x/3: 65536 samples of 1 Hz become") as refusal:
        hearing().build([heard(1), slow])
    assert refusal.value.remedy == "correct the rate of the sound, or cut it"


@pytest.mark.parametrize(
    ("medium", "prompt", "fault"),
    [
        ("videos", "What?", "Qwen2AudioProcessor reads no video"),
        ("videos", "What does <video> show?", "Qwen2AudioProcessor reads no video"),
        ("images", "What does <image> show?", "Qwen2AudioProcessor reads no picture"),
    ],
)
def test_a_model_of_sounds_says_what_it_does_not_read(photo, medium, prompt, fault):
    given = (Video((photo,), 8),) if medium == "videos" else (photo,)
    with pytest.raises(RefusedSample, match=fault):
        hearing().build([Sample("x/1", prompt, **{medium: given})])


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


class OfItsOwn(Exception):
    """As any package has them."""


@pytest.mark.parametrize("kind", [ValueError, NameError, OfItsOwn])
def test_a_file_that_fails_is_to_be_mended(specimen_processor, samples, kind):
    def build(*_):
        raise kind("no room")

    file = InputsFile(build=build, record={"path": "mine.py"})
    with pytest.raises(RefusedSample, match=r"build\(\) of mine.py fails on .*no room") as refusal:
        InputBuilder(specimen_processor, inputs_file=file).build(samples[:1])
    assert refusal.value.remedy.startswith("mend build() in mine.py, or leave the sample out")
    assert "transformers" not in refusal.value.remedy
    older = type("Older", (), {"forward": None, "config": PretrainedConfig()})()
    older.config.transformers_version = "4.31.0"
    with pytest.raises(RefusedSample) as refusal:
        InputBuilder(specimen_processor, inputs_file=file, model=older).build(samples[:1])
    assert "its config is of transformers 4.31.0" in refusal.value.remedy


def test_a_file_that_meets_weights_that_are_not_read_is_told_so(specimen_processor, samples):
    """HunyuanImage-3.0 asks its model where it is; `interface` reads a part of it."""

    def build(*_):
        return torch.zeros(1).to(torch.zeros(1, device="meta").item())

    file = InputsFile(build=build, record={"path": "mine.py"})
    with pytest.raises(RefusedSample) as refusal:
        InputBuilder(specimen_processor, inputs_file=file).build(samples[:1])
    assert refusal.value.remedy.startswith("weights that this command does not need are not read")


def test_a_processor_of_an_older_checkpoint_lacks_a_size(specimen_processor, samples):
    """Those of LLaVA were saved without processor_config.json once."""
    older = copy.copy(specimen_processor)
    older.patch_size = None
    with pytest.raises(RefusedSample, match="NoneType") as refusal:
        InputBuilder(older).build(samples[:1])
    assert refusal.value.remedy.startswith("set patch_size in processor_config.json")


def test_a_file_that_lacks_a_package_names_it(specimen_processor, samples):
    def build(*_):
        import a_package_that_nobody_has  # noqa: F401

    file = InputsFile(build=build, record={"path": "mine.py"})
    with pytest.raises(RefusedSample, match="No module named") as refusal:
        InputBuilder(specimen_processor, inputs_file=file).build(samples[:1])
    assert "install a_package_that_nobody_has as the model's page says" in refusal.value.remedy


def test_a_bare_tokenizer_of_a_model_that_sees_is_a_warning(tmp_path: Path) -> None:
    """Its pictures are left out, and the run ends well (Mantis)."""
    folder = tmp_path / "blind"
    shutil.copytree(SPECIMEN_DIR, folder)
    (folder / "processor_config.json").unlink()
    own = {"image_processor_type": "CLIPImageProcessor", "processor_class": "NobodysProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(own))
    run = Probe(str(folder)).layers("sample", limit=1, workers=0)
    (told,) = [warning for warning in run.record["warnings"] if "picture" in warning]
    assert "bare tokenizer" in told
    assert "normprobe inputs MODEL --write inputs.py" in told
    seeing = Probe("specimen").layers("sample", limit=1, workers=0)
    assert not any("bare tokenizer" in each for each in seeing.record.get("warnings", []))


def test_a_chat_template_that_the_processor_lacks_is_a_warning(specimen_processor) -> None:
    """Prompts are plain text then, though the tokenizer has one (LLaVA-Gemma)."""
    processor = copy.deepcopy(specimen_processor)
    assert InputBuilder(processor).left_out == []
    processor.tokenizer.chat_template, processor.chat_template = processor.chat_template, None
    (told,) = InputBuilder(processor).left_out
    assert told.startswith("the tokenizer holds a chat template, and LlavaProcessor holds none")
    own = InputsFile(build=lambda *_: {}, record={"path": "mine.py"})
    assert InputBuilder(processor, inputs_file=own).left_out == []
    processor.tokenizer.chat_template = None
    assert InputBuilder(processor).left_out == []


class OfOneText(LlavaProcessor):
    """As Penguin-VL's: it takes one text and its pictures, and no lists of them."""

    def __call__(self, images=None, text=None, **options):
        if not isinstance(text, str):
            raise AttributeError("'list' object has no attribute 'count'")
        return super().__call__(images=images, text=text, **options)

    def apply_chat_template(self, conversation, **options):
        if not isinstance(conversation[0], dict) or options.get("tokenize"):
            raise TypeError("list indices must be integers or slices, not str")
        return super().apply_chat_template(conversation, **options)


def test_a_processor_of_one_text_is_called_so(specimen_processor, samples):
    own = copy.copy(specimen_processor)
    own.__class__ = OfOneText
    made = build_documented(own, samples[:1], None)
    expected = build_documented(specimen_processor, samples[:1], None)
    for name in ("input_ids", "pixel_values"):
        assert torch.equal(made[name], expected[name])
    with pytest.raises(ValueError, match="of one text: that takes one sample"):
        build_documented(own, samples[:2], None)


class OfOwnNames(LlavaProcessor):
    """As X-VLA's: picture and words have names of their own, and no placeholder stands in them."""

    def __call__(self, images=None, language_instruction=None):
        if language_instruction is None:
            raise TypeError("no instruction")
        turn = f"{self.image_token} {language_instruction} <end>"
        return super().__call__(images=images, text=turn, return_tensors="pt")


def test_a_processor_with_names_of_its_own_is_called_by_them(specimen_processor, samples):
    own = copy.copy(specimen_processor)
    own.__class__, own.chat_template = OfOwnNames, None
    made = build_documented(own, samples[:1], None)
    turn = f"{own.image_token} {samples[0].prompt} <end>"
    expected = specimen_processor(images=samples[0].image, text=turn, return_tensors="pt")
    for name in ("input_ids", "pixel_values"):
        assert torch.equal(made[name], expected[name])
    with pytest.raises(ValueError, match="by its own names: that takes one sample"):
        build_documented(own, samples[:2], None)
    with pytest.raises(NormprobeError, match="system"):
        build_documented(own, samples[:1], "Be brief.")


class OfNoClass:
    """As LLaVA-OneVision-2's processor: of no class of transformers, and it reads pictures."""

    def __init__(self, processor):
        self.processor, self.tokenizer = processor, processor.tokenizer
        self.image_processor, self.image_token = processor.image_processor, processor.image_token
        self.chat_template = processor.chat_template

    def __call__(self, **given):
        return self.processor(**given)

    def apply_chat_template(self, messages, **options):
        return self.processor.apply_chat_template(messages, **options)


def test_a_processor_of_no_class_of_transformers_reads_pictures(specimen_processor, samples):
    made = build_documented(OfNoClass(specimen_processor), samples[:1], None)
    expected = build_documented(specimen_processor, samples[:1], None)
    for name in ("input_ids", "pixel_values"):
        assert torch.equal(made[name], expected[name])
    builder = InputBuilder(OfNoClass(specimen_processor), own_code=True)
    assert builder.left_out == []


class OfMessages(PreTrainedTokenizerFast):
    """As GLM-4V's tokenizer: a message holds the picture, and its template makes pixels."""

    def apply_chat_template(self, conversation, **options):
        (message,) = conversation
        assert options["return_dict"] and options["add_generation_prompt"]
        image = message.get("image")
        made = self(f"ask {message['content']}", return_tensors=options["return_tensors"])
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
        return {**made, "images": pixels}


def test_a_tokenizer_that_takes_pictures_in_messages_is_given_them(specimen_processor, samples):
    own = copy.deepcopy(specimen_processor.tokenizer)
    own.__class__ = OfMessages
    made = build_documented(own, samples[:1], None)
    ids = specimen_processor.tokenizer(f"ask {samples[0].prompt}", return_tensors="pt").input_ids
    assert torch.equal(made["input_ids"], ids)
    seen = np.array(samples[0].image).transpose(2, 0, 1)
    assert np.array_equal(made["images"][0].numpy(), seen)
    assert InputBuilder(own, own_code=True).left_out == []
    plain = InputBuilder(specimen_processor.tokenizer, own_code=True)
    assert "bare tokenizer" in plain.left_out[0]
    with pytest.raises(ValueError, match="that takes one sample"):
        build_documented(own, samples[:2], None)


class OfNobody(LlavaProcessor):
    """A processor of a repository."""


@pytest.mark.parametrize("shows", [True, False])
def test_a_template_that_its_tokenizer_holds_is_used_where_it_shows_the_picture(
    specimen_processor, samples, shows
):
    """As MiniMax-VL's own script uses it."""
    own = copy.deepcopy(specimen_processor)
    template, own.chat_template = own.chat_template, None
    hides = "{{ messages[0]['content'] | replace('<image>', '') }}"
    own.tokenizer.chat_template = template if shows else hides
    own.__class__ = OfNobody
    found = load_processor(str(SPECIMEN_DIR), load=lambda _: own)
    assert bool(found.chat_template) == shows
    if shows:
        made = InputBuilder(found).build(samples[:1])
        assert torch.equal(
            made["input_ids"], InputBuilder(specimen_processor).build(samples[:1])["input_ids"]
        )
    of_transformers = copy.deepcopy(specimen_processor)
    of_transformers.chat_template, of_transformers.tokenizer.chat_template = None, template
    assert load_processor("", load=lambda _: of_transformers).chat_template is None


def test_where_a_picture_stands_in_plain_text_is_told_as_a_guess(specimen_processor):
    """Its page may write marks around it (Cheers)."""
    own = copy.deepcopy(specimen_processor)
    own.chat_template = "{{ 'U: ' + messages[0]['content'] }}"
    (told,) = InputBuilder(own, own_code=True).left_out
    assert told.startswith("where a picture stands in a prompt is a guess: '<image>'")
    assert InputBuilder(own).left_out == []  # what transformers brings is known
    assert InputBuilder(specimen_processor, own_code=True).left_out == []


def test_a_tokenizer_of_the_tokenizers_library_is_read(specimen_processor):
    """As a model may hold it (Moondream)."""
    inside = specimen_processor.tokenizer.backend_tokenizer
    found = load_processor("", load=lambda _: inside)
    assert found("a dog").input_ids == specimen_processor.tokenizer("a dog").input_ids
