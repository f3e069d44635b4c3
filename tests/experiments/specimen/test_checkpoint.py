"""The shipped files are clean, load without torchvision, and the model really sees."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from PIL import Image

from experiments.specimen.accuracy import conversation, held_out_items, score
from experiments.specimen.chat import IMAGE_ID, VISUAL_TOKENS
from normprobe.specimen import SPECIMEN_DIR

pytestmark = pytest.mark.slow  # no behaviour of the package

PICTURE = Image.new("RGB", (100, 80), "red")
USER = {
    "role": "user",
    "content": [{"type": "image", "image": PICTURE}, {"type": "text", "text": "Hello?"}],
}
WITHOUT_TORCHVISION = """
import sys
sys.modules["torchvision"] = None
from transformers import AutoProcessor
processor = AutoProcessor.from_pretrained(sys.argv[1], local_files_only=True)
from PIL import Image
pixels = processor(images=Image.new("RGB", (90, 70)), text="<image>", return_tensors="pt")
assert tuple(pixels["pixel_values"].shape) == (1, 3, 64, 64)
"""


def apply(processor: Any, conversations: Any) -> Any:
    return processor.apply_chat_template(
        conversations,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        processor_kwargs={"return_tensors": "pt", "padding": True},
    )


def test_files_are_small_and_clean() -> None:
    assert sum(path.stat().st_size for path in SPECIMEN_DIR.iterdir()) < 8 * 2**20
    for path in SPECIMEN_DIR.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        json.loads(text)
        for noise in ("is_local", "_name_or_path", '"/'):
            if path.name != "tokenizer.json":
                assert noise not in text, path.name


def test_processor_loads_without_torchvision() -> None:
    command = [sys.executable, "-c", WITHOUT_TORCHVISION, str(SPECIMEN_DIR)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", ["Is there a dog?", "naïve — 猫 🙂", "  two  spaces\n\ttab"])
def test_tokenizer_can_spell_anything(specimen: tuple[Any, Any], text: str) -> None:
    tokenizer = specimen[1].tokenizer
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_prompt_text(specimen: tuple[Any, Any]) -> None:
    processor = specimen[1]
    system = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    reply = {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]}
    again = {"role": "user", "content": "Bye?"}
    rendered = processor.apply_chat_template(
        [system, USER, reply, again], add_generation_prompt=True, tokenize=False
    )
    assert rendered == ("Be brief.\nUSER: <image>\nHello? ASSISTANT: Hi.</s>USER: Bye? ASSISTANT:")


def test_batch_is_padded_on_the_right(specimen: tuple[Any, Any]) -> None:
    model, processor = specimen
    longer = {**USER, "content": [USER["content"][0], {"type": "text", "text": "Hello? " * 9}]}
    batch = apply(processor, [[USER], [longer]])
    assert batch["pixel_values"].shape == (2, 3, 64, 64)
    assert ((batch["input_ids"] == IMAGE_ID).sum(dim=1) == VISUAL_TOKENS).all()
    lengths = batch["attention_mask"].sum(dim=1)
    assert lengths[0] < lengths[1] == batch["input_ids"].shape[1]
    with torch.inference_mode():
        together = model(**batch).logits[0, : lengths[0]]
        alone = model(**apply(processor, [[USER]])).logits[0]
    assert torch.allclose(together, alone, atol=1e-4)


@pytest.mark.parametrize("kind", ["count", "shape", "color"])
def test_answers_come_from_the_image(specimen: tuple[Any, Any], kind: str) -> None:
    result = score(*specimen, held_out_items(50)[kind])
    assert result.accuracy > result.shuffled + 0.2


def test_scoring_agrees_with_generation(specimen: tuple[Any, Any]) -> None:
    model, processor = specimen
    items = held_out_items(6)["position"]
    right = 0
    for item in items:
        inputs = apply(processor, [conversation(item.scene, item.question.text)])
        output = model.generate(**inputs, max_new_tokens=8, do_sample=False)
        answer = processor.decode(output[0, inputs["input_ids"].shape[1] :])
        right += answer == f" {item.question.answer}</s>"
    assert score(model, processor, items).accuracy == pytest.approx(right / len(items))
