"""A model to measure: its parts, and the token groups of the batches that are put to it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.failures import is_native
from normprobe.hooks import attached, observing, on_input, run_until
from normprobe.inputs.on_device import (
    moved_to,
    pixel_inputs,
    transformers_config,
    with_other_pixels,
)
from normprobe.inputs.token_groups import by_mask, marked_positions, token_groups
from normprobe.model.decoder_rows import DecoderRows, decoder_rows, prompt_mask
from normprobe.model.find.norms import norm_placement_note
from normprobe.model.find.overrides import ADDED, CROSS_ATTENTION, DISCRETE, IN_SEQUENCE, PREPENDED
from normprobe.model.find.parts import Parts, by_hand, weight_of
from normprobe.model.find.residual import norms_of
from normprobe.model.tracing.recording import tensors
from normprobe.model.vision_stages import VisionStages, wrong_part
from normprobe.schema import (
    AUDIO,
    IMAGE_NUMBERS,
    NO_ID,
    PADDING,
    SPECIAL,
    STRUCTURAL,
    STRUCTURAL_MASK,
    TEXT,
    TOKEN_GROUPS,
    TURN_NUMBERS,
    VIDEO,
    VIDEO_MASK,
    VISUAL,
    VISUAL_MASK,
)
from normprobe.statistics.token_metrics import token_norms
from normprobe.tensors import find_named, to_device

#: Numbers of a weight that are summed to notice that it changed, at most.
_SUMMED = 4096

#: How far a state may be from a learned one to be the same, relative to the learned one's norm.
#: Kernels for other batch shapes and bfloat16 (2 ** -9 a number and operation) stay several times
#: below. A row of pixels this near would have a cosine above 0.9995 with the learned one.
SAME_STATE = 2**-5
#: Layouts of inputs whose rows are kept, beside the last.
_LAYOUTS = 31

_VISUAL, _STRUCTURAL, _TEXT = map(TOKEN_GROUPS.index, (VISUAL, STRUCTURAL, TEXT))

#: What the processors of transformers call the tokens of a modality, beside 0 text and 1 image.
_TOKEN_TYPES = {VIDEO: 2, AUDIO: 3}


class MeasuredModel:
    """A model with its parts, and what has to be known of it only once.

    Structural tokens are placeholders that pixels do not change. Their states at the decoder input
    are learned from the first batch with an image, by running the vision side twice, and recognised
    within ``SAME_STATE`` in every later batch. They are learned again when a placeholder id comes
    up for the first time, and after ``notice_changed_weights`` if a weight changed.
    """

    def __init__(
        self,
        model: nn.Module,
        parts: Parts,
        special_token_ids: Sequence[int] = (),
        vocabulary_ids: Sequence[int] | None = None,
        found_by: str = "structure",
        token_text: Callable[[int], str] | None = None,
    ) -> None:
        self.model: Any = model
        self.parts = parts
        self.special_token_ids = list(special_token_ids)
        self.vocabulary_ids = None if vocabulary_ids is None else list(vocabulary_ids)
        self.found_by = found_by
        self.token_text = token_text
        self._structural: Tensor | None = None  # [states, hidden]; None: not learned yet
        self._learned_ids: set[int] = set()
        self._learned_weights: list[float] = []
        self._parts_seen = False
        self._inserts: bool | None = None  # rows, beside declared ids; None: not seen yet
        self._by_layout: dict[Any, Placed | None] = {}
        self._last_watched: tuple[Mapping[str, Any], dict[str, Tensor], Tensor] | None = None
        self.doubt = ""
        self.forward_seen = False  # of ``first_forward.check_forward``
        text = self._text_config
        self.padding_id: int | None = getattr(text, "pad_token_id", None)
        self._where = self._modules()

    def __str__(self) -> str:
        """The class of the model, for messages."""
        return type(self.model).__name__

    @property
    def has_decoder(self) -> bool:
        """False for a bare vision encoder."""
        return self.parts.decoder_layers is not None

    @cached_property
    def decoder_layers(self) -> list[nn.Module]:
        """The decoder layers in order."""
        if self.parts.decoder_layers is None:
            raise NormprobeError(
                f"{self} has no decoder layers to measure",
                "use `normprobe interface` for a bare vision encoder",
            )
        return layers_in(self.parts.decoder_layers.module)

    def is_current(self) -> bool:
        """Whether the modules that were found stand where they were found."""
        return self._where == self._modules()

    def _modules(self) -> list[int]:
        """Which modules stand under the names of the parts, and which layers the decoder has."""
        modules = dict(self.model.named_modules(remove_duplicate=False))
        found = [modules.get(part.name) for _, part in self.parts]
        if self.parts.decoder_layers is not None:
            found += [*(modules.get(self.parts.decoder_layers.name) or nn.ModuleList()).children()]
        return [*map(id, found)]

    def afresh(self) -> "MeasuredModel":
        """The same model and parts, of whose forwards nothing is known yet."""
        known = self.special_token_ids, self.vocabulary_ids, self.found_by, self.token_text
        found = MeasuredModel(self.model, self.parts, *known)
        found.padding_id = self.padding_id
        return found

    @cached_property
    def layer_norms(self) -> list[list[nn.Module]]:
        """Of each decoder layer its norms, those inside its branches among them."""
        return [norms_of(layer) for layer in self.decoder_layers]

    @cached_property
    def norm_placement(self) -> str:
        """Where the norms of the decoder stand, of ``norm_placement_note``."""
        return norm_placement_note(self.model, self.parts)

    def read_stream(self, state: Tensor) -> Tensor:
        """What a decoder layer takes or returns as ``[batch, seq, hidden]``."""
        return self.parts.stream.read(state, self._text_config)

    @property
    def positions(self) -> int | None:
        """How many positions the decoder was made for; None: its config sets no limit."""
        return positions_of(transformers_config(self.model))

    @cached_property
    def _text_config(self) -> Any:
        config = transformers_config(self.model)
        return config.get_text_config(decoder=True) if config is not None else None

    def decoder_input(self, inputs: Mapping[str, Any]) -> Tensor:
        """What enters decoder layer 1, ``[batch, seq, hidden]``. No decoder layer runs."""
        first = self.decoder_layers[0]
        seen: list[Tensor] = []
        with observing(self.model), attached(on_input(first, seen.append)):
            run_until(self.model, moved_to(self.model, inputs), entering=first)
        return self.read_stream(seen[0])

    def batch(self, inputs: Mapping[str, Any]) -> "MeasuredBatch":
        """Tell the token groups of a batch.

        Where no token id tells visual tokens, other pixels do: the vision side runs twice.
        """
        placed = self.placed(inputs)
        structural = None if placed.by_rows else self._structural_states(inputs, placed.groups)
        batch = MeasuredBatch(self, inputs, placed.groups, structural, placed.ids)
        # Frames of a video may pass through other modules, or through the same ones.
        if not self._parts_seen and pixel_inputs(inputs) and not pixel_inputs(inputs, VIDEO):
            self._check_parts(batch)
        self._last_watched = None  # states of a batch do not stay
        return batch

    def placed(self, inputs: Mapping[str, Any]) -> "Placed":
        """The group and the id of every token, without asking which placeholders are structural.

        Masks tell visual tokens, or declared ids; else the rows that other pixels change.
        """
        ids, mask = text_ids(inputs, self.parts)
        marked = find_named(inputs, VISUAL_MASK)
        if marked is not None and (ids is None or marked.shape != ids.shape):
            rows = self._placed_as_marked(inputs, marked, ids)
            if rows is not None:
                return rows
        if ids is None:
            return self._placed_without_ids(inputs)
        if (self.parts.fusion != CROSS_ATTENTION and not is_native(self.model)) and (
            marked_positions(inputs, ids.shape) is None
        ):
            rows = self._placed_by_rows(inputs, ids)
            if rows is not None:
                return rows
        return Placed(self._prompt_groups(inputs, ids, mask), ids)

    def _prompt_groups(self, inputs: Mapping[str, Any], ids: Tensor, mask: Tensor | None) -> Tensor:
        """The group of each position of the prompts."""
        groups = token_groups(
            ids,
            mask if mask is not None and mask.shape == ids.shape else None,
            self.parts.image_token_ids,
            self.special_token_ids,
            self.parts.video_token_ids,
            self.parts.audio_token_ids,
        )
        marked = marked_positions(inputs, groups.shape)
        if marked is None and self.parts.fusion in (PREPENDED, CROSS_ATTENTION):
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
            if placeholders and VISUAL_MASK not in inputs:  # else pixels may come as file names
                raise NormprobeError(
                    f"the prompts hold {placeholders} image placeholders, and the inputs no "
                    f"pixels: received {', '.join(inputs)}",
                    "pass all that the processor returns for the images, or prompts without them",
                )
            return groups
        if marked is not None:
            return groups
        if not self.parts.image_token_ids:
            return self._groups_by_perturbation(inputs, ids, groups)
        if not placeholders and not (groups == TOKEN_GROUPS.index(VIDEO)).any():
            raise NormprobeError(
                f"the prompt holds no image token: expected one of the ids "
                f"{list(self.parts.image_token_ids)} in input_ids",
                "use the processor of this model, or check config.image_token_id",
            )
        return groups

    def _placed_as_marked(
        self, inputs: Mapping[str, Any], marked: Tensor, ids: Tensor | None
    ) -> "Placed | None":
        """By a mask of the rows that enter the decoder.

        None where the mask is none of these, but an input of the model's own.
        """
        embeds = find_named(inputs, "inputs_embeds")
        entered = self._entered(inputs) if embeds is None else embeds
        structural = inputs.get(STRUCTURAL_MASK)
        for mask in (marked, structural):
            if mask is None or mask.shape == entered.shape[:2]:
                continue
            if VISUAL_MASK in signature(self.model.forward).parameters:
                return None
            prompts = f"the prompts {list(ids.shape)} or " if ids is not None else ""
            raise NormprobeError(
                f"{VISUAL_MASK if mask is marked else STRUCTURAL_MASK} is {list(mask.shape)}: "
                f"expected the shape of {prompts}the rows that enter the decoder "
                f"{list(entered.shape[:2])}",
                "pass bool [batch, seq]: True at the rows of an image",
            )
        marked = by_mask(marked.to(entered.device), entered.shape[:2])
        rows = None
        if embeds is None and self.parts.text_embedding is not None:
            rows = decoder_rows(self.parts, entered, lambda: self.decoder_input(inputs), inputs)
        if rows is not None:
            placed = self._placed_of(inputs, entered, rows, marked)._replace(by_rows=False)
        else:
            groups = torch.where(marked, _VISUAL, _TEXT).to(torch.int8)
            mask = prompt_mask(inputs, entered.float().sum(-1))
            if mask is not None and mask.shape == groups.shape:
                groups[mask.to(groups.device) == 0] = PADDING
            placed = Placed(groups, None, by_rows=True)
        if structural is not None:
            placed.groups[structural.to(marked.device).bool() & marked] = _STRUCTURAL
        return placed

    def _placed_without_ids(self, inputs: Mapping[str, Any]) -> "Placed":
        """Of inputs without ``input_ids`` and ``visual_mask``: by the text table."""
        embeds = find_named(inputs, "inputs_embeds")
        tables = embeds is None and self.parts.text_embedding is not None
        if tables and not is_native(self.model):
            rows = self._placed_by_rows(inputs, None)
            if rows is not None:
                return rows
        what = "inputs_embeds and no visual_mask" if embeds is not None else "no input_ids"
        raise NormprobeError(
            f"the inputs hold {what}; received {', '.join(inputs)}",
            "pass input_ids and pixels, or with inputs_embeds visual_mask, bool [batch, seq]: True "
            "at the rows of an image, all False where there is none",
        )

    def _placed_by_rows(self, inputs: Mapping[str, Any], ids: Tensor | None) -> "Placed | None":
        """By what each row of the decoder input comes from; kept for inputs of the same layout.

        None where every word has its place in the prompt, or nothing is looked up: then positions
        tell it.
        """
        declared = bool(self.parts.image_token_ids)
        if (declared and not pixel_inputs(inputs)) or self._inserts is False:
            return None
        layout = tuple(
            (tuple(t.shape), None if _is_signal(name, t) else t.cpu().numpy().tobytes())
            for name, value in inputs.items()
            for t in tensors(value)
        )
        if layout not in self._by_layout:
            entered = self._entered(inputs)
            if ids is not None and len(entered) != len(ids):
                raise NormprobeError(
                    f"decoder layer 1 receives {list(entered.shape[:-1])} positions of prompts "
                    f"{list(ids.shape)}: they are packed inside the model",
                    "measure with --batch-size 1",
                )
            if declared and ids is not None:  # once: a model inserts rows, or it does not
                self._inserts = entered.shape[:2] != ids.shape
                if not self._inserts:
                    return None
            rows = decoder_rows(self.parts, entered, lambda: self.decoder_input(inputs), inputs)
            told = None
            if rows is not None:
                unasked = pixel_inputs(inputs) and (rows.words & rows.kept & ~rows.asked).any()
                if ids is None or unasked or not rows.in_place:
                    told = self._placed_of(inputs, entered, rows)
            self._by_layout = {**dict(list(self._by_layout.items())[-_LAYOUTS:]), layout: told}
        return self._by_layout[layout]

    def _placed_of(
        self,
        inputs: Mapping[str, Any],
        entered: Tensor,
        rows: DecoderRows,
        marked: Tensor | None = None,
    ) -> "Placed":
        """The groups of rows: words by their ids, the others by what changes them.

        ``marked``: the rows of images, where it was said which they are.
        """
        kept, ids, told = rows.kept, rows.ids, rows.words
        named = token_groups(ids, None, (), self.special_token_ids, self.parts.video_token_ids, ())
        groups = torch.where(told & (named != _VISUAL), named, _STRUCTURAL)
        if marked is not None:
            groups, told = torch.where(rows.mixed, _TEXT, groups), told | rows.mixed
        for group in (VISUAL, *_TOKEN_TYPES):
            if group == VISUAL and marked is not None:
                moved = marked
            elif pixel_inputs(inputs, group):
                moved = self._moved(inputs, group, entered, rows)
            else:
                continue
            groups, told = torch.where(moved, TOKEN_GROUPS.index(group), groups), told | moved
            ids = torch.where(moved, NO_ID, ids)
            if moved.any() and not kept[moved].any():
                kept = entered.ne(0).any(-1)  # what was taken for a mask of padding is none
        if (rows.mixed & ~told).any():
            raise NormprobeError(
                f"{int((rows.mixed & ~told).sum())} rows that enter the decoder layers of {self} "
                "depend on the text and are no words",
                "name earlier layers as decoder_layers, or pass visual_mask",
            )
        groups = torch.where(kept, groups, PADDING).to(torch.int8)
        return Placed(groups, ids, by_rows=True)

    def _moved(
        self, inputs: Mapping[str, Any], group: str, entered: Tensor, rows: DecoderRows
    ) -> Tensor:
        """The rows that other pixels change, or may."""
        moved = (entered != self.decoder_input(with_other_pixels(inputs, group))).any(-1)
        if not moved.any() and self.parts.fusion != CROSS_ATTENTION:
            raise self._unmoved(inputs, group)
        moved |= self._looked_up(moved, rows)
        if (moved | ~rows.words).all() and rows.words.any():
            raise NormprobeError(
                f"other pixels change every row that enters the decoder layers of {self}",
                "image and text mix before them: name earlier layers, or pass visual_mask",
            )
        return moved

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
                f"{int((moved & rows.asked).sum())} rows that an image tokenizer of {self} chose "
                "are looked up by ids of the prompt: nothing tells the others of it from words",
                "pass visual_mask, bool [batch, rows of the decoder]: True at the rows of an image",
            )
        self.parts = replace(self.parts, fusion=DISCRETE)
        return chosen

    def _unmoved(self, inputs: Mapping[str, Any], group: str) -> NormprobeError:
        return NormprobeError(
            f"other pixels change no row that enters the decoder layers of {self} "
            f"({', '.join(pixel_inputs(inputs, group))})",
            "pass pixels as floating-point numbers, and a prompt with the image's place",
        )

    def _entered(self, inputs: Mapping[str, Any]) -> Tensor:
        """The decoder input; the vision side is watched until its parts have been checked."""
        return self.decoder_input(inputs) if self._parts_seen else self._watched(inputs)[1]

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
        seen, other = self._with_two_images(inputs, group)
        moved = (seen != other).any(-1).to(groups.device)
        if moved.shape == groups.shape and (moved & (groups != PADDING)).any():
            return torch.where(moved & (groups != PADDING), code, groups)
        raise NormprobeError(
            f"the inputs hold {group} ({', '.join(held)}), and no token of the prompts stands for "
            f"it: expected one of the ids {list(getattr(self.parts, f'{group}_token_ids'))}",
            "use the processor of this model, or inputs without it",
        )

    def _groups_by_perturbation(
        self, inputs: Mapping[str, Any], ids: Tensor, groups: Tensor
    ) -> Tensor:
        """Rows that other pixels change are visual.

        A row that they leave alone is structural where its id is a placeholder: a negative one, or
        one that stands for visual rows as well. Where features are added to text (UDOP), an id
        that stands for both is a word.
        """
        seen, other = self._with_two_images(inputs)
        ids, groups = ids.to(seen.device), groups.to(seen.device)
        moved = (seen != other).any(-1)
        if not moved.any():
            raise self._unmoved(inputs, VISUAL)
        if self.parts.fusion == IN_SEQUENCE and ids.shape == moved.shape:
            others = torch.tensor([PADDING, *map(TOKEN_GROUPS.index, _TOKEN_TYPES)])
            alike = torch.isin(ids, ids[moved])
            groups[alike & ~torch.isin(groups, others.to(groups))] = _VISUAL
        groups = fitted(groups, seen, self.parts)
        unmoved = torch.where(groups == _VISUAL, _STRUCTURAL, groups)
        return torch.where(moved & (groups != PADDING), _VISUAL, unmoved)

    def _structural_states(self, inputs: Mapping[str, Any], groups: Tensor) -> Tensor | None:
        """States of structural tokens at the decoder input, ``[states, hidden]``.

        No states for most models. None where the question makes no sense: without pixels, or where
        visual tokens have no rows of their own.
        """
        fusion = self.parts.fusion
        # An image tokenizer may give the same tokens for other pixels: that makes none structural.
        if not pixel_inputs(inputs) or fusion in (DISCRETE, CROSS_ATTENTION):
            return None
        if fusion != PREPENDED and not bool((groups == _VISUAL).any()):
            return None
        if STRUCTURAL_MASK in inputs:  # it was said which they are
            return None
        known, ids = self._structural, self._placeholder_ids(inputs)
        if known is None or ids - self._learned_ids:
            seen, other = self._with_two_images(inputs)
            at = fitted(groups.to(seen.device), seen, self.parts)
            visual = at == _VISUAL
            self._refuse_undeclared(inputs, seen, other, at)
            same = (seen == other).all(-1)
            if (visual & same).any() and self._chooses_rows(inputs, seen, visual & ~same):
                return None
            learned = seen[visual & same]
            both = learned if known is None else torch.cat([known, learned])
            self._structural = torch.unique(both, dim=0)
            self._learned_ids |= ids
            self._learned_weights = self._weight_sums()
        return self._structural

    def _chooses_rows(self, inputs: Mapping[str, Any], entered: Tensor, moved: Tensor) -> bool:
        """Whether an image tokenizer chose the rows that other pixels change."""
        if is_native(self.model) or self.parts.text_embedding is None:
            return False
        rows = decoder_rows(self.parts, entered, lambda: self.decoder_input(inputs), inputs)
        return rows is not None and bool(self._looked_up(moved, rows).any())

    def _refuse_undeclared(
        self, inputs: Mapping[str, Any], seen: Tensor, other: Tensor, groups: Tensor
    ) -> None:
        """Refuse declared image tokens where other pixels change words, too; doubt a mask."""
        words = (groups == TOKEN_GROUPS.index(TEXT)) | (groups == TOKEN_GROUPS.index(SPECIAL))
        moved = token_norms(other - seen) > SAME_STATE * token_norms(seen)
        # What changes every row tells no ids.
        if self.parts.fusion == IN_SEQUENCE and (moved & words).any() and not moved.all():
            ids = ", ".join(map(str, self.parts.image_token_ids)) or "of a mask"
            problem = (
                f"other pixels change {int((moved & words).sum())} rows at the decoder input of "
                f"{self} that are taken for text: image tokens are told by "
            )
            if find_named(inputs, VISUAL_MASK) is not None:
                self.doubt = f"{problem}visual_mask"
                return
            raise NormprobeError(
                f"{problem}the ids {ids}",
                "name all of them: --part image_token_ids=ID,ID, or let pixels tell them with "
                "parts = {'positions': 'perturbation'} in --inputs FILE.py",
            )

    def notice_changed_weights(self) -> None:
        """Learn structural tokens anew, of a model that has some, if a weight changed since.

        It reads weights back from the device: call it once a run, not for every batch.
        """
        known = self._structural
        if known is not None and len(known) and self._weight_sums() != self._learned_weights:
            self._structural, self._learned_ids = None, set()

    def _placeholder_ids(self, inputs: Mapping[str, Any]) -> set[int]:
        """Those of the image token ids that the prompts hold; of a single one, that one."""
        if len(self.parts.image_token_ids) < 2:
            return set(self.parts.image_token_ids)
        ids, _ = text_ids(inputs, self.parts)
        held = set(self.parts.image_token_ids)
        return held if ids is None else held.intersection(torch.unique(ids).tolist())

    def _with_two_images(
        self, inputs: Mapping[str, Any], group: str = VISUAL
    ) -> tuple[Tensor, Tensor]:
        """The decoder input, and that for other pixels, or for another video or sound."""
        return self._entered(inputs), self.decoder_input(with_other_pixels(inputs, group))

    def _watched(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Tensor], Tensor]:
        """What the vision side hands over, and the decoder input; those of the last inputs kept."""
        if self._last_watched is None or self._last_watched[0] is not inputs:
            stages = VisionStages(self.parts, keep=Tensor.clone)
            with attached(*stages.handles()):
                entered = self.decoder_input(inputs)
            self._last_watched = inputs, stages.visual_rows(), entered
        return self._last_watched[1:]

    def _check_parts(self, batch: "MeasuredBatch") -> None:
        """See that the parts do what they are taken for, by the first batch with an image."""
        if self.parts.fusion in (DISCRETE, CROSS_ATTENTION):
            return  # no row of the projector enters the sequence
        handed_over, entered = self._watched(batch.inputs)
        visual = entered[batch.groups_at(entered) == _VISUAL]
        wrong = wrong_part(self.parts, handed_over, visual) if len(visual) else None
        if wrong is not None:
            role, does = wrong
            name = getattr(self.parts, role).name or self
            problem = f"{name} looks like no {role.replace('_', ' ')}"
            if self.found_by != "by hand":
                raise NormprobeError(f"{problem}: it {does}", by_hand(self.model, role, "NAME"))
            self.doubt = f"{problem}, as it was named by hand: it {does}"
        self._parts_seen = bool(len(visual))  # what was refused is looked at again

    @torch.no_grad()
    def _weight_sums(self) -> list[float]:
        """Of each weight before the decoder layers the sum of a few thousand of its numbers.

        Training changes nearly all numbers of a weight. Version counters would not tell: fused
        optimizers do not raise them.
        """
        layers = self.parts.decoder_layers
        behind = f"{layers.name}." if layers is not None else ""
        return [
            float(weight.flatten()[:: weight.numel() // _SUMMED + 1].double().sum())
            for name, weight in self.model.named_parameters()
            if not (behind and name.startswith(behind)) and _holds_numbers(weight)
        ]


def _is_signal(name: str, value: Tensor) -> bool:
    """Pixels, sounds and the like, whose numbers place no rows; those of a mask do."""
    return value.is_floating_point() and "mask" not in name


def _holds_numbers(weight: Tensor) -> bool:
    """Neither offloaded nor of a class of its own, as quantised and sharded weights are."""
    return not weight.is_meta and type(weight.data) is Tensor


@dataclass(frozen=True)
class MeasuredBatch:
    """The inputs of one forward, and which group each of their tokens belongs to."""

    model: MeasuredModel  # which they are for
    inputs: Mapping[str, Any]  # what the processor returned
    # ``[batch, seq]`` int8 codes of ``schema.TOKEN_GROUPS``, every placeholder visual, padding
    # ``schema.PADDING``
    prompt_groups: Tensor
    # ``[states, hidden]`` at the decoder input; None: there cannot be any
    structural: Tensor | None
    ids: Tensor | None = None  # of tokens, in the shape of ``prompt_groups``; None: there are none

    def groups_at(self, decoder_input: Tensor) -> Tensor:
        """The token groups of what enters decoder layer 1.

        Args:
            decoder_input: ``[batch, positions, hidden]``.

        Returns:
            ``[batch, positions]`` codes on the device of ``decoder_input``.
        """
        on_device = to_device(self.prompt_groups, decoder_input.device)
        groups = fitted(on_device, decoder_input, self.model.parts)
        if self.structural is not None:
            for state in self.structural.to(decoder_input):
                away = token_norms(decoder_input - state)
                same = (away <= SAME_STATE * token_norms(state)) & (groups == _VISUAL)
                groups = torch.where(same, _STRUCTURAL, groups)
        return groups

    def images_at(self, groups: Tensor) -> Tensor | None:
        """Which image of its sample each visual token belongs to, by its number from 1.

        Args:
            groups: ``[batch, positions]``, of ``groups_at``.

        Returns:
            ``[batch, positions]``, 0 where there is no visual token, and in a sample that has none
            for one of its images: these cannot be told apart. None where no sample is known to have
            several images, or these are not in the sequence.
        """
        numbers = self.inputs.get(IMAGE_NUMBERS)
        if numbers is None or numbers.shape != groups.shape:
            return None
        numbers = numbers.to(groups.device)
        images = torch.where(groups == _VISUAL, numbers, 0)
        for found, told in zip(images, numbers, strict=True):
            if len(found[found > 0].unique()) < int(told.max()):
                found.zero_()
        return images

    def turns_at(self, groups: Tensor) -> Tensor | None:
        """Which turn of its sample each token belongs to, by its number from 1.

        Args:
            groups: ``[batch, positions]``, of ``groups_at``.

        Returns:
            ``[batch, positions]``, 0 at padding; None where the inputs do not say, or the decoder
            reads other positions.
        """
        numbers: Tensor | None = self.inputs.get(TURN_NUMBERS)
        fits = numbers is not None and numbers.shape == groups.shape
        return numbers.to(groups.device) if numbers is not None and fits else None

    def states_of(self, group: str) -> Tensor:
        """The states of a token group at the decoder input, ``[tokens, hidden]``."""
        x = self.model.decoder_input(self.inputs)
        chosen: Tensor = x[self.groups_at(x) == TOKEN_GROUPS.index(group)]
        if not len(chosen):
            raise NormprobeError(
                f"the inputs bring no {group} token to the decoder of {self.model}",
                "pass a prompt with text and an image",
            )
        return chosen


def layers_in(stack: nn.Module) -> list[nn.Module]:
    """The layers of a list, in order.

    Raises:
        NormprobeError: one layer stands in it more than once.
    """
    layers = [module for module in stack._modules.values() if module is not None]
    for number, layer in enumerate(layers, start=1):
        if (first := next(n for n, each in enumerate(layers, 1) if each is layer)) < number:
            raise NormprobeError(
                f"decoder layer {number} is layer {first}: it runs several times in one forward",
                "layers that share a module are not supported",
            )
    return layers


class Placed(NamedTuple):
    """What is known of tokens before structural ones are."""

    groups: Tensor  # ``[batch, seq]`` codes of the prompts' positions; by rows of the decoder input
    ids: Tensor | None  # likewise; of a row that is no word NO_ID; None: there are none
    by_rows: bool = False  # the rows of the decoder input told it, and that some are structural


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
            "name the decoder's with --part decoder_layers=NAME, if these are others; else this "
            "model type is not supported yet: open an issue with its name",
        )
    return groups


def embedding_scale(parts: Parts, input_ids: Tensor, x: Tensor, groups: Tensor) -> float | None:
    """The one scalar between table rows and the decoder input, if there is one.

    Gemma scales inside the embedding module, Granite after it; position terms make it more than a
    scalar. Measured on the text tokens of the prompt: x = s w up to rounding.

    Args:
        parts: of a model whose embedding weights are in memory.
        input_ids: ``[batch, seq]``.
        x: ``[batch, seq, hidden]``, the decoder input.
        groups: ``[batch, seq]`` token group codes of ``x``.

    Returns:
        s; None where no scalar fits, or the prompt holds no text token.
    """
    if parts.text_embedding is None or groups.shape != input_ids.shape:
        return None  # rows before or behind the prompt come with positions
    weight = weight_of(parts.text_embedding)
    text = (groups == TOKEN_GROUPS.index(TEXT)).to(input_ids.device)
    w = weight[input_ids[text].to(weight.device)].float()
    x = x[text.to(x.device)].to(w).float()
    length = torch.linalg.vecdot(w, w)
    w, x, length = w[length > 0], x[length > 0], length[length > 0]
    if not len(w):
        return None
    scales = torch.linalg.vecdot(x, w) / length
    scale = float(scales.median())
    rounding = max(4 * torch.finfo(weight.dtype).eps, 1e-5)
    misfit = token_norms(x - scale * w) / token_norms(x)
    return scale if bool((misfit <= rounding).all()) else None


def positions_of(config: Any) -> int | None:
    """How many positions the decoder of a config was made for; None: it sets no limit."""
    text = getattr(config, "get_text_config", lambda **_: None)(decoder=True)
    limit = getattr(text, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def layers_of_all_depths(layers: int, shown: int) -> list[int]:
    """Numbers of ``shown`` layers spread evenly over the model, the last among them."""
    shown = min(shown, layers)
    return [round(layers * step / shown) for step in range(1, shown + 1)]
