"""Sample rows of decoder layers to the tables of a run."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from normprobe.inputs.on_device import named_inputs
from normprobe.measurements.layers.accounted import accounted_table
from normprobe.measurements.layers.assumptions import assumptions_table
from normprobe.measurements.layers.branches import branches_table
from normprobe.measurements.layers.headroom import headroom_table
from normprobe.measurements.layers.massive import massive_tables
from normprobe.measurements.layers.measure import observe, rows
from normprobe.measurements.layers.theory import theory_table
from normprobe.measurements.layers.turns import turns_table
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.tracing.trace import find_or_trace
from normprobe.schema import (
    GEOMETRIC_RATIOS,
    IMAGE,
    OTHER_MEDIA,
    OTHER_TOKEN_METRICS,
    OWN,
    PAIR,
    RATIOS_TO_TEXT,
    SAMPLE_METRICS,
    TABLE_GROUPS,
    TEXT,
    TOKEN_METRICS,
    TURN,
    VISUAL,
)
from normprobe.statistics.loud_tokens import loudest_tokens
from normprobe.statistics.resampling import Resampled, Together, add_intervals
from normprobe.statistics.sample_statistics import merge, reported_groups
from normprobe.tidy import Numbers, Table, declared, in_order, tidy

_BY_LAYER = ["layer", "group"]
#: Of which means the ratios to text are.
_RATIOS = {"mean": RATIOS_TO_TEXT, "geometric_mean": GEOMETRIC_RATIOS}


#: Below this angle the rounding of the stored states, not the layer, sets the value (radians).
ANGLE_RESOLUTION = {"bfloat16": 3e-3, "float16": 4e-4, "float32": 0.0}


def tables(
    rows: pd.DataFrame, model: MeasuredModel, *, intervals: bool = True
) -> dict[str, pd.DataFrame]:
    """Everything that a run of ``layers`` contains, with intervals or without."""
    rows = reported_groups(rows)
    layers = layers_table(rows, intervals=intervals)
    judged_by = rows if intervals else rows.iloc[:0]
    theory = theory_table(judged_by)
    judged = theory if model.norm_placement.endswith("applies") else theory.iloc[:0]
    asked = {
        "images": images_table(rows),
        "branches": branches_table(rows),
        "turns": turns_table(rows),
        "headroom": headroom_table(rows),
    }
    return {
        "layers": layers,
        "loudest": in_order(
            loudest_tokens(_of_groups(rows), _BY_LAYER, model.token_text), group=TABLE_GROUPS
        ),
        "theory": theory,
        "assumptions": assumptions_table(judged),
        "accounted": accounted_table(judged_by, layers),
        **{name: table for name, table in asked.items() if not table.empty},
        **massive_tables(rows, model.token_text),
    }


def layers_table(
    rows: pd.DataFrame, *, intervals: bool = True, declared_as: Table | None = None
) -> pd.DataFrame:
    """Sample rows of any number of batches to layers.csv, or to a table that is like it."""
    rows = _of_groups(rows)
    cells, numbers = _numbers(rows)
    if intervals:
        _add_intervals(cells, numbers, rows, declared_as or declared(__package__)["layers"])
    numbers = {name.removeprefix(OWN): estimates for name, estimates in numbers.items()}
    return in_order(tidy(cells, numbers), group=TABLE_GROUPS)


def _of_groups(rows: pd.DataFrame) -> pd.DataFrame:
    """Without rows of pairs, of turns, and of one of several images."""
    return rows[~rows["group"].isin([PAIR, TURN]) & ~_of_one_image(rows)]


def _numbers(rows: pd.DataFrame) -> tuple[pd.DataFrame, Numbers]:
    """The cells of layers.csv, and what is measured of each."""
    own_of_tokens, own_of_samples = _own_numbers(rows)
    metrics = (*TOKEN_METRICS, *OTHER_TOKEN_METRICS, *own_of_tokens)
    cells, merged = merge(rows, _BY_LAYER, metrics)
    groups = rows.groupby(_BY_LAYER, sort=False)
    width = groups["hidden_size"].first().to_numpy()
    numbers: Numbers = {"hidden_size": {"mean": width}, **merged}
    numbers["rms"] = {"mean": numbers["norm"]["mean"] / np.sqrt(width)}
    of_text = cells.index[cells["group"] == TEXT]
    beside = pd.Series(of_text, cells.loc[of_text, "layer"]).reindex(cells["layer"])
    known, places = beside.notna().to_numpy(), beside.fillna(0).to_numpy(int)
    for estimate, ratios in _RATIOS.items():
        for metric, ratio in ratios.items():
            means = numbers[metric][estimate]
            with np.errstate(divide="ignore", invalid="ignore"):  # of nothing beside nothing
                numbers[ratio] = {"mean": np.where(known, means / means[places], np.nan)}
    numbers["loudest_share"] = {"mean": groups["loudest_share"].mean().to_numpy()}
    for metric in (*SAMPLE_METRICS, *own_of_samples):
        of_samples = groups[metric]
        numbers[metric] = {
            "mean": of_samples.mean().to_numpy(),
            "std": of_samples.std(ddof=0).to_numpy(),
        }
    resolution = groups["dtype"].first().map(ANGLE_RESOLUTION).to_numpy()
    angle = numbers["angle"]["mean"]
    below = np.where(np.isnan(angle), np.nan, angle < resolution)
    numbers["angle_below_resolution"] = {"mean": below}
    return cells, numbers


def _add_intervals(cells: pd.DataFrame, numbers: Numbers, rows: pd.DataFrame, table: Table) -> None:
    """The ends of every mean and ratio, and bands of what a sentence could name together."""
    resampled = Resampled(cells, rows, _BY_LAYER)
    own_of_tokens, own_of_samples = _own_numbers(rows)
    drawn = resampled.of_tokens((*TOKEN_METRICS, *OTHER_TOKEN_METRICS, *own_of_tokens))
    for metric in (*SAMPLE_METRICS, *own_of_samples):
        drawn[metric, "mean"] = resampled.means(metric, by_tokens=False)
    drawn["rms", "mean"] = drawn["norm", "mean"] / np.sqrt(numbers["hidden_size"]["mean"])
    for estimate, ratios in _RATIOS.items():
        for metric, ratio in ratios.items():
            drawn[ratio, "mean"] = resampled.to_text(drawn[metric, estimate])
    behind = cells["layer"] > 0  # what enters the decoder is told by itself
    together = [
        Together([ratio], (cells["group"] == group) & behind)
        for group in (VISUAL, *OTHER_MEDIA)
        if group == VISUAL or (cells["group"] == group).any()
        for ratio in GEOMETRIC_RATIOS.values()
    ]
    modalities = cells["group"].isin([VISUAL, TEXT])
    together += [Together([metric], modalities) for metric in TOKEN_METRICS]
    add_intervals(numbers, drawn, resampled.units, resampled.held, together, table=table)


def _own_numbers(rows: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The user's own numbers in sample rows: those of tokens, and those of groups and pairs."""
    own = [name for name in map(str, rows) if name.startswith(OWN)]
    of_tokens = [name.removesuffix("_m2") for name in own if name.endswith("_m2")]
    parts = {f"{name}_{part}" for name in of_tokens for part in ("mean", "m2", "tokens")}
    return of_tokens, [name for name in own if name not in parts]


