"""What each row that enters the decoder comes from, where no position of the prompt tells it.

Some models insert the rows of an image inside their forward, or pack the prompts anew. So the rows
of the text table are marked: a little noise of its own is added to each as it is looked up, in one
more forward that ends before decoder layer 1. Whichever row there moves along a mark is that word.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.hooks import after_call, attached, before_call, in_full_precision
from normprobe.model.find.parts import Parts
from normprobe.model.tracing.recording import is_ids, tensors
from normprobe.schema import NO_ID
from normprobe.statistics.token_metrics import token_norms
from normprobe.tensors import find_named, flattened

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
HIDES_A_KEY = -1e4

#: What the inputs call a mask of padding.
_OF_PADDING = re.compile(
    r"(.*\.)?(((text|input|src|key|decoder|llm|language)_)*(attention|attn|pad|padding)_masks?"
    r"|(input_|tokens?_)?mask)"
)


class DecoderRows(NamedTuple):
    """Of the rows that enter decoder layer 1, each ``[batch, rows]``."""

    words: Tensor  # which come from the text table alone
    ids: Tensor  # by which token; ``NO_ID`` elsewhere
    mixed: Tensor  # which follow words without being one: something mixes them before the decoder
    kept: Tensor  # what the mask that layer 1 receives, or else the prompt's, does not hide
    asked: Tensor  # which words the prompt holds: the model looked the others up by itself
    in_place: bool  # whether each word has the place that its id has in the prompt
    unseen: int = 0  # words that the prompt's mask keeps, and that of layer 1 hides from all


def decoder_rows(
    parts: Parts, entered: Tensor, run: Callable[[], Tensor], inputs: Mapping[str, Any]
) -> DecoderRows | None:
    """Tell the rows of words.

    Args:
        parts: with a text embedding and decoder layers.
        entered: ``[batch, rows, hidden]``, the decoder input.
        run: makes the decoder input once more.
        inputs: of the model; where none is called ``input_ids``, the ids that are looked up are.

    Returns:
        None where the text embedding is not called with ids.

    Raises:
        NormprobeError: the first axis of the decoder input is no sample's.
    """
    assert parts.text_embedding is not None and parts.decoder_layers is not None
    marks = _Marks((*parts.image_token_ids, *parts.video_token_ids, *parts.audio_token_ids))
    first = next(parts.decoder_layers.module.children())
    masks: dict[str, Tensor] = {}

    def see(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        given = {**dict(zip(signature(module.forward).parameters, args, strict=False)), **kwargs}
        masks.update({n: v for n, v in given.items() if "mask" in n and isinstance(v, Tensor)})

    hooks = (after_call(parts.text_embedding.module, marks.add), before_call(first, see))
    with attached(*hooks):
        again = run()
    if again.shape != entered.shape:
        raise NormprobeError(
            f"decoder layer 1 receives {list(entered.shape[:2])} rows of a batch, and "
            f"{list(again.shape[:2])} when it runs again with moved words: its code draws their "
            "number (MQT-LLaVA), chooses it by what it reads (AVG-LLaVA), or keeps what it was "
            "asked",
            "fix it by an input of its forward, which build(...) of --inputs FILE.py returns, or "
            "by a field of the model, in prepare(model, processor)",
        )
    moved = (again - entered).float()
    if not marks.ids:
        return None
    looked_up, codes = torch.cat(marks.ids), torch.cat(marks.codes)
    which, along = _matched(moved.flatten(0, 1), codes)
    which, along = which.view(moved.shape[:2]), along.view(moved.shape[:2])
    # What no mark moves at all stays as it is to the last bit, or to its rounding.
    away = token_norms(moved) > 1e-3 * token_norms(entered.float())
    words = away & (along > _ALONG)
    ids = torch.where(words, looked_up[which], NO_ID)
    kept = entered.ne(0).any(-1)  # models pad with zeros
    for name, mask in masks.items():
        kept &= _kept(name, mask.to(ids.device), ids)
    prompt, places = _prompt_of(inputs, ids, torch.where(words, which, -1))
    if prompt is not None and _rows_first(words, prompt, places):
        raise NormprobeError(
            f"decoder layer 1 receives {list(words.shape)} rows of prompts {list(prompt.shape)}: "
            "rows come first there, and samples after them",
            "let the layers take samples first (batch_first=True): rows are read so",
        )
    if prompt is None:
        return DecoderRows(words, ids, away & ~words, kept, words, False)
    asked = (places >= 0) & (prompt.flatten()[places] == ids)
    for piece in (t for t in tensors(dict(inputs)) if is_ids(t) and len(t) == len(ids)):
        found = _places(ids, piece.to(ids.device)) >= 0
        if found.sum() == piece.numel():  # all of it: a prompt may come in pieces
            asked |= found & words
    if not asked.any():  # then nothing tells what the model looks up by itself
        asked = words
    in_place = prompt.shape == words.shape and bool((places == _own(prompt))[words].all())
    of_prompt, unseen = prompt_mask(inputs, prompt), 0
    if of_prompt is not None and of_prompt.shape == prompt.shape:
        there = of_prompt.to(ids.device).flatten()[places] != 0
        unseen = int((there & ~kept & words & (places >= 0)).sum())
        kept = torch.where(places >= 0, there, kept)
    return DecoderRows(words, ids, away & ~words, kept, asked, in_place, unseen)


def _own(prompt: Tensor) -> Tensor:
    """The place of each id in a flattened prompt."""
    return torch.arange(prompt.numel(), device=prompt.device).view(prompt.shape)


def _rows_first(words: Tensor, prompt: Tensor, places: Tensor) -> bool:
    """Whether the first axis of the decoder input is that of rows; as many samples hide it."""
    if words.shape != prompt.shape[::-1]:
        return False
    if words.shape != prompt.shape:
        return True
    own = _own(prompt)
    return not (places == own)[words].all() and bool((places == own.T)[words].all())


def rows_of_prompt(ids: Tensor, mask: Tensor | None, rows: int) -> DecoderRows | None:
    """Rows that are words unless pixels tell them; those behind the prompt are none.

    For models that look up no word in a table, or that add features to what they looked up.
    """
    more = rows - ids.shape[-1]
    if more < 0:
        return None
    fits = mask is not None and mask.shape == ids.shape
    kept = mask.to(ids.device) != 0 if mask is not None and fits else ids == ids
    words, kept = (
        nn.functional.pad(each, (0, more), value=value)
        for each, value in ((torch.ones_like(kept), False), (kept, True))
    )
    ids = nn.functional.pad(ids, (0, more), value=NO_ID)
    return DecoderRows(words, ids, ~words & False, kept, words, in_place=True)


def _prompt_of(
    inputs: Mapping[str, Any], ids: Tensor, looked_up: Tensor
) -> tuple[Tensor | None, Tensor]:
    """The input that holds the most of the words, and where each stands in it.

    Args:
        inputs: of the model.
        ids: ``[batch, rows]``, of words.
        looked_up: ``[batch, rows]``, which of the ids that were looked up each is; -1: none.

    Returns:
        The prompt, ``[batch, seq]``, None where no input holds ids; and places in it, flattened,
        ``[batch, rows]``, -1 at rows that are not from there.
    """
    best: tuple[Tensor | None, Tensor] = None, looked_up
    most, named = -1, find_named(inputs, "input_ids")
    for given in (t for t in tensors(dict(inputs)) if is_ids(t)) if named is None else [named]:
        prompt = given.to(ids.device)
        for as_it_stands in (True, False):  # or piece by piece, or beside other ids
            if most == (looked_up >= 0).sum():
                return best
            places = looked_up if as_it_stands else _places(ids, prompt)
            if places.max() >= prompt.numel():
                continue
            found = int(((places >= 0) & (prompt.flatten()[places] == ids)).sum())
            if found > most:
                most, best = found, (prompt, places)
    return best


def prompt_mask(inputs: Mapping[str, Any], prompt: Tensor) -> Tensor | None:
    """The mask of padding among the inputs, 0 at padding; None: there is none.

    Args:
        inputs: of a model.
        prompt: ids ``[batch, seq]``, or other numbers of which padding has one.
    """
    mask: Tensor | None = find_named(inputs, "attention_mask")
    if mask is not None:
        by_query = mask.dim() > 2 and mask.shape[-1] == prompt.shape[-1]
        return _kept("attention_mask", mask.to(prompt.device), prompt) if by_query else mask
    for name, value in flattened(inputs).items():
        fits = isinstance(value, Tensor) and value.shape == prompt.shape
        if fits and _OF_PADDING.fullmatch(name):
            mask = _read(name, value.to(prompt.device), prompt)
        if mask is not None:
            break
    return mask


def _read(name: str, mask: Tensor, ids: Tensor) -> Tensor | None:
    """Which tokens a mask in the shape of their ids keeps, bool; None: it is none of padding.

    In one of attention 1 keeps a token. In one of padding True hides it for the layers of torch and
    keeps it for flash-attn: padding is looked up by one id, and that tells which is meant; where it
    does not, True hides a token and 1 keeps it. Another mask is one of padding if what it hides is
    of one id and at the ends.
    """
    keep = _keeps(mask)
    if "attention" in name or "attn" in name or bool((mask < 0).any()):
        return keep
    if "pad" in name:
        readings = [~keep, keep] if mask.dtype is torch.bool else [keep, ~keep]
        return min(readings, key=lambda kept: len(torch.unique(ids[~kept])))
    inside = (keep.cumsum(-1) > 0) & (keep.flip(-1).cumsum(-1) > 0).flip(-1)
    return keep if len(torch.unique(ids[~keep])) < 2 and not (inside & ~keep).any() else None


def _places(ids: Tensor, prompt: Tensor) -> Tensor:
    """Where in a flattened prompt each row's id stands, in their order; -1: it is not from there.

    Args:
        ids: ``[batch, rows]``.
        prompt: ``[batch, seq]``; of another batch size, where a model packs its prompts.
    """
    places = torch.full_like(ids, -1)
    rows = zip(ids, places, prompt, strict=True)
    if len(ids) != len(prompt):
        rows = zip([ids.flatten()], [places.view(-1)], [prompt.flatten()], strict=True)
    for sample, (found, at, asked) in enumerate(rows):
        alike = SequenceMatcher(None, found.tolist(), asked.tolist(), autojunk=False)
        for row, place, length in alike.get_matching_blocks():
            start = sample * len(asked) + place
            at[row : row + length] = torch.arange(start, start + length, device=ids.device)
    return places


class _Marks:
    """What was added to the rows of the text table: ``codes`` ``[rows, hidden]``, and their ids.

    Nothing to those of placeholders: some models find these by their rows (PEFT's prompt tuning).
    """

    def __init__(self, placeholders: Sequence[int]) -> None:
        self._placeholders = torch.tensor(placeholders, dtype=torch.long)
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
        noise[torch.isin(ids, self._placeholders.to(ids.device)).to(noise.device)] = 0.0
        size = _MARK * token_norms(output.float()).mean() / output.shape[-1] ** 0.5
        self.ids.append(ids)
        self.codes.append(noise)
        return output + (size * noise).view(output.shape).to(output.dtype)


@in_full_precision
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


def _kept(name: str, mask: Tensor, ids: Tensor) -> Tensor:
    """Which rows a mask that a layer receives does not hide from all, bool ``[batch, rows]``.

    Args:
        name: of the mask.
        mask: ``[batch, rows]``, ``[rows, rows]`` or ``[..., queries, keys]``.
        ids: ``[batch, rows]``, of words.
    """
    everything = torch.ones_like(ids, dtype=torch.bool)
    if mask.shape == ids.shape:
        kept = _read(name, mask, ids)
        return everything if kept is None else kept
    rows = ids.shape[1]
    if mask.shape == (rows, rows):
        mask = mask[None]
    batch = 1 if mask.dim() and len(mask) == 1 else len(ids)
    if mask.dim() < 3 or mask.shape[-1] < rows or len(mask) % batch:
        return everything
    keep = _keeps(mask).reshape(batch, -1, *mask.shape[-2:])[:, 0, :, :rows]
    square = keep.shape[-2] == rows
    # True lets a query see a key; for the attention of torch itself it hides it.
    readings = [keep, ~keep] if square and mask.dtype is torch.bool else [keep]
    found = [_seen(reading.expand(len(ids), -1, -1), square) for reading in readings]
    _, seen = min(found, key=lambda each: (each[0], len(torch.unique(ids[~each[1]]))))
    return seen


def _keeps(mask: Tensor) -> Tensor:
    """What a mask keeps where 1 does, and where it is added to scores."""
    additive = mask.is_floating_point() and ((mask < 0).any() or not mask.any())
    return mask > HIDES_A_KEY if additive else mask != 0


def _seen(keep: Tensor, square: bool) -> tuple[bool, Tensor]:
    """Whether one of the keys that a query sees does not see itself, and these, ``[batch, keys]``.

    A query that is padding itself may be let see itself or everything: only others tell of a key,
    and none that sees all, but the last. Of its own key nobody else tells: it is padding where the
    key before it is.

    Args:
        keep: ``[batch, queries, keys]``.
        square: whether queries are the keys.
    """
    told = keep & ~keep.all(-1, keepdim=True)
    if square:
        told &= ~torch.eye(keep.shape[-1], dtype=torch.bool, device=keep.device)
    seen = told.any(-2) | keep[:, -1]
    if square and seen.shape[-1] > 1:
        seen[:, -1] &= told[..., -1].any(-1) | seen[:, -2]
        # The last key of one of several prompts in a row: its query sees the key before, the next
        # query does not.
        before, own, after = keep[:, 1:-1, :-2], keep[:, 1:-1, 1:-1], keep[:, 2:, :-2]
        ends = [t.diagonal(dim1=-2, dim2=-1) for t in (before, own, ~after)]
        seen[:, 1:-1] |= torch.stack(ends).all(0) & seen[:, :-2]
    return square and not keep.diagonal(dim1=-2, dim2=-1)[seen].all(), seen
