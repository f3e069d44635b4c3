"""A script that asks a model about a picture, run as far as the first decoder layer.

Where code of a model comes with a script that works, that is the truth about it: how it is loaded,
what its prompt is, how its pixels are made. The script runs in this process, as ``python`` would
run it, and ends where its answer begins.
"""

from __future__ import annotations

import json
import logging
import random
import re
import shlex
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stdout,
    suppress,
)
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import partial, wraps
from inspect import CO_VARARGS, CO_VARKEYWORDS
from itertools import starmap, takewhile
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType, ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from transformers import (
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from normprobe.errors import NormprobeError, first_line
from normprobe.failures import install, last_line_of, missing_packages, other_package, other_version
from normprobe.inputs.on_device import has_colours
from normprobe.model.find.structure import find_parts
from normprobe.model.tracing.recording import tensors
from normprobe.remote_code_bridges import foreign_code
from normprobe.remote_code_bridges.noted import note_bridge
from normprobe.tensors import with_tensors

#: Files whose calls show nothing: those of torch, and what Python brings itself.
_LEFT_OUT = (str(Path(torch.__file__).parent), "<frozen")

#: Characters of a message, at its beginning and end.
_SAID = 100

#: Whose objects are no conversations.
_NOT_TALK = {"PIL", "builtins", "numpy", "tokenizers", "torch", "transformers", "types"}

#: Keys and values of words before.
CACHE = "past_key_values"

#: What opens a picture.
OPENS = Image.open.__code__

#: Prompts without a picture that are passed over until one has one.
_IN_VAIN = 16

#: Calls that have ended, of which it is known what they returned.
_KEPT = 8


@dataclass(frozen=True)
class CallOfModel:
    """A function that was given a model, or is a method of what holds one, as it was called."""

    code: CodeType
    named: Mapping[str, Any]  # arguments by their names, those of ``**kwargs`` among them
    first: Sequence[str]  # names of those that may be passed by place
    more: Sequence[Any]  # those of ``*args``
    models: Sequence[nn.Module]  # among its arguments, or held by one
    drawing: tuple[Any, ...]  # the states of what draws at random, as it began


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


#: What autocast computes in the narrower type, and what in the wider one.
_NARROWED = (
    *("conv1d", "conv2d", "conv3d", "linear", "matmul", "__matmul__", "bmm", "einsum"),
    "scaled_dot_product_attention",
)
_WIDENED = ("layer_norm", "group_norm", "cat", "stack")

_BEGIN: Any = getattr(torch.distributed, "init_process_group", None)
_AUTOCAST, _LOAD, _DEVICE = torch.autocast.__init__, torch.load, torch.device


class _OnThisMachine(TorchFunctionMode):
    """Leaves on the CPU what a script puts on a GPU, on a machine that has none."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        more = dict(kwargs or {})
        if "device" in more:
            more["device"] = _on_the_cpu(more["device"])
        if getattr(func, "__name__", "") == "cuda":
            return args[0]
        if getattr(func, "__name__", "") == "to":
            args = (args[0], *map(_on_the_cpu, args[1:]))
        try:
            return func(*args, **more)
        except RuntimeError:
            made = _of_one_width(func, args, more)
            if made is None:
                raise
            return made


def _of_one_width(func: Any, args: Any, named: Mapping[str, Any]) -> Any:
    """What autocast of a GPU makes of floats of several widths; None: it makes nothing of them.

    Code that asks for it by the device of its model does without on a CPU (BLIP-2, MiniGPT-4).
    """
    name = getattr(func, "__name__", "")
    widths = {each.dtype for each in tensors([args, named]) if each.is_floating_point()}
    if len(widths) < 2 or name not in (*_NARROWED, *_WIDENED):
        return None
    note_bridge("autocast of a GPU")
    pick = min if name in _NARROWED else max
    width = pick(widths, key=lambda each: each.itemsize)
    cast = partial(with_tensors, change=lambda each: _as_float(each, width))
    with torch.autocast("cpu", enabled=False):
        return func(*cast(list(args)), **cast(dict(named)))


def _as_float(tensor: Tensor, width: torch.dtype) -> Tensor:
    return tensor.to(width) if tensor.is_floating_point() else tensor


def on_this_machine() -> AbstractContextManager[object]:
    """Where there is no GPU, leave on the CPU what code of the block puts on one."""
    return nullcontext() if torch.cuda.is_available() else _on_the_processor()


@contextmanager
def without_inference_mode() -> Iterator[None]:
    """Inside the block it computes no gradients, as ever, and its tensors are any others.

    Those of inference mode do not tell whether a layer writes into them.
    """
    held: list[Any] = []

    def enter(self: torch.inference_mode) -> None:
        held.append(torch.no_grad() if self.mode else torch.enable_grad())
        held[-1].__enter__()

    def leave(_: torch.inference_mode, *error: Any) -> None:
        held.pop().__exit__(*error)

    kind = torch.inference_mode
    with patch.object(kind, "__enter__", enter), patch.object(kind, "__exit__", leave):
        yield


@contextmanager
def of_one_beam() -> Iterator[None]:
    """Inside the block an answer is looked for once: beams read copies of one prompt."""
    generate = GenerationMixin.generate

    def once(self: Any, *given: Any, **named: Any) -> Any:
        asked = {"num_beams": 1, "num_return_sequences": 1}
        return generate(self, *given, **(named | asked))

    with patch.object(GenerationMixin, "generate", wraps(generate)(once)):
        yield


@contextmanager
def _on_the_processor() -> Iterator[None]:
    load = vars(PreTrainedModel)["from_pretrained"].__func__

    def load_here(kind: Any, *given: Any, **named: Any) -> Any:
        named.pop("max_memory", None)
        if "device_map" in named:
            named["device_map"] = _placed_here(named["device_map"])
        return load(kind, *given, **named)

    move = nn.Module.to

    def move_here(self: nn.Module, *given: Any, **named: Any) -> nn.Module:
        here = {name: _on_the_cpu(v) if name == "device" else v for name, v in named.items()}
        return move(self, *map(_on_the_cpu, given), **here)

    with (
        _OnThisMachine(),
        patch.object(nn.Module, "to", move_here),
        patch.object(torch.autocast, "__init__", _narrow_on_the_cpu),
        patch.object(PreTrainedModel, "from_pretrained", classmethod(load_here)),
        patch.object(torch, "set_default_tensor_type", _as_wide),
        patch.object(torch, "device", _Device),
        patch.object(torch, "load", _load_here),
        patch.object(torch.cuda, "current_device", lambda: 0),
        patch.object(torch.cuda, "set_device", lambda _: None),
        patch.object(torch.cuda, "device_count", lambda: 1),  # over which code spreads its layers
        patch.object(torch.cuda, "synchronize", lambda *_: None),
        patch.object(torch.distributed, "init_process_group", _begin_alone, create=True),
    ):
        yield


def _begin_alone(*_: Any, **__: Any) -> None:
    """Of the processes that a launcher would start, one: what it asks of others comes back."""
    if not torch.distributed.is_initialized():
        alone: Any = torch.distributed
        _BEGIN("gloo", store=alone.HashStore(), rank=0, world_size=1)


class _DeviceKind(type):
    def __call__(cls, place: Any, *number: Any) -> torch.device:
        """``torch.device(0)`` is one of a GPU, too."""
        return _DEVICE("cpu") if isinstance(place, int) else _DEVICE(place, *number)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _DEVICE)


class _Device(metaclass=_DeviceKind):
    """Stands for ``torch.device``."""


def _load_here(file: Any, map_location: Any = None, *given: Any, **named: Any) -> Any:
    place = "cpu" if map_location is None else _on_the_cpu(map_location)
    return _LOAD(file, place, *given, **named)


def _as_wide(kind: Any) -> None:
    """Of tensors that are made on a GPU, their dtype."""
    found = getattr(torch, kind.rpartition(".")[2]) if isinstance(kind, str) else kind
    torch.set_default_dtype(found.dtype)


def _placed_here(device_map: Any) -> Any:
    """Where parts of a model lie, without a GPU, of which a number names one."""
    if isinstance(device_map, Mapping):
        return {name: _placed_here(place) for name, place in device_map.items()}
    return _on_the_cpu(device_map)


def _narrow_on_the_cpu(
    self: Any, device_type: str, dtype: torch.dtype | None = None, *given: Any, **named: Any
) -> None:
    """``torch.autocast("cuda")`` computes as wide on a CPU as it would have on a GPU."""
    here = _on_the_cpu(device_type)
    if dtype is None and here != device_type:
        dtype = torch.float16
    _AUTOCAST(self, here, dtype, *given, **named)


def _on_the_cpu(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return "cpu"  # the number of a GPU
    named = value if isinstance(value, str | _DEVICE) else ""
    return "cpu" if str(named).partition(":")[0] == "cuda" else value


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
                _OnThisMachine().__enter__()  # type: ignore[no-untyped-call]  # until it ends
        if event == "call":
            code = frame.f_code
            if code not in self._passed and len(self._shown_to) < self._times:
                self._see(frame, code)
        elif event == "return":
            running = self._running[threading.get_ident()]
            if running and running[-1][0] is frame:
                _, call, begun = running.pop()
                if any(map(_is_state, tensors(returned))):  # what ended inside of it made that
                    self._ended[begun:] = [(call, returned)]
                around = running[-1][2] if running else 0
                del self._ended[around : max(around, len(self._ended) - _KEPT)]

    def _see(self, frame: FrameType, code: CodeType) -> None:
        left_out = code.co_filename.startswith(_LEFT_OUT) or code.co_name.startswith("__")
        left_out |= code.co_filename == __file__
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
        models = _models_in([held.get(name) for name in names])
        if not models:
            self._passed.add(code)
            return
        running = self._running[threading.get_ident()]
        running.append((frame, _call_of(held, code, models), len(self._ended)))
        self._shown |= any(starmap(_shows_pixels, running[-1][1].named.items()))
        if code.co_name != "forward" or len(running) == 1:
            return
        if layers := self._layers_around(first, running[0][1]):
            calls = [_with_caches_kept(call) for _, call, _ in running]
            kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
            precision = {kind: torch.get_autocast_dtype(kind) for kind in kinds}
            states = filter(_is_state, tensors([*calls[-1].named.values(), *calls[-1].more]))
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
                layers = _decoder_layers(model, self._named)
                inside = {id(each) for layer in layers for each in layer.modules()}
                self._layers[id(model)] = (model, layers, inside)
            _, layers, inside = self._layers[id(model)]
            if id(module) in inside:
                return layers
        return ()


def _with_caches_kept(call: CallOfModel) -> CallOfModel:
    """The call with copies of what its layers will write into."""
    kept = call.named.get(CACHE)
    with suppress(Exception):  # of a class of its own
        kept = deepcopy(kept)
    return replace(call, named={**call.named, CACHE: kept}) if CACHE in call.named else call


def _shows_pixels(name: str, value: Any) -> bool:
    """Whether an argument holds pixels: by its name or shape, ``[..., 3, height, width]``."""
    # One channel, of a scan (RetinaVLM); or points of a cloud.
    named = "pixel" in name or name in ("image", "images", "point_clouds")
    return any(isinstance(each, Image.Image) for each in (value, *_listed(value))) or any(
        is_picture(tensor) or (named and _is_state(tensor)) for tensor in tensors(value)
    )


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def is_picture(tensor: Tensor) -> bool:
    """Whether numbers have the shape of a picture, ``[..., 3, height, width]``."""
    return tensor.is_floating_point() and has_colours(tensor)


def _is_state(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dim() > 1


def _models_in(values: Sequence[Any]) -> list[nn.Module]:
    """Modules among values, then those that objects among them hold."""
    found = [value for value in values if isinstance(value, nn.Module)]
    if not found:
        inside = (vars(value).values() for value in values if hasattr(value, "__dict__"))
        found = [each for held in inside for each in list(held) if isinstance(each, nn.Module)]
    return found


def as_it_is_now(value: Any, known: dict[int, Any] | None = None) -> Any:
    """A copy of what a function may add to: lists, dicts, and conversations that hold them.

    What is in them stays the same: numbers, pictures, models; and what holds a model, too.
    """
    known = {} if known is None else known
    if id(value) in known:
        return known[id(value)]
    kind = type(value)
    if kind in (list, dict):
        copied: Any = kind()
        known[id(value)] = copied
        if kind is list:
            copied += [as_it_is_now(each, known) for each in value]
        else:
            copied |= {name: as_it_is_now(each, known) for name, each in value.items()}
        return copied
    held = getattr(value, "__dict__", None)
    library = kind.__module__.partition(".")[0] in _NOT_TALK and kind is not SimpleNamespace
    if type(held) is not dict or library or isinstance(value, type | nn.Module):
        return value
    if any(callable(each) or isinstance(each, nn.Module) for each in held.values()):
        return value
    with suppress(Exception):  # of a class of its own
        known[id(value)] = copied = copy(value)
        vars(copied).update({name: as_it_is_now(each, known) for name, each in held.items()})
        if isinstance(value, dict):  # whose attributes are its items (EasyDict)
            dict.update(copied, {key: as_it_is_now(each, known) for key, each in value.items()})
        return copied
    return value


def _call_of(held: Mapping[str, Any], code: CodeType, models: Sequence[nn.Module]) -> CallOfModel:
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames
    named = {name: as_it_is_now(held[name]) for name in names[:count] if name in held}
    more: Sequence[Any] = ()
    if code.co_flags & CO_VARARGS:
        more = held.get(names[count], ())
        count += 1
    if code.co_flags & CO_VARKEYWORDS:
        named |= held.get(names[count], {})
    return CallOfModel(code, named, names[: code.co_argcount], more, models, _drawing())


def _drawing() -> tuple[Any, ...]:
    there = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    on_gpus = torch.cuda.get_rng_state_all() if there else []
    return torch.get_rng_state(), on_gpus, random.getstate(), np.random.get_state()


@contextmanager
def drawing_as(states: tuple[Any, ...]) -> Iterator[None]:
    """Inside the block what is drawn at random is what was drawn from such states on."""
    before = _drawing()
    _draw_from(states)
    try:
        yield
    finally:
        _draw_from(before)


def _draw_from(states: tuple[Any, ...]) -> None:
    on_cpu, on_gpus, of_python, of_numpy = states
    torch.set_rng_state(on_cpu)
    if on_gpus:
        torch.cuda.set_rng_state_all(on_gpus)
    random.setstate(of_python)
    np.random.set_state(of_numpy)


def _decoder_layers(model: nn.Module, named: str = "") -> Sequence[nn.Module]:
    """The decoder layers of a model; those that are ``named`` by hand, where it has them.

    Where structure does not tell: those of the language model inside that has most words; else, of
    the stacks as wide as the table with most rows, those that lie nearest to it, and the largest.
    """
    names = dict(model.named_modules())
    if named:  # another model of the script may have them
        return list(names[named].children()) if named in names else ()
    with suppress(Exception):  # code of any kind; a trace tells later
        layers = find_parts(model).decoder_layers
        return [] if layers is None else list(layers.module.children())
    inside = [each for each in model.modules() if each is not model and _words_of(each)]
    for each in sorted(inside, key=_words_of, reverse=True):
        with suppress(Exception):
            layers = find_parts(each).decoder_layers
            if layers is not None:
                return list(layers.module.children())
    tables = [
        name
        for name, module in names.items()
        if isinstance(module, nn.Embedding)
        and not any(word in name.rpartition(".")[2] for word in ("pos", "query"))  # no words
    ]
    if not tables:
        return ()
    table = max(tables, key=lambda name: len(names[name].weight))
    width = names[table].weight.shape[-1]
    stacks = [
        name
        for name, module in names.items()
        if isinstance(module, nn.ModuleList | nn.Sequential)
        and len(module) > 1
        and any(width in weight.shape for weight in module[0].parameters())
    ]

    def place(name: str) -> tuple[int, int]:
        alike = zip(name.split("."), table.split("."), strict=False)
        shared = len([*takewhile(lambda pair: pair[0] == pair[1], alike)])
        return shared, sum(weight.numel() for weight in names[name].parameters())

    return list(names[max(stacks, key=place)].children()) if stacks else ()


def _words_of(module: nn.Module) -> int:
    """Rows of the table of words of a model of transformers; 0: it is none, or has none."""
    with suppress(Exception):  # of code of any kind
        table = module.get_input_embeddings() if isinstance(module, PreTrainedModel) else None
        return len(table.weight) if isinstance(table, nn.Embedding) else 0
    return 0


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
            _watched(watch),
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
def _watched(watch: _Watch) -> Iterator[None]:
    before = sys.getprofile()
    root, level = logging.getLogger(), logging.getLogger().level
    seen = register_module_forward_hook(watch.keep_failure, always_call=True)
    with on_this_machine(), without_inference_mode(), of_one_beam(), seen:
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


def _failed(
    path: Path, arguments: Sequence[str], error: BaseException, bridged: bool
) -> NormprobeError:
    typed = shlex.join([str(path), *arguments])
    by_itself = f"run it by itself first: python {typed if len(typed) < _SAID else f'{path} ...'}"
    way = other_package(error) or by_itself
    packages = missing_packages(error)
    hidden = next((each for each in packages if (path.parent / each).is_dir()), "")
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
