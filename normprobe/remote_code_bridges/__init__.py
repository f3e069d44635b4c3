"""Code that a checkpoint brings: what transformers 5 changed for it.

Each bridge is a function that says which change it makes up for. Names are put back where they were
imported from; classes are bridged as they come out of the repository's files, or out of an
installed package that is imported for it, and no others are. All of it only where the code is
trusted (``--trust-remote-code``).

    with foreign_code(trusted, bridges):   # around what imports or runs such code
        model = auto_class.from_config(config, trust_remote_code=trusted)
    bridges                                # the names of those that were needed

The chapters: ``moved_names``, ``configs``, ``model_classes`` (how they are made, filled and tied),
``layers`` (and towers and caches), ``attention`` (and masks), ``flash_attention``, ``processors``.
"""

import builtins
import dataclasses
import importlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    configuration_utils,
    dynamic_module_utils,
    modeling_utils,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging as transformers_logging
from transformers.utils import versions

from normprobe.remote_code_bridges.attention import (
    bridge_asked_flash_attention,
    bridge_causal_mask,
    bridge_flash_keyword,
    bridge_mask_keywords,
    bridge_no_attention,
)
from normprobe.remote_code_bridges.composites import bridge_parts, bridge_text_alone
from normprobe.remote_code_bridges.configs import (
    bridge_composition,
    bridge_config_defaults,
    bridge_default_of_fields,
    bridge_default_rope,
    bridge_flat_config,
    bridge_own_flat_config,
    bridge_rope_scaling,
    bridge_spread,
    bridge_token_of_config,
    bridge_unset_rope,
    bridge_validation,
    fields_that_may_be,
    init_as_written,
    register_if_free,
)
from normprobe.remote_code_bridges.flash_attention import (
    bridge_flash_attention,
    bridge_flash_functions,
)
from normprobe.remote_code_bridges.layers import (
    BLOCKS,
    CALLED,
    bridge_alone,
    bridge_block_tables,
    bridge_cache,
    bridge_capturing,
    bridge_decoder_layer,
    bridge_derived_names,
    bridge_place_keyword,
    bridge_told_states,
    bridge_tower_inside,
    bridge_tower_layer,
    bridge_tower_names,
)
from normprobe.remote_code_bridges.model_classes import (
    SETTABLE_DATA,
    bridge_answers,
    bridge_buffers,
    bridge_building,
    bridge_class_attributes,
    bridge_first_weights,
    bridge_generation,
    bridge_kept_modules,
    bridge_kinds_of_tokens,
    bridge_model_attributes,
    bridge_no_head,
    bridge_post_init,
    bridge_resizing,
    bridge_tie_weights,
    bridge_trust_keyword,
    cast_or_move,
    cpu_or_no_memory,
    load_as_asked,
    offer_for_own,
    register_of_any_config,
)
from normprobe.remote_code_bridges.moved_names import (
    MOVED,
    MOVED_MODULES,
    all_that_are_imported,
    bridge_moved_name,
    import_moved,
    modeling,
    no_init_weights,
    one_class_towers,
    require_others,
)
from normprobe.remote_code_bridges.noted import BRIDGED, note_bridge, noting
from normprobe.remote_code_bridges.processors import (
    bridge_class_token,
    bridge_listed_parts,
    bridge_optional_parts,
    bridge_processor_parts,
    bridge_special_tokens,
    bridge_token_kinds,
    bridge_tokenizer_names,
    offer_as_it_is,
    tokenizer_as_written,
    unasked_for_folders,
)
from normprobe.versions import is_line_5

auto_docstring = importlib.import_module("transformers.utils.auto_docstring")
auto_factory = importlib.import_module("transformers.models.auto.auto_factory")


