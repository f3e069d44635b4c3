"""Processors load from folders, whole or not at all, and failures say what to do; their tokens."""

import json
from types import SimpleNamespace

import pytest
from support.remote_code.tokenizer import byte_tokenizer
from torch import nn

from normprobe.errors import NormprobeError
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.processor import load_processor, token_text, tokenizer_of, vocabulary_ids


@pytest.fixture
def checkpoint(tmp_path, specimen_processor):
    specimen_processor.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llava"}')
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
    assert InputBuilder(load_processor(str(folder))).build(samples)["pixel_values"].shape[0] == 4


def test_a_tokenizer_with_a_bad_pattern_is_refused(checkpoint):
    file = checkpoint / "tokenizer.json"
    content = json.loads(file.read_text())
    split = {"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated", "invert": False}
    file.write_text(json.dumps({**content, "pre_tokenizer": split}))
    with pytest.raises(NormprobeError, match="cannot be loaded: Oniguruma error"):
        load_processor(str(checkpoint))


def test_a_file_whose_processor_fails_names_the_version(checkpoint):
    (checkpoint / "config.json").write_text('{"transformers_version": "4.28.1"}')

    def load(path):
        return {}[path]

    with pytest.raises(NormprobeError, match=r"load_processor\(\) .* fails: KeyError") as refusal:
        load_processor(str(checkpoint), load=load)
    assert refusal.value.remedy.startswith("mend it; the config is of transformers 4.28.1, and")


@pytest.mark.parametrize("missing", [["tokenizer.json"], ["processor_config.json"], None])
def test_half_a_processor_or_none_is_refused(checkpoint, missing):
    for file in missing or [path.name for path in checkpoint.iterdir()]:
        (checkpoint / file).unlink()
    (checkpoint / "config.json").write_text('{"model_type": "llava"}')
    with pytest.raises(NormprobeError, match="cannot be loaded") as refusal:
        load_processor(str(checkpoint))
    assert "processor files" in refusal.value.remedy


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (ImportError("\nXVideoProcessor requires the Torchvision library"), "normprobe[vision]"),
        (RuntimeError("operator torchvision::nms does not exist"), "normprobe[vision]"),
        (ImportError("X requires the sentencepiece library"), "install the library"),
        (ValueError("custom code ... `trust_remote_code=True`"), "--trust-remote-code"),
        (OSError("not in the cache"), "unset HF_HUB_OFFLINE"),
    ],
)
def test_loading_remedies(monkeypatch, error, remedy):
    from transformers import AutoProcessor

    def from_pretrained(*_, **__):
        raise error

    monkeypatch.setattr(AutoProcessor, "from_pretrained", from_pretrained)
    with pytest.raises(NormprobeError, match="some/model cannot be loaded") as refusal:
        load_processor("some/model")
    assert remedy in refusal.value.remedy
    assert "\n" not in refusal.value.problem


def test_a_bare_tokenizer_is_not_taken_for_what_it_holds():
    held = SimpleNamespace()
    tokenizer = SimpleNamespace(tokenizer=held, get_vocab=lambda: {"a": 1, "b": 0, "c": 1})
    assert tokenizer_of(tokenizer) is tokenizer
    assert tokenizer_of(SimpleNamespace(tokenizer=tokenizer)) is tokenizer
    assert tokenizer_of(SimpleNamespace(tokenizer=held)) is None
    assert vocabulary_ids(tokenizer) == [0, 1]


@pytest.mark.parametrize(
    ("spelling", "decoded", "text"),
    [
        ("\u2581dog", "dog", " dog"),
        ("\u0120dog", " dog", " dog"),
        ("\u00e2", "\ufffd", "\u00e2"),
        ("<s>", "", "<s>"),
    ],
)
def test_text_of_a_token(spelling, decoded, text):
    tokenizer = SimpleNamespace(
        convert_ids_to_tokens=lambda token_id: spelling, decode=lambda ids: decoded
    )
    assert token_text(tokenizer, 7) == text


def test_a_tokenizer_is_found_under_any_name() -> None:
    """Without it no id is known to be special (Libra)."""
    tokenizer = byte_tokenizer((), None)
    holder = nn.Module()
    holder.text_tokenizer = tokenizer
    assert tokenizer_of(holder) is tokenizer
    assert tokenizer_of(nn.Module()) is None


def test_a_mark_that_is_refused_alone_keeps_its_spelling():
    """Qwen-VL's tokenizer decodes no picture that is opened and not closed."""

    def refuse(ids):
        raise ValueError("Unclosed image token")

    tokenizer = SimpleNamespace(convert_ids_to_tokens=lambda _: "<img>", decode=refuse)
    assert token_text(tokenizer, 7) == "<img>"
