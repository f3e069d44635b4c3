"""Attention in the parts of a model: which implementation runs, and its weights, row by row."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import getsource
from itertools import count
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from normprobe.errors import NormprobeError
from normprobe.hooks import after_call, attached, on_this_thread
from normprobe.model.find.parts import Part, Parts
from normprobe.statistics.attention_rows import attention_scores

#: The parts whose layers attend.
_ATTEND = ("vision_encoder", "decoder_layers")


def attention_implementations(model: nn.Module, parts: Parts) -> dict[str, str]:
    """The implementation by part, such as ``sdpa``; several of one part are joined by a comma."""
    found = {}
    for role in _ATTEND:
        part = getattr(parts, role)
        names = attention_in(part.module) if part is not None else set()
        holder = part.name if part is not None else ""
        while part is not None and not names and holder:  # the config stands further up
            holder = holder.rpartition(".")[0]
            names = _by_config(model.get_submodule(holder))
        if names:
            found[role] = ", ".join(sorted(names))
    return found


def attention_in(module: nn.Module) -> set[str]:
    """The implementations that the modules inside one were made with, or their configs name.

    An attribute of a module is what it reads when it runs; a config may say what it was made of.
    """
    inner = list(module.modules())
    own = {
        name
        for each in inner
        if isinstance(name := getattr(each, "attn_implementation", None), str)
    }
    return own or {name for each in inner for name in _by_config(each)}


def uncapped_doubt(model: nn.Module) -> str:
    """A doubt where attention runs that leaves out the cap of its scores (Gemma 2 by 4.57)."""
    for module in model.modules():
        cap = getattr(module, "attn_logit_softcapping", None)
        if cap and _by_config(module) == {"sdpa"}:
            return (
                f"sdpa attention leaves out the cap of scores, {cap:g}, that its config asks for "
                "(attn_logit_softcapping): states are not those of what was trained; pass "
                "--attn-implementation eager"
            )
    return ""


def attend_eagerly_where_asked(model: nn.Module) -> list[str]:
    """Let parts hand over the attention weights that code around them asks for; which, in words.

    sdpa returns none, and code of packages reads them from a tower that it loads without another
    attention (FasterVLM). A model of transformers that asks its own parts is left as it is.
    """
    changed = []
    for name, module in model.named_modules():
        if isinstance(module, PreTrainedModel) or not _asks_for_weights(type(module)):
            continue
        inside = [part for part in module.modules() if isinstance(part, PreTrainedModel)]
        if inside and attention_in(module) - {"eager"}:
            inside[0].set_attn_implementation("eager")
            changed.append(f"{name} attends eagerly: its code reads attention weights")
    return changed


def _asks_for_weights(kind: type) -> bool:
    if kind.__module__.startswith(("torch.", "transformers.")):
        return False
    with suppress(OSError, TypeError):  # a class without a file
        return "output_attentions=True" in getsource(kind).replace(" ", "")
    return False


def _by_config(module: nn.Module) -> set[str]:
    config: Any = None
    with suppress(Exception):  # a property of code of its own may raise anything (LLaVA-Rad)
        config = getattr(module, "config", None)
    name = getattr(config, "_attn_implementation", None)
    return {name} if isinstance(name, str) else set()


#: Rows at once: [heads, rows, keys] in float32 is 512 MB with 32 heads and 64 k keys, for scores
#: and for weights.
ROWS_AT_ONCE = 64

#: Largest error of rows times values, in float32, against the output, relative to it, by dtype.
_AGREEMENT = {
    torch.float64: 1e-3,
    torch.float32: 1e-3,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}

#: The functions are those of the process: one thread at a time wraps them.
_WRAPPING = Lock()

#: (layer from 1, name of the attention module inside it, place of the first row, weights, scores
#: before the softmax: None where the model returns its weights itself)
SeeRows = Callable[[int, str, int, Tensor, Tensor | None], None]
#: (layer from 1, name of the attention module inside it, keys and values ``[key heads, keys,
#: width]`` as attention reads them: behind norms and rotary positions)
SeeKeys = Callable[[int, str, Tensor, Tensor], None]


@contextmanager
def watching_attention(
    layers: Part, rows: Tensor, see: SeeRows, see_keys: SeeKeys | None = None
) -> Iterator[None]:
    """Hand over attention rows of every decoder layer while the block runs a batch of one.

    Args:
        layers: the decoder layers. Attention outside of them, in a vision encoder, is left alone.
        rows: ``[rows]`` query positions, ascending.
        see: called with weights and scores ``[heads, some rows, keys]``, to be reduced at once.
        see_keys: called before ``see``; never where a model returns its weights itself.
    """
    where = {
        id(module): (number, name)
        for number, layer in enumerate(layers.module.children(), start=1)
        for name, module in layer.named_modules()
    }
    chunks = list(zip(count(0, ROWS_AT_ONCE), torch.split(rows, ROWS_AT_ONCE), strict=False))

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def attend(
            module: nn.Module,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attention_mask: Tensor | None = None,
            **options: Any,
        ) -> Any:
            result = function(module, query, key, value, attention_mask, **options)
            if id(module) in where:
                number, name = where[id(module)]
                causal = options.get("is_causal")
                if causal is None:
                    causal = getattr(module, "is_causal", True)
                # Flash attention takes a mask of padding, [batch, keys]: nothing is padded here.
                mask = attention_mask if _is_square(attention_mask) else None
                bias = options.get("position_bias")
                if see_keys is not None:
                    see_keys(number, name, key[0], value[0])
                for start, chunk in chunks:
                    chosen = chunk.to(query.device)
                    scores = attention_scores(
                        query[0],
                        key[0],
                        chosen,
                        scaling=options.get("scaling"),
                        mask=None if mask is None else mask[0],
                        bias=None if bias is None else bias[0],
                        causal=bool(causal) and mask is None and query.shape[2] > 1,
                    )
                    weights = scores.softmax(dim=-1)
                    _check(weights, value[0], result[0][0, chosen], f"layer {number} ({name})")
                    see(number, name, start, weights, scores)
            return result

        return on_this_thread(attend, elsewhere=function)

    read_last: weakref.ref[Tensor] | None = None

    def read(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Weights that a module returns; its parents may hand the same tensor on."""
        nonlocal read_last
        weights = _weights_in(output, int(rows.max()) + 1)
        if weights is None or (read_last is not None and read_last() is weights):
            return
        read_last = weakref.ref(weights)
        number, name = where[id(module)]
        for start, chunk in chunks:
            see(number, name, start, weights[0][:, chunk.to(weights.device)].float(), None)

    with _WRAPPING:
        functions = {name: ALL_ATTENTION_FUNCTIONS[name] for name in ALL_ATTENTION_FUNCTIONS}
        try:
            for name, function in functions.items():
                AttentionInterface.register(name, wrapped(function))
            modules = (module for layer in layers.module.children() for module in layer.modules())
            with attached(*(after_call(module, read) for module in modules)):
                yield
        finally:
            for name, function in functions.items():
                AttentionInterface.register(name, function)


