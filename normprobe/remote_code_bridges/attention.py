"""Which attention older code asks for, and how it masks."""

import importlib
from functools import wraps
from inspect import isfunction, signature
from typing import Any

from torch import nn

from normprobe.remote_code_bridges.noted import in_place_of, note_bridge, noting, source_of
from normprobe.versions import is_line_5

#: What decoders of transformers called for the mask of their layers, and call no more.
_OF_MASKS = ("_update_causal_mask", "_prepare_decoder_attention_mask")


def uncalled_masks(model: Any) -> list[str]:
    """Methods that code overrides to mask otherwise, and that nothing calls any more (ET Chat)."""
    found = []
    for kind in dict.fromkeys(map(type, model.modules())):
        parents = [each for each in kind.__mro__ if issubclass(each, nn.Module)]
        for own in parents:
            if not own.__module__.startswith(("torch.", "transformers.", "normprobe.")):
                for name in _OF_MASKS:
                    calls = f".{name}("
                    if name in vars(own) and not any(calls in source_of(p) for p in parents):
                        found.append(f"{own.__name__}.{name}")
    return list(dict.fromkeys(found))


def bridge_causal_mask(base: Any) -> None:
    """Decoders made the mask of their layers by a method, which copies of their forward call."""

    def make(
        self: Any, mask: Any, state: Any, _place: Any = None, cache: Any = None, *_: Any, **__: Any
    ) -> Any:
        note_bridge("_update_causal_mask")
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


def bridge_mask_keywords(module: Any) -> None:
    """What makes masks got another name for what it takes, and asks no places of a cache (EO-1)."""
    for name, make in list(vars(module).items()):
        if getattr(make, "__module__", "") != "transformers.masking_utils" or not isfunction(make):
            continue
        taken = signature(make).parameters
        if "inputs_embeds" in taken:
            setattr(module, name, _of_older_names(make, "cache_position" not in taken))


def _of_older_names(make: Any, no_places: bool) -> Any:
    @wraps(make)
    def make_of_older(*arguments: Any, **named: Any) -> Any:
        if "input_embeds" in named:
            note_bridge(f"{make.__name__}(input_embeds=)")
            named["inputs_embeds"] = named.pop("input_embeds")
        if no_places:
            named.pop("cache_position", None)
        return make(*arguments, **named)

    return make_of_older


def bridge_flash_keyword(model_class: Any) -> None:
    """Which attention runs was said by another keyword, also by code that makes its tower."""

    @classmethod  # type: ignore[misc]
    def build(
        cls: Any, config: Any, use_flash_attention_2: bool | None = None, **options: Any
    ) -> Any:
        if use_flash_attention_2 is not None:
            note_bridge("use_flash_attention_2")
        return super(model_class, cls)._from_config(config, **options)

    if "_from_config" not in vars(model_class):
        model_class._from_config = build


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
            note_bridge(_EAGER)


def bridge_asked_flash_attention(base: Any) -> None:
    """Code may ask for flash attention while it makes a part: eager where there is none (360VL).

    Or for what transformers asks of a whole model, of a part of it that has it not (HawkVL).
    """
    name = "_check_and_adjust_attn_implementation"
    choose = getattr(base, name)

    @in_place_of(base, name)
    def choose_what_is_there(self: Any, asked: Any, *more: Any, **options: Any) -> Any:
        from transformers.utils import import_utils

        of_others = asked == "flash_attention_2" and bool(noting)  # while such code runs
        if of_others and not import_utils.is_flash_attn_2_available():
            note_bridge(_EAGER)
            asked = "eager"
        own = not type(self).__module__.startswith("transformers.")
        if asked == "sdpa" and own and noting and not getattr(self, "_supports_sdpa", False):
            note_bridge("eager attention of a part that has no other")
            asked = "eager"
        return choose(self, asked, *more, **options)


def bridge_no_attention(offered: Any) -> None:
    """A config that names no attention, as one inside of another may, gets what most have.

    ``offered``: the functions of transformers 4, by what a config names (LanguageBind).
    """
    if is_line_5():  # which takes the eager one
        return

    def attend(*given: Any, **named: Any) -> Any:
        note_bridge("_attn_implementation=None")
        return offered["sdpa"](*given, **named)

    offered[None] = attend
