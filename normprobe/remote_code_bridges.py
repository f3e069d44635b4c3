"""Code that a checkpoint brings: what transformers 5 changed for it.

Each bridge is a function that says which change it makes up for. Names are put back where they were
imported from; classes are bridged as they come out of the repository's files, or out of an
installed package that is imported for it, and no others are. All of it only where the code is
trusted (``--trust-remote-code``).

    with foreign_code(trusted, bridges):   # around what imports or runs such code
        model = auto_class.from_config(config, trust_remote_code=trusted)
    bridges                                # the names of those that were needed
"""

import importlib
import re
import sys
import typing
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from importlib.util import find_spec
from inspect import get_annotations, getsource, signature, unwrap
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoTokenizer,
    DynamicCache,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
    ProcessorMixin,
    configuration_utils,
    dynamic_module_utils,
)
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file

from normprobe.versions import is_line_5

auto_docstring = importlib.import_module("transformers.utils.auto_docstring")
tokenization_auto = importlib.import_module("transformers.models.auto.tokenization_auto")
auto_factory = importlib.import_module("transformers.models.auto.auto_factory")


def _modeling(name: str) -> str:
    """Where transformers has the classes of a model."""
    return f"transformers.models.{name.lower()}.modeling_{name.lower()}"


def _of_every_attention(name: str) -> dict[str, Any]:
    """The one class of a model's attention, by the names of what it looks up."""
    module = importlib.import_module(_modeling(name))
    kinds = ("eager", "sdpa", "flash_attention_2")
    return dict.fromkeys(kinds, getattr(module, f"{name}Attention"))


#: Whose classes of attention became one.
_ONE_ATTENTION = ("Llama", "Qwen2", "Mistral", "Whisper")

#: Whose layers are called by copies of what ran them.
_CALLED = ("Llama", "Mistral", "Qwen2")

#: Whose tower and the model around it became one class.
_ONE_CLASS = ("CLIP", "Siglip")


def _one_class_towers() -> list[Any]:
    return [getattr(importlib.import_module(_modeling(n)), f"{n}VisionModel") for n in _ONE_CLASS]


