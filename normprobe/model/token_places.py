"""Where tokens belong: words of a prompt in the sequence, visual tokens over their picture."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageOps
from torch import Tensor

from normprobe.data.sample import spans_of_word
from normprobe.errors import NormprobeError
from normprobe.inputs.on_device import inputs_for
from normprobe.model.find.overrides import CROSS_ATTENTION, PREPENDED
from normprobe.model.find.structure import IMAGE_TOKEN_FIELDS
from normprobe.model.image_places import Array, Build, PlacesUnknown
from normprobe.model.measured_model import MeasuredBatch, MeasuredModel
from normprobe.schema import TEXT, TOKEN_GROUPS, VISUAL
from normprobe.statistics.token_metrics import in_group

#: From token ids, special ones included, to text.
Decode = Callable[[Sequence[int]], str]


def text_after_image(batch: MeasuredBatch, groups: Tensor) -> tuple[Tensor, list[int]]:
    """The text tokens of one prompt that can see its image, or images.

    A causal row before the image cannot. Where no text follows the image, as in some bidirectional
    stacks, it is all text.

    Args:
        batch: of one sample.
        groups: ``[positions]`` of the decoder input, on the CPU.

    Returns:
        ``[tokens]`` positions of the decoder input, ascending, and the id of each.
    """
    model, ids = batch.model, batch.ids
    if ids is None:
        raise NormprobeError(
            "the inputs hold no input_ids, so no word is known", "pass input_ids and pixels"
        )
    before = len(groups) - ids.shape[-1] if model.parts.fusion == PREPENDED else 0
    prompt = ids[0].cpu()
    visual = in_group(VISUAL, groups).nonzero().flatten()
    if model.parts.fusion == CROSS_ATTENTION:
        config = getattr(model.model, "config", None)
        placeholders = [getattr(config, field, None) for field in IMAGE_TOKEN_FIELDS]
        marks = torch.tensor([i for i in placeholders if isinstance(i, int)], dtype=torch.long)
        visual = torch.isin(prompt, marks).nonzero().flatten()
    elif not len(visual):
        raise NormprobeError(
            "the prompt holds no visual tokens", "use a model that reads images, and its processor"
        )
    text = (groups == TOKEN_GROUPS.index(TEXT)).nonzero().flatten()
    after = text[text > visual.max()] if len(visual) else text
    text = after if len(after) else text  # no text after the image: a bidirectional stack
    if not len(text):
        raise NormprobeError(
            "the prompt has no text token that could attend to the image",
            "pass a longer --prompt; some models read the image alone",
        )
    return text, prompt[text - before].tolist()


def tokens_of_word(word: str, ids: Sequence[int], decode: Decode) -> Tensor:
    """Which tokens spell a word, wherever it stands alone in their text.

    Returns:
        ``[tokens]`` bool; False throughout where the word is not in the text.
    """
    # What each token adds to the text: alone, a token may lose its space or half a character.
    written = [decode(ids[:end]) for end in range(1, len(ids) + 1)]
    ends = list(accumulate(map(len, written), max))
    spans = spans_of_word(word, written[-1] if written else "")
    chosen = [
        any(start < last and first < end for first, last in spans)
        for start, end in zip([0, *ends], ends, strict=False)
    ]
    return torch.tensor(chosen, dtype=torch.bool)


#: The columns of a place, as fractions of the picture.
PLACE = ("left", "top", "right", "bottom")


class Picture(NamedTuple):
    """One image of a prompt."""

    image: Image.Image  # RGB
    build: Build  # makes the inputs of the prompt with another picture in its place
    alone: bool  # whether the prompt has no other image

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs of the prompt."""
        return self.build(self.image)

    @property
    def other_inputs(self) -> Mapping[str, Any]:
        """The inputs with every pixel of this image changed, and of no other."""
        return self.build(ImageOps.invert(self.image))


class NormMap(NamedTuple):
    """What is known of one picture."""

    # one row a (layer or stage, visual token), as ``rows_at`` makes them; empty where nothing is
    # known
    rows: pd.DataFrame
    unknown: Mapping[str, str]  # what has no map, and why


def rows_at(boxes: Array, **columns: ArrayLike) -> pd.DataFrame:
    """Rows of ``map.csv``: a visual token each, numbered from 1 in the order of the states.

    Args:
        boxes: ``[tokens, 4]``, of ``image_places``.
        **columns: those before and behind the place, one value or one a token. ``norm`` and
            ``angle`` stand behind it.
    """
    before = {name: value for name, value in columns.items() if name not in _NUMBERS}
    behind = {name: value for name, value in columns.items() if name in _NUMBERS}
    places = dict(zip(PLACE, boxes.T, strict=True))
    tokens = np.arange(1, len(boxes) + 1)
    return pd.DataFrame({**before, "visual_token": tokens, **places, **behind})


_NUMBERS = ("norm", "angle")


def own_positions(model: MeasuredModel, picture: Picture) -> NDArray[np.bool_]:
    """Which positions of the decoder input come from the pixels of one picture, ``[positions]``.

    Where the prompt has other images: those that other pixels of this one change.
    """
    if model.parts.fusion == CROSS_ATTENTION:
        raise PlacesUnknown("the text attends to visual states that are no rows of its sequence")
    inputs = inputs_for(model.model, picture.inputs)
    states = model.decoder_input(inputs)
    own = model.batch(inputs).groups_at(states)[0] == TOKEN_GROUPS.index(VISUAL)
    if not picture.alone:
        other = model.decoder_input(inputs_for(model.model, picture.other_inputs))
        own &= (states != other).any(dim=-1)[0]
    positions: NDArray[np.bool_] = own.cpu().numpy()
    return positions
