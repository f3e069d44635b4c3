"""The gaps of grounding.csv with their bands."""

from collections.abc import Mapping

import pandas as pd

from normprobe.report.ratio_words import Estimate


def gaps_of(grounding: pd.DataFrame, quantity: str) -> dict[int, Estimate]:
    """The gap of each layer that has one, with its band over all layers."""
    column = f"{quantity}_gap"
    columns = [column, f"{column}_band_low", f"{column}_band_high"]
    known = grounding[grounding[column].notna()]
    numbers = known.reindex(columns=columns).astype(float).itertuples(index=False)
    return {int(layer): Estimate(*row) for layer, row in zip(known["layer"], numbers, strict=True)}


def by_direction(gaps: Mapping[int, Estimate]) -> dict[int, list[int]]:
    """The layers whose gap is above zero, below, or not told apart from it."""
    found: dict[int, list[int]] = {1: [], -1: [], 0: []}
    for layer, gap in gaps.items():
        found[gap.sign or 0].append(layer)
    return {way: layers for way, layers in found.items() if layers}
