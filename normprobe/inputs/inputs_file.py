"""An inputs file: Python that says how one family of models takes its inputs.

The package's own families are such files (``families``), and ``--inputs FILE.py`` names one of the
user's. All of its names are optional::

    def setup(): ...
        # before the config is read: imports that register the classes of the model

    def load_processor(path): ...
        # what makes inputs, in place of AutoProcessor; path: a local folder with its files

    def prepare(model, processor): ...
        # once, when the model is loaded: what its README sets by hand; it may return a list of
        # words for what it changed, which are logged and stand in run.json

    def forward(model, **inputs): ...
        # whatever makes the layers run, in place of model(**inputs)

    def build(model, processor, samples, system): ...
        # samples to one batch: a mapping of what the model takes; values may be nested

    parts = {"projector": "mlp1", "image_token_ids": (7,)}
        # names of modules, and what else ``model.find.overrides`` lists

    keywords = {"vision_tower": "openai/clip-vit-large-patch14"}
        # what the class takes beside its config: what a README passes to from_pretrained

What ``build`` returns may hold two masks, bool [batch, seq], which the model does not get, but the
first if its forward takes it by name: ``visual_mask``, the positions of an image, in the prompts or
in what enters the decoder; ``structural_mask``, those of them that hold a learned newline or
separator. It runs in forked processes, on the CPU.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError, first_line
from normprobe.registry import answers

BuildFunction = Callable[[Any, Any, Sequence[Sample], str | None], Mapping[str, Any]]

_FUNCTIONS = ("setup", "load_processor", "prepare", "forward", "build")
_NAMES = (*_FUNCTIONS, "parts", "keywords")

#: Marks what a file that was begun does not know.
GUESS = "a guess"
#: A line that makes inputs by one; what it imports is seen to be there.
_GUESSED = re.compile(rf"^(?!\s*(#|import |from |pass\b|stand_in)).*# .*\b{GUESS}\b")


#: What compiles functions that decorators mark.
_COMPILERS = ("triton", "numba")


_IMPORTS = (ast.Import, ast.ImportFrom)


def stand_in(package: str, *, tried: bool = True) -> None:
    """Let code import a package that is not installed, for ``setup`` of an inputs file.

    Args:
        package: such as ``xformers``; what code imports of it, from modules inside it too, is
            there, and raises ``NormprobeError`` once it is called. Attention of ``flash_attn`` is
            computed in plain PyTorch; kernels of ``triton`` and ``numba`` may be defined, not run.
        tried: also where code tries the import, and does without if that fails.
    """
    attends = package in ("flash_attn", "xformers", "triton")

    def called(*_: Any, **__: Any) -> Any:
        raise NormprobeError(
            f"the code of the model calls {package}, for which stand_in() put nothing",
            f"install {package}"
            + ", or say which attention runs: --attn-implementation eager" * attends,
        )

    def any_name(name: str) -> Any:
        if name.startswith("__") or (not tried and _is_tried()):
            raise AttributeError(name)
        if package == "flash_attn":
            from normprobe.remote_code_bridges import flash_attention

            return getattr(flash_attention, name, called)
        if package in _COMPILERS:
            return _Defined(called)
        return type(name, (), {"__new__": called})  # a class may derive from it (OpenVLA-OFT)

    class Finder(MetaPathFinder, Loader):
        def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
            del path, target
            inside = name == package or name.startswith(f"{package}.")
            inside = inside and (tried or not _is_tried())
            return ModuleSpec(name, self, is_package=True) if inside else None

        def exec_module(self, module: ModuleType) -> None:
            vars(module).update(__version__="0.0.0", __getattr__=any_name)

    if package == "triton":  # else torch takes it for triton, once code compiles (SDAR-VL)
        for room in ("_dynamo", "_inductor.runtime.triton_compat", "utils.flop_counter"):
            with suppress(ImportError):
                import_module(f"torch.{room}")
    if find_spec(package) is None:
        sys.meta_path.append(Finder())


def _is_tried() -> bool:
    """Whether an import that is running is one of a block that does without where it fails."""
    frame = sys._getframe(1)
    while frame := frame.f_back:  # type: ignore[assignment]  # None: the outermost
        text = "".join(linecache.getlines(frame.f_code.co_filename))
        tree = ast.Module([], [])
        with suppress(SyntaxError):  # a notebook
            tree = ast.parse(text) if "try:" in text else tree
        for block in ast.walk(tree):
            if (
                isinstance(block, ast.Try)
                and any(_imports_at(frame.f_lineno, each) for each in block.body)
                and all(isinstance(each, (*_IMPORTS, ast.Assign)) for each in block.body)
                and not any(isinstance(e, ast.Raise) for h in block.handlers for e in ast.walk(h))
            ):
                return True
    return False


def _imports_at(line: int, each: ast.stmt) -> bool:
    return isinstance(each, _IMPORTS) and each.lineno <= line <= (each.end_lineno or 0)


class _Defined:
    """What defines a kernel by decorators, and the kernel, which refuses to run."""

    def __init__(self, refuse: Callable[[], Any]) -> None:
        self._refuse = refuse

    def __call__(self, *given: Any, **named: Any) -> _Defined:
        """Decorate, or take settings of a kernel."""
        values = (each for each in (*given, *named.values()) if not isinstance(each, _Defined))
        if any(hasattr(each, "shape") for each in values):
            self._refuse()
        return self

    def __getitem__(self, grid: Any) -> Any:
        return self._refuse()

    def __getattr__(self, name: str) -> _Defined:
        """What else defines: ``@cuda.jit`` of numba."""
        if name.startswith("__"):
            raise AttributeError(name)
        return self


@dataclass(frozen=True)
class InputsFile:
    """What an inputs file holds; each function is None where the file has none.

    Attributes:
        setup: see above, like the five that follow.
        load_processor: likewise.
        prepare: likewise.
        forward: likewise.
        build: likewise.
        parts: likewise.
        keywords: likewise.
        record: what ``run.json`` says of it: path and SHA-256 of a user's file, the family of one
            of the package's own.
        guesses: lines of a user's file that still say that they are guesses.
    """

    setup: Callable[[], None] | None = None
    load_processor: Callable[[str], Any] | None = None
    prepare: Callable[[Any, Any], Sequence[str] | None] | None = None
    forward: Callable[..., Any] | None = None
    build: BuildFunction | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)
    keywords: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, str] = field(default_factory=dict)
    guesses: Sequence[int] = field(default=(), compare=False)

    @property
    def names(self) -> str:
        """Whose they are, for a message: the family, the path of a user's file, or both."""
        named = [text for key, text in self.record.items() if key != "sha256"]
        return " and ".join(named) or "its family"

    def over(self, other: InputsFile) -> InputsFile:
        """This file, and the functions of another one that this one does not have.

        ``prepare`` of both: what the other's ``build`` needs goes first.
        """
        functions = {name: getattr(self, name) or getattr(other, name) for name in _FUNCTIONS}
        first, then = other.prepare, self.prepare
        if first is not None and then is not None:

            def prepare(model: Any, processor: Any) -> list[str]:
                changed = [*(first(model, processor) or ())]
                return [*changed, *(then(model, processor) or ())]

            functions["prepare"] = prepare
        return replace(self, record={**other.record, **self.record}, **functions)