#: Where older code imports a name from, the name, and where it is now or what stands for it.
_MOVED: tuple[tuple[str, str, str | Callable[[], Any]], ...] = (
    ("transformers.activations", "PytorchGELUTanh", "transformers.activations:GELUTanh"),
    (
        "transformers.models.gpt2.tokenization_gpt2",
        "bytes_to_unicode",
        "transformers.convert_slow_tokenizer:bytes_to_unicode",
    ),
    ("transformers.cache_utils", "HybridCache", "transformers.cache_utils:StaticCache"),
    ("transformers.image_utils", "VideoInput", "transformers.video_utils:VideoInput"),
    (
        "transformers.image_utils",
        "make_batched_videos",
        "transformers.video_utils:make_batched_videos",
    ),
    ("transformers.utils.import_utils", "is_torch_fx_available", lambda: _yes),
    ("transformers.utils", "is_torch_fx_available", lambda: _yes),
    *(
        ("transformers.utils", f"is_{name}_available", lambda: bool)
        for name in ("flash_attn", "flax", "tf")
    ),
    (
        "transformers.modeling_utils",
        "is_flash_attn_2_available",
        "transformers.utils:is_flash_attn_2_available",
    ),
    *(
        ("transformers.modeling_utils", name, f"transformers.pytorch_utils:{name}")
        for name in ("apply_chunking_to_forward", "prune_linear_layer")
    ),
    *(
        ("transformers.modeling_utils", name, f"transformers.utils:{name}")
        for name in (
            *("CONFIG_NAME", "extract_commit_hash", "find_adapter_config_file"),
            "is_peft_available",
        )
    ),
    ("transformers.modeling_utils", "Conv1D", "transformers.pytorch_utils:Conv1D"),
    ("transformers.tokenization_utils", "TensorType", "transformers.utils:TensorType"),
    ("transformers", "AutoModelForVision2Seq", "transformers:AutoModelForImageTextToText"),
    *(
        ("transformers", f"{name}FeatureExtractor", f"transformers:{name}ImageProcessor")
        for name in ("Beit", "CLIP", "ConvNext", "DeiT", "VideoMAE", "ViT")
    ),
    # What training, sampling and downloads use, and no forward does.
    ("transformers", "LogitsWarper", "transformers:LogitsProcessor"),
    ("transformers", "TRANSFORMERS_CACHE", "huggingface_hub.constants:HF_HUB_CACHE"),
    ("transformers", "AdamW", "torch.optim:AdamW"),
    ("transformers", "is_torch_tpu_available", lambda: bool),
    ("transformers.utils", "is_safetensors_available", lambda: _yes),
    ("transformers.modeling_utils", "no_init_weights", lambda: _no_init_weights),
    # What prunes heads went; copies of BERT import it, and no forward calls it.
    ("transformers.modeling_utils", "find_pruneable_heads_and_indices", lambda: None),
    ("transformers.pytorch_utils", "find_pruneable_heads_and_indices", lambda: None),
    ("transformers.pytorch_utils", "is_torch_greater_or_equal_than_1_13", lambda: True),
    (
        "transformers.processing_utils",
        "_validate_images_text_input_order",
        lambda: _images_then_text,
    ),
    *(
        ("transformers.tokenization_utils", name, f"transformers.tokenization_utils_base:{name}")
        for name in ("PaddingStrategy", "PreTokenizedInput", "TextInput", "TruncationStrategy")
    ),
    *(
        (_modeling(name), f"{name}VisionTransformer", f"{_modeling(name)}:{name}VisionModel")
        for name in _ONE_CLASS
    ),
    *(
        (
            _modeling(name),
            "_expand_mask",
            "transformers.modeling_attn_mask_utils:_prepare_4d_attention_mask",
        )
        for name in ("bert", "clip", "llama")
    ),
    (_modeling("clip"), "clip_loss", f"{_modeling('clip')}:image_text_contrastive_loss"),
    # What is imported for other language models than the one that is measured (LLaVA's MPT), or for
    # addresses of files.
    *(
        (_modeling(kind), name, lambda: None)
        for kind in ("bloom", "opt")
        for name in ("_expand_mask", "_make_causal_mask")
    ),
    *(("transformers.utils.hub", name, lambda: None) for name in ("download_url", "is_remote_url")),
    # A class for each attention became one that looks it up.
    *(
        (_modeling(name), f"{name.upper()}_ATTENTION_CLASSES", partial(_of_every_attention, name))
        for name in _ONE_ATTENTION
    ),
    *(
        (_modeling(name), f"{name}{kind}", f"{_modeling(name)}:{name}Attention")
        for name in _ONE_ATTENTION
        for kind in ("FlashAttention2", "SdpaAttention")
    ),
    # What a decorator writes into docstrings.
    *(
        (_modeling(name), f"{name.upper()}_{kind}_DOCSTRING", lambda: "")
        for name in ("CLIP", *_CALLED)
        for kind in ("INPUTS", "START")
    ),
    # Of caches and of checks that copies of generate() make (OpenOmni).
    *(
        ("transformers.generation.utils", name, lambda: None)
        for name in (
            *("GenerateNonBeamOutput", "NEED_SETUP_CACHE_CLASSES_MAPPING"),
            *("QUANT_BACKEND_CLASSES_MAPPING", "QuantizedCacheConfig"),
        )
    ),
    *(
        ("transformers.generation.utils", f"is_{name}", lambda: bool)
        for name in (
            *("deepspeed_zero3_enabled", "hqq_available", "quanto_available"),
            "torchdynamo_compiling",
        )
    ),
    # Private, and of no use to a forward (PIIP).
    ("transformers.modeling_utils", "_load_state_dict_into_model", lambda: None),
    ("torch.nn.functional", "List", lambda: typing.List),  # noqa: UP006 the name itself is asked for
)

_REGISTER = AutoConfig.register
_TO = nn.Module.to
_CPU = torch.Tensor.cpu
_TOKENIZER = AutoTokenizer.from_pretrained
_OFFER = auto_factory._LazyAutoMapping.register
_WRAP_INIT = getattr(configuration_utils, "wrap_init_to_accept_kwargs", None)

#: Modules that moved, and where they are now.
_MOVED_MODULES = {"transformers.deepspeed": "transformers.integrations.deepspeed"}

#: What a config held that did not say otherwise, of what is no longer there.
_CONFIG_DEFAULTS: dict[str, Any] = {
    "add_cross_attention": False,
    "bos_token_id": None,
    "cross_attention_hidden_size": None,
    "decoder_start_token_id": None,
    "eos_token_id": None,
    "is_decoder": False,
    "pad_token_id": None,
    "pruned_heads": {},
    "sep_token_id": None,
    "tie_encoder_decoder": False,
    "tie_word_embeddings": True,
    "torchscript": False,
}

