"""How large the rows of each block of a tower are, how far it turns them, and which are loud."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.hooks import attached, observing, on_call, on_input, on_output
from normprobe.measurements.layers.headroom import headroom_table
from normprobe.measurements.layers.headroom_watcher import HeadroomWatcher
from normprobe.measurements.layers.measure import SeenLayers, _LayerReader
from normprobe.measurements.layers.measure import rows as layer_rows
from normprobe.measurements.layers.table import layers_table
from normprobe.model.tower import TowerModel
from normprobe.schema import (
    HIGH_NORM,
    LOUD_NORM,
    NON_VISUAL,
    OWN,
    TABLE_GROUPS,
    VISUAL,
)
from normprobe.statistics.sample_statistics import reported_groups
from normprobe.statistics.token_metrics import POOLED_GROUPS
from normprobe.tidy import declared, in_order

_BY = ["layer", "group"]

#: What a row is called whose norm stands out, and how many of them a picture has.
_LOUD = ("high_norm", "norm_over_100")
_A_PICTURE = "_a_picture"


class LoudRows:
    """Which share of a group is loud in each block; a ``GroupWatcher``."""

    metrics: tuple[str, ...] = ()

    def watching(self, layers: Sequence[nn.Module]) -> AbstractContextManager[object]:
        """It needs no hooks of its own."""
        return nullcontext()

    def see(self, number: int, x: Tensor, h: Tensor) -> Tensor:
        """Nothing of a token alone."""
        return h.new_empty((0, *h.shape[:2]), dtype=torch.float32)

    def see_groups(self, number: int, h: Tensor, masks: Tensor) -> Tensor:
        """Nothing either: norms are there."""
        return h.new_empty((len(h), len(POOLED_GROUPS), 0), dtype=torch.float32)

    def columns(
        self, tokens: Mapping[str, NDArray[np.float32]], group: NDArray[np.float32]
    ) -> Mapping[str, Sequence[Any]]:
        """Shares by the group's median, and by a norm of 100."""
        norms = np.where(np.isfinite(tokens["norm"]), tokens["norm"], np.nan).astype(np.float64)
        counted = np.isfinite(norms)
        lost = np.where(counted.any(axis=1, keepdims=True), norms, 0.0)
        median = np.nanmedian(lost, axis=1, keepdims=True)
        number = np.where(counted.any(axis=1), counted.sum(axis=1), np.nan)
        loud = (norms >= HIGH_NORM * median, norms > LOUD_NORM)
        return {
            OWN + name: ((each & counted).sum(axis=1) / number).tolist()
            for name, each in zip(_LOUD, loud, strict=True)
        }


@dataclass(frozen=True)
class SeenTower:
    """What one forward leaves of a tower."""

    layers: SeenLayers
    images: Sequence[int]  # pictures or tiles of each sample
    group: str  # of its rows


