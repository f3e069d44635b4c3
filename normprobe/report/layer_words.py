"""Ratios of the decoder layers in words: every block of layers that goes one way."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from normprobe.report.ratio_words import Ratio, Words, factor, ratio_in_words

#: More blocks than this are told by direction, not one by one.
_MOST_BLOCKS = 4


class _Block(NamedTuple):
    layers: list[int]
    ratios: list[Ratio]

    @property
    def way(self) -> int:
        return self.ratios[0].direction


def layers_in_words(ratios: Mapping[int, Ratio], words: Words, where: str = "in") -> str:
    """What the layers say: each block of one direction, its ratios and their intervals.

    A deep model whose direction changes often has too many blocks to read. Then each direction is
    told once, with the number of its layers and where the first and the last of them are.

    Args:
        ratios: by ascending layer. A layer whose ratio is not usable parts no block, and is named.
        words: for what is compared.
        where: ``in`` or ``after`` the layers.

    Returns:
        E.g. "1.40 to 8.0 x [1.30, 8.2] more slowly in layers 1-3 and about as fast (1.1 x) in layer
        4"; empty without a usable ratio.
    """
    known = {layer: ratio for layer, ratio in ratios.items() if ratio.usable}
    if not known:
        return ""
    blocks = list(_blocks(known))
    if len(blocks) > _MOST_BLOCKS:
        text = _by_direction(blocks, words, where)
    else:
        text = _listed(
            f"{ratio_in_words(block.ratios, words)} {where} {layer_names(block.layers)}"
            for block in blocks
        )
    missing = [layer for layer in ratios if layer not in known]
    return f"{text} (no ratio {where} {layer_names(missing)})" if missing else text


def layer_names(layers: Sequence[int]) -> str:
    """``layer 3``, ``layers 1-3``, ``layers 1-3, 6``."""
    return f"layer{'s' if len(layers) > 1 else ''} {layer_ranges(layers)}"


def layer_ranges(layers: Sequence[int]) -> str:
    """Ascending layers in short: ``1-3, 6``."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _blocks(ratios: Mapping[int, Ratio]) -> Iterator[_Block]:
    for _, members in groupby(ratios.items(), key=lambda item: item[1].direction):
        layers, found = zip(*members, strict=True)
        yield _Block(list(layers), list(found))


def _by_direction(blocks: Sequence[_Block], words: Words, where: str) -> str:
    total = sum(len(block.layers) for block in blocks)
    parts = []
    for way in sorted({block.way for block in blocks}, key=lambda way: -_count(blocks, way)):
        chosen = [block for block in blocks if block.way == way]
        word = {1: words.above, -1: words.below, 0: words.alike}[way]
        ratios = [ratio for block in chosen for ratio in block.ratios]
        told = [ratio.inverse for ratio in ratios] if way < 0 else ratios
        first, last = chosen[0].layers[0], chosen[-1].layers[-1]
        span = f"{where} layer {first}" if first == last else f"from layer {first} to {last}"
        parts.append(f"{word} {where} {len(ratios)} of {total} layers, {span} ({factor(told)})")
    signs = [block.way for block in blocks if block.way]
    turns = sum(before != after for before, after in pairwise(signs))
    changes = f"; the direction changes {turns} time{'s' if turns > 1 else ''}" if turns else ""
    return "; ".join(parts) + changes


def _count(blocks: Sequence[_Block], way: int) -> int:
    return sum(len(block.layers) for block in blocks if block.way == way)


def _listed(parts: "Iterator[str] | Sequence[str]") -> str:
    *head, last = parts
    return f"{', '.join(head)} and {last}" if head else last
