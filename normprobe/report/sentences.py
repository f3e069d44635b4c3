"""What several measurements say: of layers, of few tokens, of broken states, of models."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from normprobe.errors import number_of
from normprobe.report.ratio_words import (
    Estimate,
    Ratio,
    Words,
    factor,
    spanned,
    times,
)
from normprobe.report.readable import readable_token
from normprobe.report.verdict import OPEN, SAME, Finding
from normprobe.schema import (
    IMAGE,
    OTHER_MEDIA,
    TEXT,
    TOKEN_GROUPS,
    UNMOVED,
    VIDEO,
    VISUAL,
)
from normprobe.statistics.bootstrap import FEWEST, Correlation, rank_correlation
from normprobe.tidy import INTERVAL, QUANTITY, select, wide

#: More ranges of layers than this are counted, not named.
_MOST_RANGES = 4


class LayerPhrases(NamedTuple):
    """How a comparison of each layer is told."""

    name: str  # of its findings
    above: str  # what is said of layers with a ratio above 1
    below: str  # likewise, below 1
    what: str  # what is compared, of layers where it is the same, or inconclusive
    where: str = "in"


def layer_findings(ratios: Mapping[int, Ratio], told: LayerPhrases) -> list[Finding]:
    """A finding each state: which layers are so, and how far the largest of them goes."""
    by_state = _by_state(ratios)
    ways = sorted((1, -1), key=lambda way: -len(by_state[way]))
    beginnings = {1: told.above, -1: told.below}
    names = {1: "above", -1: "below", 0: "same", None: OPEN}
    findings = []
    for state in (*ways, 0, None):
        known = by_state[state]
        if not known:
            continue
        where = layers_named(list(known), len(ratios), told.where)
        if state:
            words = f"{beginnings[state]} {where}: {spanned(known)}."
        elif state == 0:
            words = f"{told.what}: {SAME} {where} ({factor([*known.values()], ends=False)})."
        else:
            words = f"{told.what}: {OPEN} {where}."
        numbers = {f"layer {layer}": ratio for layer, ratio in known.items()}
        findings.append(Finding(f"{told.name}.{names[state]}", words, numbers))
    missing = [layer for layer, ratio in ratios.items() if not ratio.usable]
    if missing and len(missing) < len(ratios):
        where = layers_named(missing, len(ratios), told.where)
        findings.append(Finding(f"{told.name}.unknown", f"{told.what}: no ratio {where}."))
    return findings


def layers_headline(
    ratios: Mapping[int, Ratio], verb: str, words: Words, than: str = ""
) -> tuple[str, str]:
    """Of a headline: what most layers that differ do, and which are inconclusive.

    E.g. ``turn up to 9.3 x more slowly in layers 1-3`` and ``layer 4 is inconclusive``. What some
    layers do the other way round is a finding of its own.
    """
    by_state, total = _by_state(ratios), len(ratios)
    way = max((1, -1), key=lambda way: len(by_state[way]))
    known, said = by_state[way], ""
    if known:
        sizes = [(r.inverse if way < 0 else r).value for r in known.values()]
        most = times(max(sizes))
        up_to = "up to " * (times(min(sizes)) != most)
        beside = f" than {than}" * bool(than)
        said = f"{verb}{up_to}{most} {words.of(way)}{beside} in {_short([*known], total)}"
    elif known := by_state[0]:
        beside = f" as {than}" * bool(than)
        said = f"{verb}{SAME}{beside} in {_short([*known], total)}"
    if not by_state[None]:
        return said, ""
    unclear = by_state[None]
    return said, f"{_short([*unclear], total)} {'is' if len(unclear) == 1 else 'are'} {OPEN}"


def _by_state(ratios: Mapping[int, Ratio]) -> dict[int | None, dict[int, Ratio]]:
    """The layers of each state, by ascending layer."""
    usable = {layer: ratio for layer, ratio in ratios.items() if ratio.usable}
    return {
        state: {layer: ratio for layer, ratio in usable.items() if ratio.state == state}
        for state in (1, -1, 0, None)
    }


def layers_named(layers: Sequence[int], total: int, where: str = "in") -> str:
    """``in layers 1-3, 6``; of many ranges ``in 12 of 32 layers, from 1 to 31``."""
    named = _short(layers, total)
    ends = f", from {layers[0]} to {layers[-1]}" * (" of " in named)
    return f"{where} {named}{ends}"


def _short(layers: Sequence[int], total: int) -> str:
    """``layers 1-3, 6``; of many ranges ``12 of 32 layers``."""
    few = layer_ranges(layers).count(",") < _MOST_RANGES
    return layer_names(layers) if few else f"{len(layers)} of {total} layers"


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


def in_some_samples(held: Mapping[str, float], samples: float, what: str = "samples") -> Finding:
    """In how many samples there are such tokens, where some have none."""
    fewer = {of: number for of, number in held.items() if 0 < number < samples}
    told = ", ".join(
        f"{of} are in {int(number)} of {int(samples)} {what}" for of, number in fewer.items()
    )
    return Finding("samples", f"{told[:1].upper()}{told[1:]}." if told else "")


#: Mean and median further apart than this: few tokens make the mean.
CARRIED = 1.5
#: One token makes the mean where it holds this much of what lies between mean and median.
_ALONE = 0.5


def carried_findings(
    table: pd.DataFrame, loudest: pd.DataFrame | None, groups: Sequence[str] = (VISUAL, TEXT)
) -> list[Finding]:
    """``carried_sentence`` of token groups, as far as there is one."""
    return [
        Finding(f"carried.{group}", carried_sentence(table, loudest, group)) for group in groups
    ]


def carried_sentence(table: pd.DataFrame, loudest: pd.DataFrame | None, group: str) -> str:
    """Where the mean norm is far from the median: how far at most, and whether a token does it.

    Args:
        table: tidy, of layers or of one stage.
        loudest: ``loudest.csv``; None: it is not known which token that is.
        group: of tokens.
    """
    rows = select(table, "norm", group=group)
    apart = (rows["mean"] / rows["q50"]).where(rows["q50"] > 0)
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
    place = "layer" if "layer" in table else "stage"
    here = {place: row[place], "group": group}
    shares = select(table, "loudest_share", **here)["mean"]
    share = float(shares.iloc[0]) if len(shares) else float("nan")
    if share < _ALONE * (1 - 1 / size):
        return f"{told}; no single token makes it so."
    if share != share:  # left out of an edited file
        return f"{told}."
    which = _which(loudest, int(row["samples"]), here)
    return f"{told}: the loudest token of a sample holds {100 * share:.0f} % of it{which}."


def _which(loudest: pd.DataFrame | None, samples: int, here: Mapping[str, object]) -> str:
    """Which token that is, where it is the same in several samples, or there is one."""
    if loudest is None:
        return ""
    for name, value in here.items():
        loudest = loudest[loudest[name] == value]
    for token, position, held in loudest[["token", "position", "samples"]].itertuples(index=False):
        if held > 1 or samples == 1:
            named = f"{readable_token(token)} at " if isinstance(token, str) and token else "at "
            several = f"in {int(held)} of {number_of(samples, 'sample')}"
            return f", {several} {named}position {int(position)}"
    return ""


def other_media(table: pd.DataFrame) -> list[str]:
    """Groups that say more than ``visual``: sounds; and images and videos, where it holds both."""
    held = [group for group in OTHER_MEDIA if (table["group"] == group).any()]
    return held if IMAGE in held else [group for group in held if group != VIDEO]


def broken_states(table: pd.DataFrame) -> list[str]:
    """What is wrong with the states that a table is made of, a line each token group and fault.

    Args:
        table: tidy, or sample rows.
    """
    if QUANTITY in table:
        lengths = {name: f"{name}_mean" for name in ("norm", "update_norm")}
        table = wide(table).rename(columns=lengths)
    if "nonfinite" not in table:
        return []
    lines = []
    table = _of_all_samples(table)
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


def broken_findings(table: pd.DataFrame, doubts: Iterable[str] = ()) -> list[Finding]:
    """``broken_states`` as findings, and that no pixel reached a token, where a doubt says so."""
    unmoved = [UNMOVED] if any(UNMOVED in each for each in doubts) else []
    return [Finding("broken", f"{each.capitalize()}.") for each in unmoved + broken_states(table)]


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
    models, *numbers = rank_correlation(disparity, inertia)
    row = {QUANTITY: "rank_correlation", **dict(zip(("mean", *INTERVAL), numbers, strict=True))}
    return pd.DataFrame([{**row, "models": models}])


def correlation_sentence(correlation: pd.DataFrame, of: str = "models") -> str:
    """What correlation.csv says: which way, if its interval allows to say so."""
    row = correlation.iloc[0]
    found = Correlation(int(row["models"]), *map(float, row[["mean", *INTERVAL]]))
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
    told = f"rank correlation {value:.2f} [{low:.2f}, {high:.2f}] over {found.models} {of}"
    over = f"{told} (95 % interval over {of})"
    if low > 0:
        return f"Inertia goes with disparity: {over}."
    if high < 0:
        return f"Inertia goes against disparity: {over}."
    return f"Whether inertia goes with disparity is {OPEN}: {over}."


def correlation_finding(correlation: pd.DataFrame, of: str = "models") -> Finding:
    """The same as a finding, with its number."""
    number = Estimate(*correlation[["mean", *INTERVAL]].astype(float).iloc[0])
    return Finding("correlation", correlation_sentence(correlation, of), {"correlation": number})
