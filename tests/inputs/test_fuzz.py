"""Tokenizers, processors and templates of strangers: whatever they hold, there is an answer."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image
from support.damage import Canary, mutated, mutated_json, outcomes

from normprobe.data.sample import Sample
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.processor import load_processor
from normprobe.specimen import SPECIMEN_DIR

FILES = ("tokenizer.json", "tokenizer_config.json", "processor_config.json", "chat_template.jinja")
SAMPLE = Sample("made/1", "What is it?", (Image.new("RGB", (40, 30)),))


def check(name: str, root: Path, cases: int) -> Counter[str]:
    canary = Canary(root)
    folder = Path(shutil.copytree(SPECIMEN_DIR, root / "model"))

    def read() -> None:
        builder = InputBuilder(load_processor(str(folder)), model_type="llava")
        builder.build([SAMPLE])
        for ids in (builder.special_token_ids, builder.vocabulary_ids):
            assert ids == sorted({number for number in ids if type(number) is int})

    read()
    damage = mutated if name.endswith(".jinja") else mutated_json
    found = outcomes(folder / name, read, cases, damage)
    canary.assert_untouched()
    return found


@pytest.mark.parametrize("name", FILES)
def test_damaged_processors(name: str, tmp_path: Path) -> None:
    assert check(name, tmp_path, 25)["refused"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_many_damaged_processors(name: str, tmp_path: Path) -> None:
    check(name, tmp_path, 400)