#: Likewise, but what transformers refuses to save in a config: there only while its model is made.
_GENERATION_DEFAULTS = {"max_length": 20}

#: Where a config keeps those of its file.
_GIVEN = "_normprobe_given"

#: What every model had; no head is masked here.
_MODEL_ATTRIBUTES: dict[str, Any] = {
    "is_parallelizable": False,
    "_supports_flash_attn_2": False,
    "get_head_mask": lambda self, head_mask, layers, *_: [None] * layers,
    "invert_attention_mask": lambda self, mask: _hidden_by(mask, self.dtype),
}

#: The auto classes that a model is made by.
_AUTO_CLASSES = (
    "AutoModelForImageTextToText",
    "AutoModelForCausalLM",
    "AutoModelForMultimodalLM",
)

#: What ``rope_scaling`` holds of a table that nothing scales.
_PLAIN_ROPE = ("rope_type", "type", "rope_theta", "partial_rotary_factor")

#: Marks a class that has its bridges, and holds the names of those it needed when it came.
_BRIDGED = "_normprobe_bridged"

#: Where bridges are noted: the list of the innermost ``foreign_code``.
_noting: list[list[str]] = []


@contextmanager
def foreign_code(trusted: bool, bridges: list[str]) -> Iterator[None]:
    """Bridge the classes of a repository that are imported inside the block.

    Those of the repository's files are bridged before they are used, those of an installed package
    when the block ends.
    """
    if not trusted:
        yield
        return
    imported = dynamic_module_utils.get_class_in_module

    @wraps(imported)
    def import_and_bridge(class_name: str, module_path: Any, **options: Any) -> type:
        found: type = imported(class_name, module_path, **options)
        for foreign in _classes_of(found):
            bridge_default_rope(sys.modules[foreign.__module__])
            _bridge_class(foreign)
        return found

    for module_name, name, there in _MOVED:
        bridge_moved_name(module_name, name, there)
    for older, newer in _MOVED_MODULES.items():
        if find_spec(older) is None:
            sys.modules[older] = importlib.import_module(newer)
    for tower in _one_class_towers():
        bridge_tower_inside(tower)
    bridge_tower_layer(importlib.import_module(_modeling("CLIP")).CLIPEncoderLayer)
    for kind in _CALLED:
        module = importlib.import_module(_modeling(kind))
        bridge_decoder_layer(
            getattr(module, f"{kind}DecoderLayer"), getattr(module, f"{kind}RotaryEmbedding")
        )
        vars(module)["__all__"] = [n for n in vars(module) if not n.startswith("_")]  # to import *
    bridge_causal_mask(PreTrainedModel)
    bridge_resizing(PreTrainedModel)
    bridge_capturing()
    bridge_asked_flash_attention(PreTrainedModel)
    bridge_alone(torch.distributed)
    bridge_cache(DynamicCache)
    bridge_token_of_config(PretrainedConfig)
    bridge_spread(PretrainedConfig)
    bridge_unset_rope(PretrainedConfig)
    bridge_listed_parts(ProcessorMixin)
    # Code that loads a file into a model without memory: the checkpoint's weights follow.
    warnings.filterwarnings("ignore", ".*copying from a non-meta parameter")
    before, level = set(sys.modules), transformers_logging.get_verbosity()
    _noting.append(bridges)
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
            patch.object(nn.Module, "to", cast_or_move),
            patch.object(torch.Tensor, "cpu", cpu_or_no_memory),
            # Of each argument that has no docstring it prints an `[ERROR]`: that is nobody's here.
            patch.object(auto_docstring, "print", lambda *_, **__: None, create=True),
        ):
            try:
                yield
            finally:  # an import that fails leaves modules, which another does not run again
                for module_name in sys.modules.keys() - before:
                    for foreign in _classes_in(module_name):
                        bridge_default_rope(sys.modules[module_name])
                        _bridge_class(foreign)
    finally:
        _noting.pop()
        transformers_logging.set_verbosity(level)  # an import may ask for all there is (Elysium)


