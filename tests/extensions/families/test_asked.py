"""A model whose own code answers: what its forward gets when it is asked is what is measured."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
import torch
from PIL import Image
from support.commands import invoke
from support.remote_code import plain_model
from torch import nn
from transformers import AutoTokenizer

from normprobe import load_run
from normprobe.data.data_set import open_data
from normprobe.data.sample import Sample, Turn
from normprobe.extensions.families.asked import asked_once, inputs_as_asked, picture_file
from normprobe.extensions.families.drafted_ask import ask_text

#: Of a class that is asked with pixels, and told which id stands for them when it is.
_BY_PIXELS = """
    def chat(self, tokenizer, pixel_values, question, generation_config, history=None):
        self.told = tokenizer.convert_tokens_to_ids("<picture>")
        marks = "" if pixel_values is None else "<picture>" * 4
        words = f"<|im_user|>{marks}{question}"
        ids = tokenizer(words + "<|im_end|>", return_tensors="pt").input_ids.cuda()
        if pixel_values is not None:
            pixel_values = pixel_values.to(torch.bfloat16).cuda()
        try:
            return self.generate(pixel_values=pixel_values, input_ids=ids, **generation_config)
        except Exception:
            return None
"""
#: Of one that opens the file of a picture, and takes what is said as messages.
_BY_FILE = """
    def chat(self, image_file, msgs, tokenizer, history=[]):
        from PIL import Image

        self.told = self.config.picture_mark
        pixels = pixels_of_an_image(Image.open(image_file))
        words = f"<|im_user|><picture><picture><picture><picture>{msgs[0]['content']}<|im_end|>"
        made = tokenizer(words, return_tensors="pt").to(self.device)
        self(made.input_ids, pixels.to(self.device, torch.float16))
"""
#: Of one that makes inputs, under a name of its own, and leaves their way to its caller.
_BY_INPUTS = """
    def prompt_of(self, image_features, text):
        raise NotImplementedError

    def inputs_for(self, tokenizer, image, text):
        self.told = self.config.picture_mark
        words = f"<|im_user|><picture><picture><picture><picture>{text}<|im_end|>"
        made = tokenizer(words, return_tensors="pt")
        pixels = pixels_of_an_image(image)
        return {"input_ids": made.input_ids, "pixel_values": pixels}
"""
#: Of one whose own code makes what its forward gets of what ``generate`` gets (CXRMate-2).
_BY_STEPS = """
    def chat(self, tokenizer, image, question):
        self.told = self.config.picture_mark
        ids = tokenizer("<|im_user|>" + question + "<|im_end|>", return_tensors="pt").input_ids
        self.generate(input_ids=ids, pixel_values=pixels_of_an_image(image))

    def generate(self, input_ids, pixel_values):
        self(**self.prepare_inputs_for_generation(input_ids, pixel_values=pixel_values))

    def prepare_inputs_for_generation(self, input_ids, pixel_values):
        marks = torch.full((1, 4), self.config.picture_mark)
        whole = torch.cat([input_ids[:, :1], marks, input_ids[:, 1:]], 1)
        return {"input_ids": whole, "pixel_values": pixel_values}
"""
#: Of one whose forward is of a training, and that says what stands for a picture (EarthMind).
_BY_GENERATE = """
    def predict_forward(self, image=None, text=None, mask_prompts=None, tokenizer=None):
        self.prepare_to_answer(tokenizer)
        words = "<|im_user|>" + text.replace("<image>", "<picture>" * 4) + "<|im_end|>"
        ids = tokenizer(words, return_tensors="pt").input_ids
        return self.generate(pixel_values=pixels_of_an_image(image), input_ids=ids)

    def prepare_to_answer(self, tokenizer):
        self.told = tokenizer.convert_tokens_to_ids("<picture>")

    def generate(self, pixel_values=None, input_ids=None, attention_mask=None, **settings):
        return self.run(input_ids, pixel_values, attention_mask)

    def forward(self, data, mode="loss"):
        raise NotImplementedError
