"""Ratios of the decoder layers in words: every block of layers of one state."""

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
    def state(self) -> int | None:
        return self.ratios[0].state


def layers_in_words(ratios: Mapping[int, Ratio], words: Words, where: str = "in") -> str:
    """What the layers say: each block of one state, its ratios and their intervals.

    A deep model whose state changes often has too many blocks to read. Then each state is told
    once, with the number of its layers and where the first and the last of them are.
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
    for _, members in groupby(ratios.items(), key=lambda item: item[1].state):
        layers, found = zip(*members, strict=True)
        yield _Block(list(layers), list(found))


def _by_direction(blocks: Sequence[_Block], words: Words, where: str) -> str:
    total = sum(len(block.layers) for block in blocks)
    parts = []
    states = dict.fromkeys(block.state for block in blocks)
    for state in sorted(states, key=lambda state: -_count(blocks, state)):
        chosen = [block for block in blocks if block.state == state]
        word = words.of(state)
        ratios = [ratio for block in chosen for ratio in block.ratios]
        told = [ratio.inverse for ratio in ratios] if state == -1 else ratios
        first, last = chosen[0].layers[0], chosen[-1].layers[-1]
        span = f"{where} layer {first}" if first == last else f"from layer {first} to {last}"
        parts.append(f"{word} {where} {len(ratios)} of {total} layers, {span} ({factor(told)})")
    signs = [block.state for block in blocks if block.state]
    turns = sum(before != after for before, after in pairwise(signs))
    changes = f"; the direction changes {turns} time{'s' if turns > 1 else ''}" if turns else ""
    return "; ".join(parts) + changes


def _count(blocks: Sequence[_Block], state: int | None) -> int:
    return sum(len(block.layers) for block in blocks if block.state == state)


def _listed(parts: "Iterator[str] | Sequence[str]") -> str:
    *head, last = parts
    return f"{', '.join(head)} and {last}" if head else last
