"""Processors and tokenizers as older code loads them."""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, wraps
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import patch

from packaging.version import InvalidVersion, Version
from transformers import AutoImageProcessor, AutoTokenizer, PretrainedConfig
from transformers.utils.hub import cached_file

from normprobe.remote_code_bridges.noted import in_place_of, note_bridge, source_of
from normprobe.versions import is_line_5

tokenization_auto = importlib.import_module("transformers.models.auto.tokenization_auto")

image_processing_auto = importlib.import_module("transformers.models.auto.image_processing_auto")

_TOKENIZER = AutoTokenizer.from_pretrained
_OFFER_PICTURES = AutoImageProcessor.register

#: What asks whether code may run, by this name.
_RESOLVE = "resolve_trust_remote_code"
_ASKING = (
    *("auto_factory", "configuration_auto", "feature_extraction_auto", "image_processing_auto"),
    *("processing_auto", "tokenization_auto", "video_processing_auto"),
)


def offer_as_it_is(config: Any, *kinds: Any, **named: Any) -> None:
    """An image processor may be of another base class than transformers' (OpenVLA-OFT)."""
    try:
        _OFFER_PICTURES(config, *kinds, **named)
    except ValueError as error:
        if "must inherit from" not in str(error):
            raise
        note_bridge("AutoImageProcessor.register")
        (kind,) = [*kinds, *(value for value in named.values() if isinstance(value, type))][:1]
        offered = image_processing_auto.IMAGE_PROCESSOR_MAPPING
        offered.register(config, {"pil": kind}, exist_ok=True)


def tokenizer_as_written(
    pretrained_model_name_or_path: Any, *arguments: Any, **options: Any
) -> Any:
    """A SentencePiece file that stands alone is read by the class that its folder names.

    By the type of the config, as of LLaVA's own code, it is read without the space that opens a
    text: other ids at the beginning of each piece.
    """
    path_or_id = pretrained_model_name_or_path  # some pass it by its name
    found = _TOKENIZER(path_or_id, *arguments, **options)
    if type(found).__name__ != "TokenizersBackend":
        return found
    where = {name: options[name] for name in ("revision", "subfolder") if name in options}
    quietly = {"_raise_exceptions_for_missing_entries": False}
    quietly |= {"_raise_exceptions_for_connection_errors": False}
    named = tokenization_auto.get_tokenizer_config(path_or_id, **where).get("tokenizer_class") or ""
    own = named.removesuffix("Fast")
    if own != "LlamaTokenizer" or cached_file(path_or_id, "tokenizer.json", **where, **quietly):
        return found
    note_bridge(f"{named} by its name")
    return tokenization_auto.tokenizer_class_from_name(own).from_pretrained(path_or_id, **where)


@contextmanager
def unasked_for_folders() -> Iterator[None]:
    """Trusted code loads parts of its own folder, and forgets to say that it is trusted."""
    with ExitStack() as asked:
        for name in _ASKING:
            module: Any = importlib.import_module(f"transformers.models.auto.{name}")
            asked.enter_context(
                patch.object(module, _RESOLVE, _trusting(getattr(module, _RESOLVE)))
            )
        yield


def _trusting(resolve: Any) -> Any:
    def resolved(trust: Any, name: Any, *more: Any, **options: Any) -> Any:
        if trust is None and Path(str(name)).is_dir():
            trust = True
        return resolve(trust, name, *more, **options)

    return resolved


def bridge_processor_parts(processor_class: Any) -> None:
    """A processor that loads its parts itself got no dict of its settings beside their path."""
    name = "_get_arguments_from_pretrained"
    load = vars(processor_class).get(name)
    if load is None or "processor_dict" in signature(load.__func__).parameters:
        return

    def load_by_path(cls: Any, /, path: Any, processor_dict: Any = None, **options: Any) -> Any:
        del processor_dict
        note_bridge(name)
        return load.__func__(cls, path, **options)

    setattr(processor_class, name, classmethod(load_by_path))


