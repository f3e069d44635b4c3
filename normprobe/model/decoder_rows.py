"""What each row that enters the decoder comes from, where no position of the prompt tells it.

Some models insert the rows of an image inside their forward, or pack the prompts anew. So the rows
of the text table are marked: a little noise of its own is added to each as it is looked up, in one
more forward that ends before decoder layer 1. Whichever row there moves along a mark is that word.
"""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normprobe.hooks import after_call, attached, before_call
from normprobe.model.find.parts import Parts
from normprobe.model.tracing.recording import tensors
from normprobe.schema import NO_ID
from normprobe.statistics.token_metrics import token_norms

#: Noise relative to the mean norm of the rows that were looked up: norms on the way stay linear,
#: and bfloat16 rounds far less.
_MARK = 2**-3

#: Cosine from which a row moved along a mark. Those of others stay below, also by chance: marks
#: are compared in as many dimensions.
_ALONG = 0.8
_DIMENSIONS = 128

#: Rows that are compared with all marks at a time.
_AT_ONCE = 1024

#: Below, an additive mask hides a key.
_HIDDEN = -1e4


class DecoderRows(NamedTuple):
    """Of the rows that enter decoder layer 1, each ``[batch, rows]``."""

    words: Tensor  # which come from the text table alone
    ids: Tensor  # by which token; ``NO_ID`` elsewhere
    mixed: Tensor  # which follow words without being one: something mixes them before the decoder
    kept: Tensor  # what the mask that layer 1 receives, or else the prompt's, does not hide
    in_place: bool  # whether each word has the place that its id has in the prompt


def decoder_rows(
    parts: Parts,
    entered: Tensor,
    run: Callable[[], Tensor],
    prompt: Tensor | None,
    prompt_mask: Tensor | None,
) -> DecoderRows | None:
    """Tell the rows of words.

    Args:
        parts: with a text embedding and decoder layers.
        entered: ``[batch, rows, hidden]``, the decoder input.
        run: makes the decoder input once more.
        prompt: the ids of the prompt, ``[batch, seq]``; None: there are none by that name.
        prompt_mask: of the ids that are looked up, 0 at padding.

    Returns:
        None where the text embedding is not called with ids.
    """
    assert parts.text_embedding is not None and parts.decoder_layers is not None
    marks, first = _Marks(), next(parts.decoder_layers.module.children())
    masks: list[Tensor] = []

    def see(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        given = {**dict(zip(signature(module.forward).parameters, args, strict=False)), **kwargs}
        masks.extend(masks_in(given))

    hooks = (after_call(parts.text_embedding.module, marks.add), before_call(first, see))
    with attached(*hooks):
        moved = (run() - entered).float()
    if not marks.ids:
        return None
    ids, codes = torch.cat(marks.ids), torch.cat(marks.codes)
    which, along = _matched(moved.flatten(0, 1), codes)
    which, along = which.view(moved.shape[:2]), along.view(moved.shape[:2])
    # What no mark moves at all stays as it is to the last bit, or to its rounding.
    away = token_norms(moved) > 1e-3 * token_norms(entered.float())
    words = away & (along > _ALONG)
    kept = entered.ne(0).any(-1)  # models pad with zeros
    if masks:
        kept &= _kept(masks[0], moved.shape[:2])
    in_place = False
    if prompt is not None and len(ids) == prompt.numel():  # looked up as it stands
        positions = torch.arange(prompt.numel(), device=which.device).view(prompt.shape)
        in_place = prompt.shape == which.shape and bool((which == positions)[words].all())
    if prompt_mask is not None and prompt_mask.numel() == len(ids):
        there = prompt_mask.to(which.device).flatten()[which] != 0
        kept = torch.where(words, there, kept)
    return DecoderRows(words, torch.where(words, ids[which], NO_ID), away & ~words, kept, in_place)


def masks_in(given: Mapping[str, Any]) -> list[Tensor]:
    """What is called a mask; one of padding, as torch's own layers take it, is turned around."""
    found = {n: v for n, v in given.items() if "mask" in n and isinstance(v, Tensor)}
    return [
        ~mask if "padding" in name and mask.dtype is torch.bool else mask
        for name, mask in found.items()
    ]


class _Marks:
    """What was added to the rows of the text table: ``codes`` ``[rows, hidden]``, and their ids."""

    def __init__(self) -> None:
        self.ids: list[Tensor] = []
        self.codes: list[Tensor] = []

    def add(self, _: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """A hook of the text embedding that changes what it returns."""
        if not isinstance(output, Tensor):
            return None
        count = output[..., 0].numel()
        given = (t for t in tensors((args, kwargs)) if not t.is_floating_point())
        ids = next((t.flatten() for t in given if t.numel() == count), None)
        if ids is None or not count:
            return None
        generator = torch.Generator().manual_seed(len(self.ids))
        noise = torch.randn(count, output.shape[-1], generator=generator).to(output.device)
        size = _MARK * token_norms(output.float()).mean() / output.shape[-1] ** 0.5
        self.ids.append(ids)
        self.codes.append(noise)
        return output + (size * noise).view(output.shape).to(output.dtype)


def _matched(moved: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row the mark that it moved along most, and its cosine with it."""
    if moved.shape[-1] != codes.shape[-1]:  # projected between the table and the decoder
        return torch.zeros(len(moved), dtype=torch.long), torch.zeros(len(moved))
    if moved.shape[-1] > _DIMENSIONS:
        generator = torch.Generator().manual_seed(0)
        onto = torch.randn(moved.shape[-1], _DIMENSIONS, generator=generator).to(moved)
        moved, codes = moved @ onto, codes.to(moved) @ onto
    moved, codes = (nn.functional.normalize(t, dim=-1) for t in (moved, codes.to(moved)))
    best = [(part @ codes.T).max(-1) for part in torch.split(moved, _AT_ONCE)]
    return torch.cat([b.indices for b in best]), torch.cat([b.values for b in best])


def _kept(mask: Tensor, shape: torch.Size) -> Tensor:
    """Which keys a mask of attention does not hide from all, ``[batch, rows]``.

    A query that is padding itself may be let see itself or everything: only others tell of a key,
    and none that sees all, but the last.
    """
    keep = mask > _HIDDEN if mask.is_floating_point() and (mask < 0).any() else mask != 0
    if keep.dim() > 2:
        keep = keep.reshape(len(keep), -1, *keep.shape[-2:])[:, 0, :, : shape[1]]
        told = keep & ~keep.all(-1, keepdim=True)
        if keep.shape[-1] == keep.shape[-2]:
            told &= ~torch.eye(keep.shape[-1], dtype=torch.bool, device=keep.device)
        keep = told.any(-2) | keep[:, -1]
    if keep.shape[-1] != shape[1] or keep.dim() != 2:
        return torch.ones(shape, dtype=torch.bool, device=mask.device)
    return keep.expand(shape)