@contextmanager
def foreign_code(trusted: bool, bridges: list[str], *, at_once: bool = False) -> Iterator[None]:
    """Bridge the classes of a repository that are imported inside the block.

    Those of the repository's files are bridged before they are used, those of an installed package
    when the block ends, or ``at_once``, as soon as their modules are imported.
    """
    if not trusted:
        yield
        return
    imported = dynamic_module_utils.get_class_in_module

    @wraps(imported)
    def import_and_bridge(class_name: str, module_path: Any, **options: Any) -> type:
        found: type = imported(class_name, module_path, **options)
        for foreign in _classes_of(found):
            _bridge_module(sys.modules[foreign.__module__])
            _bridge_class(foreign)
        return found

    for module_name, name, there in MOVED:
        bridge_moved_name(module_name, name, there)
    for older, newer in MOVED_MODULES.items():
        if find_spec(older) is None:
            sys.modules[older] = importlib.import_module(newer)
    for tower in one_class_towers():
        bridge_tower_inside(tower)
    bridge_told_states(importlib.import_module(modeling("Siglip")).SiglipVisionTransformer)
    bridge_tower_layer(importlib.import_module(modeling("CLIP")).CLIPEncoderLayer)
    for kind in CALLED:
        module = importlib.import_module(modeling(kind))
        bridge_decoder_layer(
            getattr(module, f"{kind}DecoderLayer"), getattr(module, f"{kind}RotaryEmbedding")
        )
        vars(module)["__all__"] = [n for n in vars(module) if not n.startswith("_")]  # to import *
    for kind, block in BLOCKS.items():
        module = importlib.import_module(modeling(kind))
        bridge_block_tables(getattr(module, block))
        bridge_flat_config(getattr(module, block.replace("VisionBlock", "Config")))
    bridge_causal_mask(PreTrainedModel)
    bridge_resizing(PreTrainedModel)
    bridge_answers(GenerationMixin)
    bridge_kinds_of_tokens(GenerationMixin)
    bridge_capturing()
    bridge_asked_flash_attention(PreTrainedModel)
    bridge_flash_attention(ALL_ATTENTION_FUNCTIONS)
    bridge_no_attention(ALL_ATTENTION_FUNCTIONS)
    bridge_alone(torch.distributed)
    bridge_cache(DynamicCache)
    bridge_token_of_config(PretrainedConfig)
    bridge_default_of_fields(dataclasses)
    bridge_spread(PretrainedConfig)
    bridge_unset_rope(PretrainedConfig)
    bridge_listed_parts(ProcessorMixin)
    bridge_optional_parts(ProcessorMixin)
    bridge_special_tokens(PreTrainedTokenizerBase)
    bridge_tokenizer_names(PreTrainedTokenizerBase)
    # Code that loads a file into a model without memory: the checkpoint's weights follow.
    warnings.filterwarnings("ignore", ".*copying from a non-meta parameter")
    before, level = set(sys.modules), transformers_logging.get_verbosity()
    check = dynamic_module_utils.check_imports
    check = check if is_line_5() else all_that_are_imported(check)
    importing = import_moved(builtins.__import__)
    noting.append(bridges)
    try:
        with (
            patch.object(dynamic_module_utils, "get_class_in_module", import_and_bridge),
            patch.object(configuration_utils, "dataclass", fields_that_may_be, create=True),
            patch.object(
                configuration_utils, "wrap_init_to_accept_kwargs", init_as_written, create=True
            ),
            patch.object(AutoConfig, "register", staticmethod(register_if_free)),
            patch.object(AutoTokenizer, "from_pretrained", staticmethod(tokenizer_as_written)),
            patch.object(auto_factory._LazyAutoMapping, "register", offer_for_own),
            unasked_for_folders(),
            patch.object(versions, "require_version", require_others),
            patch.object(modeling_utils, "no_init_weights", no_init_weights, create=True),
            patch.object(
                auto_factory._BaseAutoModelClass, "register", classmethod(register_of_any_config)
            ),
            patch.object(dynamic_module_utils, "check_imports", check),
            patch.object(builtins, "__import__", _bridging(importing) if at_once else importing),
            patch.object(PreTrainedModel, "from_pretrained", classmethod(load_as_asked)),
            patch.object(AutoImageProcessor, "register", staticmethod(offer_as_it_is)),
            patch.object(nn.Module, "to", cast_or_move),
            patch.object(torch.Tensor, "cpu", cpu_or_no_memory),
            patch.object(nn.Parameter, "data", SETTABLE_DATA, create=True),
            # Of each argument that has no docstring it prints an `[ERROR]`: that is nobody's here.
            patch.object(auto_docstring, "print", lambda *_, **__: None, create=True),
        ):
            try:
                yield
            finally:  # an import that fails leaves modules, which another does not run again
                _bridge_all(sys.modules.keys() - before)
    finally:
        noting.pop()
        transformers_logging.set_verbosity(level)  # an import may ask for all there is (Elysium)


