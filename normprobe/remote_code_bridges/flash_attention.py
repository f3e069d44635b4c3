"""Functions of flash_attn in plain PyTorch: for code that calls them by name where it is absent.

They compute the same. Shapes are those of flash_attn: states ``[batch, rows, heads, head size]``;
packed ones ``[rows, heads, head size]``, cut at ``cu_seqlens``.
"""

import importlib.util
import re
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from normprobe.remote_code_bridges.noted import source_of


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    *,
    there: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """Attention ``[batch, rows, heads, head size]``; nothing is dropped, for no model is trained.

    The last query sees all keys where causal; several heads may share keys and values. ``there``:
    ``[batch, keys]`` bool, those that are no padding, for which flash_attn has packed sequences.
    """
    del dropout_p
    k, v = (each.repeat_interleave(q.shape[2] // each.shape[2], dim=2) for each in (k, v))
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    wide = torch.promote_types(q.dtype, torch.float32)  # as the kernel adds products up
    scores = torch.einsum("bqhd,bkhd->bhqk", q.to(wide), k.to(wide)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    queries, keys = (torch.arange(n, device=q.device) for n in scores.shape[-2:])
    away = keys - (queries + len(keys) - len(queries))[:, None]  # of a key from its query
    if alibi_slopes is not None:
        scores = scores - alibi_slopes[..., None, None] * away.abs()
    left, right = window_size[0], 0 if causal else window_size[1]
    hidden = torch.zeros_like(away, dtype=torch.bool)
    hidden |= (away < -left) if left >= 0 else hidden
    hidden |= (away > right) if right >= 0 else hidden
    if there is not None:
        hidden = hidden | ~there[:, None, None, :]
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1).nan_to_num()
    return torch.einsum("bhqk,bkhd->bqhd", weights.to(v.dtype), v)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    *more: Any,
    **options: Any,
) -> Tensor:
    """The same of packed sequences, each of which sees itself alone.

    Rows that are of no sequence are 0: the kernel leaves in them what was there (G2VLM).
    """
    del max_seqlen_q, max_seqlen_k  # of use to a kernel
    cuts = (pairwise(each.tolist()) for each in (cu_seqlens_q, cu_seqlens_k))
    left = torch.zeros_like(q[..., :1]) * v.new_zeros(v.shape[-1])
    for (a, b), (c, d) in zip(*cuts, strict=True):
        left[a:b] = flash_attn_func(q[None, a:b], k[None, c:d], v[None, c:d], *more, **options)[0]
    return left


def flash_attn_qkvpacked_func(qkv: Tensor, *more: Any, **options: Any) -> Tensor:
    """Of one tensor ``[batch, rows, 3, heads, head size]``."""
    q, k, v = qkv.unbind(2)
    return flash_attn_func(q, k, v, *more, **options)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int = 0, *more: Any, **options: Any
) -> Tensor:
    """Of one tensor ``[rows, 3, heads, head size]``."""
    q, k, v = qkv.unbind(1)
    cuts, longest = (cu_seqlens, cu_seqlens), (max_seqlen, max_seqlen)
    return flash_attn_varlen_func(q, k, v, *cuts, *longest, *more, **options)


#: Their names before flash_attn 2.
flash_attn_unpadded_func = flash_attn_varlen_func
flash_attn_unpadded_qkvpacked_func = flash_attn_varlen_qkvpacked_func


def rms_norm_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float = 1e-6, **more: Any
) -> Tensor:
    """A norm of rows, ``flash_attn.ops.triton.layer_norm``; of one state alone.

    Raises:
        NotImplementedError: it is asked to add, drop or return more.
    """
    if asked := sorted(name for name, value in more.items() if value):
        raise NotImplementedError(f"rms_norm_fn in plain PyTorch takes no {asked[0]}")
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normed = (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype) * weight
    return normed if bias is None else normed + bias


def index_first_axis(rows: Tensor, indices: Tensor) -> Tensor:
    """Rows ``[rows, ...]`` at these places."""
    return rows[indices]


def unpad_input(states: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Rows that a mask keeps, where they were, where samples are cut, the longest, all lengths."""
    lengths = mask.sum(dim=-1, dtype=torch.int32)
    places = mask.flatten().nonzero().flatten()
    cuts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return states.flatten(0, 1)[places], places, cuts, int(lengths.max()), lengths


def pad_input(rows: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Rows back in their places, ``[batch, seqlen, ...]``, zeros elsewhere."""
    padded = rows.new_zeros(batch * seqlen, *rows.shape[1:])
    padded[indices] = rows
    return padded.reshape(batch, seqlen, *rows.shape[1:])


def flash_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers looks up as ``flash_attention_2``, for code that sets it by itself.

    States ``[batch, heads, rows, head size]`` in, and ``[batch, rows, heads, head size]`` out. A
    mask is of padding, ``[batch, keys]``.
    """
    left = flash_attn_func(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        softmax_scale=scaling,
        causal=module.is_causal if is_causal is None else is_causal,
        window_size=(-1, -1) if sliding_window is None else (sliding_window - 1, -1),
        softcap=softcap or 0.0,
        there=None if attention_mask is None else attention_mask.bool(),
    )
    return left, None


def bridge_flash_attention(offered: Any) -> None:
    """Code that sets flash attention while it is made finds one where none is installed.

    ``offered``: the functions of transformers, by what a config names (InfiniteVL).
    """
    if importlib.util.find_spec("flash_attn") is None:
        offered["flash_attention_2"] = flash_attention_forward


#: What code says of flash_attn where it has it.
_flash_supports_window_size = True

#: The names above that code asks for.
_NAMES = re.compile(
    r"\b((?:flash_attn(?:_\w+)?_func|rms_norm_fn|index_first_axis|unpad_input|pad_input)(?=\()"
    "|_flash_supports_window_size)"
)


def bridge_flash_functions(module: ModuleType) -> None:
    """Code calls functions of flash_attn whatever attention is asked for, and could not import it.

    It guards the import and not the call (MiniMax-VL).
    """
    found = importlib.util.find_spec("flash_attn")
    if found is not None and found.origin is not None:  # what stands in for it lies nowhere
        return
    called = set(_NAMES.findall(source_of(module)))
    for name in called & globals().keys():
        if vars(module).get(name) is None:
            setattr(module, name, globals()[name])