def bridge_class_token(processor_class: Any) -> None:
    """LLaVA's processors counted a class token by themselves; since 4.48 they are told of it.

    One whose own ``__init__`` cannot be told would write a token less for each picture (MAIRA-2).
    """
    told, process = "num_additional_image_tokens", processor_class.__call__
    natives = [
        k for k in processor_class.__mro__ if k.__module__.startswith("transformers.models.")
    ]
    taken = {name for each in natives for name in signature(each.__init__).parameters}
    if told not in taken or told in signature(processor_class.__init__).parameters:
        return

    @wraps(process)
    def count_and_process(self: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(self, told, None) == 0 and _written_for(self.tokenizer.name_or_path) < Version(
            "4.48.0.dev0"
        ):
            note_bridge(told)
            setattr(self, told, 1)
        return process(self, *arguments, **options)

    processor_class.__call__ = count_and_process


def bridge_optional_parts(base: Any) -> None:
    """What a class listed as optional was set as it was given; now other keywords are refused."""
    make = base.__init__
    if not hasattr(base, "optional_attributes"):  # own lists begin with that of all (QQMM-embed)
        base.optional_attributes = ["chat_template"]

    @in_place_of(base, "__init__")
    def make_and_set(self: Any, *arguments: Any, **given: Any) -> None:
        listed = type(self).optional_attributes if is_line_5() else ()
        own = {name: given.pop(name) for name in listed if name in given and name not in _KNOWN}
        make(self, *arguments, **given)
        for name, value in own.items():
            note_bridge("optional_attributes")
            setattr(self, name, value)


def bridge_special_tokens(base: Any) -> None:
    """Whether further special tokens are replaced got another name (QQMM-embed)."""
    add, went = base.add_special_tokens, "replace_additional_special_tokens"
    if went in signature(add).parameters:
        return

    @in_place_of(base, "add_special_tokens")
    def add_as_told(self: Any, tokens: Any, *replaces: Any, **named: Any) -> Any:
        if went in named:
            note_bridge(went)
            replaces = (named.pop(went),)
        return add(self, tokens, *replaces, **named)


#: What tokenizers were asked for, and what they have instead.
_TOKENIZER_NAMES: Mapping[str, Any] = {
    "encode_plus": lambda self: self.__call__,
    "batch_encode_plus": lambda self: self.__call__,
    "additional_special_tokens": lambda self: self.extra_special_tokens,
    "additional_special_tokens_ids": lambda self: self.extra_special_tokens_ids,
    "special_tokens_map_extended": lambda self: self.special_tokens_map,
    "all_special_tokens_extended": lambda self: self.all_special_tokens,
}


def bridge_tokenizer_names(base: Any) -> None:
    """Names that tokenizers had until 5; a template makes ids where no dict is asked for."""
    if not is_line_5():  # where an instance has them, and no class
        return
    for name, found in _TOKENIZER_NAMES.items():
        if not hasattr(base, name):
            setattr(base, name, _Older(name, found))
    by_template, asked = base.apply_chat_template, "return_dict"

    @in_place_of(base, by_template.__name__)
    def ids_by_template(self: Any, *given: Any, **named: Any) -> Any:
        if named.get("tokenize", True) and asked not in named:
            note_bridge(f"{by_template.__name__}({asked}=False)")
            named[asked] = bool(named.get("return_assistant_tokens_mask"))
        return by_template(self, *given, **named)


@dataclass(frozen=True)
class _Older:
    """An attribute by its older name; code may set one of its own."""

    name: str
    found: Callable[[Any], Any]

    def __get__(self, tokenizer: Any, kind: Any) -> Any:
        if tokenizer is None:
            return self
        asks = sys._getframe(1).f_globals.get("__name__", "")
        if asks.startswith("transformers."):  # which looks whether it has such a name
            raise AttributeError(self.name)
        note_bridge(self.name)
        return self.found(tokenizer)


#: What processors of transformers take beside their parts.
_KNOWN = ("chat_template", "audio_tokenizer")


def bridge_token_kinds(processor_class: Any) -> None:
    """A processor hands on all that a native one takes for texts; kinds of tokens are new to it.

    And it looks for what all its parts take by a name that went (MolmoAct).
    """
    merge, new, went = processor_class._merge_kwargs, "return_mm_token_type_ids", "common_kwargs"
    written = source_of(processor_class)
    if new in written:
        return

    @wraps(merge)
    def merge_as_written(self: Any, *arguments: Any, **named: Any) -> Any:
        merged = merge(self, *arguments, **named)
        if merged.get("text_kwargs", {}).pop(new, None) is not None:
            note_bridge(new)
        if went in written and went not in merged:
            note_bridge(went)
            told = "return_tensors"
            merged[went] = {told: named[told]} if told in named else {}
        return merged

    processor_class._merge_kwargs = merge_as_written


@cache
def _written_for(place: str) -> Version:
    """The transformers that saved a checkpoint; where none tells, a late one."""
    with suppress(OSError, KeyError, TypeError, InvalidVersion):
        config, _ = PretrainedConfig.get_config_dict(place)
        return Version(config["transformers_version"])
    return Version("5")


def bridge_listed_parts(processor_class: Any) -> None:
    """The parts of a processor are the arguments of its ``__init__``; older code lists them.

    Such a list leaves out what the class keeps by itself, as an image tokenizer.
    """
    told = getattr(processor_class, "get_attributes", None)
    if told is None or hasattr(processor_class, "attributes"):  # transformers 4; or it is bridged
        return

    def listed_or_told(cls: Any) -> list[str]:
        found: list[str] = told.__func__(cls)
        own = not cls.__module__.startswith("transformers.") and isinstance(cls.attributes, list)
        if own:  # in the order in which __init__ takes them, as they are passed (ModRWKV)
            taken = {name: place for place, name in enumerate(found)}
            listed = sorted(cls.attributes, key=lambda name: taken.get(name, len(taken)))
            if listed != found:
                note_bridge("attributes")
                found = listed
        return found

    processor_class.attributes = None
    processor_class.get_attributes = classmethod(listed_or_told)