def _is_square(mask: Any) -> bool:
    return isinstance(mask, Tensor) and mask.dim() == 4


def _weights_in(output: Any, least_rows: int) -> Tensor | None:
    """The attention weights ``[1, heads, queries, keys]`` among a module's outputs, if any."""
    for item in output if isinstance(output, tuple) else ():
        if not isinstance(item, Tensor) or item.dim() != 4 or not item.is_floating_point():
            continue
        if len(item) == 1 and item.shape[2] >= least_rows:
            row = item[0, :, least_rows - 1].float()
            # Sinks take a part of the 1. A position bias is no weight: zero, or negative somewhere.
            total = row.sum(-1)
            if bool((row >= 0).all() and (total > 0).all() and (total < 1.02).all()):
                return item
    return None


def _check(weights: Tensor, value: Tensor, output: Tensor, where: str) -> None:
    """Compare rows times values with the output ``[rows, heads, width]`` of the kernel."""
    value = value.repeat_interleave(len(weights) // len(value), dim=0)[:, : weights.shape[-1]]
    explained = (torch.nan_to_num(weights) @ value.float()).transpose(0, 1)
    given = torch.nan_to_num(output.float())
    seen = torch.isfinite(weights).all(-1).transpose(0, 1)  # kernels fill empty rows as they like
    error = ((explained - given)[seen]).norm() / given[seen].norm().clamp_min(1e-30)
    if seen.any() and not error <= _AGREEMENT[output.dtype]:
        raise NormprobeError(
            f"the attention of decoder {where} is not softmax(q k + mask) as far as normprobe "
            f"knows it: rows times values differ from its output by {float(error):.1e}",
            "pass --attn-implementation eager, where the model returns its weights itself",
        )
