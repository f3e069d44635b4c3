"""What several measurements say: of layers, of few tokens, of broken states, of models."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import pandas as pd

from normprobe.errors import number_of
from normprobe.report.ratio_words import (
    Ratio,
    Words,
    factor,
    hold_inverses,
    ratio_in_words,
    times,
)
from normprobe.report.readable import readable_token
from normprobe.schema import (
    DECODER_INPUT,
    IMAGE,
    OTHER_MEDIA,
    STRUCTURAL,
    TEXT,
    TOKEN_GROUPS,
    VIDEO,
    VISUAL,
)
from normprobe.statistics.bootstrap import FEWEST, Correlation, rank_correlation

#: More blocks than this are told by direction, not one by one.
_MOST_BLOCKS = 4


class _Block(NamedTuple):
    layers: list[int]
    ratios: list[Ratio]

    @property
    def state(self) -> int | None:
        return self.ratios[0].state


def layers_in_words(
    ratios: Mapping[int, Ratio], words: Words, where: str = "in", *, beside_inverses: bool = False
) -> str:
    """What the layers say: each block of one state, its ratios and their intervals.

    A deep model whose state changes often has too many blocks to read. Then each state is told
    once, with the number of its layers and where the first and the last of them are.
    """
    known = {layer: ratio for layer, ratio in ratios.items() if ratio.usable}
    if not known:
        return ""
    blocks = list(_blocks(known))
    beside = beside_inverses or hold_inverses(known.values())
    if len(blocks) > _MOST_BLOCKS:
        text = _by_direction(blocks, words, where, beside_inverses=beside)
    else:
        told = (ratio_in_words(block.ratios, words, beside_inverses=beside) for block in blocks)
        text = _listed(
            f"{words_of_block} {where} {layer_names(block.layers)}"
            for words_of_block, block in zip(told, blocks, strict=True)
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


def _by_direction(
    blocks: Sequence[_Block], words: Words, where: str, *, beside_inverses: bool
) -> str:
    total = sum(len(block.layers) for block in blocks)
    parts = []
    states = dict.fromkeys(block.state for block in blocks)
    for state in sorted(states, key=lambda state: -_count(blocks, state)):
        chosen = [block for block in blocks if block.state == state]
        word = words.of(state)
        ratios = [ratio for block in chosen for ratio in block.ratios]
        if state:
            told = factor([ratio.inverse for ratio in ratios] if state < 0 else ratios)
        else:
            told = words.direct(ratios, beside_inverses=beside_inverses)
        first, last = chosen[0].layers[0], chosen[-1].layers[-1]
        span = f"{where} layer {first}" if first == last else f"from layer {first} to {last}"
        parts.append(f"{word} {where} {len(ratios)} of {total} layers, {span} ({told})")
    signs = [block.state for block in blocks if block.state]
    turns = sum(before != after for before, after in pairwise(signs))
    changes = f"; the direction changes {turns} time{'s' if turns > 1 else ''}" if turns else ""
    return "; ".join(parts) + changes


def _count(blocks: Sequence[_Block], state: int | None) -> int:
    return sum(len(block.layers) for block in blocks if block.state == state)


def _listed(parts: "Iterator[str] | Sequence[str]") -> str:
    *head, last = parts
    return f"{', '.join(head)} and {last}" if head else last


def out_of(held: float, samples: float, what: str = "samples") -> str:
    """`` from 1 of 5 samples``, behind what is said of them; empty where it is of all."""
    return f" from {int(held)} of {int(samples)} {what}" if held < samples else ""


#: Mean and median further apart than this: few tokens make the mean.
CARRIED = 1.5
#: One token makes the mean where it holds this much of what lies between mean and median.
_ALONE = 0.5


def carried_sentences(rows: pd.DataFrame) -> list[str]:
    """``carried_sentence`` of visual and of text tokens, as far as there is one."""
    told = [carried_sentence(rows[rows["group"] == group], group) for group in (VISUAL, TEXT)]
    return [sentence for sentence in told if sentence]


def carried_sentence(rows: pd.DataFrame, group: str) -> str:
    """Where the mean norm is far from the median: how far at most, and whether a token does it."""
    apart = (rows["norm_mean"] / rows["norm_q50"]).where(rows["norm_q50"] > 0)
    away = apart.where(apart > 1, 1 / apart)
    if not (away > CARRIED).any():
        return ""
    farthest = int(away.fillna(0.0).to_numpy().argmax())
    row = rows.iloc[farthest]
    where = f"After layer {int(row['layer'])}" if row.get("layer") else "At the decoder input"
    size = float(apart.iloc[farthest])
    if size < 1:
        return f"{where} the median norm of {group} tokens is {times(1 / size)} their mean."
    told = f"{where} the mean norm of {group} tokens is {times(size)} their median"
    share = float(row["loudest_share"])
    if share < _ALONE * (1 - 1 / size):
        return f"{told}; no single token makes it so."
    if share != share:  # left out of an edited file
        return f"{told}."
    return f"{told}: the loudest token of a sample holds {100 * share:.0f} % of it{_which(row)}."


def quoted(token_text: Callable[[int], str] | None) -> Callable[[int], str] | None:
    """Token ids as text that tables and sentences can show; None where they have none."""
    if token_text is None:
        return None

    def text(token: int) -> str:
        try:
            return readable_token(token_text(token))
        except Exception:  # placeholders of own code may be no ids of its tokenizer, such as -1
            return str(token)

    return text


def _which(row: "pd.Series[Any]") -> str:
    """Which token that is, where it is the same in several samples, or there is one."""
    if not (row["loudest_samples"] > 1 or row["samples"] == 1):
        return ""
    token = row["loudest_token"]
    named = f"{token} at " if isinstance(token, str) else "at "
    samples = f"in {int(row['loudest_samples'])} of {number_of(int(row['samples']), 'sample')}"
    return f", {samples} {named}position {int(row['loudest_position'])}"


def other_media(table: pd.DataFrame) -> list[str]:
    """Groups that say more than ``visual``: sounds; and images and videos, where it holds both."""
    held = [group for group in OTHER_MEDIA if (table["group"] == group).any()]
    return held if IMAGE in held else [group for group in held if group != VIDEO]


def broken_states(table: pd.DataFrame) -> list[str]:
    """What is wrong with the states that a table is made of, a line each token group and fault."""
    if "nonfinite" not in table:
        return []
    lines = []
    table = _of_all_samples(table)
    decoder = table[table["stage"] == DECODER_INPUT] if "stage" in table else table
    if STRUCTURAL in set(decoder["group"]) and VISUAL not in set(decoder["group"]):
        lines.append("visual tokens: none, because other pixels change no token of the image")
    for group in TOKEN_GROUPS:
        rows = table[table["group"] == group]
        lines += [f"{group} tokens: {fault}" for fault in _faults(rows)]
    if "update_norm_mean" in table:
        moved = table[table["tokens"] > 0].groupby("layer")["update_norm_mean"].max()
        if (still := moved[moved == 0]).size:
            layers = layer_names([int(layer) for layer in still.index])
            lines.append(f"no token is moved in {layers}: every update is exactly zero")
    return lines


def _of_all_samples(table: pd.DataFrame) -> pd.DataFrame:
    """Counts and largest lengths, one row a layer or stage and group."""
    place = "stage" if "stage" in table else "layer"
    lengths = {name: (name, "max") for name in ("norm_mean", "update_norm_mean") if name in table}
    groups = table.groupby([place, "group"], sort=False)
    return groups.agg(
        tokens=("tokens", "sum"), nonfinite=("nonfinite", "sum"), **lengths
    ).reset_index()


def broken_states_sentence(table: pd.DataFrame) -> str:
    """``broken_states`` as sentences of a verdict; empty where nothing is wrong."""
    return " ".join(f"{line.capitalize()}." for line in broken_states(table))


def _faults(rows: pd.DataFrame) -> Iterator[str]:
    lost, left = rows["nonfinite"], rows["tokens"]
    if (none := (lost > 0) & (left == 0)).any():
        yield f"none has finite numbers {_places(rows[none])}"
    if (some := (lost > 0) & (left > 0)).any():
        worst = int(lost[some].max())
        total = int((lost + left)[some].max())
        few = f"{worst} of {total}" if some.sum() == 1 else f"up to {worst} of {total}"
        yield f"{few} have no finite numbers {_places(rows[some])}, and are left out"
    if (zero := (left > 0) & (rows["norm_mean"] == 0)).any():
        yield f"all are zero {_places(rows[zero])}, so they have no direction"


def _places(rows: pd.DataFrame) -> str:
    """Where: layers, or stages of the interface."""
    if "layer" in rows:
        return f"in {layer_names([int(layer) for layer in rows['layer']])}"
    return f"at {', '.join(stage.replace('_', ' ') for stage in rows['stage'])}"


#: The name of the table.
CORRELATION = "correlation"


def correlation_table(disparity: Iterable[float], inertia: Iterable[float]) -> pd.DataFrame:
    """The row of correlation.csv: how the ranks of disparity and inertia go together."""
    found = rank_correlation(disparity, inertia)
    row = dict(
        zip(
            ("models", "rank_correlation", "rank_correlation_ci_low", "rank_correlation_ci_high"),
            found,
            strict=True,
        )
    )
    return pd.DataFrame([row])


def correlation_sentence(correlation: pd.DataFrame, of: str = "models") -> str:
    """What correlation.csv says: which way, if its interval allows to say so."""
    models, *numbers = correlation.iloc[0]
    found = Correlation(int(models), *map(float, numbers))
    if found.models < FEWEST:
        return (
            f"Whether inertia goes with disparity takes {FEWEST} {of} with both numbers; "
            f"{found.models or 'none'} {'has' if found.models == 1 else 'have'} them."
        )
    if found.value != found.value:
        return f"All {found.models} {of} have the same disparity or inertia: no rank correlation."
    value, low, high = (round(number, 2) + 0.0 for number in found[1:])  # as printed; 0 has no sign
    if low != low or high != high:
        raise ValueError("a rank correlation without its interval")  # an edited file
    told = f"rank correlation {value:.2f} [{low:.2f}, {high:.2f}]"
    over = f"{told} over {found.models} {of} (95 % interval over {of})"
    if low > 0:
        return f"Inertia goes with disparity: {over}."
    if high < 0:
        return f"Inertia goes against disparity: {over}."
    return f"Inertia with and against disparity are not told apart: {over}."