def cast_or_move(module: Any, *arguments: Any, **named: Any) -> Any:
    """Code that moves a part while it is made: without memory it is cast alone (VideoGPT+)."""
    try:
        return _TO(module, *arguments, **named)
    except NotImplementedError as error:
        if "meta tensor" not in str(error):
            raise
        _note("Module.to")
        dtype = torch._C._nn._parse_to(*arguments, **named)[1]
        return module if dtype is None else _TO(module, dtype)


def cpu_or_no_memory(tensor: Any, *arguments: Any, **named: Any) -> Any:
    """Code that draws weights on the CPU while it is made: without memory there are none (Ola)."""
    return tensor if tensor.is_meta else _CPU(tensor, *arguments, **named)


def tokenizer_as_written(path_or_id: Any, *arguments: Any, **options: Any) -> Any:
    """A SentencePiece file that stands alone is read by the class that its folder names.

    By the type of the config, as of LLaVA's own code, it is read without the space that opens a
    text: other ids at the beginning of each piece.
    """
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
    _note(f"{named} by its name")
    return tokenization_auto.tokenizer_class_from_name(own).from_pretrained(path_or_id, **where)


def register_if_free(model_type: str, config: Any, exist_ok: bool = False) -> None:
    """A type that transformers took since stays its own: the class of a checkpoint is named."""
    is_native = model_type in CONFIG_MAPPING._mapping
    if is_native and not exist_ok and config is not CONFIG_MAPPING[model_type]:
        _note(f"AutoConfig.register({model_type!r})")
        return
    _REGISTER(model_type, config, exist_ok=exist_ok)


def offer_for_own(offered: Any, config: Any, model: Any, exist_ok: bool = False) -> None:
    """A config class may be called as one that transformers has by now: it is another."""
    own = not str(getattr(config, "__module__", "transformers.")).startswith("transformers.")
    _OFFER(offered, config, model, exist_ok=exist_ok or own)


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


def bridge_tower_inside(model_class: Any) -> None:
    """A tower was the ``vision_model`` of the model around it, which became the tower.

    A class whose own forward calls it gets the forward that it overrides (Elysium).
    """

    def tower_inside(self: Any) -> Any:
        found = self._modules.get("vision_model", self)
        overrides = found is self and type(self).forward is not model_class.forward
        return _Overridden(self, model_class) if overrides else found

    if is_line_5() and not hasattr(model_class, "vision_model"):
        model_class.vision_model = property(tower_inside)