def tower_facts(tower: TowerModel, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a run records of a tower."""
    if not tower.reads(inputs):
        raise NormprobeError(
            f"the first sample brings nothing to the {tower.modality} tower of {tower}",
            f"pass data with {'sounds' if tower.modality == 'audio' else 'pictures'}",
        )
    return tower.facts(inputs)


def observe(tower: TowerModel, inputs: Mapping[str, Any]) -> SeenTower | None:
    """One forward up to the last block; None where the inputs bring nothing to the tower."""
    if not tower.reads(inputs):
        return None
    batch, blocks = tower.batch(inputs), tower.decoder_layers
    watchers = (HeadroomWatcher(tower.spread), LoudRows())
    reader = _LayerReader(batch, watchers)
    calls: list[Tensor] = []

    def begin(state: Tensor) -> None:
        calls.append(state)
        if len(calls) > 1:
            raise NormprobeError(
                f"the {tower.modality} tower of {tower} runs several times in one forward",
                "measure with --batch-size 1, pictures and videos apart",
            )
        reader.read_decoder_input(state)

    def see_norm(entered: Tensor, normed: Tensor, given: object) -> None:
        if entered.shape == normed.shape == calls[0].shape:
            reader.read_norm(entered, tower.read_stream(normed), given)

    handles = [on_input(blocks[0], begin)]
    for number, (block, norms) in enumerate(zip(blocks, tower.layer_norms, strict=True), start=1):
        handles.append(on_input(block, partial(reader.read_input, number)))
        handles.extend(on_call(norm, see_norm) for norm in norms)
        handles.append(on_output(block, partial(reader.read_output, number)))
    with observing(tower.model), attached(*handles), ExitStack() as watching:
        for watcher in watchers:
            watching.enter_context(watcher.watching(blocks))
        tower.run(inputs, leaving=blocks[-1])
        return SeenTower(reader.seen(None), batch.images, tower.group)


def rows(seen: SeenTower | None, sample_ids: Sequence[str] | None) -> pd.DataFrame:
    """One row a (sample, block, group); of a sample without a picture one row of no tokens."""
    if seen is None:
        return _of_nothing(sample_ids or ["0"])
    found = layer_rows(seen.layers, sample_ids)
    found = found[found["group"] != NON_VISUAL].reset_index(drop=True)
    names = sample_ids or [str(number) for number in range(len(seen.images))]
    pictures = found["sample_id"].map(dict(zip(names, seen.images, strict=True)))
    for name in _LOUD:
        number = found[OWN + name] * found["tokens"] / pictures
        found[f"{OWN}{name}{_A_PICTURE}"] = number
    found["group"] = found["group"].replace(VISUAL, seen.group)
    lacking = [name for name in names if name not in set(found["sample_id"])]
    return pd.concat([found, _of_nothing(lacking)], ignore_index=True) if lacking else found


def _of_nothing(sample_ids: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame({"sample_id": sample_ids, "layer": 0, "group": VISUAL, "tokens": 0})


def tables(
    rows: pd.DataFrame, tower: TowerModel, *, intervals: bool = True
) -> dict[str, pd.DataFrame]:
    """Everything that a run of a tower contains."""
    told = reported_groups(rows[rows["tokens"] > 0])
    numbers = declared(__package__)["tower"]
    table = layers_table(told, intervals=intervals, declared_as=numbers)
    table = table[table["quantity"].isin(numbers.numbers)]
    extremes = told.groupby(_BY)[["state_peak_max", "inner_peak_max"]].max()
    marked = [
        table,
        _rows_of(table, "peak", extremes["state_peak_max"]),
        _rows_of(table, "inner_peak", extremes["inner_peak_max"]),
        _rows_of(table, "read_by_projector", _read(table, tower)),
    ]
    order = {name: place for place, name in enumerate(numbers.numbers)}
    whole = pd.concat(marked, ignore_index=True)
    whole = whole.sort_values("quantity", key=lambda names: names.map(order), kind="stable")
    headroom = headroom_table(told)
    return {"tower": in_order(whole, group=TABLE_GROUPS), "headroom": headroom}


def _read(table: pd.DataFrame, tower: TowerModel) -> "pd.Series[float]":
    """1 where the projector reads a block's state, else 0; nothing where it reads none as it is."""
    cells = table[_BY].drop_duplicates() if tower.read else table[_BY].iloc[:0]
    read = cells["layer"].isin(tower.read).to_numpy(float)
    return pd.Series(read, pd.MultiIndex.from_frame(cells))


def _rows_of(table: pd.DataFrame, quantity: str, values: "pd.Series[float]") -> pd.DataFrame:
    """Rows of a number that is no mean, with the counts of their cells."""
    cells = table.drop_duplicates(_BY)[[*_BY, "tokens", "samples"]]
    found = values.rename("mean").reset_index().merge(cells, on=_BY)
    return found.dropna(subset="mean").assign(quantity=quantity)