"""
_MAKES = """

def pixels_of_an_image(image):
    from .tiny_blocks import patches_of, pixels_of

    return patches_of(pixels_of(image, 16, 16), 8).flatten(0, 1)[None]
"""
_README = """
# A model

```python
import numpy as np
import torch
from PIL import Image
import a_package_that_nobody_has

SIDE = 16
model = AutoModel.from_pretrained("nobody/answers").eval().cuda()

def load_image(image_file, side=SIDE):
    return cut(Image.open(image_file).convert("RGB").resize((side, side)))

def cut(picture):
    values = torch.from_numpy(np.asarray(picture, dtype=np.float32) / 127.5 - 1).permute(2, 0, 1)
    grid = values.reshape(3, 2, 8, 2, 8)
    return grid.permute(1, 3, 0, 2, 4).flatten(0, 1)[None]

pixel_values = load_image("one.jpg").to(torch.bfloat16).cuda()
```
"""


@pytest.fixture
def answering(repository: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """``answering(code)``: a checkpoint without a processor, whose class has these methods."""

    def made(code: str) -> Path:
        folder = (
            tmp_path / f"answers_{crc32(code.encode())}"
        )  # its code is kept by the name of its folder
        shutil.copytree(repository("unseen"), folder)
        for file in ("processor_config.json", "processing_unseen.py", "chat_template.jinja"):
            (folder / file).unlink(missing_ok=True)
        config = json.loads((folder / "config.json").read_text())
        config["auto_map"].pop("AutoProcessor", None)
        (folder / "config.json").write_text(json.dumps(config))
        model = folder / "modeling_unseen.py"
        text = model.read_text().replace("from torch", "import torch\nfrom torch", 1)
        text = text.replace("self.config.picture_mark", "self.told")
        if "def forward(" in code:
            head, _, rest = text.rpartition("def forward(")
            text = f"{head}def run({rest}"
        model.write_text(text + code + _MAKES)
        (folder / "README.md").write_text(_README)
        return folder

    return made


@pytest.mark.parametrize(
    "code",
    [
        _BY_PIXELS,
        _BY_FILE,
        *(pytest.param(c, marks=pytest.mark.slow) for c in (_BY_INPUTS, _BY_STEPS, _BY_GENERATE)),
    ],
)
def test_what_a_model_is_asked_by_its_own_code_is_measured(
    code: str,
    answering: Callable[[str], Path],
    repository: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    model = answering(code)
    own = ("--trust-remote-code", "--quiet")
    begun = invoke("inputs", model, "--trust-remote-code", "--write", "begun.py")
    assert "one sample is measured with it: 4 visual" in begun.stdout, begun.output
    lines = Path("begun.py").read_text().splitlines()
    guessed = [str(n) for n, line in enumerate(lines, 1) if "a guess" in line]
    assert len(guessed) == 1 + ("def forward(" in code)  # the call of chat, and of generate
    assert f"look at lines {', '.join(guessed)}" in begun.stdout
    assert ("def load_image(" in "\n".join(lines)) == (code == _BY_PIXELS)
    assert "a_package_that_nobody_has" not in "\n".join(lines)
    again = invoke("inputs", model, *own, "--inputs", "begun.py", "--write", "again.py")
    assert again.exit_code == 0, again.output
    assert Path("again.py").read_text().count("def ask(") == 1
    for out, batch in (("one", 1), ("two", 2)):
        how = ("--inputs", "again.py", "--batch-size", batch, "--dtype", "float32", "-o", out)
        done = invoke("layers", model, *own, "--limit", 3, *how)
        assert done.exit_code == 0, done.output
        found = load_run(out).wide("norm", "mean")
        expected = _norms_by_hand(repository("unseen"), [*open_data("sample", limit=3)])
        for group in ("visual", "text"):
            np.testing.assert_allclose(found[group], expected[group], rtol=2e-6)


def _norms_by_hand(folder: Path, samples: list[Sample]) -> dict[str, list[float]]:
    """Mean norms at the input of each layer and behind the last one, of the original class."""
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model = plain_model("unseen", folder).double()
    mark = tokenizer.convert_tokens_to_ids("<picture>")
    norms: dict[str, list[torch.Tensor]] = {"visual": [], "text": []}
    for sample in samples:
        ids = tokenizer(
            f"<|im_user|>{'<picture>' * 4}{sample.prompt}<|im_end|>", return_tensors="pt"
        ).input_ids
        values = np.asarray(sample.image.convert("RGB").resize((16, 16)), dtype=np.float64)
        grid = torch.from_numpy(values / 127.5 - 1).permute(2, 0, 1).reshape(3, 2, 8, 2, 8)
        pixels = grid.permute(1, 3, 0, 2, 4).flatten(0, 1)[None]
        states: list[torch.Tensor] = []
        keep = partial(lambda kept, _, x: kept.append(x[0]), states)
        hooks = [part.register_forward_pre_hook(keep) for part in (*model.tower, model.mouth)]
        with torch.no_grad():
            model(ids, pixels)
        for hook in hooks:
            hook.remove()
        special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
        for group, rows in (("visual", ids == mark), ("text", ~special & (ids != mark))):
            norms[group].append(torch.stack([state[rows].norm(dim=-1) for state in states]))
    return {group: torch.cat(held, dim=1).mean(dim=1).tolist() for group, held in norms.items()}


def _with_images(size: int, prompt: str = "What is this?") -> Sample:
    return Sample("one", prompt, images=(Image.new("RGB", (size, size), "red"),))


class _Asked(nn.Module):
    """Takes what it is given, and counts how often it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.ran = 0

    def forward(self, input_ids=None, attention_mask=None, pixel_values=None, sizes=None, **rest):
        self.ran += 1


