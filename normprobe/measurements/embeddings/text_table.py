"""A text embedding table and what its rows spell, free of the rest of the model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from normprobe.errors import NormprobeError
from normprobe.inputs.processor import token_text
from normprobe.model.find.parts import weight_of
from normprobe.model.measured_model import MeasuredModel
from normprobe.statistics.weights import row_norms

#: Config fields and special tokens that bound or hold an image.
_VISUAL = re.compile(r"vision|visual|image|img|video|boi|eoi", re.IGNORECASE)
_ID_FIELD = re.compile(r"token_(id|index)$")


@dataclass(frozen=True)
class TextTable:
    """A text embedding table.

    Attributes:
        weight: ``[rows, hidden]``.
        vocabulary: id of each token by its spelling; ids beyond the table are left out.
        special: ids of special tokens.
        visual: ids of the tokens that bound or hold an image.
        tokenizer: what reads an id; None: nothing does.
    """

    weight: Tensor
    vocabulary: Mapping[str, int]
    special: frozenset[int]
    visual: frozenset[int]
    tokenizer: Any = None

    @cached_property
    def norms(self) -> NDArray[np.float64]:
        """L2 norm of each row, ``[rows]``."""
        return row_norms(self.weight)

    def text(self, id_: int) -> str:
        """How a token reads; empty without a tokenizer."""
        return "" if self.tokenizer is None else token_text(self.tokenizer, id_)


def text_table(model: MeasuredModel, tokenizer: Any = None) -> TextTable:
    """The text table of a model. Config fields such as ``vision_start_token_id`` are read."""
    if model.parts.text_embedding is None:
        raise NormprobeError(
            "the model has no text embedding table", "use `normprobe interface` for its vision side"
        )
    weight = weight_of(model.parts.text_embedding).detach()
    vocabulary = {} if tokenizer is None else tokenizer.get_vocab()
    present = {spelling: id_ for spelling, id_ in vocabulary.items() if id_ < len(weight)}
    config = getattr(model.model, "config", None)
    fields = {
        value
        for name, value in (config.to_dict() if config is not None else {}).items()
        if _ID_FIELD.search(name) and _VISUAL.search(name) and isinstance(value, int)
    }
    special = frozenset(model.special_token_ids)
    named = {
        id_ for spelling, id_ in present.items() if id_ in special and _VISUAL.search(spelling)
    }
    return TextTable(weight, present, special, frozenset(fields | named), tokenizer)
