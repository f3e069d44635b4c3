"""What each row that enters the decoder comes from: pixels, sound, words, nothing, or padding.

Inputs say so, by masks or by ids that are declared, and once, on the first batch, other pixels are
asked whether they change these rows and no word. Where nothing is declared, or rows are inserted
inside the forward, each input is changed instead and differences are compared, so that positions,
constants and gains cancel:

- a row that other pixels, another video or another sound change comes from them;
- one that moves along the mark of a row of the text table is that word (``decoder_rows``);
- one that nothing moves is learned, and structural; what the mask hides is padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.failures import is_native
from normprobe.inputs.on_device import pixel_inputs, unchanged_numbers, with_other_pixels
from normprobe.inputs.token_groups import by_mask, marked_positions, token_groups
from normprobe.model.decoder_rows import DecoderRows, decoder_rows, prompt_mask, rows_of_prompt
from normprobe.model.find.overrides import ADDED, CROSS_ATTENTION, DISCRETE, IN_SEQUENCE, PREPENDED
from normprobe.model.find.parts import Parts, by_hand
from normprobe.schema import (
    AUDIO,
    NO_ID,
    PADDING,
    STRUCTURAL,
    STRUCTURAL_MASK,
    TEXT,
    TOKEN_GROUPS,
    VIDEO,
    VIDEO_MASK,
    VISUAL,
    VISUAL_MASK,
)
from normprobe.tensors import find_named

if TYPE_CHECKING:
    from normprobe.model.measured_model import MeasuredModel

#: Layouts of inputs whose rows are kept, beside the last.
_LAYOUTS = 31
#: What is compared by its value.
_PLAIN = (str, bytes, int, float, torch.dtype, torch.device, type(None))

_VISUAL, _STRUCTURAL, _TEXT = map(TOKEN_GROUPS.index, (VISUAL, STRUCTURAL, TEXT))

#: What the processors of transformers call the tokens of a modality, beside 0 text and 1 image.
_TOKEN_TYPES = {VIDEO: 2, AUDIO: 3}


class Placed(NamedTuple):
    """What is known of tokens before structural ones are."""

    groups: Tensor  # ``[batch, seq]`` codes of the prompts' positions; by rows of the decoder input
    ids: Tensor | None  # likewise; of a row that is no word NO_ID; None: there are none
    by_rows: bool = False  # the rows of the decoder input told it, and that some are structural


class Provenance:
    """Tells the rows of one model, and keeps those of layouts that it has seen."""

    def __init__(self, measured: MeasuredModel) -> None:
        self._measured = measured
        self._inserts: bool | None = None  # rows, beside declared ids; None: not seen yet
        self._by_layout: dict[Any, Placed | None] = {}

    @property
    def _parts(self) -> Parts:
        return self._measured.parts

    def placed(self, inputs: Mapping[str, Any]) -> Placed:
        """The group and the id of every token, without asking which placeholders are structural."""
        ids, mask = text_ids(inputs, self._parts)
        marked = find_named(inputs, VISUAL_MASK)
        if marked is not None and (ids is None or marked.shape != ids.shape):
            placed = self._by_mask_of_rows(inputs, marked, ids)
            if placed is not None:
                return placed
        if not self._declares_all(inputs, ids):
            placed = self._by_intervention(inputs, ids, mask)
            if placed is not None:
                return placed
        if ids is None:
            given = find_named(inputs, "inputs_embeds") is not None
            what = "inputs_embeds and no visual_mask" if given else "no input_ids"
            raise NormprobeError(
                f"the inputs hold {what}; received {', '.join(inputs)}",
                "pass input_ids and pixels, or with inputs_embeds visual_mask, bool [batch, seq]: "
                "True at the rows of an image, all False where there is none",
            )
        return Placed(self._by_prompt(inputs, ids, mask), ids)

    # --- what is declared -------------------------------------------------------------------------

    def _declares_all(self, inputs: Mapping[str, Any], ids: Tensor | None) -> bool:
        """Whether masks, ids or the fusion of the model say of each position what it is.

        Where a row stands of which an id is declared is known of models of transformers alone.
        """
        if ids is None:  # what is passed as embeddings has been looked up, if at all, before
            given = find_named(inputs, "inputs_embeds") is not None
            return given or self._parts.text_embedding is None or is_native(self._measured.model)
        fusion = self._parts.fusion
        if fusion == CROSS_ATTENTION or marked_positions(inputs, ids.shape) is not None:
            return True
        by_ids = self._parts.image_token_ids or fusion == PREPENDED or not pixel_inputs(inputs)
        return bool(by_ids) and is_native(self._measured.model)

    def _by_prompt(self, inputs: Mapping[str, Any], ids: Tensor, mask: Tensor | None) -> Tensor:
        """The group of each position of the prompts, by what is declared of it."""
        parts = self._parts
        groups = token_groups(
            ids,
            mask if mask is not None and mask.shape == ids.shape else None,
            parts.image_token_ids,
            self._measured.special_token_ids,
            parts.video_token_ids,
            parts.audio_token_ids,
        )
        marked = marked_positions(inputs, groups.shape)
        if marked is None and parts.fusion in (PREPENDED, CROSS_ATTENTION):
            return groups
        if marked is not None:
            groups = torch.where(marked & (groups != PADDING), _VISUAL, groups)
            structural = inputs.get(STRUCTURAL_MASK)
            if structural is not None:
                groups = torch.where(structural.to(groups.device) & marked, _STRUCTURAL, groups)
        for group in _TOKEN_TYPES:
            groups = self._with_group(group, inputs, groups)
        placeholders = int((groups == _VISUAL).sum())
        if not pixel_inputs(inputs):
            looked_up = parts.fusion == DISCRETE and "fusion" in parts.named  # by a script, before
            # With a mask pixels may come as file names.
            if placeholders and VISUAL_MASK not in inputs and not looked_up:
                raise NormprobeError(
                    f"the prompts hold {placeholders} image placeholders, and the inputs no "
                    f"pixels: received {', '.join(inputs)}",
                    "pass all that the processor returns for the images, or prompts without them; "
                    f"where an object holds the pixels, say which rows are theirs: {VISUAL_MASK}",
                )
            return groups
        if marked is None and not placeholders and not (groups == TOKEN_GROUPS.index(VIDEO)).any():
            if not parts.image_token_ids:  # nothing is looked up, and rows are added
                fitted(groups, self._measured.entered(inputs), parts)
            raise NormprobeError(
                f"the prompt holds no image token: expected one of the ids "
                f"{list(parts.image_token_ids)} in input_ids",
                "use the processor of this model, or check config.image_token_id",
            )
        return groups

    def _with_group(self, group: str, inputs: Mapping[str, Any], groups: Tensor) -> Tensor:
        """Tell the tokens of videos, or of sounds: by their ids, else by what the inputs hold.

        Some models write a video with the placeholders of an image. Then the processor says which
        are a video's; where it does not, all are if there is no image, and else those that other
        pixels of the video change.
        """
        held, code = pixel_inputs(inputs, group), TOKEN_GROUPS.index(group)
        mask = inputs.get(VIDEO_MASK) if group == VIDEO else None
        if mask is not None:
            return torch.where((groups == _VISUAL) & mask.to(groups.device), code, groups)
        if not held:
            if placeholders := int((groups == code).sum()):
                raise NormprobeError(
                    f"the prompts hold {placeholders} {group} placeholders, and the inputs no "
                    f"{group}: received {', '.join(inputs)}",
                    f"pass all that the processor returns for {group}, or prompts without it",
                )
            return groups
        types = find_named(inputs, "mm_token_type_ids")
        if types is not None and types.shape == groups.shape:
            said = (types.to(groups.device) == _TOKEN_TYPES[group]) & (groups != PADDING)
            as_image = said & (groups == _VISUAL)
            if (as_image | (groups == code)).any():  # types may mark its start and end, too
                said = as_image
            groups = torch.where(said, code, groups)
        if (groups == code).any():
            return groups
        if group == VIDEO and not pixel_inputs(inputs) and (groups == _VISUAL).any():
            return torch.where(groups == _VISUAL, code, groups)
        moved = self._other(inputs, group, self._measured.entered(inputs)).to(groups.device)
        if moved.shape == groups.shape and (moved & (groups != PADDING)).any():
            return torch.where(moved & (groups != PADDING), code, groups)
        raise NormprobeError(
            f"the inputs hold {group} ({', '.join(held)}), and no token of the prompts stands for "
            f"it: expected one of the ids {list(getattr(self._parts, f'{group}_token_ids'))}",
            "use the processor of this model, or inputs without it",
        )

    def _by_mask_of_rows(
        self, inputs: Mapping[str, Any], marked: Tensor, ids: Tensor | None
    ) -> Placed | None:
        """By a mask of the rows that enter the decoder.

        None where the mask is none of these, but an input of the model's own.
        """
        embeds = find_named(inputs, "inputs_embeds")
        entered = self._measured.entered(inputs) if embeds is None else embeds
        structural = inputs.get(STRUCTURAL_MASK)
        for mask in (marked, structural):
            if mask is None or mask.shape == entered.shape[:2]:
                continue
            if VISUAL_MASK in signature(self._measured.model.forward).parameters:
                return None
            prompts = f"the prompts {list(ids.shape)} or " if ids is not None else ""
            raise NormprobeError(
                f"{VISUAL_MASK if mask is marked else STRUCTURAL_MASK} is {list(mask.shape)}: "
                f"expected the shape of {prompts}the rows that enter the decoder "
                f"{list(entered.shape[:2])}",
                "pass bool [batch, seq]: True at the rows of an image",
            )
        marked = by_mask(marked.to(entered.device), entered.shape[:2])
        rows = None if embeds is not None else self._words(inputs, entered)
        if rows is not None:
            placed = self._of_rows(inputs, entered, rows, marked)._replace(by_rows=False)
        else:
            groups = torch.where(marked, _VISUAL, _TEXT).to(torch.int8)
            mask = prompt_mask(inputs, entered.float().sum(-1))
            if mask is not None and mask.shape == groups.shape:
                groups[mask.to(groups.device) == 0] = PADDING
            placed = Placed(groups, None, by_rows=True)
        if structural is not None:
            placed.groups[structural.to(marked.device).bool() & marked] = _STRUCTURAL
        return placed

    # --- what changes a row -----------------------------------------------------------------------

    def _by_intervention(
        self, inputs: Mapping[str, Any], ids: Tensor | None, mask: Tensor | None
    ) -> Placed | None:
        """By what changes each row of the decoder input; kept for inputs of the same layout.

        None where every word has its place in the prompt, and pixels have theirs declared.
        """
        declared = bool(self._parts.image_token_ids)
        if (declared and not pixel_inputs(inputs)) or self._inserts is False:
            return None
        layout = tuple((name, _layout_of(value, name)) for name, value in inputs.items())
        if layout not in self._by_layout:
            entered = self._measured.entered(inputs)
            turned = ids is not None and entered.shape[:2] == ids.shape[::-1]
            if ids is not None and len(entered) != len(ids) and not turned:
                raise NormprobeError(
                    f"decoder layer 1 receives {list(entered.shape[:-1])} positions of prompts "
                    f"{list(ids.shape)}: they are packed inside the model, or some are left out",
                    "measure with --batch-size 1",
                )
            if declared and ids is not None:  # once: a model inserts rows, or it does not
                self._inserts = entered.shape[:2] != ids.shape
                if turned and not self._inserts:  # as many samples as rows: which axis is which?
                    self._words(inputs, entered)
                if not self._inserts:
                    return None
            added = self._parts.fusion == ADDED  # a mark does not tell a word from what is added
            rows = None if added else self._words(inputs, entered)
            if rows is None and ids is not None and (added or ids.shape == entered.shape[:2]):
                rows = rows_of_prompt(ids.to(entered.device), mask, entered.shape[1])
            told = None
            shown = any(pixel_inputs(inputs, group) for group in (VISUAL, *_TOKEN_TYPES))
            if rows is not None and (ids is None or shown or not rows.in_place):
                told = self._of_rows(inputs, entered, rows, None)
            self._by_layout = {**dict(list(self._by_layout.items())[-_LAYOUTS:]), layout: told}
        return self._by_layout[layout]

    def _doubt_without_words(self, words: Tensor, groups: Tensor) -> None:
        """A picture that changes the rows of all words leaves none of text (Firebolt-VL)."""
        seen, told = groups == _VISUAL, groups == _TEXT
        if words.any() and seen.any() and not told.any():
            self._measured.add_doubt(
                "the picture changes every row of the prompts, so all of them count as visual: "
                "where a module mixes it into rows of words, --part fusion=cross-attention "
                "measures these as text, and --part projector=NAME what they are mixed with"
            )

    def _words(self, inputs: Mapping[str, Any], entered: Tensor) -> DecoderRows | None:
        """The rows of words; None where none is looked up in a table."""
        if self._parts.text_embedding is None:
            return None
        table, width = self._parts.text_embedding, entered.shape[-1]
        known = "text_embedding" in self._parts.named or is_native(self._measured.model)
        size = getattr(table.module, "embedding_dim", width)
        if size != width and not known:
            raise NormprobeError(
                f"rows of {table.name} have size {size}, and decoder layer 1 of {self._measured} "
                f"reads {width}: it is another model's table, or they are projected between",
                by_hand(self._measured.model, text_embedding="NAME"),
            )
        again = partial(self._measured.decoder_input, inputs)
        rows = decoder_rows(self._parts, entered, again, inputs)
        if rows is not None and rows.unseen and not is_native(self._measured.model):
            self._measured.add_doubt(
                f"{rows.unseen} words of the prompts are hidden from all by the mask that decoder "
                "layer 1 gets, and not by attention_mask: where rows are inserted, a mask as short "
                "as the prompt hides its end; leave it out, or lengthen it as its processor does, "
                "in build() of an --inputs file"
            )
        return rows

    def _of_rows(
        self,
        inputs: Mapping[str, Any],
        entered: Tensor,
        rows: DecoderRows,
        marked: Tensor | None,
    ) -> Placed:
        """The groups of rows: words by their ids, the others by what changes them.

        ``marked``: the rows of images, where it was said which they are.
        """
        parts, kept, ids, told = self._parts, rows.kept, rows.ids, rows.words
        special = self._measured.special_token_ids
        named = token_groups(ids, None, (), special, parts.video_token_ids, ())
        groups = torch.where(told & (named != _VISUAL), named, _STRUCTURAL)
        words = kept & ((groups == _TEXT) | rows.mixed)
        size = getattr(parts.text_embedding and parts.text_embedding.module, "num_embeddings", None)
        if size is not None:  # rows of other tables (RadFM: marks around a picture) are no words
            groups = torch.where(ids >= size, _STRUCTURAL, groups)
        if marked is not None:  # rows of zeros, too, which no mask of padding makes (Inverse-LLaVA)
            kept = kept | marked
            groups, told = torch.where(rows.mixed, _TEXT, groups), told | rows.mixed
        for group in (VISUAL, *_TOKEN_TYPES):
            if group == VISUAL and marked is not None:
                moved = marked
            elif pixel_inputs(inputs, group):
                moved = self._moved(inputs, group, entered, rows)
                if group == VISUAL:
                    groups = torch.where(
                        self._placeholders(inputs, moved, rows), _STRUCTURAL, groups
                    )
            else:
                continue
            groups, told = torch.where(moved, TOKEN_GROUPS.index(group), groups), told | moved
            ids = torch.where(moved, NO_ID, ids)
            if moved.any() and not kept[moved].any():
                kept = entered.ne(0).any(-1)  # what was taken for a mask of padding is none
        if (rows.mixed & ~told).any():
            raise NormprobeError(
                f"{int((rows.mixed & ~told).sum())} rows that enter the decoder layers of "
                f"{self._measured} depend on the text and are no words",
                "name earlier layers as decoder_layers, or pass visual_mask",
            )
        hidden = ~kept & ~told & entered.ne(0).any(-1)
        if hidden.any(-1).all():  # of each prompt: no filling up to the longest (LaVIN)
            kept = kept | hidden
        self._refuse_hidden_pixels(inputs, told | ~kept)
        if (learned := int((~told & kept).sum())) and (others := unchanged_numbers(inputs)):
            self._measured.add_doubt(
                f"{learned} rows are taken for learned ones, which neither words nor other pixels "
                f"change, and {' and '.join(others)} stayed as it was: if they come from it, say "
                "which rows are an image's by visual_mask, or call it pixel_values among the "
                "inputs, and rename it in forward(model, **inputs) of an --inputs file"
            )
        groups = torch.where(kept, groups, PADDING).to(torch.int8)
        if marked is None:
            self._doubt_without_words(words, groups)
        prompt, _ = text_ids(inputs, parts)
        return Placed(groups, prompt if rows.in_place and prompt is not None else ids, by_rows=True)

    def _refuse_hidden_pixels(self, inputs: Mapping[str, Any], told: Tensor) -> None:
        """Refuse rows of which nothing tells where the vision side ran on no input."""
        if told.all() or any(pixel_inputs(inputs, group) for group in (VISUAL, *_TOKEN_TYPES)):
            return
        if find_named(inputs, VISUAL_MASK) is None and self._measured.handed_over(inputs):
            raise NormprobeError(
                f"the vision side of {self._measured} runs, and no input holds pixels: received "
                f"{', '.join(inputs)}",
                "pass the pixels among the inputs, rather than hold them in the forward",
            )

    def _placeholders(self, inputs: Mapping[str, Any], moved: Tensor, rows: DecoderRows) -> Tensor:
        """The words that other pixels leave alone, and whose id stands for rows of pixels as well.

        Where features are added to text (UDOP), an id that stands for both is a word.
        """
        ids, _ = text_ids(inputs, self._parts)
        if not rows.in_place or ids is None or self._parts.fusion != IN_SEQUENCE:
            return torch.zeros_like(moved)
        ids = ids.to(moved.device)
        return rows.words & ~moved & torch.isin(ids, ids[moved])

    def _other(self, inputs: Mapping[str, Any], group: str, entered: Tensor) -> Tensor:
        """The rows that other pixels change, or another video or sound, to the last bit."""
        other = self._measured.decoder_input(with_other_pixels(inputs, group))
        refuse_other_rows(str(self._measured), inputs, entered, other)
        return (entered != other).any(-1)

    def _moved(
        self, inputs: Mapping[str, Any], group: str, entered: Tensor, rows: DecoderRows
    ) -> Tensor:
        """The rows that other pixels change, or may."""
        moved = self._other(inputs, group, entered)
        if not moved.any() and group == AUDIO:
            raise NormprobeError(
                f"another sound changes no row that enters the decoder layers of {self._measured} "
                f"({', '.join(pixel_inputs(inputs, group))})",
                "leave it out of the inputs; where its forward wants one all the same, hold it in "
                "forward(model, **inputs) of --inputs FILE.py",
            )
        if not moved.any() and self._parts.fusion != CROSS_ATTENTION:
            raise NormprobeError(
                f"other pixels change no row that enters the decoder layers of {self._measured} "
                f"({', '.join(pixel_inputs(inputs, group))})",
                "pass pixels as floating-point numbers, and a prompt with the image's place; where "
                f"text attends to the image instead, say so: --part fusion={CROSS_ATTENTION}; what "
                "code of its own keeps of a picture, forward(model, **inputs) of an --inputs file "
                "has to forget",
            )
        moved |= self._looked_up(moved, rows)
        mixed = (moved | ~rows.words).all() and rows.words.any()
        if mixed and self._parts.fusion != ADDED:
            raise NormprobeError(
                f"other pixels change every row that enters the decoder layers of {self._measured}",
                "image and text mix before them: name earlier layers, or pass visual_mask; where "
                "layers are two lists, such as one that attends to the image, let one module hold "
                "both steps",
            )
        return moved

    def chooses(self, inputs: Mapping[str, Any], entered: Tensor, moved: Tensor) -> bool:
        """Whether an image tokenizer chose the rows that other pixels change."""
        if is_native(self._measured.model):
            return False
        rows = self._words(inputs, entered)
        return rows is not None and bool(self._looked_up(moved, rows).any())

    def _looked_up(self, moved: Tensor, rows: DecoderRows) -> Tensor:
        """The rows that an image tokenizer chose of the text table: other pixels choose others.

        For some they may choose the same. So where one is among ``moved``, all words are that the
        prompt does not hold; else none.
        """
        chosen = rows.words & ~rows.asked
        if not (moved & chosen).any():
            return torch.zeros_like(chosen)
        if (moved & rows.asked).any():
            raise NormprobeError(
                f"{int((moved & rows.asked).sum())} rows that an image tokenizer of "
                f"{self._measured} chose are looked up by ids of the prompt: nothing tells the "
                "others of it from words",
                "pass visual_mask, bool [batch, rows of the decoder]: True at the rows of an image",
            )
        self._measured.parts = replace(self._parts, fusion=DISCRETE)
        return chosen


def refuse_other_rows(
    model: str, inputs: Mapping[str, Any], entered: Tensor, other: Tensor
) -> None:
    """Refuse a model of which other pixels change the number of rows (Groma: regions)."""
    if other.shape == entered.shape:
        return
    changed = (
        f"other pixels change how many rows enter the decoder layers of {model}, from "
        f"{list(entered.shape[:2])} to {list(other.shape[:2])}: "
    )
    if find_named(inputs, VISUAL_MASK) is not None:
        raise NormprobeError(
            f"{changed}nothing tells which of those of {VISUAL_MASK} no pixel changes",
            "pass structural_mask, too, of the same shape: True at these rows; where there are "
            "none, all False",
        )
    raise NormprobeError(
        f"{changed}nothing tells which are a picture's",
        "pass visual_mask, bool [batch, rows of the decoder], True at rows of an image, and "
        "structural_mask, True at those of them that no pixel changes; or fix their number",
    )


def _layout_of(value: Any, name: str) -> Any:
    """What of an input may place rows: all but the values of signals, in a form to look up by.

    Sizes of pictures, too, which code takes as plain numbers (LLaVA-NeXT's ``image_sizes``). What
    an object holds is not known: it is like no other.
    """
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value) if value.dtype.kind in "biuf" else value.tolist()
    if isinstance(value, Tensor):
        return tuple(value.shape), None if _is_signal(name, value) else _bytes_of(value)
    if isinstance(value, Mapping):
        return tuple((key, _layout_of(held, name)) for key, held in value.items())
    if isinstance(value, tuple | list):
        return tuple(_layout_of(held, name) for held in value)
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(_layout_of(getattr(value, each.name, None), name) for each in fields(value))
    return value if isinstance(value, _PLAIN) else object()


def _is_signal(name: str, value: Tensor) -> bool:
    """Pixels, sounds and the like, whose numbers place no rows; those of a mask do."""
    return value.is_floating_point() and "mask" not in name


def _bytes_of(numbers: Tensor) -> bytes:
    """Of a mask or of ids; NumPy knows no bfloat16."""
    exact = numbers.double() if numbers.is_floating_point() else numbers
    return exact.cpu().numpy().tobytes()


def text_ids(inputs: Mapping[str, Any], parts: Parts) -> tuple[Tensor | None, Tensor | None]:
    """The ids that the measured decoder reads and their mask, each None where there is none.

    The text decoder of an encoder-decoder that attends to the image reads ``decoder_input_ids``.
    """
    if parts.fusion == CROSS_ATTENTION and "decoder_input_ids" in inputs:
        return inputs["decoder_input_ids"], inputs.get("decoder_attention_mask")
    ids = find_named(inputs, "input_ids")
    return ids, None if ids is None else prompt_mask(inputs, ids)


def fitted(groups: Tensor, decoder_input: Tensor, parts: Parts) -> Tensor:
    """Add the visual tokens that have no place in the prompt.

    Args:
        groups: ``[batch, seq]`` codes of the prompt.
        decoder_input: ``[batch, positions, hidden]``.
        parts: of the model.

    Returns:
        ``[batch, positions]`` codes.
    """
    more = decoder_input.shape[-2] - groups.shape[-1]
    if more > 0 and parts.fusion == PREPENDED:
        groups = nn.functional.pad(groups, (more, 0), value=_VISUAL)
    elif more > 0 and parts.fusion == ADDED:
        groups = nn.functional.pad(groups, (0, more), value=_VISUAL)
    if groups.shape != decoder_input.shape[:-1]:
        raise NormprobeError(
            f"decoder layer 1 receives {list(decoder_input.shape[:-1])} positions, but the prompts "
            f"have {list(groups.shape)}: tokens are added or packed inside the model",
            "name the decoder's with --part decoder_layers=NAME, if these are others; else pass "
            f"visual_mask, bool {list(decoder_input.shape[:-1])}: True at the rows of an image",
        )
    return groups
