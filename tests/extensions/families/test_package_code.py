"""What the package of a model tells: where its class is, what it loads later, how it talks."""

import ast
import json
import sys
from pathlib import Path

import pytest
from torch import nn

from normprobe.extensions.families import package_code
from normprobe.extensions.families.package_code import (
    loads_later,
    makes_pixels,
    modules_of,
    setup_text,
    turn_of,
)

NAMED = {"model_type": "planted", "architectures": ["PlantedForCausalLM"]}
DEFINES = "class {}(object):\n    pass\n\n\nraise RuntimeError('it is read alone')\n"


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_the_class_is_found_by_the_text_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that names the type is first, then the one nearest to the path's folder."""
    monkeypatch.syspath_prepend(tmp_path)
    defines = DEFINES.format(NAMED["architectures"][0])
    for name in ("pkg/deep/er/copy", "pkg/near", ".hidden/it", "build/lib/it", "not-a-name/it"):
        write(tmp_path / f"{name}.py", defines)
    assert [*modules_of(NAMED)] == ["pkg.near", "pkg.deep.er.copy"]
    for number in range(2):  # the copy is what others import
        write(tmp_path / f"run_{number}.py", "from pkg.deep.er.copy import PlantedForCausalLM\n")
    assert [*modules_of(NAMED)] == ["pkg.deep.er.copy", "pkg.near"]
    for number in range(3):
        write(
            tmp_path / f"more_{number}.py",
            "if True:\n    import pkg.near as near\n\nnear.PlantedForCausalLM\n",
        )
    write(tmp_path / "pkg/of/type/__init__.py", f'{defines}model_type = "planted"\n')
    assert [*modules_of(NAMED)] == ["pkg.of.type", "pkg.near", "pkg.deep.er.copy"]
    monkeypatch.setattr(package_code, "HF_MODULES_CACHE", str(tmp_path / "pkg"))
    monkeypatch.syspath_prepend(tmp_path / "pkg/of")  # inside: code of other checkpoints
    assert next(iter(modules_of(NAMED))) == "pkg.of.type"
    monkeypatch.setattr(package_code, "HF_MODULES_CACHE", str(tmp_path / "none"))
    assert next(iter(modules_of(NAMED))) == "type"
    sys.path.remove(str(tmp_path / "pkg/of"))
    write(
        tmp_path / "pkg/other.py", "    class OtherForCausalLM: pass\nclass OtherForCausal: pass\n"
    )
    for names in (["OtherForCausalLM"], ["Planted.*"], [7], [], None):
        assert not modules_of({**NAMED, "architectures": names})


def test_installed_packages_that_need_transformers_are_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no folder of the path has it; of one that is installed in place, its own folder."""
    site = tmp_path / "site-packages"
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))  # the folder is Python's own
    defines = DEFINES.format(NAMED["architectures"][0])
    for name, needs in (("needing", "transformers>=4.40"), ("other", "numpy")):
        write(site / f"{name}/model.py", defines)
        facts = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\nRequires-Dist: {needs}\n"
        write(site / f"{name}-1.dist-info/METADATA", facts)
        write(site / f"{name}-1.dist-info/RECORD", f"{name}/model.py,,\n{name}/gone.py,,\n")
    assert [*modules_of(NAMED)] == ["needing.model"]
    place = tmp_path / "elsewhere"
    write(place / "inplace/model.py", DEFINES.format("InPlace"))
    facts = "Metadata-Version: 2.1\nName: inplace\nVersion: 1\nRequires-Dist: transformers\n"
    write(site / "inplace-1.dist-info/METADATA", facts)
    write(
        site / "inplace-1.dist-info/direct_url.json",
        json.dumps({"url": place.as_uri(), "dir_info": {}}),
    )
    assert [*modules_of({**NAMED, "architectures": ["InPlace"]})] == ["inplace.model"]


def test_what_is_loaded_later_says_so() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert not loads_later(model)
    tower = model[1]
    tower.is_loaded = False  # of no part that could be loaded
    assert not loads_later(model)
    tower.load_model = lambda: None
    assert loads_later(model)
    tower.is_loaded = True
    assert not loads_later(model)


TALK = """
class Talk:
    roles = ("Q", "A")

    def __init__(self):
        self.messages = ["of before"]

    def copy(self):
        return Talk()

    def append_message(self, role, text):
        self.messages.append(f"{role}: {text or ''}")

    def get_prompt(self):
        return " ".join(self.messages)

