"""What configs of older code had, and how they are made and registered."""

import sys
from collections.abc import Mapping
from dataclasses import Field, dataclass, is_dataclass
from functools import wraps
from inspect import get_annotations, signature, unwrap
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    PretrainedConfig,
    configuration_utils,
)

from normprobe.remote_code_bridges.noted import (
    in_place_of,
    note_bridge,
    noting,
    source_of,
    takes_keywords,
)
from normprobe.versions import is_line_5

_REGISTER = AutoConfig.register

_WRAP_INIT = getattr(configuration_utils, "wrap_init_to_accept_kwargs", None)

#: What a config held that did not say otherwise, of what is no longer there.
_CONFIG_DEFAULTS: dict[str, Any] = {
    "_attn_implementation_autoset": False,
    "add_cross_attention": False,
    "bos_token_id": None,
    "cross_attention_hidden_size": None,
    "decoder_start_token_id": None,
    "eos_token_id": None,
    "finetuning_task": None,
    "is_decoder": False,
    "pad_token_id": None,
    "prefix": None,
    "pruned_heads": {},
    "sep_token_id": None,
    "task_specific_params": None,
    "tie_encoder_decoder": False,
    "tie_word_embeddings": True,
    "torchscript": False,
}

#: Likewise, but what transformers refuses to save in a config: there only while its model is made.
_GENERATION_DEFAULTS: dict[str, Any] = {
    "max_length": 20,
    **dict.fromkeys(("min_length", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), 0),
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences"), 1),
    **dict.fromkeys(("temperature", "top_p", "typical_p"), 1.0),
    **dict.fromkeys(("repetition_penalty", "length_penalty"), 1.0),
    **dict.fromkeys(("do_sample", "early_stopping", "output_scores"), False),
    **dict.fromkeys(("return_dict_in_generate", "remove_invalid_values"), False),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids"), None),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), None),
    "exponential_decay_length_penalty": None,
    "diversity_penalty": 0.0,
    "top_k": 50,
}

#: What reads settings of answers to refuse them.
_CHECKING = ("transformers.configuration_utils", "transformers.generation")

#: Where a config keeps those of its file.
_GIVEN = "_normprobe_given"

#: The auto classes that a model is made by.
_AUTO_CLASSES = (
    "AutoModelForImageTextToText",
    "AutoModelForCausalLM",
    "AutoModelForMultimodalLM",
)

#: What ``rope_scaling`` holds of a table that nothing scales.
_PLAIN_ROPE = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


def register_if_free(model_type: str, config: Any, exist_ok: bool = False) -> None:
    """A type that transformers took since stays its own: the class of a checkpoint is named."""
    is_native = model_type in CONFIG_MAPPING._mapping
    if is_native and not exist_ok and config is not CONFIG_MAPPING[model_type]:
        note_bridge(f"AutoConfig.register({model_type!r})")
        return
    _REGISTER(model_type, config, exist_ok=exist_ok)


def fields_that_may_be(config_class: type, **options: Any) -> type:
    """Configs became dataclasses, where no field may begin as a list or a dict.

    Such an attribute stays one of the class, as it was.
    """
    fields = get_annotations(config_class)
    kept = {
        name: kind
        for name, kind in fields.items()
        if not isinstance(vars(config_class).get(name), list | dict | set)
    }
    if len(kept) < len(fields):
        note_bridge("mutable defaults")
        config_class.__annotations__ = kept
    return dataclass(config_class, **options)


def bridge_default_of_fields(module: Any) -> None:
    """Since Python 3.11 no field may begin as what has no hash, such as another dataclass has.

    ``module``: ``dataclasses``.
    """
    name = "_get_field"
    get_field = getattr(module, name)

    @in_place_of(module, name)
    def get(cls: type, field: str, *more: Any) -> Any:
        held = getattr(cls, field, None)
        kind = type(held.default if isinstance(held, Field) else held)
        if noting and is_dataclass(kind) and kind.__hash__ is None:
            note_bridge("defaults of dataclasses")
            kind.__hash__ = object.__hash__
        return get_field(cls, field, *more)