NO_INPUTS_FILE = InputsFile()


def family_file(config: Any) -> InputsFile:
    """What extensions know of the inputs of a model, by its config."""
    known = answers(lambda extension: extension.inputs_file(config))
    return next((file for _, file in known if file is not None), NO_INPUTS_FILE)


def read_inputs_file(path: str | Path) -> InputsFile:
    """Run a user's inputs file."""
    path = Path(path)
    try:
        content = path.read_bytes()
        spec = spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise ImportError("expected the name of a Python file, *.py")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's code raises
        raise NormprobeError(
            f"--inputs: {path} cannot be used: {first_line(error)}",
            "pass a Python file with some of: " + ", ".join(_NAMES),
        ) from error
    found = inputs_file_of(module)
    if found == NO_INPUTS_FILE:
        raise NormprobeError(
            f"--inputs: {path} defines none of the names that are looked for",
            "define some of: " + ", ".join(_NAMES),
        )
    for name, value in found.keywords.items():
        if hasattr(value, "named_parameters") or hasattr(value, "is_meta"):  # a module, a tensor
            raise NormprobeError(
                f"--inputs: keywords of {path} hold a {type(value).__name__} as {name}: all builds "
                "of the model would share it",
                "leave it to its class, or put it in its place in prepare(model, processor)",
            )
    record = {"path": str(path), "sha256": sha256(content).hexdigest()}
    lines = content.decode(errors="ignore").splitlines()
    guesses = [number for number, line in enumerate(lines, 1) if _GUESSED.search(line)]
    return replace(found, record=record, guesses=guesses)


def inputs_file_of(module: ModuleType) -> InputsFile:
    """What a module says of the inputs of a family."""
    functions: dict[str, Any] = {name: getattr(module, name, None) for name in _FUNCTIONS}
    said: dict[str, Any] = {name: getattr(module, name, {}) for name in ("parts", "keywords")}
    return InputsFile(**functions, **said)
