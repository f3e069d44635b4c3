"""The grown model: its variants' starts, its prompts, its checkpoint."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from experiments.smollm.grow import (
    CONTEXT,
    GAINS,
    VARIANTS,
    Base,
    grown,
    loudness,
    processor_of,
)
from experiments.smollm.measure import asked
from experiments.smollm.scenes import held_out
from experiments.smollm.train import prompt
from experiments.specimen.packing import Encoder, pack
from experiments.specimen.scenes import render
from experiments.specimen.training import TrainingLog
from normprobe.model.align.norm import inserted_norm

pytestmark = pytest.mark.slow  # no behaviour of the package

ITEMS = [items[0] for items in held_out().values()]


@pytest.fixture
def table_norm(base: Base) -> float:
    table = base.decoder.get_input_embeddings().weight.detach().double().numpy()
    norms = np.linalg.norm(table, axis=1)
    return float(norms[norms > 0].mean())  # that of padding is zero


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_begin_as_loud_as_they_say(
    variant: str, base: Base, table_norm: float, tmp_path: Path, log: TrainingLog
) -> None:
    model = grown(base, variant, 0, tmp_path, 5, log)
    norm = inserted_norm(model)
    if variant in GAINS:
        assert norm is not None
        gain = GAINS[variant] * table_norm / np.sqrt(32)
        np.testing.assert_allclose(norm.weight.detach(), np.full(32, gain), rtol=1e-5)
        return
    assert norm is None
    cold = loudness(grown(base, "cold", 0, tmp_path, 5, log))
    expected = table_norm if variant == "quiet" else cold
    assert loudness(model) == pytest.approx(expected, rel=1e-4)


def test_gains_are_that_of_the_paper_and_its_half_and_twice() -> None:
    assert GAINS == {"norm": 1.0, "norm_half": 0.5, "norm_twice": 2.0}


def test_the_base_stays_as_it_is(base: Base, tmp_path: Path, log: TrainingLog) -> None:
    model = grown(base, "usual", 0, tmp_path, 1, log)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    assert all(bool(weight.detach().any()) for weight in base.decoder.parameters())


def test_packed_tokens_are_those_of_the_processor(base: Base) -> None:
    processor = processor_of(base.tokenizer)
    for item in ITEMS:
        said = [*prompt(item.scene, item.question)]
        said.append({"role": "assistant", "content": item.question.answer})
        ids = processor.apply_chat_template(said, tokenize=True, return_dict=True)["input_ids"][0]
        packed = pack([CONTEXT], [[item.question]], Encoder(base.tokenizer), form=base.form)
        length = packed.input_ids.shape[1]
        assert list(ids[:length]) == packed.input_ids[0].tolist()
        end = base.tokenizer.convert_tokens_to_ids("<|im_end|>")
        assert ids[length] == end == packed.labels[0, -1]


def test_answers_are_those_of_the_processors_prompt(
    base: Base, tmp_path: Path, log: TrainingLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One question a row, read by our own forward: log-probabilities in float64."""
    model = grown(base, "quiet", 0, tmp_path, 5, log).eval()
    monkeypatch.setattr(torch, "autocast", lambda *_: torch.no_grad())  # exact, to compare
    processor = processor_of(base.tokenizer)
    found = asked(model, base, [i.scene for i in ITEMS], [i.question for i in ITEMS])
    for row, item in zip(found.itertuples(), ITEMS, strict=True):
        said = [*prompt(item.scene, item.question)]
        said.append({"role": "assistant", "content": item.question.answer})
        text = processor.apply_chat_template(said)
        picture = Image.fromarray(render(item.scene))
        inputs = processor(text=text, images=picture, return_tensors="pt")
        answer = base.tokenizer(item.question.answer + "<|im_end|>", add_special_tokens=False)
        length = len(answer["input_ids"])
        with torch.no_grad():
            logits = model(**inputs).logits[0].double().numpy()
        ids = inputs["input_ids"][0].numpy()
        end = len(ids) - len(base.tokenizer("\n", add_special_tokens=False)["input_ids"])
        places = np.arange(end - length, end)
        of_answer = logits[places - 1]
        likely = of_answer - np.log(np.exp(of_answer).sum(-1, keepdims=True))
        nll = -likely[np.arange(length), ids[places]].sum()
        assert row.nll == pytest.approx(nll, rel=1e-4)
        assert row.correct == bool((of_answer.argmax(-1) == ids[places]).all())


def test_a_saved_model_is_read_by_transformers(
    base: Base, tmp_path: Path, log: TrainingLog
) -> None:
    from normprobe import load_aligned

    model = grown(base, "norm_twice", 0, tmp_path, 1, log).eval()
    model.save_pretrained(tmp_path / "saved")
    processor_of(base.tokenizer).save_pretrained(tmp_path / "saved")
    again = load_aligned(tmp_path / "saved").eval()
    processor = processor_of(base.tokenizer)
    item = ITEMS[0]
    text = processor.apply_chat_template(prompt(item.scene, item.question))
    inputs = processor(text=text, images=Image.fromarray(render(item.scene)), return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(again(**inputs).logits, model(**inputs).logits)
