"""What the package that holds a model's code tells of its inputs, and ``setup`` that imports it.

Code that no checkpoint brings lies in a package: its class is looked for on the path, by the text
of files alone. Once it is imported, the package says how its authors talk, cut pictures, and load
a vision encoder later.
"""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import distributions
from inspect import signature
from pathlib import Path
from typing import Any

import transformers
from torch import nn
from transformers import ProcessorMixin
from transformers.utils.hub import HF_MODULES_CACHE

import normprobe
from normprobe.failures import installed_from
from normprobe.inputs.inputs_file import GUESS
from normprobe.model.model_kind import auto_class
from normprobe.runs.model_source import CheckpointSource

UNPREPARED = """
def prepare(model, processor):
    pass  # a guess; what its code loads later, such as model.get_vision_tower().load_model()

"""
PREPARED_LATER = """
def prepare(model, processor):
    for part in [*model.modules()]:  # a guess: all that its code loads later
        if getattr(part, "is_loaded", True) is False:
            part.load_model()

"""

#: Folders and files of one place that are looked through at most, and how large a file may be.
_LOOKED_THROUGH, _BYTES = 20_000, 1_000_000

#: Folders that hold no module that is imported by its own name.
_OTHER_FOLDERS = re.compile(r"\.|__pycache__$|build$|dist$|node_modules$|site-packages$")

#: What a file imports from, by its last name.
_IMPORTED = re.compile(r"^[ \t]*(?:from|import)[ \t]+(?:[\w.]*\.)?(\w+)", re.MULTILINE)

#: How scripts and pages name a conversation of the package, by how files end: as one that answers
#: is called, a default of one, and what a model is trained with.
_CALLED = r"(?:--conv[-_]mode|\bconv_(?:template|mode))[ =]+(?:\$\{\w+:-)?[\"']?(\w+)"
_MODES = (
    ((".sh", ".md"), re.compile(_CALLED, re.IGNORECASE)),
    ((".py",), re.compile(r"[\"']--conv[-_]mode[\"'][^)]*\bdefault=[\"'](\w+)")),
    ((".sh", ".md"), re.compile(r"--version[ =]+[\"']?(?!plain\b)(\w+)")),  # of captions, before it
)

#: Language models by which classes and conversations are called; LLaVA's kin is of Llama anyway.
_LANGUAGE_MODELS = re.compile(r"phi|qwen|mistral|gemma|stablelm|internlm|mpt|minicpm|cohere")

#: What makes a class one that an auto class offers; a file beside that of the class may do so.
_REGISTERS = re.compile(r"\bAutoModel\w*\.register\(")

#: Where classes come from that are no package's of a model.
_LIBRARIES = {"builtins", "torch", "transformers", "transformers_modules"}


def setup_text(settings: Mapping[str, Any]) -> str:
    """A ``setup`` that imports the class that a config names, where a package has it."""
    its_class = _class_of(settings)
    if hasattr(transformers, its_class):  # an adapter's config names that of its base
        what = f"import the module of the class for the type {settings.get('model_type')} here"
    elif found := modules_of(settings):
        file = next(iter(found.values()))
        around = (*file.parent.glob("*.py"), *file.parent.parent.glob("*.py"))
        if any(_REGISTERS.search(_read(each)) for each in around):
            return f"\ndef setup():\n    {_importing([*found], its_class)}\n\n"
        return f"""
def setup():
    {_importing([*found], its_class, " as code")}
    from transformers import AutoConfig, AutoModelForCausalLM

    config = {_config_of(next(iter(found.values())), its_class, settings)}
    AutoConfig.register(config.model_type, config, exist_ok=True)
    AutoModelForCausalLM.register(config, code.{its_class}, exist_ok=True)

"""
    else:
        what = f"import the module of {its_class or settings.get('model_type')} here"
    return f"\ndef setup():\n    raise ImportError({what!r})  # {GUESS}\n\n"


def _config_of(file: Path, its_class: str, settings: Mapping[str, Any]) -> str:
    """The config of a class, as code of ``setup``: the module's of that type, if it has one.

    A class may inherit that of another type, and say its own nowhere (Spatial-MLLM).
    """
    told = f"code.{its_class}.config_class"
    of_type = re.escape(f"{settings.get('model_type')}")
    defined = re.compile(
        rf"^class (\w+)\(.*\):(?:\n(?:[ \t].*)?)*?\n[ \t]+model_type\b.*= *[\"']{of_type}[\"']",
        re.MULTILINE,
    )
    own = defined.search(_read(file))
    return f"{told} = code.{own[1]}" if own else told