def init_as_written(config_class: Any) -> Any:
    """A class of configs without an ``__init__`` of its own had that of its parent.

    Configs became dataclasses, which get one that is made of their fields.
    """
    inherited = unwrap(super(config_class, config_class).__init__)
    if inherited.__code__.co_filename == "<string>":  # that of a dataclass is made, too
        return _WRAP_INIT(config_class) if _WRAP_INIT is not None else config_class
    note_bridge("inherited __init__")
    del config_class.__init__
    return config_class


def bridge_spread(config_class: Any) -> None:
    """How far weights are spread that nobody reads: some configs of towers had it once (EMOVA)."""
    if not hasattr(config_class, "initializer_range"):
        config_class.initializer_range = 0.02


def bridge_token_of_config(config_class: Any) -> None:
    """Copies of towers call what put the token of the hub among the arguments of a config."""
    if not hasattr(config_class, "_set_token_in_kwargs"):
        config_class._set_token_in_kwargs = staticmethod(lambda _arguments, _token=None: None)


def bridge_flat_config(config_class: Any) -> None:
    """Fields of the language model stood in the config of the whole model (jina-reranker)."""

    def of_text(self: Any, name: str) -> Any:
        text = vars(self).get("text_config")
        if text is None or name.startswith("_") or name not in vars(text):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        note_bridge(f"config.{name}")
        return getattr(text, name)

    if is_line_5() and not hasattr(config_class, "__getattr__"):
        config_class.__getattr__ = of_text


def bridge_own_flat_config(config_class: Any) -> None:
    """A copy of such a config, for code that derives from the model of transformers (WALL-OSS)."""
    written = source_of(config_class)
    if config_class.__bases__ != (PretrainedConfig,) or "text_config" in written:
        return
    if "vision_config" not in written or "num_hidden_layers" not in written:
        return

    def itself(self: Any) -> Any:
        note_bridge("config.text_config")
        return self

    config_class.text_config = property(itself)
    if "layer_types" not in written:
        config_class.layer_types = property(
            lambda self: ["full_attention"] * self.num_hidden_layers
        )


def bridge_rope_scaling(config_class: type) -> None:
    """``rope_scaling`` of plain rotary tables became a dict of type default; it was None.

    Of others it has lost ``type``, which older code reads, to ``rope_type``. Such code may also
    write into the dict, so it gets the one that the config keeps; or write None, for plain tables.
    """
    standard: Any = getattr(PretrainedConfig, "rope_scaling", None)
    if not isinstance(standard, property) or standard.fget is None or standard.fset is None:
        return
    standard_read, write_as_is = standard.fget, standard.fset

    def read(self: Any) -> Any:
        parameters = standard_read(self)
        if not parameters:
            return None
        kind = parameters.setdefault("type", parameters.get("rope_type", "default"))
        if kind == "default" and parameters.keys() <= set(_PLAIN_ROPE):
            note_bridge("rope_scaling")
            return None
        return parameters

    def write(self: Any, scaling: Any) -> None:
        if scaling is None and (parameters := vars(self).get("rope_parameters")):
            note_bridge("rope_scaling")
            kept = {name: parameters[name] for name in _PLAIN_ROPE[2:] if name in parameters}
            scaling = {**kept, "rope_type": "default"}
        write_as_is(self, scaling)

    config_class.rope_scaling = property(read, write)  # type: ignore[attr-defined]


def bridge_unset_rope(config_class: Any) -> None:
    """Code writes no scaling into a config of transformers, which is no scaling at all (H2OVL)."""
    standard: Any = vars(config_class).get("rope_scaling")
    if not isinstance(standard, property) or hasattr(standard.fset, "__wrapped__"):
        return
    write_as_is: Any = standard.fset

    @wraps(write_as_is)
    def write(self: Any, scaling: Any) -> None:
        if scaling is None and (parameters := vars(self).get("rope_parameters")):
            note_bridge("rope_scaling")
            scaling = {n: parameters[n] for n in _PLAIN_ROPE[2:] if n in parameters}
            scaling["rope_type"] = "default"
        write_as_is(self, scaling)

    config_class.rope_scaling = property(standard.fget, write)


