"""``normprobe inputs MODEL --write FILE``: a file that runs, and what is said where it does not."""

import ast
import json
import re
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from support.commands import invoke
from support.flat import flat
from support.plain_modules import PLACE, WIDTH, Inserting, made
from support.remote_code.tokenizer import byte_tokenizer
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    CLIPImageProcessor,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from normprobe import Probe, load_run
from normprobe.extensions.families import (
    drafted_constants,
    drafted_takes,
    drafted_text,
    inputs_draft,
    package_code,
)
from normprobe.extensions.families.inputs_draft import _AS_MANY, _is_squared
from normprobe.inputs.inputs_file import read_inputs_file
from normprobe.options import Loading
from normprobe.specimen import SPECIMEN_DIR


@pytest.fixture(autouse=True)
def _nothing_is_registered() -> Iterator[None]:
    """A test that imports the package leaves it to others as it was: they run in any order."""
    yield
    for module in ("support.inserting_package", *(m for m in sys.modules if m[:5] == "later")):
        sys.modules.pop(module, None)
    for model_type in ("inserting", "later"):
        CONFIG_MAPPING._extra_content.pop(model_type, None)
    models = AutoModelForCausalLM._model_mapping._extra_content
    names = ("InsertingConfig", "LaterConfig")
    for config in [config for config in models if config.__name__ in names]:
        del models[config]


def test_a_file_that_is_begun_measures_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begun = invoke("inputs", "specimen", "--write", "begun.py")
    assert begun.exit_code == 0, begun.output
    assert "one sample is measured with it: 64 visual" in begun.stdout
    text = Path("begun.py").read_text()
    for told in ("pixel_values: float32 [1, 3, 64, 64]", "placeholder '<image>'", "LlamaModel"):
        assert told in text
    for out, more in (("with", ["--inputs", "begun.py"]), ("without", [])):
        done = invoke("layers", "specimen", "-n", "2", "-o", out, *more)
        assert done.exit_code == 0, done.output
    # The template of the processor writes the turn around the prompt; the file's author does.
    tokens = [load_run(out).wide("norm", "tokens")["visual"] for out in ("with", "without")]
    assert tokens[0].tolist() == tokens[1].tolist()


def test_a_model_of_own_code_and_a_file_that_is_there(
    repository: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = repository("unseen")
    begun = invoke("inputs", model, "--trust-remote-code", "--write", "begun.py")
    assert "begun.py is written; one sample is measured with it" in begun.stdout, begun.output
    text = Path("begun.py").read_text()
    assert '# "decoder_layers": "tower"' in text
    assert "input_ids\n    pixel_values=None\n    attention_mask=None" in text
    named = ("--part", "decoder_layers=tower", "--part", "image_token_ids=9,12")
    invoke("inputs", model, "--trust-remote-code", *named, "--write", "named.py")
    lines = [line.strip() for line in Path("named.py").read_text().splitlines()]
    assert {"\"decoder_layers\": 'tower',", '"image_token_ids": (9, 12),'} <= set(lines)
    again = invoke("inputs", model, "--trust-remote-code", "--write", "begun.py")
    assert (again.exit_code, Path("begun.py").read_text()) == (1, text)
    assert "begun.py exists" in again.stderr


def test_a_setup_that_fails_says_why(
    repository: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("inputs.py").write_text("def setup():\n    import a_package_that_nobody_has\n")
    told = invoke("layers", repository("unseen"), "--trust-remote-code", "--inputs", "inputs.py")
    assert told.exit_code == 1
    assert "setup() of inputs.py fails: ModuleNotFoundError" in told.stderr
    assert "on PYTHONPATH" in told.stderr


def test_a_setup_whose_package_fails_names_the_version(
    repository: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("of_older_names.py").write_text("class Older(BaseOfOlder):\n    pass\n")
    model = repository("unseen")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "transformers_version": "4.28.1"}))
    Path("inputs.py").write_text("def setup():\n    import of_older_names\n")
    command = ("layers", model, "--trust-remote-code", "--inputs", "inputs.py")
    told = invoke(*command).stderr
    assert "setup() of inputs.py fails: NameError: name 'BaseOfOlder' is not defined" in told
    assert "its config is of transformers 4.28.1, and the code that it imports may need" in told
    # A package that passes over what its modules raise hides the cause (VoCo-LLaMA).
    package = Path("of_older_package")
    (package / "language_model").mkdir(parents=True)
    hiding = "try:\n    from .language_model.older import Older\nexcept Exception:\n    pass\n"
    (package / "__init__.py").write_text(hiding)
    (package / "language_model/older.py").write_text("class Older(BaseOfOlder):\n    pass\n")
    Path("inputs.py").write_text("def setup():\n    from of_older_package import Older\n")
    told = invoke(*command).stderr
    assert "setup() of inputs.py fails: NameError: name 'BaseOfOlder' is not defined" in told
    assert "its config is of transformers 4.28.1, and the code that it imports may need" in told
    Path("inputs.py").write_text("def setup():\n    from of_older_package import Younger\n")
    assert "cannot import name 'Younger'" in invoke(*command).stderr
    # Another package may have lost a name (OneCAT asks for one of peft 0.10).
    Path("inputs.py").write_text("def setup():\n    from numpy.linalg import of_older_numpy\n")
    told = invoke(*command).stderr
    assert "install the numpy that the model's page or its requirements name: " in told
    assert "transformers" not in told.partition("setup()")[2]
    Path("inputs.py").write_text("def setup():\n    import of_older_names\n")
    # A name of transformers that went is none that the file could mend.
    Path("of_older_names.py").write_text("from transformers.models.bloom import _expand_mask\n")
    told = invoke(*command).stderr
    assert "cannot import name '_expand_mask'" in told
    assert "its config is of transformers 4.28.1, and the code that it imports may need" in told
    # Volcano's: what fails is bridged where the code is trusted.
    untrusted = ("layers", "specimen", "--inputs", "inputs.py")
    told = invoke(*untrusted).stderr
    assert "pass --trust-remote-code, which bridges much of what transformers changed; else" in told
    Path("inputs.py").write_text("def setup():\n    undefined\n")
    assert "mend the file" in invoke(*command).stderr


def test_rows_are_inserted_for_an_id_that_nothing_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = {"model_type": "nobodys", "architectures": ["Nobodys"], "image_token_len": 16}
    Path("config.json").write_text(json.dumps(config))
    assert invoke("inputs", ".", "--write", "begun.py").exit_code == 0
    assert "IMAGE_IDS = [-200] * 1  # a guess" in Path("begun.py").read_text()


#: A language model by its config, and no other by its name.
UNTOLD = """
from transformers import LlamaConfig, LlamaForCausalLM
from torch import nn

class UntoldConfig(LlamaConfig):
    model_type = "untold"

class Untold(LlamaForCausalLM):
    config_class = UntoldConfig

    def __init__(self, config):
        super().__init__(config)
        self.vit, self.vision_proj = nn.Linear(4, 4), nn.Linear(4, 4)
        self.post_init()
"""


SIZED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "vocab_size",
    "num_attention_heads",
)


def untold(folder: Path, code: str) -> None:
    """A repository with that code, and without weights."""
    keys = {"AutoConfig": "untold.UntoldConfig", "AutoModelForCausalLM": "untold.Untold"}
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 9}
    config = {"model_type": "untold", "auto_map": keys, "num_attention_heads": 2, **sizes}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "untold.py").write_text(code)
    byte_tokenizer((), None).save_pretrained(folder)


#: Of a class that takes more than its config: by name, or by what it finds in its keywords.
ASKS = {
    "its name": "config, *, gain):\n        super().__init__(config)\n",
    "its keywords": "config, **kwargs):\n        gain = kwargs['gain']\n"
    "        super().__init__(config)\n",
}


