"""How models of older code are made, filled and tied."""

import importlib
import re
from contextlib import suppress
from functools import partial, wraps
from inspect import signature
from typing import Any

import torch
from torch import nn
from transformers import (
    GenerationConfig,
    GenerationMixin,
    PreTrainedModel,
)

from normprobe.remote_code_bridges.configs import bridge_rotary_modules
from normprobe.remote_code_bridges.noted import (
    BRIDGED,
    in_place_of,
    note_bridge,
    source_of,
    takes_keywords,
)

auto_factory = importlib.import_module("transformers.models.auto.auto_factory")

_TO = nn.Module.to
_CPU = torch.Tensor.cpu
_LOAD: Any = vars(PreTrainedModel)["from_pretrained"].__func__
_DATA: Any = vars(torch._C.TensorBase)["data"]
_REGISTER = auto_factory._BaseAutoModelClass.register.__func__
_OFFER = auto_factory._LazyAutoMapping.register

#: What every model had; no head is masked here.
_MODEL_ATTRIBUTES: dict[str, Any] = {
    "is_parallelizable": False,
    "_supports_flash_attn_2": False,
    "get_head_mask": lambda self, head_mask, layers, *_: [None] * layers,
    "invert_attention_mask": lambda self, mask: _hidden_by(mask, self.dtype),
    # Of an encoder (VisualCLA's resampler).
    "get_extended_attention_mask": lambda self, mask, *_, **__: _hidden_by(mask, self.dtype),
}


def cast_or_move(module: Any, *arguments: Any, **named: Any) -> Any:
    """Code that moves a part while it is made: without memory it is cast alone (VideoGPT+)."""
    try:
        return _TO(module, *arguments, **named)
    except NotImplementedError as error:
        if "meta tensor" not in str(error):
            raise
        note_bridge("Module.to")
        dtype = torch._C._nn._parse_to(*arguments, **named)[1]
        return module if dtype is None else _TO(module, dtype)


def load_as_asked(kind: Any, *arguments: Any, **named: Any) -> Any:
    """Keywords that asked for nothing, and are none any more (VisualCLA, NABLA-VL)."""
    for keyword in ("load_in_8bit", "load_in_4bit", "resume_download"):
        if keyword in named and (keyword == "resume_download" or not named[keyword]):
            note_bridge(keyword)
            del named[keyword]
    return _LOAD(kind, *arguments, **named)


def cpu_or_no_memory(tensor: Any, *arguments: Any, **named: Any) -> Any:
    """Code that draws weights on the CPU while it is made: without memory there are none (Ola)."""
    return tensor if tensor.is_meta else _CPU(tensor, *arguments, **named)


def _set_or_no_memory(weight: Any, value: torch.Tensor) -> None:
    """Code that computes a weight while it is made: without memory it gets no value (ModRWKV)."""
    without = weight.is_meta and not value.is_meta
    _DATA.__set__(weight, value.to("meta") if without else value)


#: In place of ``nn.Parameter.data``.
SETTABLE_DATA = property(_DATA.__get__, _set_or_no_memory)


def offer_for_own(offered: Any, config: Any, model: Any, exist_ok: bool = False) -> None:
    """A config class may be called as one that transformers has by now: it is another."""
    own = not str(getattr(config, "__module__", "transformers.")).startswith("transformers.")
    _OFFER(offered, config, model, exist_ok=exist_ok or own)


def register_of_any_config(cls: Any, config_class: Any, model: Any, exist_ok: bool = False) -> None:
    """A class need not say which config it takes (Apollo)."""
    if getattr(model, "config_class", model) is None:
        note_bridge(f"config_class of {model.__name__}")
        model.config_class = config_class
    _REGISTER(cls, config_class, model, exist_ok=exist_ok)


def bridge_resizing(base: Any) -> None:
    """Rows that code adds to a table while it is made have no mean without memory (ET Chat)."""
    resize = base.resize_token_embeddings

    @in_place_of(base, "resize_token_embeddings")
    def resize_as_made(self: Any, *arguments: Any, **named: Any) -> Any:
        if any(weight.is_meta for weight in self.get_input_embeddings().parameters()):
            named["mean_resizing"] = False
        return resize(self, *arguments, **named)


def bridge_answers(base: Any) -> None:
    """InternVL's kin pass ``return_dict=None`` on, which ``generate`` by now says itself."""
    answer = base.generate
    if not hasattr(base, "_is_stateful"):  # of a class that is no PreTrainedModel (CogACT)
        base._is_stateful = False

    @in_place_of(base, "generate")
    def answer_as_told(self: Any, *arguments: Any, **named: Any) -> Any:
        if named.get("return_dict", ...) is None:
            del named["return_dict"]
        return answer(self, *arguments, **named)


def bridge_trust_keyword(model_class: Any) -> None:
    """A class that loads its parts says itself that their code is trusted (Apollo).

    By now what loads it says so, too: that would be twice.
    """
    load = vars(model_class).get("from_pretrained")
    if not isinstance(load, classmethod) or "trust_remote_code=" not in source_of(model_class):
        return

    @wraps(load.__func__)
    def load_trusted(cls: Any, *arguments: Any, **named: Any) -> Any:
        if named.pop("trust_remote_code", None):
            note_bridge("trust_remote_code")
        return load.__func__(cls, *arguments, **named)

    model_class.from_pretrained = classmethod(load_trusted)


