"""Which of the declared placeholders are structural: learned rows, that pixels do not change.

Their states at the decoder input are learned from the first batch with an image, by running the
vision side twice, and recognised within ``SAME_STATE`` in every later batch. They are learned again
when a placeholder id comes up for the first time, and after ``notice_changed_weights`` if a weight
changed. The same two runs say whether other pixels change words: then placeholders are missing
among what is declared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normprobe.errors import NormprobeError
from normprobe.failures import is_native
from normprobe.inputs.on_device import pixel_inputs, with_other_pixels
from normprobe.model.find.overrides import CROSS_ATTENTION, DISCRETE, IN_SEQUENCE, PREPENDED
from normprobe.model.find.parts import Parts
from normprobe.model.provenance import Placed, Provenance, fitted, refuse_other_rows, text_ids
from normprobe.schema import (
    SPECIAL,
    STRUCTURAL_MASK,
    TEXT,
    TOKEN_GROUPS,
    UNMOVED,
    VISUAL,
    VISUAL_MASK,
)
from normprobe.statistics.token_metrics import token_norms
from normprobe.tensors import find_named

if TYPE_CHECKING:
    from normprobe.model.measured_model import MeasuredModel

#: Numbers of a weight that are summed to notice that it changed, at most.
_SUMMED = 4096

#: How far a state may be from a learned one to be the same, relative to the learned one's norm.
#: Kernels for other batch shapes and bfloat16 (2 ** -9 a number and operation) stay several times
#: below. A row of pixels this near would have a cosine above 0.9995 with the learned one.
SAME_STATE = 2**-5
_VISUAL = TOKEN_GROUPS.index(VISUAL)


class StructuralStates:
    """Those of one model; nothing is known before the first batch with an image."""

    def __init__(self, measured: MeasuredModel, provenance: Provenance) -> None:
        self._measured = measured
        self._provenance = provenance
        self._structural: Tensor | None = None  # [states, hidden]; None: not learned yet
        self._learned_ids: set[int] = set()
        self._learned_weights: list[float] = []

    @property
    def _parts(self) -> Parts:
        return self._measured.parts

    def of(self, inputs: Mapping[str, Any], placed: Placed) -> Tensor | None:
        """States of structural tokens at the decoder input, ``[states, hidden]``.

        No states for most models. None where the question makes no sense: without pixels, where
        visual tokens have no rows of their own, or where rows told it already.
        """
        fusion, groups = self._parts.fusion, placed.groups
        # An image tokenizer may give the same tokens for other pixels: that makes none structural.
        if placed.by_rows or not pixel_inputs(inputs) or fusion in (DISCRETE, CROSS_ATTENTION):
            return None
        if fusion != PREPENDED and not bool((groups == _VISUAL).any()):
            return None
        if STRUCTURAL_MASK in inputs:  # it was said which they are
            return None
        known, ids = self._structural, self._placeholder_ids(inputs)
        if known is None or ids - self._learned_ids:
            seen = self._measured.entered(inputs)
            other = self._measured.decoder_input(with_other_pixels(inputs))
            refuse_other_rows(str(self._measured), inputs, seen, other)
            at = fitted(groups.to(seen.device), seen, self._parts)
            visual = at == _VISUAL
            self._refuse_undeclared(inputs, seen, other, at)
            same = (seen == other).all(-1)
            if find_named(inputs, VISUAL_MASK) is not None:  # of zeros it is believed
                same &= seen.ne(0).any(-1)
            if (visual & same).any() and self._provenance.chooses(inputs, seen, visual & ~same):
                return None
            if known is None and visual.any() and same[visual].all():
                self._measured.doubt = UNMOVED
            learned = seen[visual & same]
            both = learned if known is None else torch.cat([known, learned])
            self._structural = torch.unique(both, dim=0)
            self._learned_ids |= ids
            self._learned_weights = self._weight_sums()
        return self._structural

    def _refuse_undeclared(
        self, inputs: Mapping[str, Any], seen: Tensor, other: Tensor, groups: Tensor
    ) -> None:
        """Refuse declared image tokens where other pixels change words, too; doubt a mask."""
        words = (groups == TOKEN_GROUPS.index(TEXT)) | (groups == TOKEN_GROUPS.index(SPECIAL))
        moved = token_norms(other - seen) > SAME_STATE * token_norms(seen)
        mixed = moved.all() and words.any() and not is_native(self._measured.model)
        if mixed and find_named(inputs, STRUCTURAL_MASK) is None:  # behind layers (HaploVL)
            self._measured.add_doubt(
                f"other pixels change every row at the decoder input of {self._measured}: no row "
                "shows that it is learned, as that of a newline; structural_mask from build() of "
                "an --inputs file says which are"
            )
        # What changes every row tells no ids.
        if self._parts.fusion == IN_SEQUENCE and (moved & words).any() and not moved.all():
            ids = ", ".join(map(str, self._parts.image_token_ids)) or "of a mask"
            problem = (
                f"other pixels change {int((moved & words).sum())} rows at the decoder input of "
                f"{self._measured} that are taken for text: image tokens are told by "
            )
            if find_named(inputs, VISUAL_MASK) is not None:
                self._measured.doubt = f"{problem}visual_mask"
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
        if len(self._parts.image_token_ids) < 2:
            return set(self._parts.image_token_ids)
        ids, _ = text_ids(inputs, self._parts)
        held = set(self._parts.image_token_ids)
        return held if ids is None else held.intersection(torch.unique(ids).tolist())

    @torch.no_grad()
    def _weight_sums(self) -> list[float]:
        """Of each weight before the decoder layers the sum of a few thousand of its numbers.

        Training changes nearly all numbers of a weight. Version counters would not tell: fused
        optimizers do not raise them.
        """
        layers = self._parts.decoder_layers
        behind = f"{layers.name}." if layers is not None else ""
        return [
            float(weight.flatten()[:: weight.numel() // _SUMMED + 1].double().sum())
            for name, weight in self._measured.model.named_parameters()
            if not (behind and name.startswith(behind)) and _holds_numbers(weight)
        ]


def _holds_numbers(weight: Tensor) -> bool:
    """Neither offloaded nor of a class of its own, as quantised and sharded weights are."""
    return not weight.is_meta and type(weight.data) is Tensor