@pytest.mark.parametrize("how", ASKS)
def test_a_class_is_given_what_it_takes_beside_its_config(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As GLaMM and LISA, whose README passes it to from_pretrained."""
    monkeypatch.chdir(tmp_path)
    asking = UNTOLD.replace("config):\n        super().__init__(config)\n", ASKS[how])
    asking += (
        "        self.model.embed_tokens.register_forward_hook(lambda *seen: gain * seen[2])\n"
    )
    untold(
        tmp_path, asking.replace("self.vit, self.vision_proj = nn.Linear(4, 4), ", "self.one = ")
    )
    config = json.loads(Path("config.json").read_text())
    config |= {"architectures": ["Untold"], "vocab_size": len(byte_tokenizer((), None))}
    Path("config.json").write_text(json.dumps(config))
    settings = LlamaConfig(**{name: config[name] for name in SIZED})
    torch.manual_seed(0)
    weights = LlamaForCausalLM(settings).state_dict()
    weights |= {"one.weight": torch.zeros(4, 4), "one.bias": torch.zeros(4)}
    save_file(weights, "model.safetensors", metadata={"format": "pt"})
    asked = ("layers", ".", "--trust-remote-code", "--part", "kind=language", "--data", "text")
    told = invoke(*asked, "-n", "1").stderr
    assert "takes 'gain' beside its config" in told
    norms = {}
    for gain in (1.0, 3.0):
        Path("inputs.py").write_text(f"keywords = {{'gain': {gain}}}\n")
        done = invoke(*asked, "-n", "1", "--inputs", "inputs.py", "-o", str(gain))
        assert done.exit_code == 0, done.output
        assert "dry run" not in done.output
        norms[gain] = flat(load_run(str(gain)).table).set_index(["layer", "group"])["norm_mean"]
    assert norms[3.0].loc[0].tolist() == pytest.approx((3 * norms[1.0].loc[0]).tolist(), rel=1e-5)


def test_what_a_class_takes_beside_its_config_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GeoPixel's takes the number of a token, LISA's the name of its tower."""
    monkeypatch.chdir(tmp_path)
    asks = UNTOLD.replace("config):\n        super", "config, *, gain, tower):\n        super")
    untold(tmp_path, asks)
    config = json.loads(Path("config.json").read_text())
    config |= {"mm_tower": "of/a-tower", "architectures": ["Untold"]}
    Path("config.json").write_text(json.dumps(config))
    begun = invoke("inputs", ".", "--trust-remote-code", "--write", "begun.py")
    assert begun.exit_code == 0, begun.output
    said = "keywords = {'gain': 0, 'tower': 'of/a-tower'}  # a guess: what its README passes to"
    assert said in Path("begun.py").read_text()
    assert "beside its config" not in begun.stdout


def test_the_class_of_a_package_is_registered_for_a_type_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the model of transformers is measured, in doubt (PPLLaVA, Lumina-mGPT)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copytree(SPECIMEN_DIR, "model")
    config = json.loads(Path("model/config.json").read_text())
    named = config | {"architectures": ["PackagedForConditionalGeneration"]}
    Path("model/config.json").write_text(json.dumps(named))
    code = "from transformers import LlavaForConditionalGeneration\n\n\n"
    code += "class PACKAGED(LlavaForConditionalGeneration):\n    pass\n"
    name = "PackagedForConditionalGeneration"
    Path("packaged_code.py").write_text(code.replace("PACKAGED", name))
    offered = AutoModelForImageTextToText._model_mapping._extra_content
    try:
        begun = invoke("inputs", "model", "--trust-remote-code", "--write", "begun.py")
        assert "one sample is measured with it: 64 visual" in begun.stdout, begun.output
        text = Path("begun.py").read_text()
        assert f"    import packaged_code as code  # a guess: {name} is there\n" in text
        assert f"AutoModelForImageTextToText.register(code.{name}.config_class, code.{name}" in text
        assert f"forward of {name} takes" in text
        asked = ("layers", "model", "-n", "1", "--inputs", "begun.py", "-o", "out")
        assert invoke(*asked, "--trust-remote-code").exit_code == 0
        assert "doubts" not in load_run("out").record
    finally:
        offered.pop(LlavaConfig, None)
        sys.modules.pop("packaged_code", None)


def test_a_package_s_class_of_a_name_of_transformers_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vamba's has that of Qwen2-VL: nothing tells which is meant, and transformers' is measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copytree(SPECIMEN_DIR, "model")
    (name,) = json.loads(Path("model/config.json").read_text())["architectures"]
    Path("same_name.py").write_text(
        "raise RuntimeError\n\n\nclass NAME:\n    ...\n".replace("NAME", name)
    )
    begun = invoke("inputs", "model", "--trust-remote-code", "--write", "begun.py")
    assert "one sample is measured with it: 64 visual" in begun.stdout, begun.output
    text = Path("begun.py").read_text()
    told = (
        f"# a guess that transformers' own {name} is meant, and not the package's\n# def setup():\n"
    )
    assert f"{told}#     import same_name as code  # a guess: {name} is there\n" in text
    line = text[: text.index(told)].count("\n") + 1
    assert f"look at lines {line}, {line + 2}" in begun.stdout


def test_what_a_part_is_not_given_is_no_keyword_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    part = "class Part(nn.Module):\n    def __init__(self, **kwargs):\n        kwargs['gain']\n\n"
    code = UNTOLD.replace("class Untold(", part + "class Untold(")
    untold(tmp_path, code.replace("self.vit, self.vision_proj = nn.Linear(4, 4)", "_ = Part()"))
    config = json.loads(Path("config.json").read_text()) | {"architectures": ["Untold"]}
    Path("config.json").write_text(json.dumps(config))
    told = invoke("layers", ".", "--trust-remote-code", "--data", "text", "-n", "1")
    assert (told.exit_code, "gain" in told.stderr) == (1, True)
    assert "beside its config" not in told.stderr


def test_a_file_that_makes_inputs_is_believed_that_the_model_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    untold(tmp_path, UNTOLD)
    Path("inputs.py").write_text("def build(model, processor, samples, system):\n    return {}\n")
    plain = invoke("layers", ".", "--trust-remote-code").stderr
    assert "is a language model, and the samples of --data sample hold images" in plain
    told = invoke("layers", ".", "--trust-remote-code", "--inputs", "inputs.py").stderr
    assert "holds no weights" in told and "is a language model" not in told


def test_a_forward_that_takes_one_mapping_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MiniCPM-V 2 and TinyGPT-V; the words of its tokenizer are bytes, as those of Emu3."""
    monkeypatch.chdir(tmp_path)
    of_one = "\n    def forward(self, data, **kwargs):\n        return super().forward(**data)\n"
    untold(tmp_path, UNTOLD + of_one)
    of_bytes = lambda self: {b"<image>": 3, "<pad>": 0}  # noqa: E731
    monkeypatch.setattr(PreTrainedTokenizerFast, "get_vocab", of_bytes)
    begun = invoke("inputs", ".", "--trust-remote-code", "--write", "begun.py")
    assert begun.exit_code == 0, begun.output
    assert "cannot be used" not in begun.stdout
    text = Path("begun.py").read_text()
    assert '"pixel_values": "pixel_values",  # a guess' in text
    assert 'return {"data": {theirs: made[ours]' in text
    assert "IMAGE_IDS = [-200] * 1  # a guess" in text
    exec(compile(text, "begun.py", "exec"), {})


#: Two pictures that differ, side by side in a prompt and one in each of two; and none.
PROMPTS = {
    "one": ("And this one?", 1),
    "between": ("Is <image> like <image>?", 2),
    "none": ("No picture.", 0),
}


def a_checkpoint(folder: Path, words: tuple[str, ...] = ()) -> Inserting:
    """Of a type that only a package registers, without a processor. Returns its module."""
    body = made(Inserting)
    tokenizer = byte_tokenizer(words, None)
    tokenizer.save_pretrained(folder)
    body.words = torch.nn.Embedding(len(tokenizer), WIDTH)
    weights = {f"body.{name}": value.contiguous() for name, value in body.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "inserting",
        "architectures": ["InsertingForCausalLM"],
        "vocab_size": len(tokenizer),
        "vision_config": {"image_size": 16},
    }
    (folder / "config.json").write_text(json.dumps(config))
    return body.double()


def pixels_by_hand(file: Path) -> np.ndarray:
    values = np.asarray(Image.open(file).resize((16, 16))).astype(np.float64) / 255
    mean = np.array([0.48145466, 0.4578275, 0.40821073])
    std = np.array([0.26862954, 0.26130258, 0.27577711])
    return ((values - mean) / std).transpose(2, 0, 1)


def test_a_file_makes_ids_and_pixels_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows inserted in forward, no processor, a type of a package: one line to edit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(package_code, "modules_of", lambda settings: [])  # it lies elsewhere
    body = a_checkpoint(tmp_path)
    begun = invoke("inputs", ".", "--write", "begun.py")
    assert begun.exit_code == 0, begun.output
    assert "is of the type 'inserting'" in begun.stdout
    lines = Path("begun.py").read_text().splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if "raise ImportError" in text]
    assert str(line) in begun.stdout.rpartition("look at lines ")[2].strip().split(", ")
    untouched = invoke("layers", ".", "--inputs", "begun.py", "-o", "untouched")
    assert (
        "setup() of begun.py fails: ImportError: import the module of InsertingForCausalLM here"
        in untouched.stderr
    )
    lines[line - 1] = "    import support.inserting_package"
    Path("begun.py").write_text("\n".join(lines))
    assert "--inputs begun.py --write OTHER.py" in begun.stdout
    followed = invoke("inputs", ".", "--inputs", "begun.py", "--write", "followed.py")
    assert "one sample is measured with it: 16 visual" in followed.stdout, followed.output
    (told,) = re.findall("^its prompt: (.+)$", followed.stdout, re.MULTILINE)
    assert re.search(r"\[1 x -?\d+\]", told), told
    assert "def setup():\n    import support.inserting_package" in Path("followed.py").read_text()
    assert Path("followed.py").read_text().count("def load_processor(") == 1
    rng = np.random.default_rng(0)
    for name in "ab":
        Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8)).save(f"{name}.png")
    pictures = ["a.png", "b.png"]
    rows = [
        {"id": name, "prompt": prompt, "images": pictures[-count:] if count else []}
        for name, (prompt, count) in PROMPTS.items()
    ]
    for name, of_file, batch in (("batch", rows[:2], "2"), ("alone", rows, "1")):
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, of_file)))
        asked = ("layers", ".", "--inputs", "begun.py", "-b", batch, "-o", name)
        done = invoke(*asked, "--data", f"{name}.jsonl")
        assert done.exit_code == 0, done.output
        run = load_run(name)
        check_norms(body, of_file, run.table)
        assert "doubts" not in run.record
    # A config may name another class of the package: that is not what is measured.
    config = json.loads(Path("config.json").read_text())
    named = json.dumps(config | {"architectures": ["OtherForCausalLM"]})
    Path("config.json").write_text(named)
    other = invoke(*asked[:-1], "other", "--data", "alone.jsonl")
    assert other.exit_code == 0, other.output
    (doubt,) = load_run("other").record["doubts"]
    assert "the class OtherForCausalLM, and its code offers InsertingForCausalLM" in doubt
    Path("config.json").write_text(json.dumps(config))
    # Now its code is known: forward names the pixels, a constant the id, and nothing is to edit.
    again = invoke("inputs", ".", "--write", "again.py")
    assert "again.py is written; one sample is measured with it: 16 visual" in again.stdout
    told = Path("again.py").read_text()
    assert '"images": "pixel_values"' in told
    assert "IMAGE_IDS = [-200] * 1  # what stands for a picture" in told
    # What forward takes beside is a reason why it fails (Magma), before another transformers is.
    from support.inserting_package import InsertingForCausalLM

    monkeypatch.setattr(InsertingForCausalLM, "forward", of_sizes)
    fails = invoke("inputs", ".", "--write", "fails.py")
    assert "forward may ask for image_sizes, which TAKES leaves out; else " in fails.stdout


#: A package whose model reads no picture before its tower is loaded.
LATER = {
    "__init__": "",
    "modeling": """
from support.inserting_package import InsertingConfig, InsertingForCausalLM, nn
from transformers import AutoConfig, AutoModelForCausalLM

class LaterConfig(InsertingConfig):
    model_type = "later"

class Tower(nn.Module):
    is_loaded = False

    def load_model(self):
        self.is_loaded = True

class LATER(InsertingForCausalLM):
    config_class = LaterConfig

    def __init__(self, config):
        super().__init__(config)
        self.tower = Tower()

    def forward(self, input_ids, attention_mask=None, images=None):
        if not self.tower.is_loaded:
            raise ValueError("no tower")
        return super().forward(input_ids, attention_mask, images)

AutoConfig.register("later", LaterConfig)
AutoModelForCausalLM.register(LaterConfig, LATER)
""",
    "conversation": """
from types import SimpleNamespace

class Talk(SimpleNamespace):
    roles, messages = ("Q", "A"), ["of before"]

    def copy(self):
        return Talk()

    def append_message(self, role, text):
        self.messages.append(f"{role}: {text}" if text else f"{role}:")

    def get_prompt(self):
        return " ".join(["Be brief.", *self.messages])

default_conversation = Talk()
""",
}


def test_a_package_on_the_path_is_found_and_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tower of LLaVA's kin, loaded once the model is made: no line to edit."""
    monkeypatch.chdir(tmp_path)
    body = a_checkpoint(tmp_path)
    code = Path(tmp_path, "code", "later")
    code.mkdir(parents=True)
    monkeypatch.syspath_prepend(code.parent)
    for name, text in LATER.items():
        (code / f"{name}.py").write_text(text.replace("LATER", "LaterForCausalLM"))
    config = json.loads(Path("config.json").read_text())
    named = {"model_type": "later", "architectures": ["LaterForCausalLM"]}
    Path("config.json").write_text(json.dumps(config | named))
    untrusted = invoke("inputs", ".", "--write", "untrusted.py")
    assert untrusted.exit_code == 0, untrusted.output
    text = Path("untrusted.py").read_text()
    found = "    import later.modeling  # a guess: LaterForCausalLM is there\n"
    assert found in text
    assert "not measured with it yet" in untrusted.stdout
    assert "later.modeling" not in sys.modules
    begun = invoke("inputs", ".", "--trust-remote-code", "--write", "begun.py")
    assert "one sample is measured with it: 16 visual" in begun.stdout, begun.output
    text = Path("begun.py").read_text()
    assert found in text
    assert text.count("def prepare(") == 1 and "for part in [*model.modules()]:  # a guess" in text
    turn = "TURN = 'Be brief. Q: {images}{prompt} A:'  # a guess: default_conversation of later"
    assert f"{turn}.conversation\n" in text
    Image.effect_noise((24, 32), 50).convert("RGB").save("a.png")
    rows = [{"id": "one", "prompt": "And this one?", "images": ["a.png"]}]
    Path("one.jsonl").write_text(json.dumps(rows[0]))
    done = invoke(
        "layers",
        ".",
        "--trust-remote-code",
        "--inputs",
        "begun.py",
        "--data",
        "one.jsonl",
        "-o",
        "out",
    )
    assert done.exit_code == 0, done.output
    check_norms(body, rows, load_run("out").table, "Be brief. Q: {} A:")


def a_package(folder: Path, changed: Callable[[str], str]) -> None:
    """A checkpoint of a package on the path, with other text of its model."""
    a_checkpoint(folder)
    code = Path(folder, "code", "later")
    code.mkdir(parents=True)
    for name, text in LATER.items():
        text = text.replace("LATER", "LaterForCausalLM")
        (code / f"{name}.py").write_text(changed(text) if name == "modeling" else text)
    config = json.loads((folder / "config.json").read_text())
    named = {"model_type": "later", "architectures": ["LaterForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config | named))


def test_a_package_whose_code_fails_to_answer_gets_the_constants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun once more with its code, the file that was tried first is no edit (Quicksviewer)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "code")
    chat = "    def chat(self, image, question):\n        raise KeyError('of nobody')\n\n"
    a_package(tmp_path, lambda text: text.replace("    def forward(", f"{chat}    def forward(", 1))
    assert "def chat(" in Path("code/later/modeling.py").read_text()
    begun = invoke("inputs", ".", "--trust-remote-code", "--write", "begun.py")
    assert "one sample is measured with it: 16 visual" in begun.stdout, begun.output
    text = Path("begun.py").read_text()
    assert "build_by_hand(" in text
    assert "inputs_as_asked" not in text and "def ask(" not in text


def test_a_build_that_was_edited_is_kept_where_it_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its setup imports the package once more; what was kept is no text of before (TransCore)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "code")
    a_package(tmp_path, lambda text: text)
    own = ("--trust-remote-code", "--write")
    assert invoke("inputs", ".", *own, "begun.py").exit_code == 0
    edited = Path("begun.py").read_text().replace("padded=PADDED", "padded=not PADDED")
    assert edited != Path("begun.py").read_text()
    Path("edited.py").write_text(edited)
    again = invoke("inputs", ".", "--inputs", "edited.py", *own, "again.py")
    assert again.exit_code == 0, again.output
    assert "padded=not PADDED" in Path("again.py").read_text()


def test_a_package_that_is_not_there_is_stood_in_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What code imports and no forward runs, as flash_attn: no line to write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.syspath_prepend(tmp_path / "code")
    needs = "import lacking_one.inner\ntry:\n    from lacking_two import a_kernel\n"
    needs += (
        "except ImportError as error:\n    print(error)\n    raise KeyError('of it') from None\n"
    )
    a_package(tmp_path, lambda text: needs + text)
    begun = invoke("inputs", ".", "--trust-remote-code", "--write", "begun.py")
    assert "one sample is measured with it: 16 visual" in begun.stdout, begun.output
    text = Path("begun.py").read_text()
    for package in ("lacking_one", "lacking_two"):
        assert text.count(f"    stand_in({package!r})  # a guess: nothing of it runs\n") == 1
    assert text.count("import stand_in") == 1
    # Not for its own folder, which is elsewhere.
    assert inputs_draft._standing_in(text, "later") == text


def test_an_import_that_fails_leaves_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a_checkpoint(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    lacking = "from json import nothing\n\n\nclass LackingForCausalLM:\n    pass\n"
    Path("lacking.py").write_text(lacking)
    config = json.loads(Path("config.json").read_text())
    named = {"model_type": "lacking", "architectures": ["LackingForCausalLM"]}
    Path("config.json").write_text(json.dumps(config | named))
    begun = invoke("inputs", ".", "--trust-remote-code", "--write", "begun.py")
    assert begun.exit_code == 0, begun.output
    assert "not measured with it yet: setup() of begun.py fails: ImportError" in begun.stdout
    text = Path("begun.py").read_text()
    assert "    import lacking as code  # a guess: LackingForCausalLM is there\n" in text
    # Its file registers nothing (HaploVL).
    assert "    AutoConfig.register(config.model_type, config, exist_ok=True)\n" in text
    named = "AutoModelForCausalLM.register(config, code.LackingForCausalLM, exist_ok=True)"
    assert f"    {named}\n" in text
    Path("lacking.py").write_text(f"{lacking}\n\nif False:\n    {named}\n")
    assert invoke("inputs", ".", "--trust-remote-code", "--write", "other.py").exit_code == 0
    assert "    import lacking  # a guess: " in Path("other.py").read_text()


def test_code_that_a_checkpoint_names_and_lacks_is_imported_by_setup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Xmodel-VLM, whose package holds the code that its config.json names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(package_code, "modules_of", lambda settings: [])  # it lies elsewhere
    body = a_checkpoint(tmp_path)
    config = json.loads(Path("config.json").read_text())
    code = {"AutoConfig": "own.InsertingConfig", "AutoModelForCausalLM": "own.InsertingForCausalLM"}
    Path("config.json").write_text(json.dumps(config | {"auto_map": code}))
    begun = invoke("inputs", ".", "--trust-remote-code", "--write", "begun.py")
    assert "names own.py for its code (auto_map), and that is not there" in begun.stdout
    assert "import it in setup()" in begun.stdout
    text = Path("begun.py").read_text()
    (line,) = (line for line in text.splitlines() if "raise ImportError" in line)
    Path("begun.py").write_text(text.replace(line, "    import support.inserting_package"))
    Image.effect_noise((24, 32), 50).convert("RGB").save("a.png")
    rows = [{"id": "one", "prompt": "And this one?", "images": ["a.png"]}]
    Path("one.jsonl").write_text(json.dumps(rows[0]))
    asked = ("layers", ".", "--trust-remote-code", "--inputs", "begun.py", "--data", "one.jsonl")
    done = invoke(*asked, "-o", "out")
    assert done.exit_code == 0, done.output
    check_norms(body, rows, load_run("out").table)


def test_what_a_file_holds_is_kept_where_it_is_begun_anew(
    repository: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = """'''Of a user.'''
import math
import sys

sys.path.insert(0, "where/the/package/lies")

# as its README says
@staticmethod
def prepare(model, processor):
    helper(model)


def helper(model):
    return math.pi


TURN = "asked by its user: {images}{prompt}"
IMAGE = "<image>\\n"  # a guess
SIDE, MEAN, STD = 1, 2, 3
TAKES = {}


def build(model, processor, samples, system):
    return "of before"


parts = {"decoder_layers": "tower"}
"""
    Path("before.py").write_text(lines)
    asked = ("inputs", repository("unseen"), "--trust-remote-code", "--inputs", "before.py")
    begun = invoke(*asked, "--write", "begun.py")
    assert begun.exit_code == 0, begun.output
    text = Path("begun.py").read_text()
    assert lines[lines.index("import math") : lines.index("\nIMAGE")] in text
    assert text.count("def build(") == 1 and 'return "of before"' in text and "TAKES = {}" in text
    assert "Of a user" not in text
    assert "IMAGE = " not in text  # begun anew, and of no use here
    unedited = ("inputs", *asked[1:3], "--inputs", "unedited.py", "--write", "anew.py")
    first = drafted_text.file_text(asked[1], "unedited.py", Loading(), None, "", {})
    first = re.sub(r"\ndef setup\(\):\n(    .*\n|\n(?=    ))+", "\n", first)
    Path("unedited.py").write_text(first)
    anew = invoke(*unedited)
    assert anew.exit_code == 0, anew.output
    assert "build_by_hand" in first and "build_documented" in Path("anew.py").read_text()
    assert "\"decoder_layers\": 'tower'," in text  # said, no guess


@pytest.mark.parametrize("own", ["", "def forward(model, **inputs):\n    return model(**inputs)\n"])
def test_what_a_forward_without_names_takes_is_kept(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that names its inputs is asked anew, unless the file runs the model in its own way."""
    monkeypatch.chdir(tmp_path)
    untold(tmp_path, UNTOLD + "\n    def forward(self, **kwargs):\n        pass\n")
    takes = 'TAKES = {"ids": "input_ids", "seen": "pixel_values"}\n'
    setup = "def setup():\n    pass\n"
    Path("before.py").write_text(own + takes + setup)
    asked = ("inputs", ".", "--trust-remote-code", "--inputs", "before.py", "--write")
    begun = invoke(*asked, "begun.py")
    assert begun.exit_code == 0, begun.output
    kept = "    \"ids\": 'input_ids',\n    \"seen\": 'pixel_values',\n"
    assert kept in Path("begun.py").read_text()
    (tmp_path / "untold.py").write_text(UNTOLD)
    assert invoke(*asked, "named.py").exit_code == 0
    assert (kept in Path("named.py").read_text()) == bool(own)


def test_ids_are_offered_to_a_forward_that_takes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mPLUG-Owl3's names its pixels alone, and passes the rest on."""
    monkeypatch.chdir(tmp_path)
    forward = "\n    def forward(self, pixel_values=None, **kwargs):\n        pass\n"
    untold(tmp_path, UNTOLD + forward)
    begun = invoke("inputs", ".", "--trust-remote-code", "--write", "begun.py")
    assert begun.exit_code == 0, begun.output
    text = Path("begun.py").read_text()
    assert '    "pixel_values": "pixel_values",\n    "input_ids": "input_ids",  # a guess\n' in text


def test_all_that_a_processor_makes_is_passed_to_a_forward_that_takes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without a file: VoRA's takes a batch of names that its processor has."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(SPECIMEN_DIR, "model")
    forward = LlavaForConditionalGeneration.forward

    def takes_all(self: Any, **batch: Any) -> Any:
        return forward(self, **batch)

    monkeypatch.setattr(LlavaForConditionalGeneration, "forward", takes_all)
    begun = invoke("inputs", "model", "--write", "begun.py")
    assert "one sample is measured with it: 64 visual" in begun.stdout, begun.output
    for name in ("input_ids", "attention_mask", "pixel_values"):
        assert f'    "{name}": "{name}",\n' in Path("begun.py").read_text()


def test_an_input_that_a_processor_names_for_one_picture_is_passed() -> None:
    """DiffusionVL's forward takes ``images`` and ``image_grid_thws``."""
    made = {name: torch.ones(1, 3) for name in ("input_ids", "pixel_values", "image_grid_thw")}
    names = ["input_ids", "labels", "images", "image_grid_thws"]
    lines = [*drafted_takes._taken(names, made)]
    assert '"images": "pixel_values",' in lines and '"image_grid_thws": "image_grid_thw",' in lines
    assert [*drafted_takes._taken([*made, "image_grid_thws"], made)] == [
        f'"{name}": "{name}",' for name in made
    ]


def test_inputs_of_forward_that_nothing_makes_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """VideoLISA's asks for the numbers of frames."""
    monkeypatch.chdir(tmp_path)
    names = "input_ids, images=None, dense_indices=None, past_key_values=None, use_cache=None"
    untold(tmp_path, f"{UNTOLD}\n    def forward(self, {names}, labels=None):\n        pass\n")
    begun = invoke("inputs", ".", "--trust-remote-code", "--write", "begun.py")
    assert begun.exit_code == 0, begun.output
    text = Path("begun.py").read_text()
    assert '    # "dense_indices": NAME,  # a guess that it does without\n' in text
    assert not re.search(r'"(past_key_values|use_cache|labels)": NAME', text)


def test_what_was_begun_gives_way_to_what_is_known_by_now(
    repository: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokenizer alone was loaded as long as its code was not known (DexVLA)."""
    monkeypatch.chdir(tmp_path)
    begun = drafted_constants.LOADER.format(trust=False, look="")
    looking = drafted_constants.LOADER.format(
        trust=True, look=drafted_constants.LOOK.format(place="path", trust=True)
    )
    own = begun.replace("    return tokenizer", "    tokenizer.mine = 1\n    return tokenizer")
    elsewhere = looking.replace("look.from_pretrained(path", "look.from_pretrained('of/another'")
    assert not inputs_draft._is_begun(ast.parse(elsewhere).body[0])
    asked = ("inputs", repository("unseen"), "--trust-remote-code", "--inputs")
    for name, text in (("begun", begun), ("looking", looking), ("own", own)):
        more = "\n\ndef prepare(model, processor):\n    pass  # a guess\n\n\nSAID = 1\n"
        Path(f"{name}.py").write_text(text + more)
        done = invoke(*asked, f"{name}.py", "--write", f"{name}_again.py")
        assert done.exit_code == 0, done.output
        again = Path(f"{name}_again.py").read_text()
        assert ("def load_processor(" in again) == (name == "own")
        assert "def prepare(" not in again and "SAID = 1" in again


def test_a_picture_that_is_cropped_is_said_so(tmp_path: Path) -> None:
    """Merlin's evaluation resizes it, and its tower's image processor crops."""
    a_checkpoint(tmp_path, ("<im_patch>",))
    config = json.loads((tmp_path / "config.json").read_text()) | {"model_type": "nobodys"}
    said = "# pictures, to squares first; a guess: a picture that is no square is cropped\n"
    CLIPImageProcessor().save_pretrained(tmp_path)
    for number, aspect in enumerate([{}, {"image_aspect_ratio": "pad"}]):
        (tmp_path / "config.json").write_text(json.dumps(config | aspect))
        begun = tmp_path / f"{number}.py"
        assert invoke("inputs", tmp_path, "--write", begun).exit_code == 0
        assert (said in begun.read_text()) == (not aspect)
    patch = byte_tokenizer(("<im_patch>",), None).convert_tokens_to_ids("<im_patch>")
    assert f"IMAGE_IDS = [{patch}] * 1  # a guess" in begun.read_text()


def test_many_of_one_token_are_told_once() -> None:
    """A placeholder that no field of the config names may stand for thousands (Dragonfly)."""
    tokenizer = byte_tokenizer(("<patch>",), None)
    ids = tokenizer("aaa" + "<patch>" * 5 + "bb<patch>cccc").input_ids
    assert inputs_draft._in_words(tokenizer, ids) == "aaa[5 x <patch>]bb<patch>[4 x c]"


def test_an_id_that_a_tokenizer_cannot_say_is_told_as_a_number() -> None:
    """Emu3.5's fails on ids that a file of its own names, where that is not passed."""
    tokenizer = SimpleNamespace(decode=lambda numbers: "".join("_ab"[n] for n in numbers))
    assert inputs_draft._in_words(tokenizer, [1, 2, 7, 7, 7, 7]) == "ab[4 x [ids 7]]"
    assert inputs_draft._in_words(tokenizer, [1, 7]) == "[ids 1, 7]"


def test_what_a_user_says_is_kept_though_it_is_a_guess_elsewhere(tmp_path: Path) -> None:
    """The chat template was begun, and its user wrote what is often begun (VARGPT)."""
    kept = {
        'TURN = "USER: {images}{prompt} ASSISTANT:"\n': True,
        'TURN = "USER: {images}{prompt} ASSISTANT:"  # a guess\n': False,
        'TURN = "Q: {images}{prompt}"  # a guess\n': True,
        "TURN = None\n": True,
    }
    for text, held in kept.items():
        (tmp_path / "before.py").write_text(text)
        assert inputs_draft._kept(tmp_path / "before.py", "") == (text if held else "")
    first = (
        "IMAGE_IDS = [-200] * 1  # a guess\nPADDED = True\nSIDE, MEAN, STD = 224, [0.5], [0.5]\n"
    )
    before = first.replace("[-200] * 1", "[7] * 4").replace("224", "336")
    (tmp_path / "before.py").write_text(before)  # what its user edited, whatever the mark says
    kept = [line for line in before.splitlines(keepends=True) if "PADDED" not in line]
    assert inputs_draft._kept(tmp_path / "before.py", first) == "".join(kept)


def test_a_prompt_without_a_turn_is_a_guess(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a processor that holds no template, beside a tokenizer that does (Dragonfly)."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(SPECIMEN_DIR, "model")
    template = next(Path("model").glob("chat_template*"))
    said = "  # as without this file; a guess: no turn is written around the prompt"
    lacking = ", though the tokenizer has a template"
    for told in (False, True, "nowhere"):
        if told is True:
            tokenizer = Path("model/tokenizer_config.json")
            facts = json.loads(tokenizer.read_text()) | {"chat_template": template.read_text()}
            tokenizer.write_text(json.dumps(facts))
            template.unlink()
        if told == "nowhere":  # a bare question (Heron)
            tokenizer.write_text(json.dumps({**facts, "chat_template": None}))
        begun = invoke("inputs", "model", "--write", f"{told}.py")
        assert begun.exit_code == 0, begun.output
        text = Path(f"{told}.py").read_text()
        assert (said in text) == bool(told) and (said + lacking in text) == (told is True)


def test_what_a_user_says_of_a_turn_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.json").write_text('{"model_type": "nobodys", "architectures": ["Nobodys"]}')
    assert invoke("inputs", ".", "--write", "begun.py").exit_code == 0
    text = Path("begun.py").read_text()
    guess = 'TURN = "USER: {images}{prompt} ASSISTANT:"'
    assert f"{guess}  # a guess" in text
    said = text.replace("USER: ", "Q: ").replace('IMAGE = "<image>', 'IMAGE = "<picture>')
    for name, written in (("begun.py", text), ("said.py", said)):
        Path(name).write_text(written.replace("    raise ImportError", "    pass  #"))
        again = Path(f"after_{name}")
        done = invoke("inputs", ".", "--inputs", name, "--write", again)
        assert again.exists(), done.output
        lines = [line for line in again.read_text().splitlines() if line[:5] in ("TURN ", "IMAGE")]
        assert [line.partition(" =")[0] for line in sorted(lines)] == ["IMAGE", "IMAGE_IDS", "TURN"]
        assert any(line.startswith(guess) for line in lines) == (name == "begun.py")
        assert any("<picture>" in line for line in lines) == (name == "said.py")


def of_sizes(self, input_ids, attention_mask=None, images=None, image_sizes=None):
    return [*image_sizes]


@pytest.mark.parametrize(
    "field",
    [
        {"im_end_token": 8, "im_patch_token": 9, "im_start_token": 7, "image_token_len": 4},  # GOT
        {
            "boi_token_id": 7,
            "eoi_token_id": 8,
            "image_token_id": 9,
            "num_image_tokens": 4,
        },  # GLM-4V
    ],
)
def test_ids_that_may_stand_around_a_picture_are_said(
    field: dict[str, int], tmp_path: Path
) -> None:
    config = {"model_type": "nobodys", "architectures": ["Nobodys"], **field}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert invoke("inputs", tmp_path, "--write", tmp_path / "begun.py").exit_code == 0
    told = (tmp_path / "begun.py").read_text()
    assert "IMAGE_IDS = [9] * 4  # a guess: what stands for a picture; between 7 and 8, as" in told


@pytest.mark.parametrize("own", ["", 'IMAGE = "<image>: "\n'])
def test_words_around_a_picture_are_those_that_the_config_asks_for(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLaVA 1.0 and what began from it (LLaVA-Grounding)."""
    monkeypatch.chdir(tmp_path)
    a_checkpoint(tmp_path, ("<im_start>", "<im_end>"))
    config = json.loads(Path("config.json").read_text()) | {"mm_use_im_start_end": True}
    Path("config.json").write_text(json.dumps(config))
    Path("setup.py").write_text(f"{own}def setup():\n    import support.inserting_package\n")
    begun = invoke("inputs", ".", "--inputs", "setup.py", "--write", "begun.py")
    assert "one sample is measured with it: 16 visual, 1 structural, " in begun.stdout
    ids = byte_tokenizer(("<im_start>", "<im_end>"), None).convert_tokens_to_ids
    around = f"[{ids('<im_start>')}, -200, {ids('<im_end>')}]"
    told = Path("begun.py").read_text()
    assert f"IMAGE_IDS = {'[-200] * 1' if own else around}  #" in told
    assert (own or 'IMAGE = "<im_start><image><im_end>\\n"  #') in told
    assert ("2 special" in begun.stdout) == (not own)


def test_an_id_of_no_word_is_what_stands_for_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config may name another: code that inserts rows looks for its constant (FlashSloth)."""
    monkeypatch.chdir(tmp_path)
    a_checkpoint(tmp_path)
    named = {"image_token_index": 7, "image_token_len": 144}
    config = json.loads(Path("config.json").read_text()) | named
    Path("config.json").write_text(json.dumps(config))
    Path("setup.py").write_text("def setup():\n    import support.inserting_package\n")
    assert invoke("inputs", ".", "--inputs", "setup.py", "--write", "begun.py").exit_code == 0
    assert "IMAGE_IDS = [-200] * 1" in Path("begun.py").read_text()


#: A package of LLaVA's kin, whose model is ``Inserting``'s.
TILING = {
    "modeling": """
from types import SimpleNamespace
from support.inserting_package import InsertingConfig, InsertingForCausalLM
from transformers import AutoConfig, AutoModelForCausalLM, CLIPImageProcessor

class TilingConfig(InsertingConfig):
    model_type = "tiling"

class Tiling(InsertingForCausalLM):
    config_class = TilingConfig

    def get_vision_tower(self):
        return SimpleNamespace(image_processor=CLIPImageProcessor(size=16, crop_size=16))

    def forward(self, input_ids, attention_mask=None, images=None, image_sizes=None, labels=None,
                modalities=None):
        assert [tuple(each) for each in image_sizes]
        assert labels.shape == input_ids.shape and (labels == -100).all()
        assert modalities == ["image"] * len(images)
        return super().forward(input_ids, attention_mask, images.flatten(0, 1))

AutoConfig.register("tiling", TilingConfig, exist_ok=True)
AutoModelForCausalLM.register(TilingConfig, Tiling, exist_ok=True)
""",
    "mm_utils": """
def process_images(pictures, processor, settings):
    assert settings.model_type == "tiling"
    assert isinstance(processor.size, dict)  # else it takes the least of all of its numbers
    picture_sizes = [picture.size for picture in pictures]  # UGround's returns them, too
    assert settings.image_aspect_ratio != "none"
    return processor(pictures, return_tensors="pt")["pixel_values"][:, None]
""",
}


@pytest.mark.parametrize("aspect", ["anyres_max_9", "pad", "failing"])
def test_pixels_are_made_as_the_package_makes_them(
    aspect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLaVA-NeXT's copies have their own name for it, and all of them call it so (LLaVAction).

    One that fails is of no use to the model: pixels are made by hand then (PAVE).
    """
    monkeypatch.chdir(tmp_path)
    a_checkpoint(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    package = Path(f"tiling_{aspect}")  # each is imported once
    package.mkdir()
    for name, code in TILING.items():
        fails = aspect == "failing" and name == "mm_utils"
        (package / f"{name}.py").write_text(
            code.replace("return", "raise OSError #" * fails + "return").replace(
                "[:, None]", "[:, None], picture_sizes" if aspect == "pad" else "[:, None]"
            )
        )
    config = json.loads(Path("config.json").read_text()) | {"model_type": "tiling"}
    config |= {"architectures": ["Tiling"], "image_aspect_ratio": aspect}
    Path("config.json").write_text(json.dumps(config))
    Path("setup.py").write_text(f"def setup():\n    import {package}.modeling\n")
    begun = invoke("inputs", ".", "--inputs", "setup.py", "--write", "begun.py")
    text = Path("begun.py").read_text()
    cut = aspect != "failing"
    assert (f"from {package}.mm_utils import process_images" in text) == cut
    assert "this makes one square" not in text
    assert ('    "image_sizes": "image_sizes",\n' in text) == cut
    assert ('    "labels": "labels",\n' in text) == cut  # once it was seen that none will not do
    assert '    "modalities": "modalities",\n' in text
    assert '"modalities": NAME' not in text  # it is made
    assert ("one sample is measured with it: 16 visual" in begun.stdout) == cut, begun.output
    assert ("asked.image_aspect_ratio = " in text) == (aspect == "pad")
    if aspect == "pad":  # an evaluation may not
        mark = "; a guess: image_aspect_ratio asks for it, and an evaluation may not"
        assert f"\nPADDED = True  # pictures, to squares first{mark}\n" in text
        Path("plain.py").write_text(text.replace("\nPADDED = True", "\nPADDED = False"))
        seen = Path(package / "mm_utils.py")
        seen.write_text(seen.read_text().replace('!= "none"', "is None"))
        sys.modules.pop(f"{package}.mm_utils")
        plain = invoke("layers", ".", "--inputs", "plain.py", "-n", "1", "-o", "plain")
        assert plain.exit_code == 0, plain.output


def test_the_class_of_an_adapter_s_base_is_not_what_setup_imports(tmp_path: Path) -> None:
    """VTimeLLM's config names that of transformers, and a type of its own."""
    config = {"model_type": "nobodys", "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert invoke("inputs", tmp_path, "--write", tmp_path / "begun.py").exit_code == 0
    told = (tmp_path / "begun.py").read_text()
    assert "import the module of the class for the type nobodys here" in told


def test_the_side_is_that_of_the_vision_encoder(tmp_path: Path) -> None:
    """Its config says it where no image processor does (TinyChart)."""
    tower = tmp_path / "towers/siglip"
    tower.mkdir(parents=True)
    (tower / "config.json").write_text(json.dumps({"vision_config": {"image_size": 112}}))
    config = {"model_type": "nobodys", "architectures": ["Nobodys"], "vision_tower": str(tower)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert invoke("inputs", tmp_path, "--write", tmp_path / "begun.py").exit_code == 0
    assert "\nSIDE, MEAN, STD = 112, [0.5, " in (tmp_path / "begun.py").read_text()


@pytest.mark.parametrize(
    ("tower", "config", "rows"),
    [
        ("towers/clip", {}, 64),
        ("vit-large-patch14-336", {}, 576),
        ("towers/clip", {"downsample_ratio": 0.5}, 16),
        ("towers/clip", {"num_image_tokens": 7}, 7),
        ("towers/clip", {"num_query": 7}, 7),  # of a resampler (OmniLMM)
    ],
)
def test_a_word_stands_for_as_many_rows_as_a_picture_has_patches(
    tower: str, config: dict[str, float], rows: int, tmp_path: Path
) -> None:
    """That is what code needs which puts rows over ids (PVIT, Leopard)."""
    folder = tmp_path / "towers/clip"
    folder.mkdir(parents=True)
    of_tower = {"vision_config": {"image_size": 112, "patch_size": 14}}
    (folder / "config.json").write_text(json.dumps(of_tower))
    a_checkpoint(tmp_path, ("<im_patch>",))
    made = json.loads((tmp_path / "config.json").read_text()) | {"model_type": "nobodys", **config}
    made["vision_tower"] = f"{tmp_path}/{tower}"
    del made["vision_config"]
    (tmp_path / "config.json").write_text(json.dumps(made))
    assert invoke("inputs", tmp_path, "--write", tmp_path / "begun.py").exit_code == 0
    patch = byte_tokenizer(("<im_patch>",), None).convert_tokens_to_ids("<im_patch>")
    (line,) = re.findall("^IMAGE_IDS.*", (tmp_path / "begun.py").read_text(), re.MULTILINE)
    assert line.startswith(f"IMAGE_IDS = [{patch}] * {rows}  # ")
    assert ("a guess" in line) == (rows != 7)


@pytest.mark.parametrize("where", ["beside it", "elsewhere", "only its name"])
def test_pictures_are_made_as_the_vision_encoder_has_it(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "model"
    tower = {"beside it": model / "towers/clip", "elsewhere": tmp_path / "towers/clip"}
    named = {"beside it": "towers/clip", "elsewhere": str(tmp_path / "towers/clip")}
    name = named.get(where, "openai/clip-vit-large-patch14-336")
    model.mkdir()
    config = {"model_type": "nobodys", "architectures": ["Nobodys"], "mm_vision_tower": name}
    (model / "config.json").write_text(json.dumps(config))
    if where in tower:
        CLIPImageProcessor(size=30, crop_size=28).save_pretrained(tower[where])
    assert invoke("inputs", model, "--write", "begun.py").exit_code == 0
    text = Path("begun.py").read_text()
    if where in tower:
        assert f"look.from_pretrained({str(tower[where])!r}, trust" in text
        assert "or else `look` of load_processor is one" in text
    else:
        assert "SIDE, MEAN, STD = 336, [0.48" in text
        assert "look" not in text.partition("def load_processor")[2].partition("TAKES")[0]


@pytest.mark.parametrize(
    ("asks", "said"),
    [
        ({"image_aspect_ratio": "pad"}, ""),
        ({"image_aspect_ratio": "anyres_max_9"}, "anyres_max_9), this makes one square"),
        ({"dynamic_image_size": True}, "tiles (dynamic_image_size), this makes one square"),
        ({"dynamic_image_size": False, "image_aspect_ratio": None}, ""),
    ],
)
def test_a_picture_that_its_code_cuts_otherwise_is_said_not_to_be(
    asks: dict[str, object], said: str, tmp_path: Path
) -> None:
    config = {"model_type": "nobodys", "architectures": ["Nobodys"], **asks}
    config |= {"image_size": [16, 336, 336], "image_mean": [0.5, 0.5, 0.5]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = invoke("inputs", tmp_path, "--write", tmp_path / "begun.py")
    lines = (tmp_path / "begun.py").read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if line.startswith("SIDE"))
    padded = asks.get("image_aspect_ratio") == "pad"
    assert lines[number].startswith(f"PADDED = {padded}  # pictures, to squares first")
    assert ("; a guess: image_aspect_ratio asks for it, and" in lines[number]) == padded
    assert said in lines[number - 1]
    assert lines[number - 1].startswith("SIDE, MEAN, STD = 336, [0.5, 0.5, 0.5], [0.2686")
    guessed = result.stdout.rpartition("guessed, so look at lines ")[2].split("\n")[0].split(", ")
    assert str(number) in guessed
    assert "; a guess, as that it is resized to it, bicubic" in lines[number - 1]  # Elysium


def test_a_copy_of_internvl_is_cut_as_internvl_is(
    repository: Callable[[str], Path], tmp_path: Path
) -> None:
    """Mini-Monkey and its like have another name; one square a picture is not what they see."""
    original, copy = repository("internvl_chat"), tmp_path / "copy"
    shutil.copytree(original, copy)
    for file in (copy / "config.json", copy / "configuration_internvl_chat.py"):
        text = file.read_text()
        assert "internvl_chat" in text
        file.write_text(text.replace('"internvl_chat"', '"nobodys_chat"'))
    begun = tmp_path / "begun.py"
    result = invoke("inputs", copy, "--trust-remote-code", "--write", begun)
    assert "one sample is measured with it" in result.stdout
    text = begun.read_text()
    marks = "made = build_squares|^MEAN, STD =|^SQUARES = "
    guessed = [n for n, line in enumerate(text.splitlines(), 1) if re.search(marks, line)]
    assert len(guessed) == 3
    assert f"guessed, so look at lines {', '.join(map(str, guessed))}" in result.stdout
    assert read_inputs_file(begun).guesses == guessed  # so each run tells of them
    found = [
        Probe(model, trust_remote_code=True, inputs=inputs, device="cpu")
        .layers("sample", limit=2, intervals=False, workers=0)
        .table
        for model, inputs in ((original, None), (copy, begun))
    ]
    pd.testing.assert_frame_equal(*found)
    again = tmp_path / "again.py"
    # One that does otherwise (Ristretto).
    begun.write_text(re.sub("^SQUARES = [0-9]+", "SQUARES = 1", text, flags=re.MULTILINE))
    asked = ("--trust-remote-code", "--inputs", begun, "--write", again)
    fewer = invoke("inputs", copy, *asked)
    counts = [int(re.search(r"(\d+) visual", each.stdout)[1]) for each in (result, fewer)]
    assert counts[0] > counts[1]
    assert again.read_text().count("import INTERNVL_CHAT") == 1
    assert re.findall("^SQUARES = .*", again.read_text(), re.MULTILINE)[0][:11] == "SQUARES = 1"
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"its_tower": "siglip-large"}))
    third = tmp_path / "third.py"
    assert invoke("inputs", copy, "--trust-remote-code", "--write", third).exit_code == 0
    assert "\nMEAN, STD = [0.5, 0.5, 0.5], [0.5, 0.5, 0.5]  # of a picture" in third.read_text()


def test_a_copy_of_internvl_that_fails_on_flags_does_without_them(
    repository: Callable[[str], Path], tmp_path: Path
) -> None:
    """HoVLE's does not flatten what it is given, and counts each square where it gets none."""
    copy = tmp_path / "without_flags"
    shutil.copytree(repository("internvl_chat"), copy)
    for file in (copy / "config.json", copy / "configuration_internvl_chat.py"):
        file.write_text(file.read_text().replace('"internvl_chat"', '"flagless_chat"'))
    code = copy / "modeling_internvl_chat.py"
    own = "flags = torch.ones(len(pixel_values)) if image_flags is None else image_flags[:0]"
    code.write_text(code.read_text().replace("flags = image_flags.squeeze(-1)", own))
    begun = tmp_path / "begun.py"
    result = invoke("inputs", copy, "--trust-remote-code", "--write", begun)
    assert "one sample is measured with it" in result.stdout, result.output
    assert "image_flags" not in begun.read_text().partition("TAKES = ")[2]


@pytest.mark.parametrize(
    ("field", "words", "meant"),
    [
        ({}, ("</img>", "<img>", "<imgpad>"), "<imgpad>"),
        ({}, ("</image>", "<image>"), "<image>"),
        ({"im_patch_token": 9, "im_start_token": 7}, ("<img>",), 9),
    ],
)
def test_what_stands_for_a_picture_is_no_end_of_one(
    field: dict[str, int], words: tuple[str, ...], meant: str | int, tmp_path: Path
) -> None:
    a_checkpoint(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {
        "model_type": "of_nobody",
        **field,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = byte_tokenizer(words, None)
    tokenizer.save_pretrained(tmp_path)
    assert invoke("inputs", tmp_path, "--write", tmp_path / "begun.py").exit_code == 0
    told = (tmp_path / "begun.py").read_text()
    expected = tokenizer.convert_tokens_to_ids(meant) if isinstance(meant, str) else meant
    assert f"IMAGE_IDS = [{expected}] *" in told


@pytest.mark.parametrize("writes", [True, False])
def test_a_processor_that_no_file_names_is_found_in_the_package(
    writes: bool, repository: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hulu-Med and UForm-Gen: its class is beside the model's, and AutoProcessor finds none.

    URSA's does not say either what stands for a picture; the config has its id.
    """
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / f"of_no_processor_{writes}"
    shutil.copytree(repository("unseen"), folder)
    (folder / "processor_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"].pop("AutoProcessor", None)
    (folder / "config.json").write_text(json.dumps(config))
    if not writes:
        text = (folder / "tiny_processing.py").read_text()
        text = text.replace('        self.image_token = "<picture>"\n', "")
        (folder / "tiny_processing.py").write_text(text.replace("self.image_token", '"<picture>"'))
        config["image_token_index"] = config["picture_mark"]
        (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
        (folder / "config.json").write_text(json.dumps(config))
    code = folder / "modeling_unseen.py"
    beside = "from .processing_unseen import UnseenProcessor  # noqa\n"
    code.write_text(beside + code.read_text())
    begun = invoke("inputs", folder, "--trust-remote-code", "--write", "begun.py")
    assert "one sample is measured with it: 4 visual" in begun.stdout, begun.output
    text = Path("begun.py").read_text()
    assert "module('processing_unseen.UnseenProcessor', path)  # a guess\n" in text
    assert ("processor.image_token = '<picture>'  # a guess" in text) == (not writes)
    assert "TURN = " not in text
    if not writes:  # another template
        return
    tables = []
    for model, inputs in ((folder, "begun.py"), (repository("unseen"), None)):
        probe = Probe(model, inputs=inputs, trust_remote_code=True, device="cpu")
        tables.append(probe.layers("sample", limit=2, intervals=False, workers=0).table)
    pd.testing.assert_frame_equal(*tables)


_ANSWERS = """
    def generate(self, inputs=None, pictures=None, max_new_tokens=9, **more):
        assert max_new_tokens == 1
        return self.answer(inputs, pictures, more.pop("attention_mask", None))

"""


def test_a_processor_that_refuses_is_called_by_its_own_names(
    repository: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CXRMate-2's writes a text of its own around what it is told; the file is left to edit."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "of_indications"
    shutil.copytree(repository("unseen"), folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    (folder / "processing_unseen.py").write_text(
        "from .tiny_processing import PictureProcessor\n\n\n"
        "class UnseenProcessor(PictureProcessor):\n"
        "    def __call__(self, image, indication, return_tensors=None):\n"
        "        (words,) = indication\n"
        "        marks = '<picture>' * 4\n"
        "        return super().__call__(text=f'{marks}{words}', images=image[0],\n"
        "                                return_tensors=return_tensors)\n"
    )
    begun = invoke("inputs", folder, "--trust-remote-code", "--write", "begun.py")
    text = Path("begun.py").read_text()
    call = "    made = processor(  # a guess: what it is given\n        image=[sample.image],\n"
    assert f"{call}        indication=sample.prompt,\n" in text, begun.output
    assert "TURN = " not in text and "TAKES = " not in text


@pytest.mark.parametrize(
    ("ids", "rows", "squared"), [(64, 4096, True), (64, 64, False), (1, 1, False), (0, 9, False)]
)
def test_ids_that_each_get_as_many_rows_are_seen(ids: int, rows: int, squared: bool) -> None:
    """GMAI-VL's forward inserts them; then one id stands for a picture."""
    text = f"IMAGE_IDS = [423] * {ids}  # a guess\n" * bool(ids)
    told = f"one sample is measured with it: {rows} visual, 4 special, 58 text tokens"
    assert _is_squared(text, told) == squared
    out = "not measured with it yet: index 1 is out of bounds for dimension 0 with size 1"
    assert _is_squared(text, out) == (ids > 1)  # MinerU2.0
    assert _AS_MANY.sub(r"\1 * 1", text).startswith("IMAGE_IDS = [423] * 1 " * bool(ids))


def test_places_that_generate_passes_are_filled_in(
    repository: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MolmoPoint's forward goes by where rows stand, and asks for rows where nothing says it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "of_places"
    shutil.copytree(repository("unseen"), folder)
    code = folder / "modeling_unseen.py"
    text = code.read_text()
    head, forward, rest = text.partition("    def forward(self, input_ids")
    arguments, colon, body = rest.partition("):\n")
    assert forward and colon
    asks = "        assert cache_position.tolist() == list(range(input_ids.shape[1]))\n"
    code.write_text(f"{head}{forward}{arguments}, cache_position=None):\n{asks}{body}")
    begun = invoke("inputs", folder, "--trust-remote-code", "--write", "begun.py")
    assert "one sample is measured with it: 4 visual" in begun.stdout, begun.output
    assert '    made["cache_position"] = ' in Path("begun.py").read_text()


@pytest.mark.parametrize("trains", [True, False])
def test_a_class_is_run_by_its_generate_where_its_forward_does_not_answer(
    trains: bool, repository: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """InfiMM and xGen-MM have no forward, UReader's is one of training: no line to write."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / f"of_no_forward_{trains}"
    shutil.copytree(repository("unseen"), folder)
    code = folder / "modeling_unseen.py"
    trained = (
        "    def forward(self, num_images, labels, pictures=None):\n        raise KeyError\n\n"
    )
    own = _ANSWERS + trained * trains + "    def answer(self, input_ids"
    code.write_text(code.read_text().replace("    def forward(self, input_ids", own, 1))
    begun = invoke("inputs", folder, "--trust-remote-code", "--write", "begun.py")
    assert "one sample is measured with it: 4 visual" in begun.stdout, begun.output
    text = Path("begun.py").read_text()
    takes = "input_ids=None, pictures=None, attention_mask=None"
    assert f"def forward(model, {takes}):\n    return model.generate(inputs=input_ids, " in text
    assert '    "pictures": "pixel_values",\n' in text
    tables = []
    for model, inputs in ((folder, "begun.py"), (repository("unseen"), None)):
        probe = Probe(model, inputs=inputs, trust_remote_code=True, device="cpu")
        made = probe.layers("sample", limit=3, batch_size=2, intervals=False, workers=0)
        tables.append(made.table)
    pd.testing.assert_frame_equal(*tables)


def check_norms(
    body: Inserting, rows: list, table: object, turn: str = "USER: {} ASSISTANT:"
) -> None:
    """Each layer and group beside float64, of prompts that are written here."""
    vocabulary = byte_tokenizer((), None)
    norms = defaultdict(list)
    for row in rows:
        marks = "<image>\n" * len(row["images"]) * ("<image>" not in row["prompt"])
        pieces = turn.format(f"{marks}{row['prompt']}").split("<image>")
        ids = vocabulary(pieces[0], add_special_tokens=False).input_ids
        for piece in pieces[1:]:
            ids += [PLACE, *vocabulary(piece, add_special_tokens=False).input_ids]
        pixels = [pixels_by_hand(Path(file)) for file in row["images"]]
        with torch.no_grad():
            body(torch.tensor([ids]), torch.from_numpy(np.stack(pixels)) if pixels else None)
        for layer, states in enumerate(body.seen):
            for state, origin in zip(states[0], body.origins[0], strict=True):
                norms[layer, "text" if origin == "special" else str(origin)].append(
                    np.linalg.norm(state)
                )
    found = flat(table).set_index(["layer", "group"])
    for at, expected in norms.items():
        assert found.loc[at, "tokens"] == len(expected)
        assert found.loc[at, "norm_mean"] == pytest.approx(np.mean(expected), rel=1e-6)


def test_what_a_stranger_writes_is_no_code_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    a_checkpoint(tmp_path)
    code = 'print("run"))\n"""\nprint("run")\n("""'
    config = {"model_type": code, "image_mean": code, "image_std": ["print()"], "image_size": code}
    (tmp_path / "config.json").write_text(json.dumps(config))
    begun = invoke("inputs", ".", "--write", "begun.py")
    assert begun.exit_code == 0, begun.output
    tree = ast.parse(Path("begun.py").read_text())
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert "print" not in {getattr(function, "id", "") for function in called}
    text = Path("begun.py").read_text()
    assert "SIDE, MEAN, STD = 224, [0.48" in text
    assert "where no image processor is found; a guess" in text