default_conversation = Talk()
"""


def talking(*modes: str) -> str:
    """A module with conversations by these names, each of which writes its own."""
    text = TALK + "conv_templates = {}\n"
    for mode in modes:
        text += f"class {mode}(Talk):\n    roles = ({mode!r}, 'A')\n"
        text += f"    def copy(self): return {mode}()\nconv_templates[{mode!r}] = {mode}()\n"
    return text


def test_the_turn_is_the_nearest_package_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation that fails, or that writes the turn twice, tells nothing."""
    monkeypatch.syspath_prepend(tmp_path)
    model = nn.Linear(2, 2)
    monkeypatch.setattr(nn.Linear, "__module__", "talking.inner.model")
    assert turn_of(model) == ("", "")
    write(tmp_path / "talking/conversation.py", TALK)
    told = "default_conversation of talking.conversation"
    write(tmp_path / "talking/inner/model.py", "")
    assert turn_of(model) == ("Q: {images}{prompt} A: ", told)
    twice = TALK.replace("self.messages)", "self.messages * 2)")
    write(tmp_path / "talking/inner/util/conversation.py", twice)
    write(tmp_path / "talking/inner/conversation.py", "raise KeyError('of its own')")
    sys.path_importer_cache.clear()
    assert turn_of(model) == ("Q: {images}{prompt} A: ", told)
    write(tmp_path / "talking/inner/conversation.py", TALK.replace('"Q"', '"Asked"'))
    sys.modules.pop("talking.inner.conversation", None)
    assert turn_of(model)[0] == "Asked: {images}{prompt} A: "
    # A class of another package, derived from this one's (FoodLMM).
    derived = type("Derived", (nn.Linear,), {"__module__": "derived_from.model"})
    assert turn_of(derived(2, 2))[0] == "Asked: {images}{prompt} A: "


