"""A script that asks a model about a picture, run as far as the first decoder layer.

Where code of a model comes with a script that works, that is the truth about it: how it is loaded,
what its prompt is, how its pixels are made. The script runs in this process, as ``python`` would
run it, and ends where its answer begins.
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import (
    contextmanager,
    redirect_stdout,
)
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import starmap
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch
import transformers
from PIL import Image
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from transformers import (
    PretrainedConfig,
    PreTrainedTokenizerBase,
)

from normprobe.errors import NormprobeError, first_line
from normprobe.extensions.families.script_calls import (
    CallOfModel,
    call_of,
    decoder_layers_in,
    is_state,
    models_in,
    shows_pixels,
    with_caches_kept,
    with_what_it_changes,
)
from normprobe.extensions.families.script_machine import (
    OnThisMachine,
    of_one_beam,
    on_this_machine,
    without_inference_mode,
)
from normprobe.failures import install, last_line_of, missing_packages, other_package, other_version
from normprobe.model.tracing.recording import tensors
from normprobe.remote_code_bridges import foreign_code

#: Files whose calls show nothing: those of torch, of here, and what Python brings itself.
_LEFT_OUT = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<frozen")

#: Where functions run for each module, as it is made.
_OF_TRANSFORMERS = str(Path(transformers.__file__).parent)

#: Characters of a message, at its beginning and end.
_SAID = 100

#: What opens a picture.
OPENS = Image.open.__code__

#: Prompts without a picture that are passed over until one has one.
_IN_VAIN = 16

#: Calls that have ended, of which it is known what they returned.
_KEPT = 8


@dataclass(frozen=True)
class Caught:
    """What was running when the first decoder layer was reached.

    Attributes:
        calls: from the outside in; the last one is that of the layer, or of what is inside of it.
        layers: all decoder layers.
        state: what the layer was given, ``[batch, seq, hidden]``.
        ended: calls that had ended before, the outermost that returned states, and these.
        opened: whether the script had opened a picture.
        precision: by the kind of device, the dtype of an autocast that was on.
    """

    calls: Sequence[CallOfModel]
    layers: Sequence[nn.Module]
    state: Tensor | None
    ended: Sequence[tuple[CallOfModel, Any]]
    opened: bool
    precision: Mapping[str, torch.dtype]


@dataclass(frozen=True)
class Ran:
    """A script that has run.

    Attributes:
        asked: what was running, each time that its model began to answer.
        tokenizers: that were used.
        script: its module, which holds what it made.
    """

    asked: Sequence[Caught]
    tokenizers: Sequence[PreTrainedTokenizerBase]
    script: ModuleType


class _Reached(SystemExit):  # scripts pass over any Exception; a thread ends by this silently
    """Ends a script: its model begins to answer, for the last time that is wanted."""


class _Watch:
    """Follows functions that are given models, until one of a decoder layer, so many times.

    The profiler of Python sees each call with its arguments, before a line of it has run.
    """

    def __init__(self, times: int, layers: str) -> None:
        self._shown_to: list[Caught] = []
        self.tokenizers = dict[int, PreTrainedTokenizerBase]()
        self._times, self._named = times, layers
        self.failed = ""  # the last module that did
        self._answering: FrameType | None = None  # the outermost call, once it is caught
        self._running: dict[int, list[tuple[FrameType, CallOfModel, int]]] = {}
        self._ended: list[tuple[CallOfModel, Any]] = []
        self._passed = set[CodeType]()
        self._opened = False
        self._shown = False  # pixels, to a function, since the model was asked the last time
        self._unseen: list[Caught] = []  # asked without any
        self._layers = dict[int, tuple[nn.Module, Sequence[nn.Module], set[int]]]()

    def __call__(self, frame: FrameType, event: str, returned: Any) -> None:
        if self._answering is not None:
            if frame is self._answering and event == "return":
                self._answering = None
                self._running.clear()
            return
        if threading.get_ident() not in self._running:
            self._running[threading.get_ident()] = []
            here = threading.current_thread() is threading.main_thread()
            if not (here or torch.cuda.is_available()):
                OnThisMachine().__enter__()  # type: ignore[no-untyped-call]  # until it ends
        if event == "call":
            code = frame.f_code
            if code not in self._passed and len(self._shown_to) < self._times:
                self._see(frame, code)
        elif event == "return":
            running = self._running[threading.get_ident()]
            if running and running[-1][0] is frame:
                _, call, begun = running.pop()
                if any(map(is_state, tensors(returned))):  # what ended inside of it made that
                    self._ended[begun:] = [(with_what_it_changes(call), returned)]
                around = running[-1][2] if running else 0
                del self._ended[around : max(around, len(self._ended) - _KEPT)]

    def _see(self, frame: FrameType, code: CodeType) -> None:
        left_out = code.co_filename.startswith(_LEFT_OUT) or code.co_name.startswith("__")
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        self._opened |= code is OPENS
        if left_out or not names:
            self._passed.add(code)
            return
        held = frame.f_locals
        first = held.get(names[0])
        if isinstance(first, PreTrainedTokenizerBase):
            self.tokenizers[id(first)] = first
            return
        models = models_in([held.get(name) for name in names])
        if not models:
            self._passed.add(code)
            return
        running = self._running[threading.get_ident()]
        often = code.co_name == "forward" or code.co_name.startswith("_")
        keeps = code.co_name == "generate" or not (often or _OF_TRANSFORMERS in code.co_filename)
        call = call_of(held, code, models, keeps=keeps or not running)
        running.append((frame, call, len(self._ended)))
        self._shown |= any(starmap(shows_pixels, running[-1][1].named.items()))
        if code.co_name != "forward" or len(running) == 1:
            return
        if layers := self._layers_around(first, running[0][1]):
            calls = [with_what_it_changes(with_caches_kept(call)) for _, call, _ in running]
            kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
            precision = {kind: torch.get_autocast_dtype(kind) for kind in kinds}
            states = filter(is_state, tensors([*calls[-1].named.values(), *calls[-1].more]))
            state = next(states, None)
            kept = None if state is None else state.detach().clone()
            before = self._ended[: running[0][2]]
            caught = Caught(calls, layers, kept, before, self._opened, precision)
            (self._shown_to if self._shown else self._unseen).append(caught)
            self._shown = False
            if self._times in (len(self._shown_to), len(self._unseen) - _IN_VAIN):
                raise _Reached
            self._answering = running[0][0]

    def keep_failure(self, *_: Any) -> None:
        """What made a module fail, for a script may pass over it."""
        if (error := sys.exception()) is not None:
            said = first_line(error, most=_SAID)
            self.failed = f"{type(error).__name__}: {said}{last_line_of(error)}"

    @property
    def asked(self) -> Sequence[Caught]:
        """With pixels, as far as that was seen; where no function was given any, without."""
        return self._shown_to or self._unseen[: self._times]

    def _layers_around(self, module: Any, outermost: CallOfModel) -> Sequence[nn.Module]:
        """The decoder layers of a model, where the module is one or lies inside of one."""
        for model in outermost.models:
            if id(model) not in self._layers:
                layers = decoder_layers_in(model, self._named)
                inside = {id(each) for layer in layers for each in layer.modules()}
                self._layers[id(model)] = (model, layers, inside)
            _, layers, inside = self._layers[id(model)]
            if id(module) in inside:
                return layers
        return ()


def run_script(
    path: Path,
    arguments: Sequence[str],
    times: int,
    *,
    layers: str = "",
    bridged: bool = False,
    bridges: list[str],
) -> Ran:
    """Run a script until decoder layers of its model are about to run.

    Args:
        path: of the script.
        arguments: what it finds in ``sys.argv``.
        times: how often its model may begin to answer; the last time the script ends there.
        layers: the dotted name of decoder layers in the model; "": they are looked for.
        bridged: make up for what transformers changed since its code was written.
        bridges: gets the names of what was bridged.

    Raises:
        NormprobeError: it fails before, or ends without.
    """
    if not path.is_file():
        raise NormprobeError(f"there is no script {path}", "check the path")
    module = ModuleType("__main__")
    module.__file__ = str(path)
    watch = _Watch(times, layers)
    try:
        code = compile(_text_of(path), str(path), "exec")
        with (
            _as_main(module, arguments),
            foreign_code(bridged, bridges, at_once=True),
            _watched(watch, bridges),
        ):
            exec(code, vars(module))
    except _Reached:
        pass
    except (Exception, SystemExit) as error:
        ended = isinstance(error, SystemExit) and error.code in (None, 0)
        if not watch.asked and not ended:
            raise _failed(path, arguments, error, bridged) from error
    if not watch.asked:
        raise NormprobeError(
            f"{path} ran to its end, and no decoder layer was seen to run in it"
            + f"; it passed over {watch.failed}" * bool(watch.failed),
            "pass a script that asks its model, whose layers have a forward, in one process; or "
            "the model: normprobe layers MODEL",
        )
    return Ran(watch.asked, [*watch.tokenizers.values()], module)


def _text_of(path: Path) -> bytes | str:
    """The script; of a notebook its cells of code, without what speaks to the notebook alone."""
    if path.suffix != ".ipynb":
        return path.read_bytes()
    cells = json.loads(path.read_bytes())["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return re.sub(r"^(\s*)([%!].*)$", r"\1pass  # \2", "\n\n".join(texts), flags=re.MULTILINE)


@contextmanager
def _as_main(module: ModuleType, arguments: Sequence[str]) -> Iterator[None]:
    """The script's module, arguments and folder in their places; what it prints goes to stderr."""
    path, main, before = str(module.__file__), sys.modules["__main__"], list(sys.argv)
    folder = Path(path).absolute().parent
    if package := _package_of(folder):  # as `python -m` would run it
        module.__package__ = package
        imports_look_in(folder.parents[package.count(".")])
    sys.modules["__main__"] = module
    sys.argv[:] = [path, *arguments]
    imports_look_in(folder)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.modules["__main__"] = main
        sys.argv[:] = before