def bridge_kinds_of_tokens(base: Any) -> None:
    """Processors of transformers 5 tell of each token what it is, and older code takes no such."""
    check, kinds = base._validate_model_kwargs, "mm_token_type_ids"

    @in_place_of(base, "_validate_model_kwargs")
    def check_without(self: Any, model_kwargs: dict[str, Any]) -> None:
        try:
            check(self, model_kwargs)
        except ValueError:
            if model_kwargs.pop(kinds, None) is None:
                raise
            note_bridge(kinds)
            check(self, model_kwargs)


def bridge_first_weights(model_class: Any) -> None:
    """What sets the weights of a new model took no module; transformers asks for each (LLaDA-o)."""
    begin: Any = vars(model_class).get("_init_weights")
    if begin is None or len(signature(begin).parameters) > 1:
        return

    @wraps(begin)
    def leave(self: Any, module: Any = None) -> None:
        if module is None:
            begin(self)
        else:
            note_bridge("_init_weights")

    model_class._init_weights = leave


def bridge_kept_modules(model_class: Any) -> None:
    """Names of modules to keep in float32 may be those of another model; 4.57 refuses (Husky)."""
    finish = model_class.post_init

    @wraps(finish)
    def drop_and_finish(self: Any) -> None:
        there = {piece for name, _ in self.named_parameters() for piece in name.split(".")}
        if absent := set(self._keep_in_fp32_modules or ()) - there:
            note_bridge("_keep_in_fp32_modules")
            self._keep_in_fp32_modules = [
                name for name in self._keep_in_fp32_modules if name not in absent
            ]
        finish(self)

    model_class.post_init = drop_and_finish


