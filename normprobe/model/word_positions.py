"""Where the text of a prompt stands in the sequence of the decoder, and where a word of it does."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from normprobe.data.region import spans_of_word
from normprobe.errors import NormprobeError
from normprobe.model.find.overrides import CROSS_ATTENTION, PREPENDED
from normprobe.model.find.structure import IMAGE_TOKEN_FIELDS
from normprobe.model.measured_model import MeasuredModel, text_ids
from normprobe.schema import TEXT, TOKEN_GROUPS, VISUAL

#: From token ids, special ones included, to text.
Decode = Callable[[Sequence[int]], str]


def text_after_image(
    model: MeasuredModel, inputs: Mapping[str, Any], groups: Tensor
) -> tuple[Tensor, list[int]]:
    """The text tokens of one prompt that can see its image, or images.

    A causal row before the image cannot. Where no text follows the image, as in some bidirectional
    stacks, it is all text.

    Args:
        model: that reads the prompt.
        inputs: of one sample.
        groups: ``[positions]`` of the decoder input, on the CPU.

    Returns:
        ``[tokens]`` positions of the decoder input, ascending, and the id of each.
    """
    ids, _ = text_ids(inputs, model.parts)
    assert ids is not None  # model.batch has refused it
    before = len(groups) - ids.shape[-1] if model.parts.fusion == PREPENDED else 0
    prompt = ids[0].cpu()
    visual = (groups == TOKEN_GROUPS.index(VISUAL)).nonzero().flatten()
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