def registering_text(settings: Mapping[str, Any], source: CheckpointSource) -> str:
    """A ``setup`` for a class of a package whose type transformers has; "" for any other.

    Put out of use where transformers has a class of that name: either may be meant (Vamba).
    """
    its_class, checkpoint = _class_of(settings), source.checkpoint
    native = type(checkpoint.config).__module__.startswith("transformers.")
    if "auto_map" in settings or not native or not (found := modules_of(settings)):
        return ""
    offers = auto_class(checkpoint.kind, checkpoint.config).__name__
    lines = [
        "def setup():",
        f"    {_importing([*found], its_class, ' as code')}",
        f"    from transformers import {offers}",
        "",
        f"    {offers}.register(code.{its_class}.config_class, code.{its_class}, exist_ok=True)",
    ]
    if hasattr(transformers, its_class):
        told = f"{GUESS} that transformers' own {its_class} is meant, and not the package's"
        lines = [f"# {line}".rstrip() for line in (told, *lines)]
    return "\n" + "\n".join(lines) + "\n\n"


def _importing(found: Sequence[str], its_class: str, called: str = "") -> str:
    """The line that imports the likeliest module of a class."""
    more = f"; it is in {', '.join(found[1:4])}, too" * (len(found) > 1)
    return f"import {found[0]}{called}  # {GUESS}: {its_class} is there{more}"


def _class_of(settings: Mapping[str, Any]) -> str:
    """The class that a config names; empty where it names none: a stranger may write anything."""
    named = settings.get("architectures")
    names = named if isinstance(named, list) else []
    return next((n for n in names if isinstance(n, str) and n.isidentifier()), "")


def modules_of(settings: Mapping[str, Any]) -> dict[str, Path]:
    """Where the class is that a config names, as modules to import, the likeliest first.

    That is one which names the type of the config, and which most files import it from
    (EmbodiedGPT has older copies beside it). Looked through are the folders of ``sys.path`` outside
    of Python's own, then the packages that say that they need transformers. Nothing is imported.
    """
    if not (name := _class_of(settings)):
        return {}
    defines = re.compile(rf"^class {name}\b", re.MULTILINE)
    of_type = f"{settings.get('model_type')}"
    for files in (_on_path(), _of_packages()):
        found: dict[str, tuple[bool, int, Path]] = {}
        imported = Counter[str]()
        for root, file in files:
            parts, text = file.relative_to(root).with_suffix("").parts, _read(file)
            imported.update(set(_IMPORTED.findall(text)) if name in text else ())
            if all(part.isidentifier() for part in parts) and defines.search(text):
                module = ".".join(parts).removesuffix(".__init__")
                found.setdefault(module, (f'"{of_type}"' not in text, len(parts), file))
        if found:
            often = {module: imported[module.rpartition(".")[2]] for module in found}
            order = sorted(found, key=lambda m: (found[m][0], -often[m], found[m][1]))
            return {module: found[module][2] for module in order}
    return {}


def _on_path() -> Iterator[tuple[Path, Path]]:
    """Files of code below the folders of ``sys.path`` that are neither Python's nor normprobe's."""
    # Nor those of other checkpoints.
    others = [Path(each).resolve() for each in (sys.prefix, sys.base_prefix, HF_MODULES_CACHE)]
    for entry in dict.fromkeys(sys.path):
        root = Path(entry).resolve()
        if root.is_dir() and not any(root.is_relative_to(other) for other in others):
            yield from _code_below(root)


def _of_packages() -> Iterator[tuple[Path, Path]]:
    """Files of code of installed packages that need transformers; of one in place, its folder's."""
    for package in distributions():
        needs = [re.match(r"[\w.-]+", each) for each in package.requires or ()]
        if package.name == "normprobe" or "transformers" not in {n[0] for n in needs if n}:
            continue
        for listed in package.files or ():
            if listed.suffix == ".py":
                yield Path(str(package.locate_file(""))), Path(str(package.locate_file(listed)))
        if folder := installed_from(package):
            yield from _code_below(Path(folder))


def _code_below(root: Path, endings: tuple[str, ...] = (".py",)) -> Iterator[tuple[Path, Path]]:
    """The files of code in a folder and those inside, up to a number of folders and files."""
    own, count = Path(normprobe.__file__).resolve().parent, 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if not _OTHER_FOLDERS.match(f))
        folders[:] = [f for f in folders if Path(folder, f) != own]
        code = sorted(file for file in files if file.lower().endswith(endings))
        yield from ((root, Path(folder, file)) for file in code)
        count += 1 + len(code)
        if count > _LOOKED_THROUGH:
            return


def _read(file: Path) -> str:
    with suppress(OSError):
        if file.stat().st_size < _BYTES:
            return file.read_text(encoding="utf-8", errors="ignore")
    return ""


def loads_later(model: nn.Module) -> bool:
    """Whether a part of the model says that its weights are loaded once it is made (LLaVA)."""
    parts = [part for part in model.modules() if hasattr(part, "load_model")]
    return any(getattr(part, "is_loaded", None) is False for part in parts)