def _bridging(importing: Any) -> Any:
    """An ``__import__`` that bridges the classes of each module as soon as it has run."""
    seen = set(sys.modules)

    @wraps(importing)
    def import_and_bridge(*given: Any, **named: Any) -> Any:
        found = importing(*given, **named)
        if len(sys.modules) != len(seen):
            new = sys.modules.keys() - seen
            run = {name for name in new if not _is_running(sys.modules[name])}
            seen.update(run)
            _bridge_all(run)
        return found

    return import_and_bridge


def _is_running(module: ModuleType) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False)


def _bridge_all(module_names: Iterable[str]) -> None:
    """The classes that modules define."""
    for name in module_names:
        for foreign in _classes_in(name):
            _bridge_module(sys.modules[name])
            _bridge_class(foreign)


def _bridge_module(module: ModuleType) -> None:
    """What its code looks up by name, once."""
    if BRIDGED in vars(module):
        return
    setattr(module, BRIDGED, True)
    bridge_default_rope(module)
    bridge_flash_functions(module)
    bridge_text_alone(module)
    bridge_mask_keywords(module)


def _bridge_class(foreign: type) -> None:
    """Every bridge that a class may need, once."""
    if BRIDGED not in vars(foreign):
        needed: list[str] = []
        noting.append(needed)
        try:
            if issubclass(foreign, PreTrainedModel):
                bridge_flash_keyword(foreign)
                bridge_place_keyword(foreign)
                bridge_no_head(foreign)
                bridge_generation(foreign)
                bridge_first_weights(foreign)
                bridge_trust_keyword(foreign)
            if issubclass(foreign, PreTrainedModel) and not is_line_5():
                bridge_class_attributes(foreign)
                bridge_kept_modules(foreign)
            elif issubclass(foreign, PreTrainedModel):
                bridge_post_init(foreign)
                bridge_tie_weights(foreign)
                bridge_model_attributes(foreign)
                bridge_class_attributes(foreign)
                bridge_building(foreign)
                bridge_buffers(foreign)
                if any(issubclass(foreign, tower) for tower in one_class_towers()):
                    bridge_tower_names(foreign)
                else:
                    bridge_derived_names(foreign)
            elif issubclass(foreign, ProcessorMixin):
                bridge_class_token(foreign)
                bridge_token_kinds(foreign)
                if is_line_5():
                    bridge_processor_parts(foreign)
            elif issubclass(foreign, PretrainedConfig):
                bridge_rope_scaling(foreign)
                bridge_own_flat_config(foreign)
                bridge_config_defaults(foreign)
                bridge_composition(foreign)
            elif issubclass(foreign, GenerationConfig):
                bridge_validation(foreign)
            else:
                return
            if issubclass(foreign, PreTrainedModel):  # last: it gathers before the rest looks
                bridge_parts(foreign)
        finally:
            noting.pop()
        setattr(foreign, BRIDGED, tuple(needed))
    for name in vars(foreign)[BRIDGED]:
        note_bridge(name)


def _classes_of(found: type) -> Iterator[type]:
    """The repository's own classes in the module of one of them, and in those that it imports."""
    package = found.__module__.rpartition(".")[0]
    module = importlib.import_module(found.__module__)
    for value in [found, *vars(module).values()]:
        if isinstance(value, type) and value.__module__.startswith(f"{package}."):
            yield value


def _classes_in(module_name: str) -> Iterator[type]:
    """The classes that a module defines; none of transformers, whose code is no older than it."""
    found = sys.modules[module_name]  # None: an import that code forbids
    if module_name.partition(".")[0] != "transformers" and found is not None:
        for value in list(vars(found).values()):
            if isinstance(value, type) and value.__module__ == module_name:
                yield value