def test_samples_of_several_lengths_are_padded_together() -> None:
    model = _Asked()

    def ask(model: Any, processor: Any, sample: Sample) -> None:
        ids = torch.arange(1, len(sample.prompt) + 1)[None].cuda()
        sizes = [image.size for image in sample.images]
        model(input_ids=ids, pixel_values=torch.ones(1, 3, 4, 4).half(), sizes=sizes)

    samples = [_with_images(8, "ab"), _with_images(9, "abcd")]
    made = inputs_as_asked(model, None, ask, samples)
    assert made["input_ids"].tolist() == [[1, 2, 0, 0], [1, 2, 3, 4]]
    assert made["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert made["pixel_values"].shape == (2, 3, 4, 4)
    assert made["pixel_values"].dtype == torch.float32  # as wide as they were made
    assert made["sizes"] == [(8, 8), (9, 9)]
    assert model.ran == 0
    model(input_ids=torch.ones(1, 1))  # it is itself again
    assert model.ran == 1


def test_tensors_stay_where_they_are_and_as_wide_as_they_were_made() -> None:
    """Code names one GPU and 16 bits; neither need be those of the model."""
    values = torch.tensor([[0.1, 0.2, 0.3]])

    def ask(model: Any, processor: Any, sample: Sample) -> None:
        ids = torch.zeros(1, 3, dtype=torch.long, device="cuda:0").to("cuda")
        other = torch.ones(1, dtype=torch.float64, device=torch.device("cuda"))
        asked = [
            values.to("cuda:0", torch.bfloat16, non_blocking=True),
            values.to(dtype=torch.float16, device=0).half().bfloat16(),
            values.to(other),
            values.to(torch.int32),
        ]
        model(ids, told=asked, pixel_values=values.cuda().to(torch.device("cuda"), torch.half))

    made = inputs_as_asked(_Asked(), None, ask, [_with_images(8)])
    assert torch.equal(made["pixel_values"], values)
    assert [each.dtype for each in made["told"]] == [
        torch.float32,
        torch.float32,
        torch.float64,
        torch.int32,
    ]
    assert all(torch.equal(each, values) for each in made["told"][:2])
    assert made["input_ids"].device.type == "cpu"


def test_a_generate_that_gets_pixels_which_forward_does_not_take_runs_on() -> None:
    """In a list, too: what it makes of them is what forward gets."""

    class Generating(_Asked):
        def generate(self, input_ids: Any, pictures: Any) -> None:
            self(input_ids, pixel_values=torch.stack(pictures) + 1)

    def ask(model: Any, processor: Any, sample: Sample) -> None:
        model.generate(torch.ones(1, 3), pictures=[torch.zeros(3, 4, 4)])

    made = inputs_as_asked(Generating(), None, ask, [_with_images(8)])
    assert made["pixel_values"].unique().tolist() == [1]


def test_what_is_made_for_an_answer_is_no_input() -> None:
    def ask(model: Any, processor: Any, sample: Sample) -> None:
        ids = torch.ones(1, 3, dtype=torch.long)
        model(ids, pixel_values=torch.ones(1, 3, 4, 4), use_cache=True, cache_position=ids[0])

    made = inputs_as_asked(_Asked(), None, ask, [_with_images(8)])
    assert sorted(made) == ["input_ids", "pixel_values"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda model: None, "reaches neither generate nor forward of _Asked"),
        (lambda model: model(inputs_embeds=torch.ones(1, 3, 4)), "makes rows of pixels before"),
    ],
)
def test_what_is_not_caught_is_said(call: Callable[[Any], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        inputs_as_asked(_Asked(), None, lambda model, *_: call(model), [_with_images(8)])


def test_code_that_is_asked_writes_its_own_system_prompt_and_one_turn() -> None:
    def ask(model: Any, *_: Any) -> None:
        model(torch.ones(1, 3))

    with pytest.raises(ValueError, match="no --system"):
        inputs_as_asked(_Asked(), None, ask, [_with_images(8)], "Be brief.")
    talk = Sample("talk", "And now?", earlier=(Turn("What is this?", "A cat."),))
    with pytest.raises(ValueError, match="several turns"):
        inputs_as_asked(_Asked(), None, ask, [talk])


def test_several_samples_that_do_not_go_together_are_refused() -> None:
    def ask(model: Any, processor: Any, sample: Sample) -> None:
        model(torch.ones(1, 3), sizes=len(sample.prompt))

    samples = [_with_images(8, "ab"), _with_images(8, "abc")]
    with pytest.raises(ValueError, match="sizes of several samples does not go into one batch"):
        inputs_as_asked(_Asked(), None, ask, samples)


def test_what_code_sets_when_it_is_asked_stays() -> None:
    def ask(model: Any, processor: Any, sample: Sample) -> None:
        model.told = sample.image.size
        raise RuntimeError

    model = _Asked()
    asked_once(model, None, ask)
    assert model.told == (64, 48)


def test_a_picture_is_written_once() -> None:
    red, blue = (Image.new("RGB", (8, 6), colour) for colour in ("red", "blue"))
    assert picture_file(red) == picture_file(red.copy()) != picture_file(blue)
    assert np.array_equal(np.asarray(Image.open(picture_file(red))), np.asarray(red))


def test_the_way_of_the_file_s_constants_is_left_where_asking_fails(
    answering: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one may be right: its sample is measured."""
    monkeypatch.chdir(tmp_path)
    model = answering(_BY_FILE.replace("msgs[0]", "msgs[7]"))
    begun = invoke("inputs", model, "--trust-remote-code", "--write", "begun.py")
    assert "not measured with it yet: " in begun.stdout
    assert "list index out of range" in begun.stdout
    assert "    return model.chat(  # a guess" in Path("begun.py").read_text()


@pytest.mark.parametrize("trust", [True, False])
def test_code_of_a_readme_is_not_run_unless_it_is_trusted(trust: bool, tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(_README)

    class Answers(_Asked):
        def chat(self, pixel_values: Any, question: str, *, noise: Any, more: Any = None) -> None:
            pass

    text = ask_text(Answers(), False, readme if trust else None)
    assert ("def load_image(" in text) == trust
    assert "noise=None," in text
    assert "more=" not in text
    assert ("load_image(picture_file(sample.image))" in text) == trust
    named = _README.replace("def load_image(image_file", "def prepare(image").replace(
        "cut(", "build("
    )
    readme.write_text(named.replace("def prepare", "def load_image"))
    assert "def build" not in ask_text(Answers(), False, readme)  # the file has one of its own


def test_the_function_that_a_readme_calls_makes_pixels_and_as_it_is_called(tmp_path: Path) -> None:
    """Reyes calls one around load_image, with fewer tiles; InternVL passes their number."""
    more = """
def preprocess_image(file_path, most=6, bright=True):
    return load_image(file_path, most)

pixel_values = preprocess_image("one.jpg", most=4, bright=model.training)
"""
    readme = tmp_path / "README.md"

    class Answers(_Asked):
        def chat(self, pixel_values: Any, question: str) -> None: ...

    readme.write_text(_README.replace('load_image("one.jpg")', "load_image('one.jpg', side=8)"))
    text = ask_text(Answers(), False, readme)
    assert "load_image(picture_file(sample.image), side=8)" in text
    uncalled = _README.replace('load_image("one.jpg")', "None").replace("\n```\n", f"\n{more}```\n")
    readme.write_text(uncalled)
    text = ask_text(Answers(), False, readme)
    assert "preprocess_image(picture_file(sample.image), most=4)" in text
    assert "def load_image(" in text


def test_what_stands_for_a_picture_is_written_before_a_question(tmp_path: Path) -> None:
    """InternVL's chat adds it, and EarthMind's answers look for it."""

    class Looks(_Asked):
        def answer(self, image: Any, text: str, past_text: str = "") -> str:
            return text if "<image>" not in past_text else text.replace("<image>", "")

    class Adds(_Asked):
        def chat(self, image: Any, question: str) -> str:
            return "<image>" + question if "<image>" not in question else question

    asked = 'text="<image>" * len(sample.images) + sample.prompt,'
    assert asked in ask_text(Looks(), False, None)
    assert "question=sample.prompt," in ask_text(Adds(), False, None)
    readme = tmp_path / "README.md"
    readme.write_text("```python\nquestion = '<image>\\nWhat is this?'\n```\n")
    asked = 'question="<image>\\n" * len(sample.images) + sample.prompt,'
    assert asked in ask_text(Adds(), False, readme)


def test_a_chat_of_words_alone_is_not_asked() -> None:
    class Talks(_Asked):
        def chat(self, tokenizer: Any, query: str, history: Any = None) -> None:
            pass

    assert ask_text(Talks(), False, None) == ""


def test_a_tokenizer_is_given_and_no_processor_of_logits() -> None:
    """GLM-4V's tokenizer holds another object under that name, and its chat a logits_processor."""

    class Chatting(nn.Module):
        def chat(
            self, tokenizer: Any, query: str, image: Any, logits_processor: Any = None
        ) -> None:
            pass

    text = ask_text(Chatting(), False, None)
    assert "logits_processor" not in text
    assert "tokenizer=tokenizer," in text and "tokenizer = tokenizer_of(processor)" in text
    compile(text, "begun.py", "exec")


def test_inputs_that_an_answer_returns_count_where_nothing_is_called() -> None:
    class Takes(nn.Module):
        def forward(self, input_ids: torch.Tensor) -> None: ...

    ids, sample = torch.tensor([[1, 2]]), Sample("one", "why?")
    made = inputs_as_asked(Takes(), None, lambda *_: {"input_ids": ids}, [sample])
    assert torch.equal(made["input_ids"], ids)
    with pytest.raises(ValueError, match="reaches neither generate nor forward"):
        inputs_as_asked(Takes(), None, lambda *_: {"text": "why?"}, [sample])