def bridge_post_init(model_class: Any) -> None:
    """Transformers 5 needs ``post_init``, which older classes do not call."""
    make = model_class.__init__

    @wraps(make)
    def make_and_finish(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        # Once, in the last of the repository's classes. AutoModel may have copied it to put
        # `generate` beside it, and a partial load derives from it.
        last = next(kind for kind in type(self).__mro__ if BRIDGED in vars(kind))
        is_last = vars(last)["__init__"] is make_and_finish
        if is_last and not hasattr(self, "all_tied_weights_keys"):
            note_bridge("post_init")
            self.post_init()

    finish = model_class.post_init

    @wraps(finish)
    def bridge_and_finish(self: Any) -> None:
        bridge_tied_keys(self)
        bridge_rotary_modules(self)
        finish(self)
        bridge_nested_ties(self)

    initialise = model_class.init_weights

    @wraps(initialise)
    def initialise_when_finished(self: Any) -> None:  # else what ends __init__ does it
        if hasattr(self, "all_tied_weights_keys"):
            initialise(self)

    model_class.__init__ = make_and_finish
    model_class.post_init = bridge_and_finish
    model_class.init_weights = initialise_when_finished


def bridge_tie_weights(model_class: type) -> None:
    """Transformers 5 passes keywords to ``tie_weights``, which older classes do not take."""
    tie: Any = vars(model_class).get("tie_weights")
    if tie is None or takes_keywords(tie):
        return

    @wraps(tie)
    def tie_without_keywords(self: Any, missing_keys: Any = None, **options: Any) -> Any:
        del options
        note_bridge("tie_weights")
        tied = tie(self)
        _take_from(missing_keys, self)
        return tied

    model_class.tie_weights = tie_without_keywords  # type: ignore[attr-defined]


def bridge_tied_keys(model: Any) -> None:
    """Tied weights were a list of names; they became a mapping to the weight they are tied to.

    The list might hold names that no weight has (Florence-2).
    """
    keys = model._tied_weights_keys
    if not isinstance(keys, list | tuple | set):
        return
    table = model.get_input_embeddings()
    source = next((name for name, module in model.named_modules() if module is table), None)
    if isinstance(getattr(type(model), "_tied_weights_keys", None), property):  # MolmoPoint
        type(model)._tied_weights_keys = None  # so that it can be set
    if source is not None and getattr(model.config, "tie_word_embeddings", True):
        note_bridge("_tied_weights_keys")
        weights = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        held = [key for key in keys if any(re.search(key, name) for name in weights)]
        model._tied_weights_keys = {key: f"{source}.weight" for key in held}
    else:
        model._tied_weights_keys = {}


def bridge_nested_ties(model: Any) -> None:
    """Weights of a model inside a plain module are tied as it says itself (StarVector).

    Transformers 5 asks the children of a model, and no further.
    """
    for name, module in list(model.named_modules())[1:]:
        for tied, source in getattr(module, "all_tied_weights_keys", {}).items():
            if f"{name}.{tied}" not in model.all_tied_weights_keys:
                note_bridge("nested ties")
                model.all_tied_weights_keys[f"{name}.{tied}"] = f"{name}.{source}"


def bridge_building(model_class: Any) -> None:
    """Transformers 5 builds models on the meta device, where no tensor has values.

    Older code computes with tensors while it is built: sizes of layers, positions, rotary tables.
    Here only parameters are without values.
    """
    import torch
    from accelerate import init_empty_weights

    contexts = model_class.get_init_context.__func__

    @classmethod  # type: ignore[misc]
    def with_values(cls: Any, *arguments: Any, **options: Any) -> list[Any]:
        asked = contexts(cls, *arguments, **options)
        kept = [context for context in asked if not isinstance(context, torch.device)]
        on_meta = len(kept) < len(asked)
        return [*kept, init_empty_weights(include_buffers=False)] if on_meta else kept

    model_class.get_init_context = with_values


def bridge_buffers(model_class: Any) -> None:
    """Transformers 5 gives what no checkpoint holds memory without values, buffers among it.

    What code loads by itself, such as a text encoder, keeps those that it was built with, and what
    nothing initialises later is zero.
    """
    import torch

    move = model_class._move_missing_keys_from_meta_to_device

    @wraps(move)
    def move_and_keep(self: Any, missing_keys: Any, *arguments: Any, **options: Any) -> None:
        built = {name: buffer for name, buffer in self.named_buffers() if not buffer.is_meta}
        move(self, missing_keys, *arguments, **options)
        with torch.no_grad():
            for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
                if name in built:
                    tensor.copy_(built[name])
                elif name in missing_keys:
                    tensor.zero_()

    model_class._move_missing_keys_from_meta_to_device = move_and_keep


def bridge_no_head(model_class: Any) -> None:
    """Code that names a head of which its model holds none had no ties asked of it (X-VLA)."""
    head = vars(model_class).get("get_output_embeddings")
    if head is None:
        return

    @wraps(head)
    def head_if_there(self: Any) -> Any:
        try:
            return head(self)
        except AttributeError:
            note_bridge("get_output_embeddings")
            return None

    model_class.get_output_embeddings = head_if_there


def bridge_generation(model_class: Any) -> None:
    """Every model had what answers: peft asks those without a head for a part of it.

    Those that prepare inputs for it lost ``generate`` in 4.50, unless they are the whole model:
    code that answers by its language model calls it (AIGV-Assessor).
    """
    prepares = "prepare_inputs_for_generation"
    asked = ("generate", prepares, "_prepare_generation_config", "_sample")
    written = source_of(model_class)
    if any(f"super().{name}(" in written for name in asked):
        if not issubclass(model_class, GenerationMixin):  # it derived it by its base (Orthus)
            note_bridge("GenerationMixin")
            model_class.__bases__ += (GenerationMixin,)
        return
    lacks = "generate" if hasattr(model_class, prepares) else prepares
    if hasattr(model_class, lacks):
        return
    look_up = model_class.__getattr__

    def look_further(self: Any, wanted: str) -> Any:
        if wanted != lacks:
            return look_up(self, wanted)
        note_bridge(lacks)
        if lacks == prepares:
            return partial(GenerationMixin.prepare_inputs_for_generation, self)
        model_class.__bases__ += (GenerationMixin,)
        model_class._supports_default_dynamic_cache = lambda _: False  # it was tuples of tensors
        self.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
        with suppress(ValueError, TypeError):  # of settings that are checked by now
            self.generation_config = GenerationConfig.from_model_config(self.config)
        return self.generate

    model_class.__getattr__ = look_further


def bridge_model_attributes(_model_class: type) -> None:
    """What went from every model: older classes read it of themselves, and of models inside."""
    base: Any = PreTrainedModel
    for name, value in _MODEL_ATTRIBUTES.items():
        if not hasattr(base, name):
            note_bridge(name)
            setattr(base, name, value)


def bridge_class_attributes(model_class: type) -> None:
    """What a model supports became a class attribute; a property on the class reads as true.

    Flash attention lost its number.
    """
    if vars(model_class).get("_supports_flash_attn_2"):
        note_bridge("_supports_flash_attn_2")
        model_class._supports_flash_attn = True  # type: ignore[attr-defined]
    for name, value in list(vars(model_class).items()):
        if name.startswith("_keys_to_ignore_on_") and isinstance(value, str):  # letters (X-Omni)
            note_bridge(name)
            setattr(model_class, name, [value])
        if name.startswith("_supports_") and isinstance(value, property):
            note_bridge(name)
            setattr(model_class, name, False)


def _take_from(missing_keys: Any, model: Any) -> None:
    """A weight that is the same object as one that was loaded is not missing."""
    if not missing_keys:
        return
    by_identity: dict[int, list[str]] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        by_identity.setdefault(id(weight), []).append(name)
    for names in by_identity.values():
        if not set(names) <= set(missing_keys):
            missing_keys.difference_update(names)


def _hidden_by(mask: Any, dtype: Any) -> Any:
    """What is added to attention so that a mask of 1 and 0 hides, ``[batch, 1, 1 or seq, seq]``."""
    import torch

    mask = mask[:, None] if mask.dim() == 3 else mask[:, None, None]
    return (1.0 - mask.to(dtype)) * torch.finfo(dtype).min