def imports_look_in(folder: Path) -> None:
    """Imports look there first. It stays: code of a model may import more when it runs again."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _package_of(folder: Path) -> str:
    """The package that a folder is, by its dotted name; "" where it is none."""
    if not (folder / "__init__.py").is_file():
        return ""
    around = _package_of(folder.parent)
    return f"{around}.{folder.name}" if around else folder.name


@contextmanager
def _watched(watch: _Watch, bridges: list[str]) -> Iterator[None]:
    before = sys.getprofile()
    root, level = logging.getLogger(), logging.getLogger().level
    seen = register_module_forward_hook(watch.keep_failure, always_call=True)
    with on_this_machine(bridges), without_inference_mode(), of_one_beam(), seen:
        threading.setprofile(watch)
        sys.setprofile(watch)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(before)
            root.setLevel(level)  # a script may ask for all that any library has to say


def _written_for(error: BaseException) -> str | None:
    """The version of transformers in a config that code held when it failed."""
    for frame, _ in walk_tb(error.__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, PretrainedConfig) and value.transformers_version:
                return str(value.transformers_version)
    return None


def _is_hidden(folder: Path) -> bool:
    """Whether a package that is installed is imported in place of a folder without a file."""
    spec = find_spec(folder.name) if folder.is_dir() else None
    return spec is not None and spec.origin is not None and Path(spec.origin).parent != folder


def _failed(
    path: Path, arguments: Sequence[str], error: BaseException, bridged: bool
) -> NormprobeError:
    typed = shlex.join([str(path), *arguments])
    by_itself = f"run it by itself first: python {typed if len(typed) < _SAID else f'{path} ...'}"
    way = other_package(error) or by_itself
    packages = missing_packages(error)
    hidden = next((each for each in packages if _is_hidden(path.parent / each)), "")
    if hidden:
        way = f"a package {hidden} hides the folder beside the script: put __init__.py into that"
    elif packages:
        way = install(packages)
    elif bridged and way is by_itself:
        other = other_version(_written_for(error)).partition("; a later --revision")[0]
        way = f"{by_itself}; {other}"
    elif not bridged:
        way += "; --trust-remote-code bridges what transformers changed for older code"
    said = first_line(error, most=2000)
    if len(said) > 2 * _SAID:  # it may begin with a model, spelled out (Chimera)
        said = f"{said[:_SAID]} ... {said[-_SAID:]}"
    what = f"{type(error).__name__}: {said}{last_line_of(error)}"
    return NormprobeError(f"{path} fails before its model runs: {what}", way)
