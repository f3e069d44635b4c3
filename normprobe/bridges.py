"""Code that a checkpoint brings: what transformers 5 changed for it, and a clean stdout.

Each bridge is a function that says which change it makes up for. Names are put back where they were
imported from; classes are bridged as they come out of the repository's files, and no others are.
All of it only where the code is trusted (``--trust-remote-code``).

    with foreign_code(trusted, bridges):   # around what imports or runs such code
        model = auto_class.from_config(config, trust_remote_code=trusted)
    bridges                                # the names of those that were needed
"""

import importlib
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

from transformers import PretrainedConfig, PreTrainedModel, dynamic_module_utils

from normprobe.versions import is_line_5

#: Where older code imports a name from, the name, and where it is now or what stands for it.
_MOVED: tuple[tuple[str, str, str | Callable[[], Any]], ...] = (
    ("transformers.activations", "PytorchGELUTanh", "transformers.activations:GELUTanh"),
    (
        "transformers.models.gpt2.tokenization_gpt2",
        "bytes_to_unicode",
        "transformers.convert_slow_tokenizer:bytes_to_unicode",
    ),
    ("transformers.utils.import_utils", "is_torch_fx_available", lambda: _yes),
    ("transformers.utils", "is_torch_fx_available", lambda: _yes),
    ("transformers.pytorch_utils", "is_torch_greater_or_equal_than_1_13", lambda: True),
    (
        "transformers.processing_utils",
        "_validate_images_text_input_order",
        lambda: _images_then_text,
    ),
    ("torch.nn.functional", "List", lambda: typing.List),  # noqa: UP006 the name itself is asked for
)


#: Marks a class that has its bridges, and holds the names of those it needed when it came.
_BRIDGED = "_normprobe_bridged"

#: Where bridges are noted: the list of the innermost ``foreign_code``.
_noting: list[list[str]] = []


@contextmanager
def foreign_code(trusted: bool, bridges: list[str]) -> Iterator[None]:
    """Bridge the classes of a repository that are imported inside the block.

    Args:
        trusted: False: no such code runs, and nothing is changed.
        bridges: gets the name of each bridge that was needed.
    """
    if not trusted:
        yield
        return
    imported = dynamic_module_utils.get_class_in_module

    @wraps(imported)
    def import_and_bridge(class_name: str, module_path: Any, **options: Any) -> type:
        found: type = imported(class_name, module_path, **options)
        for foreign in _classes_of(found):
            _bridge_class(foreign)
        return found

    for module_name, name, there in _MOVED:
        bridge_moved_name(module_name, name, there)
    _noting.append(bridges)
    try:
        with patch.object(dynamic_module_utils, "get_class_in_module", import_and_bridge):
            yield
    finally:
        _noting.pop()


def bridge_moved_name(module_name: str, name: str, there: str | Callable[[], Any]) -> None:
    """A name that moved to another module, or went, is found where older code imports it from."""
    try:
        module = importlib.import_module(module_name)
    except ImportError:
        return
    if hasattr(module, name):
        return
    if callable(there):
        setattr(module, name, there())
        return
    new_module, _, new_name = there.partition(":")
    setattr(module, name, getattr(importlib.import_module(new_module), new_name))


def bridge_post_init(model_class: Any) -> None:
    """Transformers 5 needs ``post_init``, which older classes do not call."""
    make = model_class.__init__

    @wraps(make)
    def make_and_finish(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        if type(self) is model_class and not hasattr(self, "all_tied_weights_keys"):
            _note("post_init")
            bridge_tied_keys(self)
            self.post_init()

    model_class.__init__ = make_and_finish


def bridge_tie_weights(model_class: type) -> None:
    """Transformers 5 passes keywords to ``tie_weights``, which older classes do not take."""
    tie: Any = vars(model_class).get("tie_weights")
    if tie is None or _takes_keywords(tie):
        return

    @wraps(tie)
    def tie_without_keywords(self: Any, missing_keys: Any = None, **options: Any) -> Any:
        del options
        _note("tie_weights")
        tied = tie(self)
        _take_from(missing_keys, self)
        return tied

    model_class.tie_weights = tie_without_keywords  # type: ignore[attr-defined]


def bridge_tied_keys(model: Any) -> None:
    """Tied weights were a list of names; they became a mapping to the weight they are tied to."""
    keys = model._tied_weights_keys
    if not isinstance(keys, list | tuple | set):
        return
    table = model.get_input_embeddings()
    source = next((name for name, module in model.named_modules() if module is table), None)
    if source is not None and getattr(model.config, "tie_word_embeddings", True):
        _note("_tied_weights_keys")
        model._tied_weights_keys = {key: f"{source}.weight" for key in keys}
    else:
        model._tied_weights_keys = {}


def bridge_parallelizable(model_class: type) -> None:
    """``is_parallelizable`` went: older classes read it of the language model inside them."""
    del model_class
    base: Any = PreTrainedModel
    if not hasattr(base, "is_parallelizable"):
        _note("is_parallelizable")
        base.is_parallelizable = False


def bridge_class_attributes(model_class: type) -> None:
    """What a model supports became a class attribute; a property on the class reads as true."""
    for name, value in list(vars(model_class).items()):
        if name.startswith("_supports_") and isinstance(value, property):
            _note(name)
            setattr(model_class, name, False)


def bridge_rope_scaling(config_class: type) -> None:
    """``rope_scaling`` of plain rotary tables became a dict of type default; it was None.

    Of others it has lost ``type``, which older code reads, to ``rope_type``.
    """
    standard: Any = getattr(PretrainedConfig, "rope_scaling", None)
    if not isinstance(standard, property) or standard.fget is None:
        return
    standard_read = standard.fget

    def read(self: Any) -> Any:
        parameters = standard_read(self) or {}
        kind = parameters.get("rope_type", parameters.get("type", "default"))
        if kind == "default":
            if parameters:
                _note("rope_scaling")
            return None
        return {**parameters, "type": kind}

    config_class.rope_scaling = property(read, standard.fset)  # type: ignore[attr-defined]


def _bridge_class(foreign: type) -> None:
    """Every bridge that a class may need, once."""
    if _BRIDGED not in vars(foreign):
        needed: list[str] = []
        _noting.append(needed)
        try:
            if issubclass(foreign, PreTrainedModel) and not is_line_5():
                bridge_class_attributes(foreign)
            elif issubclass(foreign, PreTrainedModel):
                bridge_post_init(foreign)
                bridge_tie_weights(foreign)
                bridge_parallelizable(foreign)
                bridge_class_attributes(foreign)
            elif issubclass(foreign, PretrainedConfig):
                bridge_rope_scaling(foreign)
            else:
                return
        finally:
            _noting.pop()
        setattr(foreign, _BRIDGED, tuple(needed))
    for name in vars(foreign)[_BRIDGED]:
        _note(name)


def _note(name: str) -> None:
    if _noting and name not in _noting[-1]:
        _noting[-1].append(name)


def _classes_of(found: type) -> Iterator[type]:
    """The repository's own classes in the module of one of them, and in those that it imports."""
    package = found.__module__.rpartition(".")[0]
    module = importlib.import_module(found.__module__)
    for value in [found, *vars(module).values()]:
        if isinstance(value, type) and value.__module__.startswith(f"{package}."):
            yield value


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


def _takes_keywords(function: Any) -> bool:
    from inspect import signature

    return any(p.kind is p.VAR_KEYWORD for p in signature(function).parameters.values())


def _yes() -> bool:
    return True


def _images_then_text(images: Any, text: Any) -> tuple[Any, Any]:
    """Older transformers took both orders and sorted them out."""
    return images, text
