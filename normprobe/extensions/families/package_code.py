"""What the package that holds a model's code tells of its inputs, and ``setup`` that imports it.

Code that no checkpoint brings lies in a package: its class is looked for on the path, by the text
of files alone. Once it is imported, the package says how its authors talk, cut pictures, and load
a vision encoder later.
"""

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.metadata import distributions
from inspect import signature
from pathlib import Path
from typing import Any

import transformers
from torch import nn
from transformers.utils.hub import HF_MODULES_CACHE

import normprobe
from normprobe.model.checkpoint import auto_class
from normprobe.runs.model_source import CheckpointSource

#: In each line of an inputs file that nothing told.
GUESS = "a guess"

_SETUP = """
def setup():
    {what}  # a guess{others}

"""
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

#: Files that are looked through at most, and how large one of code may be.
_FILES, _BYTES = 20_000, 1_000_000

#: Folders that hold no module that is imported by its own name.
_OTHER_FOLDERS = re.compile(r"\.|__pycache__$|build$|dist$|node_modules$|site-packages$")

#: What a file imports from, by its last name.
_IMPORTED = re.compile(r"^[ \t]*(?:from|import)[ \t]+(?:[\w.]*\.)?(\w+)", re.MULTILINE)

#: Where classes come from that are no package's of a model.
_LIBRARIES = {"builtins", "torch", "transformers", "transformers_modules"}


def setup_text(settings: Mapping[str, Any]) -> str:
    """A ``setup`` that imports the class that a config names, where a package has it."""
    its_class = (settings.get("architectures") or [settings.get("model_type")])[0]
    if hasattr(transformers, str(its_class)):  # an adapter's config names that of its base
        its_class, found = f"the class for the type {settings.get('model_type')}", []
    else:
        found = modules_of(settings)
    if not found:
        what = f"import the module of {its_class} here"
        return _SETUP.format(what=f"raise ImportError({what!r})", others="")
    more = f"; it is in {', '.join(found[1:4])}, too" * (len(found) > 1)
    return _SETUP.format(what=f"import {found[0]}", others=f": {its_class} is there{more}")


def registering_text(settings: Mapping[str, Any], source: CheckpointSource) -> str:
    """A ``setup`` for a class of a package whose type transformers has; "" for any other.

    Put out of use where transformers has a class of that name: either may be meant (Vamba).
    """
    its_class, model_type = (settings.get("architectures") or [""])[0], settings.get("model_type")
    reader = type(source.checkpoint.config).__module__
    if "auto_map" in settings or not reader.startswith("transformers."):
        return ""
    if not (found := modules_of(settings)):
        return ""
    offers = auto_class(source.checkpoint.kind, source.checkpoint.config).__name__
    more = f"; it is in {', '.join(found[1:4])}, too" * (len(found) > 1)
    lines = [
        "def setup():",
        f"    import {found[0]} as code  # {GUESS}: {its_class} is there{more}",
        f"    from transformers import {offers}  # which makes its own of the type {model_type}",
        "",
        f"    {offers}.register(code.{its_class}.config_class, code.{its_class}, exist_ok=True)",
    ]
    if hasattr(transformers, its_class):
        told = f"{GUESS} that transformers' own {its_class} is meant, and not the package's"
        lines = [f"# {line}".rstrip() for line in (told, *lines)]
    return "\n" + "\n".join(lines) + "\n\n"


def modules_of(settings: Mapping[str, Any]) -> list[str]:
    """Where the class is that a config names, as modules to import, the likeliest first.

    That is one which names the type of the config, and which most files import it from
    (EmbodiedGPT has older copies beside it). Looked through are the folders of ``sys.path`` outside
    of Python's own, then the packages that say that they need transformers. Nothing is imported.
    """
    name = next((n for n in settings.get("architectures") or () if isinstance(n, str)), "")
    if not name.isidentifier():
        return []
    defines = re.compile(rf"^class {name}\b", re.MULTILINE)
    of_type = f"{settings.get('model_type')}"
    for files in (_on_path(), _of_packages()):
        found: dict[str, tuple[bool, int]] = {}
        imported = Counter[str]()
        for root, file in files:
            parts, text = file.relative_to(root).with_suffix("").parts, _read(file)
            imported.update(set(_IMPORTED.findall(text)) if name in text else ())
            if all(part.isidentifier() for part in parts) and defines.search(text):
                module = ".".join(parts).removesuffix(".__init__")
                found.setdefault(module, (f'"{of_type}"' not in text, len(parts)))
        if found:
            often = {module: imported[module.rpartition(".")[2]] for module in found}
            return sorted(found, key=lambda m: (found[m][0], -often[m], found[m][1]))
    return []


def _on_path() -> Iterator[tuple[Path, Path]]:
    """Files of code below the folders of ``sys.path`` that are neither Python's nor normprobe's."""
    pythons = [Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)]
    own, count = Path(normprobe.__file__).resolve().parent, 0
    others = [*pythons, Path(HF_MODULES_CACHE).resolve()]  # code of other checkpoints
    for entry in dict.fromkeys(sys.path):
        root = Path(entry).resolve()
        if not root.is_dir() or any(root.is_relative_to(other) for other in others):
            continue
        for folder, folders, files in os.walk(root):
            folders[:] = sorted(f for f in folders if not _OTHER_FOLDERS.match(f))
            folders[:] = [f for f in folders if Path(folder, f) != own]
            for file in sorted(files):
                if file.endswith(".py"):
                    yield root, Path(folder, file)
                    count += 1
            if count > _FILES:
                return


def _of_packages() -> Iterator[tuple[Path, Path]]:
    """Files of code of installed packages that need transformers; of one in place, its folder's."""
    for package in distributions():
        needs = [re.match(r"[\w.-]+", each) for each in package.requires or ()]
        if package.name == "normprobe" or "transformers" not in {n[0] for n in needs if n}:
            continue
        for listed in package.files or ():
            if listed.suffix == ".py":
                yield Path(str(package.locate_file(""))), Path(str(package.locate_file(listed)))
        with suppress(ValueError, TypeError, KeyError):
            root = Path(json.loads(package.read_text("direct_url.json") or "")["url"][7:])
            yield from ((root, file) for file in sorted(root.rglob("*.py")))


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
    """How the authors' code writes a turn by default, and the module that says so.

    The text has ``{images}`` and ``{prompt}`` in it; empty where no package has such a module.
    """
    names = [*_modules_named("conversation", model), *_modules_named("conversation_lib", model)]
    for name in names:
        with suppress(Exception):  # code of anyone
            talk = import_module(name).default_conversation.copy()
            talk.messages = []
            talk.append_message(talk.roles[0], "{images}{prompt}")
            talk.append_message(talk.roles[1], None)
            text = talk.get_prompt()
            if text.count("{images}{prompt}") == 1:
                return text, name
    return "", ""


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
    return [f"{each}{inner}.{name}" for each in dict.fromkeys(around) for inner in ("", ".util")]