def turn_of(model: nn.Module) -> tuple[str, str]:
    """How the authors' code writes a turn, and what says so, in words.

    It is the conversation that most scripts around the package ask for, as by ``--conv-mode``, or
    else its default. The text has ``{images}`` and ``{prompt}`` in it; empty where no package has
    such a module.
    """
    names = [*_modules_named("conversation", model), *_modules_named("conversation_lib", model)]
    for name in names:
        with suppress(Exception):  # code of anyone
            module = import_module(name)
            mode, asked = _asked_mode(module, type(model).__name__)
            talk = (module.conv_templates[mode] if mode else module.default_conversation).copy()
            why = "as its scripts ask for it" if asked else "named as its language model is"
            told = f"{mode!r}, {why}, of" if mode else "default_conversation of"
            talk.messages = []
            talk.append_message(talk.roles[0], "{images}{prompt}")
            talk.append_message(talk.roles[1], None)
            text = talk.get_prompt()
            if text.count("{images}{prompt}") == 1:
                return text, f"{told} {name}"
    return "", ""


def _asked_mode(module: Any, class_name: str) -> tuple[str, bool]:
    """The conversation of ``conv_templates`` that most scripts of a repository ask for; "" if none.

    And whether one does: else it has the name of the language model alone.

    How a released model is called comes first: defaults of arguments are often older. But each of
    several language models in one repository has its own (RAP, Med-MoE).
    """
    modes = getattr(module, "conv_templates", {})
    depth = module.__name__.count(".")
    root = Path(module.__file__).resolve().parents[depth]
    if root.name == "site-packages":
        root = Path(module.__file__).resolve().parents[depth - 1]
    elif any((root.parent / each).exists() for each in (".git", "README.md")):
        root = root.parent  # a repository of several packages (TokenFlow)
    asked = [Counter[str]() for _ in _MODES]
    for _, file in _code_below(root, (".sh", ".md", ".py")):
        text, ending = _read(file), file.suffix.lower()
        for counts, (endings, pattern) in zip(asked, _MODES, strict=True):
            counts.update(set(pattern.findall(text)) if ending in endings else ())
    often = [mode for counts in asked for mode, _ in counts.most_common() if mode in modes]
    said = {*often}
    for name in _LANGUAGE_MODELS.findall(class_name.lower()):
        alone = [mode for mode in modes if name in mode]
        of_it = [mode for mode in often if name in mode] or alone[: len(alone) == 1]
        often = of_it + often
    mode = next(iter(often), "")
    return mode, mode in said


def processors_of(model: nn.Module) -> list[type[ProcessorMixin]]:
    """Processors that the package of a model's code defines, those beside its class first.

    No file of a checkpoint need name one (Hulu-Med, UForm-Gen).
    """
    name = type(model).__module__
    package = name.rpartition(".")[0]
    if not package or name.split(".")[0] in ("torch", "transformers"):
        return []
    file = getattr(sys.modules[name], "__file__", None) or ""
    for beside in sorted(Path(file).parent.glob("*process*.py")):
        with suppress(Exception):  # code of anyone
            import_module(f"{package}.{beside.stem}")
    held = [module for each, module in sys.modules.items() if each.startswith(f"{package}.")]
    found = [
        each
        for module in (sys.modules[name], *held)
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, ProcessorMixin)
    ]
    return [each for each in dict.fromkeys(found) if each.__module__.startswith(f"{package}.")]


def loading_text(processor: type[ProcessorMixin], placeholder: str) -> str:
    """A ``load_processor`` that loads this class, of a package or of the checkpoint itself.

    ``placeholder``: the word that stands for a picture, where the class writes none; or "".
    """
    module, name = processor.__module__, processor.__name__
    told = f"from {module} import {name} as own  # {GUESS}"
    if module.startswith("transformers_modules."):  # its folder is named by what is in it
        place = f"{module.rpartition('.')[2]}.{name}"
        told = "from transformers.dynamic_module_utils import get_class_from_dynamic_module\n\n"
        told += f"    own = get_class_from_dynamic_module({place!r}, path)  # {GUESS}"
    loads = "return own.from_pretrained(path)"
    if placeholder:
        loads = (
            "processor = own.from_pretrained(path)\n    "
            f"processor.image_token = {placeholder!r}  # {GUESS}: of the config's id of a picture\n"
            "    return processor"
        )
    return f"\ndef load_processor(path):\n    {told}\n    {loads}\n\n"


def makes_pixels(model: nn.Module) -> tuple[str, int]:
    """The module of the model's package with LLaVA's ``process_images``; how many arguments it has.

    It pads pictures, resizes them or cuts them into tiles, as config and authors have it.
    """
    for name in _modules_named("mm_utils", model) if hasattr(model, "get_vision_tower") else ():
        with suppress(ImportError, AttributeError):
            makes = signature(import_module(name).process_images).parameters.values()
            needed = [
                p for p in makes if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
            ]
            if len(needed) in (2, 3):
                return name, len(needed)
    return "", 0


def _modules_named(name: str, model: nn.Module) -> list[str]:
    """Where a package may keep such a module: beside its classes' own, or further out."""
    places = [kind.__module__.split(".") for kind in type(model).__mro__]
    around = [
        ".".join(place[:length])
        for place in places
        if place[0] not in _LIBRARIES
        for length in range(len(place) - 1, 0, -1)
    ]
    return [
        f"{each}{inner}.{name}"
        for each in dict.fromkeys(around)
        for inner in ("", ".util", ".utils")
    ]