def test_the_turn_is_the_one_that_most_scripts_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default of a package is often that of the model it was made from."""
    monkeypatch.syspath_prepend(tmp_path)
    model = nn.Linear(2, 2)
    monkeypatch.setattr(nn.Linear, "__module__", "evaluating.model")
    write(tmp_path / "evaluating/conversation.py", talking("older", "v1", "v2"))
    default = "Q: {images}{prompt} A: ", "default_conversation of evaluating.conversation"
    assert turn_of(model) == default
    ask = 'parser.add_argument("--conv-mode", type=str, default="{}")'
    write(tmp_path / "evaluating/eval/vqa.py", ask.format("v1"))
    write(tmp_path / "evaluating/eval/more.py", ask.format("of_no_module") * 2)
    told = "'v1', as its scripts ask for it, of evaluating.conversation"
    assert turn_of(model) == ("v1: {images}{prompt} A: ", told)
    write(tmp_path / "scripts/older.sh", "python -m eval.vqa --conv-mode older\n" * 5)
    for name in ("a", "b"):  # of files, and not of lines
        write(tmp_path / f"scripts/{name}.sh", "python -m eval.vqa \\\n  --conv-mode=v2")
    assert turn_of(model)[0] == "v2: {images}{prompt} A: "
    for name in ("c", "d", "e"):  # as an evaluation of others is told it
        asks = "CONV_TEMPLATE=v1; lmms_eval --model_args conv_template=$CONV_TEMPLATE"
        asks = 'lmms_eval --model_args conv_template=${2:-"v1"}' if name == "c" else asks
        write(tmp_path / f"docs/{name}.md", asks)
    assert turn_of(model)[0] == "v1: {images}{prompt} A: "


def test_the_turn_is_that_of_training_where_no_script_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    model = nn.Linear(2, 2)
    monkeypatch.setattr(nn.Linear, "__module__", "training_alone.model")
    write(tmp_path / "training_alone/conversation.py", talking("v3"))
    asked = "train.py --version plain" * 2 + "; train.py \\\n --version v3"
    write(tmp_path / "scripts/train.sh", asked)
    assert turn_of(model)[0] == "v3: {images}{prompt} A: "


def test_the_turn_is_that_of_the_language_model_of_a_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository has several, and its scripts ask most often for one of them."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(nn.Linear, "__module__", "of_several.model")
    kinds = {name: type(name, (nn.Linear,), {}) for name in ("LlavaPhi", "LlavaQwen", "LlavaMpt")}
    for kind in kinds.values():
        kind.__module__ = "of_several.model"
    modes = ("v1", "phi3_instruct", "qwen_1_5", "qwen_2")
    write(tmp_path / "of_several/conversation.py", talking(*modes))
    write(tmp_path / "scripts/a.sh", "cli.py --conv-mode v1")
    write(tmp_path / "scripts/b.sh", "cli.py --conv-mode v1; cli.py --conv-mode qwen_2")
    asked = {name: turn_of(kind(2, 2))[0].partition(":")[0] for name, kind in kinds.items()}
    assert asked == {"LlavaPhi": "phi3_instruct", "LlavaQwen": "qwen_2", "LlavaMpt": "v1"}


def test_scripts_of_a_repository_around_several_packages_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path / "half")
    model = nn.Linear(2, 2)
    monkeypatch.setattr(nn.Linear, "__module__", "of_a_half.model")
    write(tmp_path / "half/of_a_half/conversation.py", talking("v4"))
    write(tmp_path / "PAGE.md", 'lmms_eval --model_args conv_template="v4"')
    assert turn_of(model)[0] == "Q: {images}{prompt} A: "
    write(tmp_path / "README.md", "Of two halves.")
    assert turn_of(model)[0] == "v4: {images}{prompt} A: "


@pytest.mark.parametrize(
    ("takes", "count"), [("a, b, c, d=1", 3), ("a, b", 2), ("a", 0), ("*a", 0), ("a, b, c, d", 0)]
)
def test_pixels_are_made_by_a_function_of_llava_s_kin(
    takes: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVEv2's takes no config."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cutting", raising=False)
    monkeypatch.delitem(sys.modules, "cutting.util", raising=False)
    monkeypatch.delitem(sys.modules, "cutting.util.mm_utils", raising=False)
    write(tmp_path / "cutting/util/mm_utils.py", f"def process_images({takes}):\n    pass\n")
    model = nn.Linear(2, 2)
    monkeypatch.setattr(nn.Linear, "__module__", "cutting.inner.model")
    assert makes_pixels(model) == ("", 0)
    monkeypatch.setattr(nn.Linear, "get_vision_tower", None, raising=False)
    assert makes_pixels(model) == (("cutting.util.mm_utils", count) if count else ("", 0))


@pytest.mark.parametrize("named", [["a\nprint()"], [{"b": "\nprint()"}], "Planted", [], None])
def test_what_a_stranger_calls_a_class_is_no_code(named: object) -> None:
    text = setup_text({"architectures": named, "model_type": "of\nprint()"})
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    assert [type(line) for line in function.body] == [ast.Raise]


def test_the_config_of_a_class_is_that_of_the_type_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spatial-MLLM's class inherits that of another type, and its own stands beside it."""
    monkeypatch.syspath_prepend(tmp_path)
    code = """
class OtherConfig:
    model_type = "other"

    def __init__(self): ...

class SpatialConfig(OtherConfig):
    sub_configs = {}
    model_type = "spatial-one"

class NAMED:
    config_class = OtherConfig
"""
    write(tmp_path / "of_types/modeling.py", code.replace("NAMED", "SpatialForAll"))
    settings = {"model_type": "spatial-one", "architectures": ["SpatialForAll"]}
    told = "    config = code.SpatialForAll.config_class = code.SpatialConfig\n"
    assert told in setup_text(settings)
    told = "    config = code.SpatialForAll.config_class\n"
    assert told in setup_text({**settings, "model_type": "spatial"})