def images_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Sample rows to images.csv: the visual tokens of each image, where a sample has several."""
    of_images = rows[_of_one_image(rows)].reset_index(drop=True)
    cells = of_images.reindex(columns=["sample_id", IMAGE, "layer", "tokens"])
    numbers: Numbers = {
        metric: {"mean": of_images[f"{metric}_mean"].to_numpy()}
        for metric in ("norm", "cosine", "angle")
    }
    numbers["norm"]["std"] = np.sqrt((of_images["norm_m2"] / of_images["tokens"]).to_numpy())
    return tidy(cells.astype({IMAGE: int, "tokens": int}), numbers)


def _of_one_image(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Which rows are of one of several images of a sample."""
    return rows.get(IMAGE, pd.Series(np.nan, rows.index)) > 0


def probe_layers(
    model: nn.Module,
    inputs: Any,
    *,
    named: Mapping[str, Any] | None = None,
    special_token_ids: Iterable[int] | None = None,
) -> pd.DataFrame:
    """Measure every decoder layer on one batch of a model in memory.

    ``Probe`` does the same repeatedly, and finds the parts once. Where the structure of the model
    does not tell its parts, a trace of three more forwards finds them.

    Args:
        model: a vision-language or language model, of transformers or any ``nn.Module``.
        inputs: one batch: what its processor returned, a tuple in the order of its forward, or a
            function that calls it, such as ``lambda m: m(ids, image=pixels)``; tensors or arrays.
        named: parts named by hand, as ``find_parts`` takes them.
        special_token_ids: ids to report as ``special`` rather than ``text``, usually
            ``tokenizer.all_special_ids``; None: the config's ``bos_token_id`` where it opens a
            prompt.

    Returns:
        layers.csv without intervals: a row a layer (0 is the decoder input), token group and
        quantity.

    Raises:
        NormprobeError: when the parts are not found, or the batch does not fit the model.
    """
    inputs = named_inputs(model, inputs)
    parts, found_by = find_or_trace(model, named or {}, lambda: inputs)
    measured = MeasuredModel(model, parts, special_token_ids, found_by=found_by)
    return layers_table(reported_groups(rows(observe(measured, inputs), None)), intervals=False)