def bridge_config_defaults(config_class: Any) -> None:
    """Configs had these fields whether they were set or not; those of rotary tables moved.

    Those of generation are taken out of a config, also where code of its own reads them.
    """
    if any("__getattr__" in vars(parent) for parent in config_class.__mro__):
        return
    make = config_class.__init__

    @wraps(make)
    def make_and_keep(self: Any, *arguments: Any, **fields: Any) -> None:
        make(self, *arguments, **fields)
        if kept := {name: fields[name] for name in _GENERATION_DEFAULTS.keys() & fields.keys()}:
            vars(self)[_GIVEN] = kept
        for part in vars(self).values():  # of transformers' own, whose code is another (Phantom)
            told = getattr(part, "rope_parameters", None)
            theta = told.get("rope_theta") if isinstance(told, dict) else None
            if theta is not None and not hasattr(part, "rope_theta"):
                note_bridge("rope_theta of a part")
                part.rope_theta = theta

    config_class.__init__ = make_and_keep

    def missing(self: Any, name: str) -> Any:
        moved = (vars(self).get("rope_parameters") or {}) if name in _PLAIN_ROPE else {}
        # To what checks an answer a config that has some is one that was changed (Senna).
        checked = sys._getframe(1).f_globals.get("__name__", "").startswith(_CHECKING)
        asked = noting and not checked
        given = {**_GENERATION_DEFAULTS, **vars(self).get(_GIVEN, {})} if asked else {}
        there = {**_CONFIG_DEFAULTS, **moved, **given}
        if name not in there:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        note_bridge(f"config.{name}")
        return there[name]

    config_class.__getattr__ = missing


def bridge_validation(config_class: Any) -> None:
    """How an answer is written is checked with more said than older code takes (Dream-VL)."""
    check = vars(config_class).get("validate")
    if check is None or takes_keywords(check):
        return

    @wraps(check)
    def check_what_it_takes(self: Any, *arguments: Any, **named: Any) -> Any:
        taken = signature(check).parameters
        return check(self, *arguments, **{k: v for k, v in named.items() if k in taken})

    config_class.validate = check_what_it_takes


def bridge_composition(config_class: Any) -> None:
    """Configs that cannot be made without those of their parts said so by another name."""
    if vars(config_class).get("is_composition"):
        note_bridge("is_composition")
        config_class.has_no_defaults_at_init = True


def bridge_auto_map(config: Any) -> None:
    """The auto classes of models that read pictures became one; keys of older ones name it, too."""
    keys = getattr(config, "auto_map", None) or {}
    known = {"AutoModel", *_AUTO_CLASSES} & keys.keys()
    others = [key for key in keys if key.startswith("AutoModelFor") and key not in _AUTO_CLASSES]
    if others and not known:
        note_bridge(others[0])
        keys[_AUTO_CLASSES[0]] = keys[others[0]]


def bridge_default_rope(module: Any) -> None:
    """Plain rotary tables have no function among those of scaled ones any more.

    Only the module's own copy of the list gets one: transformers takes its presence for an answer.
    Where there is one, it took numbers in place of a config (Cheers).
    """
    functions = getattr(module, "ROPE_INIT_FUNCTIONS", None)
    if isinstance(functions, dict):
        module.ROPE_INIT_FUNCTIONS = {**functions, "default": _default_rope(functions)}


def _default_rope(functions: Mapping[str, Any]) -> Any:
    of_config = functions.get("default", _plain_rope)

    def angles(config: Any, *more: Any, **told: Any) -> tuple[Any, float]:
        if config is not None:
            found: tuple[Any, float] = of_config(config, *more, **told)
            return found
        note_bridge("default rope of numbers")
        powers = torch.arange(0, told["dim"], 2, dtype=torch.int64).float() / told["dim"]
        return 1.0 / told["base"] ** powers, 1.0

    return angles


def bridge_rotary_modules(model: Any) -> None:
    """Transformers 5 asks plain rotary tables for a method that theirs have (PaddleOCR-VL)."""
    for module in model.modules():
        asked = "RotaryEmbedding" in type(module).__name__ and hasattr(module, "original_inv_freq")
        if asked and not hasattr(module, "compute_default_rope_parameters"):
            module.compute_default_rope_parameters = _plain_rope


def _plain_rope(
    config: Any, device: Any = None, seq_len: int | None = None, **_: Any
) -> tuple[Any, float]:
    """The frequencies of a plain rotary table, ``[turned / 2]``, and its attention factor."""
    note_bridge("default rope")
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    turned = int(head * getattr(config, "partial_rotary_factor", 1.0))
    powers = torch.arange(0, turned, 2, dtype=torch.int64).to(device, torch.float) / turned
    return 1.0 / config.rope_theta**powers, 1.0
