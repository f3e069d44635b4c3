"""Functions that were given a model, as they were called, and the layers that they make run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from inspect import CO_VARARGS, CO_VARKEYWORDS
from itertools import takewhile
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn
from transformers import PreTrainedModel

from normprobe.extensions.families.script_machine import drawing
from normprobe.inputs.on_device import has_colours
from normprobe.model.find.structure import find_parts
from normprobe.model.tracing.recording import tensors

#: Keys and values of words before.
CACHE = "past_key_values"

#: What is no conversation: by its length, or whose it is.
_LONG = 1000
_LIBRARIES = ("torch.", "transformers.")
_KEPT_IN = (bool, int, float, str, list, dict, Tensor, type(None))
_OF_TORCH = {*vars(nn.Module())}
_NOT_TALK = {"PIL", "builtins", "numpy", "tokenizers", "torch", "transformers", "types"}


@dataclass(frozen=True)
class CallOfModel:
    """A function that was given a model, or is a method of what holds one, as it was called."""

    code: CodeType
    named: Mapping[str, Any]  # arguments by their names, those of ``**kwargs`` among them
    first: Sequence[str]  # names of those that may be passed by place
    more: Sequence[Any]  # those of ``*args``
    models: Sequence[nn.Module]  # among its arguments, or held by one
    drawing: tuple[Any, ...]  # the states of what draws at random, as it began
    kept: Sequence[tuple[Any, Mapping[str, Any]]] = ()  # what may change, by what keeps it


def with_caches_kept(call: CallOfModel) -> CallOfModel:
    """The call with copies of what its layers will write into."""
    kept = call.named.get(CACHE)
    with suppress(Exception):  # of a class of its own
        kept = deepcopy(kept)
    return replace(call, named={**call.named, CACHE: kept}) if CACHE in call.named else call


def shows_pixels(name: str, value: Any) -> bool:
    """Whether an argument holds pixels: by its name or shape, ``[..., 3, height, width]``."""
    # One channel, of a scan (RetinaVLM); or points of a cloud.
    named = "pixel" in name or name in ("image", "images", "point_clouds")
    return any(isinstance(each, Image.Image) for each in (value, *_listed(value))) or any(
        is_picture(tensor) or (named and is_state(tensor)) for tensor in tensors(value)
    )


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def is_picture(tensor: Tensor) -> bool:
    """Whether numbers have the shape of a picture, ``[..., 3, height, width]``."""
    return tensor.is_floating_point() and has_colours(tensor)


def is_state(tensor: Tensor) -> bool:
    """Whether numbers may be rows ``[..., rows, hidden]``."""
    return tensor.is_floating_point() and tensor.dim() > 1


def models_in(values: Sequence[Any]) -> list[nn.Module]:
    """Modules among values, then those that objects among them hold."""
    found = [value for value in values if isinstance(value, nn.Module)]
    if not found:
        inside = (vars(value).values() for value in values if hasattr(value, "__dict__"))
        found = [each for held in inside for each in list(held) if isinstance(each, nn.Module)]
    return found


def as_it_is_now(value: Any, known: dict[int, Any] | None = None) -> Any:
    """A copy of what a function may add to: lists, dicts, and conversations that hold them.

    What is in them stays the same: numbers, pictures, models; and what holds a model, too, or is
    as long as a benchmark.
    """
    known = {} if known is None else known
    if id(value) in known:
        return known[id(value)]
    kind = type(value)
    if len(known) > _LONG or (isinstance(value, list | dict) and len(value) > _LONG):
        return value
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


def _kept_by(first: Any, models: Sequence[nn.Module]) -> list[tuple[Any, dict[str, Any]]]:
    """What modules of own code, and what holds them, keep in plain attributes.

    As frames of a video that were seen (StreamVLN): a question adds to them.
    """
    holders = [] if isinstance(first, nn.Module) or not hasattr(first, "__dict__") else [first]
    for model in models:
        with suppress(AttributeError):  # one that is being made
            modules = [*model.modules()]
            holders += [m for m in modules if not type(m).__module__.startswith(_LIBRARIES)]
    known: dict[int, Any] = {}
    return [(holder, _plain_in(holder, known)) for holder in holders]


def _plain_in(holder: Any, known: dict[int, Any]) -> dict[str, Any]:
    return {
        name: as_it_is_now(value, known)
        for name, value in vars(holder).items()
        if isinstance(value, _KEPT_IN) and name not in _OF_TORCH
    }


def with_what_it_changes(call: CallOfModel) -> CallOfModel:
    """The call with no more of what is kept than it has changed since it began."""
    changed = []
    for holder, held in call.kept:
        now = {name: value for name, value in vars(holder).items() if isinstance(value, _KEPT_IN)}
        found = {name: held[name] for name in now.keys() & held.keys()}
        changed.append((holder, {n: v for n, v in found.items() if _differs(v, now[n])}))
    return replace(call, kept=[(holder, held) for holder, held in changed if held])


def _differs(before: Any, now: Any) -> bool:
    if before is now:
        return False
    if type(before) is not type(now) or isinstance(before, Tensor | np.ndarray):
        return True
    if isinstance(before, list | dict):
        items = [*before.items()] if isinstance(before, dict) else [*enumerate(before)]
        gone = len(before) != len(now)
        return gone or any(_differs(value, _item(now, key)) for key, value in items)
    return bool(before != now) if isinstance(before, _KEPT_IN) else False


def _item(held: Any, key: Any) -> Any:
    return held.get(key) if isinstance(held, dict) else held[key]


def call_of(
    held: Mapping[str, Any], code: CodeType, models: Sequence[nn.Module], *, keeps: bool = False
) -> CallOfModel:
    """The call of a function with some models, of what its frame holds; with what they keep."""
    count = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames
    named = {name: as_it_is_now(held[name]) for name in names[:count] if name in held}
    more: Sequence[Any] = ()
    if code.co_flags & CO_VARARGS:
        more = held.get(names[count], ())
        count += 1
    if code.co_flags & CO_VARKEYWORDS:
        named |= held.get(names[count], {})
    first = names[: code.co_argcount]
    kept = _kept_by(held.get(first[0]) if first else None, models) if keeps else ()
    return CallOfModel(code, named, first, more, models, drawing(), kept)


def decoder_layers_in(model: nn.Module, named: str = "") -> Sequence[nn.Module]:
    """The decoder layers of a model; those that are ``named`` by hand, where it has them.

    Where structure does not tell: those of the language model inside that has most words, of those
    that write any; else, of the stacks as wide as the table with most rows, those that lie nearest
    to it, and the largest.
    """
    names = dict(model.named_modules())
    if named:  # another model of the script may have them
        return list(names[named].children()) if named in names else ()
    with suppress(Exception):  # code of any kind; a trace tells later
        layers = find_parts(model).decoder_layers
        return [] if layers is None else list(layers.module.children())
    words = {each: _words_of(each) for each in model.modules() if each is not model}
    for each in sorted((m for m in words if words[m][1]), key=words.__getitem__, reverse=True):
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


def _words_of(module: nn.Module) -> tuple[bool, int]:
    """Whether a model of transformers writes words, and the rows of its table of them.

    (False, 0): it is none, or has none. An adapter may be around the table (MiniGPT-5).
    """
    if isinstance(module, PreTrainedModel):
        with suppress(Exception):  # of code of any kind
            held: Any = module
            name = "prepare_inputs_for_generation"  # to ask for it by itself would be a bridge
            writes = any(name in vars(kind) for kind in type(module).__mro__)
            return writes, len(held.get_input_embeddings().weight)
    return False, 0
