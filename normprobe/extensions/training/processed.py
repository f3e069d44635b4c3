"""What the processor of a model makes of pictures, as the batches of a training have to be, too."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import inf
from typing import Any, NamedTuple

from PIL import Image

from normprobe.inputs.chat import image_token

#: Two pictures: where these take equally many tokens, all do.
_SIZES = ((64, 48), (210, 90))


class Processed(NamedTuple):
    """What a processor makes of a picture.

    Attributes:
        lowest: what a black pixel becomes, of the channel where that is the least.
        highest: what a white one becomes.
        ids: of placeholders.
        tokens: placeholders of one picture, side by side; 0: pictures take various numbers.
        before: tokens that stand in front of them; empty: text.
        after: tokens that stand behind them.
    """

    lowest: float
    highest: float
    ids: frozenset[int] = frozenset()
    tokens: int = 0
    before: frozenset[int] = frozenset()
    after: frozenset[int] = frozenset()


def processed_by(processor: Any, ids: Sequence[int]) -> Processed:
    """What a processor makes of pictures; as far as it says."""
    pictures = getattr(processor, "image_processor", processor)
    lowest, highest = _range(pictures)
    tokenizer = getattr(processor, "tokenizer", None)
    special = set(getattr(tokenizer, "added_tokens_decoder", ()))
    known, runs = frozenset(ids), list[list[tuple[int, int, int]]]()
    try:
        mark = image_token(processor)
        for size in _SIZES if mark else ():
            made = processor(text=[f"a {mark} b"], images=[Image.new("RGB", size, "grey")])
            runs.append(_runs(list(made["input_ids"][0]), known))
    except Exception:  # it is anybody's
        runs = []
    lengths = {tuple(length for length, *_ in of_one) for of_one in runs}
    (tokens,) = lengths.pop() if len(lengths) == 1 and len(runs[0]) == 1 else (0,)
    before, after = (frozenset(run[end] for of_one in runs for run in of_one) for end in (1, 2))
    return Processed(
        *(lowest, highest, known, tokens),
        before if before <= special else frozenset(),
        after if after <= special else frozenset(),
    )


def _range(pictures: Any) -> tuple[float, float]:
    """What pixels may be at least and at most."""
    try:
        scale = float(pictures.rescale_factor) if pictures.do_rescale else 1.0
        if not pictures.do_normalize:
            return 0.0, 255 * scale
        ends = [
            ((0 - mean) / std, (255 * scale - mean) / std)
            for mean, std in zip(pictures.image_mean, pictures.image_std, strict=True)
        ]
    except (AttributeError, TypeError, ValueError):
        return -inf, inf
    return min(low for low, _ in ends), max(high for _, high in ends)


def _runs(ids: list[int], known: frozenset[int]) -> list[tuple[int, int, int]]:
    """Of each run of placeholders: how long it is, and the ids before and behind it; -1: none."""
    found, place = list[tuple[int, int, int]](), 0
    for is_known, those in groupby(ids, key=known.__contains__):
        length = len(list(those))
        if is_known:
            end = place + length
            before, behind = ids[place - 1] if place else -1, ids[end] if end < len(ids) else -1
            found.append((length, before, behind))
        place += length
    return found


def misplaced(made: Processed, ids: Sequence[list[int]]) -> Iterator[str]:
    """How placeholders of a batch stand otherwise than the processor puts them."""
    for length, before, behind in (run for row in ids for run in _runs(row, made.ids)):
        if made.tokens and length % made.tokens:
            yield (
                f"{length} placeholders stand side by side, and a picture has {made.tokens} of "
                "the processor"
            )
        for found, ends, side in ((before, made.before, "before"), (behind, made.after, "behind")):
            if ends and found not in ends:
                yield (
                    f"token {found} stands {side} the placeholders of a picture, where the "
                    f"processor puts {' or '.join(map(str, sorted(ends)))}"
                )


def odd_pixels(made: Processed, spread: float, least: float, most: float) -> tuple[str, bool]:
    """How pixels are none of the processor's, in words, and whether one batch is enough to say so.

    A batch may be dark, or bright, by itself.

    Args:
        made: what the processor makes.
        spread: the largest difference within a channel of a picture.
        least: of all pixels.
        most: of all pixels.
    """
    width = made.highest - made.lowest
    outside = least < made.lowest - width or most > made.highest + width
    unnormalised = made.lowest < 0 <= least and most <= 1
    if not outside and not unnormalised and not 0 < spread < width / 100:
        return "", False
    told = f"pixels lie between {least:.3g} and {most:.3g}, at most {spread:.2g} apart in a channel"
    return f"{told}, the processor's between {made.lowest:.3g} and {made.highest:.3g}", outside
