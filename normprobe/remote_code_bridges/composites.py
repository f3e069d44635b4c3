"""Models around a language model, as they were before 4.52: their parts lay beside each other.

Since then they lie in a model inside, whose language model has lost its head, which lies beside it.
Code that derives from such a class of transformers finds its parts where they were, and what it
sets is put where they are looked for.
"""

import inspect
import re
import sys
from functools import wraps
from types import MethodType, ModuleType
from typing import Any, cast

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling, CausalLMOutputWithPast

from normprobe.remote_code_bridges.noted import in_place_of, note_bridge, source_of
from normprobe.versions import is_line_5

#: Whose model inside was the language model alone, and the tower that lay beside it.
_TEXT_ALONE = {
    "Qwen2VLModel": "Qwen2VisionTransformerPretrainedModel",
    "Qwen2_5_VLModel": "Qwen2_5_VisionTransformerPretrainedModel",
}

#: Where a model keeps what was set on it and put into the model inside, by name.
_INSIDE = "_normprobe_inside"


def bridge_parts(model_class: Any) -> None:
    """Parts are read and set where they lay, in a class that derives from one of transformers."""
    order = model_class.__mro__
    native = next((each for each in order if _inner_class(each) is not None), None)
    if native is None:
        return
    inner, own = _inner_class(native), order[: order.index(native)]
    with_head = not any("lm_head" in source_of(each) for each in own)
    look_up, put, finish = model_class.__getattr__, model_class.__setattr__, model_class.post_init

    def look_inside(self: Any, name: str) -> Any:
        try:
            return look_up(self, name)
        except AttributeError:
            found = _of_inside(self, inner, name)
            if found is None:
                raise
        note_bridge(f"parts of {inner.__name__}")
        if name == "language_model" and with_head:
            return _Called(found, lambda left: _with_logits(left, self.lm_head))
        if name == "visual" and inner.__name__ in _TEXT_ALONE:
            return _Called(found, _rows)
        return found

    def put_inside(self: Any, name: str, value: Any) -> None:
        inside = vars(self).get("_modules", {}).get("model")
        if isinstance(inside, inner) and name in _held(inside):
            note_bridge(f"parts of {inner.__name__}")
            _put(self, inside, name, value)
            vars(self).setdefault(_INSIDE, {})[name] = value
            return
        put(self, name, value)
        if name == "model" and not isinstance(value, inner):  # of its own class (WALL-OSS)
            for each, part in vars(self).pop(_INSIDE, {}).items():
                put(self, each, part)

    @wraps(finish)
    def gather_and_finish(self: Any) -> None:
        if not any("forward" in vars(each) for each in own):
            _gather(self, inner, own)
        if "model" not in self._modules and is_line_5():  # where they name weights (CXRMate-ED)
            note_bridge(f"ties of {inner.__name__}")
            self._tied_weights_keys = {}
        finish(self)

    if inner.__name__ in _TEXT_ALONE:
        _bridge_parts_of_text(inner)
    model_class.__getattr__, model_class.__setattr__ = look_inside, put_inside
    model_class.post_init = gather_and_finish
    for each in filter(_is_native, native.__mro__):
        for name, value in vars(each).items():  # 4.57 looks inside: it would not see what is set
            if isinstance(value, property) and "self.model." in source_of(value.fget):
                setattr(model_class, name, property(_nowhere))


def bridge_text_alone(module: ModuleType) -> None:
    """Code that makes a tower and Qwen2-VL's model beside it means the language model alone."""
    for name, tower_name in _TEXT_ALONE.items():
        whole, tower = vars(module).get(name), vars(module).get(tower_name)
        if not (isinstance(whole, type) and isinstance(tower, type) and _is_native(whole)):
            continue
        written = source_of(module)
        derived = [
            each
            for each in vars(module).values()
            if isinstance(each, type) and each.__bases__ == (whole,)
            if re.search(rf"self\.model = {each.__name__}\(", written)
        ]
        makes_tower = re.search(rf"\b{tower_name}(\._from_config)?\(", written)
        if not (makes_tower and (derived or re.search(rf"\b{name}(\._from_config)?\(", written))):
            continue
        text: Any = getattr(sys.modules[whole.__module__], name.replace("Model", "TextModel"))

        class Text(text):  # type: ignore[misc]
            def __init__(self, config: Any) -> None:
                note_bridge(f"{type(self).__name__} without a tower")
                super().__init__(config.get_text_config())

        class Tower(tower):  # type: ignore[misc, valid-type]
            def forward(self, *arguments: Any, **named: Any) -> Any:
                return _rows(super().forward(*arguments, **named))

        for made, as_written in ((Text, name), (Tower, tower_name)):
            made.__name__ = made.__qualname__ = as_written
            setattr(module, as_written, made)
        for each in derived:  # made beside the tower, too (UniWorld-V1)
            each.__bases__ = (Text,)