class _Overridden:
    """A module that runs the forward of a class which its own overrides."""

    def __init__(self, module: Any, base: Any) -> None:
        self._module, self._base = module, base

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._base.forward(self._module, *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def bridge_decoder_layer(layer_class: Any, rotary_class: Any) -> None:
    """A decoder layer made its rotary tables, and returned a tuple.

    Such a copy passes no tables: the layer would fail without them (DeepStack, ViSpeak).
    """
    run = layer_class.forward
    if "position_embeddings" not in signature(run).parameters or run.__module__ == __name__:
        return  # a package put a class of its own there (DocOwl)

    @wraps(run)
    def run_as_called(self: Any, *arguments: Any, **named: Any) -> Any:
        given = signature(run).bind_partial(self, *arguments, **named).arguments
        config = getattr(self.self_attn, "config", None)
        if given.get("position_embeddings") is not None or config is None:
            return run(self, *arguments, **named)
        _note(f"{layer_class.__name__} without rotary tables")
        state, places = given["hidden_states"], given.get("position_ids")
        if places is None:
            places = torch.arange(state.shape[1], device=state.device)[None]
        if "_normprobe_tables" not in vars(self):  # no module of the model
            vars(self)["_normprobe_tables"] = rotary_class(config).to(state.device)
        named["position_embeddings"] = vars(self)["_normprobe_tables"](state, places)
        cache = named.pop("past_key_value", named.get("past_key_values"))
        if cache is not None:
            named["past_key_values"] = cache
        left = run(self, *arguments, **named)
        return left if isinstance(left, tuple) else (left, cache, cache)

    run_as_called.__module__ = __name__
    layer_class.forward = run_as_called


def bridge_tower_layer(layer_class: Any) -> None:
    """A layer of a tower took a mask more, and returned a tuple: code that passes it gets one."""
    run = layer_class.forward
    if "causal_attention_mask" in signature(run).parameters or run.__module__ == __name__:
        return

    @wraps(run)
    def run_as_called(
        self: Any, hidden_states: Any, attention_mask: Any = None, *more: Any, **named: Any
    ) -> Any:
        if not more and "causal_attention_mask" not in named:
            return run(self, hidden_states, attention_mask, **named)
        _note(f"{layer_class.__name__} with a causal mask")
        causal = more[0] if more else named.pop("causal_attention_mask")
        masks = [each for each in (attention_mask, causal) if each is not None]
        return (run(self, hidden_states, sum(masks[1:], *masks[:1]) if masks else None, **named),)

    run_as_called.__module__ = __name__
    layer_class.forward = run_as_called


def bridge_place_keyword(model_class: Any) -> None:
    """Transformers 4 tells a decoder where its rows are; copies of older code take it not."""
    forward = vars(model_class).get("forward")
    natives = [
        each for each in model_class.__mro__[1:] if each.__module__.startswith("transformers.")
    ]
    told = any(
        "cache_position" in signature(each.forward).parameters
        for each in natives
        if "forward" in vars(each)
    )
    if forward is None or not told or _takes_keywords(forward):
        return
    if "cache_position" in signature(forward).parameters:
        return

    @wraps(forward)
    def run_without(self: Any, *arguments: Any, **named: Any) -> Any:
        if named.pop("cache_position", None) is not None:
            _note("cache_position")
        return forward(self, *arguments, **named)

    model_class.forward = run_without


def bridge_resizing(base: Any) -> None:
    """Rows that code adds to a table while it is made have no mean without memory (ET Chat)."""
    resize = base.resize_token_embeddings

    @wraps(resize)
    def resize_as_made(self: Any, *arguments: Any, **named: Any) -> Any:
        if any(weight.is_meta for weight in self.get_input_embeddings().parameters()):
            named["mean_resizing"] = False
        return resize(self, *arguments, **named)

    if resize.__module__ != __name__:
        resize_as_made.__module__ = __name__
        base.resize_token_embeddings = resize_as_made


#: What decoders of transformers called for the mask of their layers, and call no more.
_OF_MASKS = ("_update_causal_mask", "_prepare_decoder_attention_mask")


def uncalled_masks(model: Any) -> list[str]:
    """Methods that code overrides to mask otherwise, and that nothing calls any more (ET Chat)."""
    found = []
    for kind in dict.fromkeys(map(type, model.modules())):
        parents = [each for each in kind.__mro__ if issubclass(each, nn.Module)]
        for own in parents:
            if not own.__module__.startswith(("torch.", "transformers.", __name__)):
                for name in _OF_MASKS:
                    calls = f".{name}("
                    if name in vars(own) and not any(calls in _source_of(p) for p in parents):
                        found.append(f"{own.__name__}.{name}")
    return list(dict.fromkeys(found))


def _source_of(kind: type) -> str:
    try:
        return getsource(kind)
    except (OSError, TypeError):
        return ""


def bridge_causal_mask(base: Any) -> None:
    """Decoders made the mask of their layers by a method, which copies of their forward call."""

    def make(
        self: Any, mask: Any, state: Any, _place: Any = None, cache: Any = None, *_: Any, **__: Any
    ) -> Any:
        _note("_update_causal_mask")
        masks = importlib.import_module("transformers.modeling_attn_mask_utils")
        before = 0 if cache is None else cache.get_seq_length()
        if mask is not None and mask.dim() > 2:
            return mask
        shape = tuple(state.shape[:2])
        return masks._prepare_4d_causal_attention_mask(mask, shape, state, before)

    if not hasattr(base, "_update_causal_mask"):
        base._update_causal_mask = make
    for name in ("_use_flash_attention_2", "_use_sdpa"):  # how it was to be made, before
        if not hasattr(base, name):
            setattr(base, name, False)


def bridge_capturing() -> None:
    """A tower inside a decoder is watched once: it would return each state twice (NExT-Chat).

    transformers watches all that a model holds when its states are first asked for, what was asked
    for its own before among it.
    """
    if not is_line_5():
        return
    capturing: Any = importlib.import_module("transformers.utils.output_capturing")
    watch = capturing.install_all_output_capturing_hooks

    @wraps(watch)
    def watch_once(model: Any, prefix: str | None = None) -> None:
        if not getattr(model, "_output_capturing_hooks_installed", False):
            watch(model, prefix)

    if not hasattr(watch, "__wrapped__"):
        capturing.install_all_output_capturing_hooks = watch_once


def bridge_cache(cache_class: Any) -> None:
    """Code makes a cache of tuples, asks how long it is, and returns tuples again."""

    def from_tuples(cls: Any, past: Any = None) -> Any:
        made = cls()
        for layer, (keys, values) in enumerate(past or ()):
            made.update(keys, values, layer)
        return made

    older = {
        "from_legacy_cache": classmethod(from_tuples),
        "get_usable_length": lambda self, _new, layer_idx=0: self.get_seq_length(layer_idx),
        "to_legacy_cache": lambda self: self,
    }
    for name, method in older.items():
        if not hasattr(cache_class, name):
            setattr(cache_class, name, method)


def bridge_tower_names(tower_class: Any) -> None:
    """Weights of such a tower are found under their older names, if its class is derived from it.

    transformers looks for them by the name of its own class alone.
    """
    make = tower_class.__init__
    names = importlib.import_module("transformers.conversion_mapping")

    @wraps(make)
    def make_and_tell(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        known = names.get_checkpoint_conversion_mapping
        if "vision_model" not in self._modules and known(type(self).__name__) is None:
            _note("vision_model")
            renamed = known("CLIPVisionModel")  # of all of _ONE_CLASS
            names.register_checkpoint_conversion_mapping(type(self).__name__, renamed)

    tower_class.__init__ = make_and_tell


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
        _note("mutable defaults")
        config_class.__annotations__ = kept
    return dataclass(config_class, **options)


def init_as_written(config_class: Any) -> Any:
    """A class of configs without an ``__init__`` of its own had that of its parent.

    Configs became dataclasses, which get one that is made of their fields.
    """
    inherited = unwrap(super(config_class, config_class).__init__)
    if inherited.__code__.co_filename == "<string>":  # that of a dataclass is made, too
        return _WRAP_INIT(config_class) if _WRAP_INIT is not None else config_class
    _note("inherited __init__")
    del config_class.__init__
    return config_class


def bridge_kept_modules(model_class: Any) -> None:
    """Names of modules to keep in float32 may be those of another model; 4.57 refuses (Husky)."""
    finish = model_class.post_init

    @wraps(finish)
    def drop_and_finish(self: Any) -> None:
        there = {piece for name, _ in self.named_parameters() for piece in name.split(".")}
        if absent := set(self._keep_in_fp32_modules or ()) - there:
            _note("_keep_in_fp32_modules")
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
        last = next(kind for kind in type(self).__mro__ if _BRIDGED in vars(kind))
        is_last = vars(last)["__init__"] is make_and_finish
        if is_last and not hasattr(self, "all_tied_weights_keys"):
            _note("post_init")
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
    """Tied weights were a list of names; they became a mapping to the weight they are tied to.

    The list might hold names that no weight has (Florence-2).
    """
    keys = model._tied_weights_keys
    if not isinstance(keys, list | tuple | set):
        return
    table = model.get_input_embeddings()
    source = next((name for name, module in model.named_modules() if module is table), None)
    if source is not None and getattr(model.config, "tie_word_embeddings", True):
        _note("_tied_weights_keys")
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
                _note("nested ties")
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


def bridge_generation(model_class: Any) -> None:
    """Models without a head had ``prepare_inputs_for_generation``, which peft asks them for."""
    name = "prepare_inputs_for_generation"
    if hasattr(model_class, name):
        return
    look_up = model_class.__getattr__

    def look_further(self: Any, wanted: str) -> Any:
        if wanted != name:
            return look_up(self, wanted)
        _note(name)
        return partial(GenerationMixin.prepare_inputs_for_generation, self)

    model_class.__getattr__ = look_further


def bridge_model_attributes(_model_class: type) -> None:
    """What went from every model: older classes read it of themselves, and of models inside."""
    base: Any = PreTrainedModel
    for name, value in _MODEL_ATTRIBUTES.items():
        if not hasattr(base, name):
            _note(name)
            setattr(base, name, value)


def bridge_flash_keyword(model_class: Any) -> None:
    """Which attention runs was said by another keyword, also by code that makes its tower."""

    @classmethod  # type: ignore[misc]
    def build(
        cls: Any, config: Any, use_flash_attention_2: bool | None = None, **options: Any
    ) -> Any:
        if use_flash_attention_2 is not None:
            _note("use_flash_attention_2")
        return super(model_class, cls)._from_config(config, **options)

    if "_from_config" not in vars(model_class):
        model_class._from_config = build


def bridge_class_attributes(model_class: type) -> None:
    """What a model supports became a class attribute; a property on the class reads as true.

    Flash attention lost its number.
    """
    if vars(model_class).get("_supports_flash_attn_2"):
        _note("_supports_flash_attn_2")
        model_class._supports_flash_attn = True  # type: ignore[attr-defined]
    for name, value in list(vars(model_class).items()):
        if name.startswith("_supports_") and isinstance(value, property):
            _note(name)
            setattr(model_class, name, False)


def bridge_processor_parts(processor_class: Any) -> None:
    """A processor that loads its parts itself got no dict of its settings beside their path."""
    name = "_get_arguments_from_pretrained"
    load = vars(processor_class).get(name)
    if load is None or "processor_dict" in signature(load.__func__).parameters:
        return

    def load_by_path(cls: Any, /, path: Any, processor_dict: Any = None, **options: Any) -> Any:
        del processor_dict
        _note(name)
        return load.__func__(cls, path, **options)

    setattr(processor_class, name, classmethod(load_by_path))


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
        if own and cls.attributes != found:
            _note("attributes")
            found = cls.attributes
        return found

    processor_class.attributes = None
    processor_class.get_attributes = classmethod(listed_or_told)


def bridge_spread(config_class: Any) -> None:
    """How far weights are spread that nobody reads: some configs of towers had it once (EMOVA)."""
    if not hasattr(config_class, "initializer_range"):
        config_class.initializer_range = 0.02


def bridge_token_of_config(config_class: Any) -> None:
    """Copies of towers call what put the token of the hub among the arguments of a config."""
    if not hasattr(config_class, "_set_token_in_kwargs"):
        config_class._set_token_in_kwargs = staticmethod(lambda _arguments, _token=None: None)


#: What is noted of code that asks for flash attention where there is none.
_EAGER = "eager attention (flash_attn is not installed)"


def bridge_missing_flash_attention(config: Any) -> None:
    """A config that asks for flash attention gets the eager one where there is none.

    Both compute the same; eager is what every model has, and what such repositories name instead.
    """
    from transformers.utils import import_utils

    if import_utils.is_flash_attn_2_available():
        return
    for part in (config, *vars(config).values()):
        if getattr(part, "_attn_implementation", None) == "flash_attention_2":
            part._attn_implementation = "eager"
            _note(_EAGER)


def bridge_asked_flash_attention(base: Any) -> None:
    """Code may ask for flash attention while it makes a part: eager where there is none (360VL).

    Or for what transformers asks of a whole model, of a part of it that has it not (HawkVL).
    """
    name = "_check_and_adjust_attn_implementation"
    choose = getattr(base, name)

    @wraps(choose)
    def choose_what_is_there(self: Any, asked: Any, *more: Any, **options: Any) -> Any:
        from transformers.utils import import_utils

        of_others = asked == "flash_attention_2" and bool(_noting)  # while such code runs
        if of_others and not import_utils.is_flash_attn_2_available():
            _note(_EAGER)
            asked = "eager"
        own = not type(self).__module__.startswith("transformers.")
        if asked == "sdpa" and own and _noting and not getattr(self, "_supports_sdpa", False):
            _note("eager attention of a part that has no other")
            asked = "eager"
        return choose(self, asked, *more, **options)

    if choose.__module__ != __name__:
        choose_what_is_there.__module__ = __name__
        setattr(base, name, choose_what_is_there)


def bridge_alone(distributed: Any) -> None:
    """Code that asks which of several processes it is, of a group that nobody began (EgoGPT)."""
    for name, alone in (("get_rank", 0), ("get_world_size", 1)):
        ask = getattr(distributed, name, None)
        if ask is None or ask.__module__ == __name__:
            continue

        @wraps(ask)
        def answer(*group: Any, _ask: Any = ask, _alone: int = alone, **options: Any) -> Any:
            if distributed.is_initialized():
                return _ask(*group, **options)
            _note("torch.distributed")
            return _alone

        answer.__module__ = __name__
        setattr(distributed, name, answer)


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
            _note("rope_scaling")
            return None
        return parameters

    def write(self: Any, scaling: Any) -> None:
        if scaling is None and (parameters := vars(self).get("rope_parameters")):
            _note("rope_scaling")
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
            _note("rope_scaling")
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
                _note("rope_theta of a part")
                part.rope_theta = theta

    config_class.__init__ = make_and_keep

    def missing(self: Any, name: str) -> Any:
        moved = (vars(self).get("rope_parameters") or {}) if name in _PLAIN_ROPE else {}
        given = {**_GENERATION_DEFAULTS, **vars(self).get(_GIVEN, {})} if _noting else {}
        there = {**_CONFIG_DEFAULTS, **moved, **given}
        if name not in there:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        _note(f"config.{name}")
        return there[name]

    config_class.__getattr__ = missing


def bridge_composition(config_class: Any) -> None:
    """Configs that cannot be made without those of their parts said so by another name."""
    if vars(config_class).get("is_composition"):
        _note("is_composition")
        config_class.has_no_defaults_at_init = True


def bridge_auto_map(config: Any) -> None:
    """The auto classes of models that read pictures became one; keys of older ones name it, too."""
    keys = getattr(config, "auto_map", None) or {}
    known = {"AutoModel", *_AUTO_CLASSES} & keys.keys()
    others = [key for key in keys if key.startswith("AutoModelFor") and key not in _AUTO_CLASSES]
    if others and not known:
        _note(others[0])
        keys[_AUTO_CLASSES[0]] = keys[others[0]]


def bridge_default_rope(module: Any) -> None:
    """Plain rotary tables have no function among those of scaled ones any more.

    Only the module's own copy of the list gets one: transformers takes its presence for an answer.
    """
    functions = getattr(module, "ROPE_INIT_FUNCTIONS", None)
    if isinstance(functions, dict) and "default" not in functions:
        module.ROPE_INIT_FUNCTIONS = {**functions, "default": _plain_rope}


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
    import torch

    _note("default rope")
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    turned = int(head * getattr(config, "partial_rotary_factor", 1.0))
    powers = torch.arange(0, turned, 2, dtype=torch.int64).to(device, torch.float) / turned
    return 1.0 / config.rope_theta**powers, 1.0


def _bridge_class(foreign: type) -> None:
    """Every bridge that a class may need, once."""
    if _BRIDGED not in vars(foreign):
        needed: list[str] = []
        _noting.append(needed)
        try:
            if issubclass(foreign, PreTrainedModel):
                bridge_flash_keyword(foreign)
                bridge_place_keyword(foreign)
            if issubclass(foreign, PreTrainedModel) and not is_line_5():
                bridge_class_attributes(foreign)
                bridge_kept_modules(foreign)
            elif issubclass(foreign, PreTrainedModel):
                bridge_post_init(foreign)
                bridge_tie_weights(foreign)
                bridge_model_attributes(foreign)
                bridge_class_attributes(foreign)
                bridge_generation(foreign)
                bridge_building(foreign)
                bridge_buffers(foreign)
                if any(issubclass(foreign, tower) for tower in _one_class_towers()):
                    bridge_tower_names(foreign)
            elif issubclass(foreign, ProcessorMixin) and is_line_5():
                bridge_processor_parts(foreign)
            elif issubclass(foreign, PretrainedConfig):
                bridge_rope_scaling(foreign)
                bridge_config_defaults(foreign)
                bridge_composition(foreign)
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


def _classes_in(module_name: str) -> Iterator[type]:
    """The classes that a module defines; none of transformers, whose code is no older than it."""
    if module_name.partition(".")[0] != "transformers":
        for value in list(vars(sys.modules[module_name]).values()):
            if isinstance(value, type) and value.__module__ == module_name:
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
    return any(p.kind is p.VAR_KEYWORD for p in signature(function).parameters.values())


def _hidden_by(mask: Any, dtype: Any) -> Any:
    """What is added to attention so that a mask of 1 and 0 hides, ``[batch, 1, 1 or seq, seq]``."""
    import torch

    mask = mask[:, None] if mask.dim() == 3 else mask[:, None, None]
    return (1.0 - mask.to(dtype)) * torch.finfo(dtype).min


def _no_init_weights(_enable: bool = True) -> AbstractContextManager[None]:
    """It could be switched off, and stood elsewhere."""
    made: Any = importlib.import_module("transformers.initialization").no_init_weights
    return made() if _enable else nullcontext()


def _yes() -> bool:
    return True


def _images_then_text(images: Any, text: Any) -> tuple[Any, Any]:
    """Older transformers took both orders and sorted them out."""
    return images, text
