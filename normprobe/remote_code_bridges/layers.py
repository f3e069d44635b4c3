"""Layers, towers and caches as older code calls them."""

import importlib
from functools import wraps
from inspect import signature
from typing import Any

import torch
from torch import nn

from normprobe.remote_code_bridges.noted import in_place_of, note_bridge, takes_keywords
from normprobe.versions import is_line_5

#: Whose layers are called by copies of what ran them.
CALLED = ("Llama", "Mistral", "Qwen2")
#: Blocks of towers that code runs by itself.
BLOCKS = {"qwen2_vl": "Qwen2VLVisionBlock", "qwen2_5_vl": "Qwen2_5_VLVisionBlock"}


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

    A copy of what ran it passes no tables: it would fail without them (DeepStack, ViSpeak).
    """
    run = layer_class.forward
    if "position_embeddings" not in signature(run).parameters:
        return  # a package put a class of its own there (DocOwl)

    @in_place_of(layer_class, "forward")
    def run_as_called(self: Any, *arguments: Any, **named: Any) -> Any:
        given = signature(run).bind_partial(self, *arguments, **named).arguments
        config = getattr(self.self_attn, "config", None)
        if given.get("position_embeddings") is not None or config is None:
            return run(self, *arguments, **named)
        note_bridge(f"{layer_class.__name__} without rotary tables")
        state, places = given["hidden_states"], given.get("position_ids")
        if places is None:
            places = torch.arange(state.shape[1], device=state.device)[None]
        if "_normprobe_tables" not in vars(self):  # no module of the model, which may move
            vars(self)["_normprobe_tables"] = rotary_class(config)
        tables = vars(self)["_normprobe_tables"].to(state.device)
        named["position_embeddings"] = tables(state, places)
        cache = named.pop("past_key_value", named.get("past_key_values"))
        if cache is not None:
            named["past_key_values"] = cache
        left = run(self, *arguments, **named)
        return left if isinstance(left, tuple) else (left, cache, cache)


def bridge_tower_layer(layer_class: Any) -> None:
    """A layer of a tower took a mask more, and returned a tuple: code that passes it gets one."""
    run = layer_class.forward
    if "causal_attention_mask" in signature(run).parameters:
        return

    @in_place_of(layer_class, "forward")
    def run_as_called(
        self: Any, hidden_states: Any, attention_mask: Any = None, *more: Any, **named: Any
    ) -> Any:
        if not more and "causal_attention_mask" not in named:
            return run(self, hidden_states, attention_mask, **named)
        note_bridge(f"{layer_class.__name__} with a causal mask")
        causal = more[0] if more else named.pop("causal_attention_mask")
        masks = [each for each in (attention_mask, causal) if each is not None]
        return (run(self, hidden_states, sum(masks[1:], *masks[:1]) if masks else None, **named),)


def bridge_block_tables(block_class: Any) -> None:
    """A block of a tower made its rotary tables of the angles that it was given (Kanana-V)."""
    run = block_class.forward

    @in_place_of(block_class, "forward")
    def run_as_called(self: Any, *arguments: Any, **named: Any) -> Any:
        angles = named.get("rotary_pos_emb")
        if angles is not None and named.get("position_embeddings") is None:
            note_bridge(f"{block_class.__name__} without rotary tables")
            del named["rotary_pos_emb"]
            both = torch.cat((angles, angles), dim=-1)
            named["position_embeddings"] = both.cos(), both.sin()
        return run(self, *arguments, **named)


class AxisAngles(nn.Module):
    """Angles of a rotary table by place on one axis, ``[places, dim / 2]``."""

    def __init__(self, dim: int, theta: float = 10000.0) -> None:
        super().__init__()
        powers = torch.arange(0, dim, 2, dtype=torch.float) / dim
        self.register_buffer("inv_freq", theta**-powers, persistent=False)

    def forward(self, seqlen: int) -> torch.Tensor:
        """Of so many places."""
        each: Any = self.inv_freq
        return torch.outer(torch.arange(seqlen, device=each.device, dtype=each.dtype), each)


def bridge_place_keyword(model_class: Any) -> None:
    """Transformers 4 tells a decoder where its rows are; copies of older code take it not.

    Nor what processors of transformers 5 say of each token.
    """
    forward = vars(model_class).get("forward")
    natives = [
        each for each in model_class.__mro__[1:] if each.__module__.startswith("transformers.")
    ]
    told = any(
        "cache_position" in signature(each.forward).parameters
        for each in natives
        if "forward" in vars(each)
    )
    if forward is None or takes_keywords(forward):
        return
    taken = signature(forward).parameters
    unknown = {"cache_position"} if told else set[str]()
    if is_line_5() and "input_ids" in taken:
        unknown.add("mm_token_type_ids")
    unknown -= taken.keys()
    if not unknown:
        return

    @wraps(forward)
    def run_without(self: Any, *arguments: Any, **named: Any) -> Any:
        for name in unknown:
            if named.pop(name, None) is not None:
                note_bridge(name)
        return forward(self, *arguments, **named)

    model_class.forward = run_without


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


def bridge_told_states(tower_class: Any) -> None:
    """A tower inside a model tells its hidden states; in 4.57 the model around it does.

    Code that makes the tower alone asks it for them (CheXagent-2).
    """
    if is_line_5():
        return
    forward = tower_class.forward

    @in_place_of(tower_class, "forward")
    def tell(self: Any, *arguments: Any, **named: Any) -> Any:
        if not named.get("output_hidden_states"):
            return forward(self, *arguments, **named)
        states: list[Any] = []
        layers = self.encoder.layers
        handles = [layer.register_forward_pre_hook(_keeping(states)) for layer in layers]
        handles.append(layers[-1].register_forward_hook(_keeping(states)))  # before its last norm
        try:
            left = forward(self, *arguments, **named)
        finally:
            for handle in handles:
                handle.remove()
        if left.hidden_states is None and len(states) == len(layers) + 1:
            note_bridge(f"hidden states of {type(self).__name__}")
            left.hidden_states = tuple(states)
        return left


def _keeping(states: list[Any]) -> Any:
    def keep(_: Any, arguments: Any, *left: Any) -> None:
        state = (*left, arguments)[0]
        states.append(state[0] if isinstance(state, tuple) else state)

    return keep


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
        "seen_tokens": property(lambda self: self.get_seq_length()),
        "get_max_length": lambda _self: None,
        # Code asks by this whether an answer has begun; by now a cache has its layers before.
        "__bool__": lambda self: self.get_seq_length() > 0,  # (Uni-NaVid, CogACT)
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
            note_bridge("vision_model")
            renamed = known("CLIPVisionModel")  # of all of _ONE_CLASS
            names.register_checkpoint_conversion_mapping(type(self).__name__, renamed)

    tower_class.__init__ = make_and_tell


def bridge_derived_names(model_class: Any) -> None:
    """Weights of a class that is derived from one of transformers, under the names of before.

    transformers renames them for its own class alone. Where the model inside is its own, they are
    laid out as its own (jina-reranker, of Qwen2-VL).
    """
    make = model_class.__init__
    names = importlib.import_module("transformers.conversion_mapping")
    known = names.get_checkpoint_conversion_mapping
    native = [c for c in model_class.__mro__ if c.__module__.startswith("transformers.")]
    kinds = [getattr(c, "config_class", None) for c in native]
    called = [c.__name__ for c in native] + [getattr(kind, "model_type", "") for kind in kinds]
    of_class = next((name for name in called if known(name) is not None), "")
    if not of_class:
        return

    @wraps(make)
    def make_and_tell(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **options)
        own, inside = type(self).__name__, getattr(self, self.base_model_prefix, None)
        if known(own) is None and type(inside).__module__.startswith("transformers."):
            note_bridge(f"names of weights of {of_class}")
            names.register_checkpoint_conversion_mapping(own, known(of_class))

    model_class.__init__ = make_and_tell


def bridge_alone(distributed: Any) -> None:
    """Code that asks which of several processes it is, of a group that nobody began (EgoGPT)."""
    for name, alone in (("get_rank", 0), ("get_world_size", 1)):
        ask = getattr(distributed, name, None)
        if ask is None:
            continue

        @in_place_of(distributed, name)
        def answer(*group: Any, _ask: Any = ask, _alone: int = alone, **options: Any) -> Any:
            if distributed.is_initialized():
                return _ask(*group, **options)
            note_bridge("torch.distributed")
            return _alone