def _bridge_parts_of_text(inner: Any) -> None:
    """The model inside was the language model: its table, its layers, its norm (LamRA)."""
    look_up = inner.__getattr__

    @in_place_of(inner, "__getattr__")
    def look_into_text(self: Any, name: str) -> Any:
        try:
            return look_up(self, name)
        except AttributeError:
            text = self.__dict__.get("_modules", {}).get("language_model")
            if text is None or name not in text._modules:
                raise
        note_bridge(f"parts of {inner.__name__}")
        return text._modules[name]


class _Called:
    """A module whose forward returns what it did: in all else it is that module."""

    def __init__(self, module: Any, as_before: Any) -> None:
        self._module, self._as_before = module, as_before

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._as_before(self._module(*arguments, **named))

    def __getattr__(self, name: str) -> Any:
        module = self._module
        return module if name == "model" and name not in module._modules else getattr(module, name)


def _rows(left: Any) -> Any:
    """A tower returned the rows that a projector left."""
    return getattr(left, "pooler_output", left)


def _with_logits(left: Any, head: Any) -> Any:
    """A language model with its head returned logits first."""
    return CausalLMOutputWithPast(
        logits=head(left.last_hidden_state),
        past_key_values=left.past_key_values,
        hidden_states=left.hidden_states,
        attentions=left.attentions,
    )


def _gather(model: Any, inner: Any, own: Any) -> None:
    """Parts of a class that made each itself are put into a model inside, which is run."""
    if "model" not in model._modules and "language_model" in model._modules:
        note_bridge(f"parts of {inner.__name__}")
        beside = {**model._modules, **model._parameters}
        with torch.device("meta"):
            inside = inner(model.config)
        for name, part in beside.items():
            if name in _held(inside):
                delattr(model, name)
                _put(model, inside, name, part)
        model.model = inside
    inside = model._modules.get("model")
    if not isinstance(inside, inner):
        return
    for each in reversed(own):
        for name, method in vars(each).items():
            asked = inspect.isfunction(method) and name in vars(inner) and name[:2] != "__"
            if asked and name != "forward" and "self.model." not in source_of(method):
                vars(inside)[name] = _as_asked(MethodType(method, model))


def _put(model: Any, inside: Any, name: str, part: Any) -> None:
    """One part into the model inside; the head of a language model beside it."""
    head = cast(Any, part).get_output_embeddings() if isinstance(part, PreTrainedModel) else None
    if name == "language_model" and head is not None:
        model.lm_head = head
        part = part.base_model
    setattr(inside, name, part)


def _held(inside: Any) -> dict[str, Any]:
    """Parts of a model inside, by their names."""
    return {**inside._modules, **inside._parameters}


def _as_asked(method: Any) -> Any:
    """A method of before, asked by what is run today.

    Not with keywords that it lacks; what is left to the config is read from it.
    """

    def ask(*arguments: Any, **named: Any) -> Any:
        taken = inspect.signature(method).parameters
        if not any(each.kind is each.VAR_KEYWORD for each in taken.values()):
            named = {name: value for name, value in named.items() if name in taken}
        config = method.__self__.config
        for name, value in named.items():
            named[name] = getattr(config, name, None) if value is None else value
        left = method(*arguments, **named)
        rows: Any = left
        if isinstance(left, torch.Tensor) and left.dim() == 3:  # of each picture
            rows = list(left)
        if not is_line_5() or not isinstance(rows, list | tuple):
            return rows
        return BaseModelOutputWithPooling(pooler_output=rows)  # type: ignore[arg-type]

    return ask


def _of_inside(model: Any, inner: Any, name: str) -> Any:
    """What a class had, and its model inside has: a part, or a method."""
    inside = model._modules.get("model")
    if isinstance(inside, inner) and name in _held(inside):
        return getattr(inside, name)
    method = vars(inner).get(name)
    if not inspect.isfunction(method):
        return None
    bound = MethodType(method, inside if isinstance(inside, inner) else model)
    return _with_kinds(model, bound) if name == "get_rope_index" else bound


def _with_kinds(model: Any, places: Any) -> Any:
    """Places of rows were found by their ids; transformers 5 is told what each row is."""
    if "mm_token_type_ids" not in inspect.signature(places).parameters:
        return places

    def find(input_ids: Any, *grids: Any, **named: Any) -> Any:
        config = model.config
        kinds = (input_ids == config.image_token_id).int() + 2 * (
            input_ids == config.video_token_id
        )
        return places(input_ids, kinds, *grids, **named)

    return find


def _inner_class(native: Any) -> Any:
    """The class of the model that one of transformers has inside, None: it has none."""
    name = native.__name__.removesuffix("ForConditionalGeneration")
    if not _is_native(native) or name == native.__name__:
        return None
    if f"{name}Model(" not in source_of(native):  # BLIP-2 and InstructBLIP are as they were
        return None
    return getattr(sys.modules[native.__module__], f"{name}Model", None)


def _is_native(each: Any) -> bool:
    return bool(each.__module__.startswith("transformers.models."))


def _nowhere(_self: Any) -> Any:
    raise AttributeError
