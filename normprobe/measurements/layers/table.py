"""Sample rows of decoder layers to the tables of a run."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from normprobe.inputs.on_device import named_inputs
from normprobe.measurements.layers.accounted import accounted_table
from normprobe.measurements.layers.assumptions import assumptions_table
from normprobe.measurements.layers.branches import branches_table
from normprobe.measurements.layers.massive import massive_tables
from normprobe.measurements.layers.measure import observe, rows
from normprobe.measurements.layers.theory import theory_table
from normprobe.measurements.layers.turns import turns_table
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.tracing.trace import find_or_trace
from normprobe.report.sentences import quoted
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
from normprobe.statistics.loud_tokens import loudest_columns
from normprobe.statistics.resampling import Resampled, Together, with_intervals
from normprobe.statistics.sample_statistics import merge, with_images

_BY_LAYER = ["layer", "group", "hidden_size"]


def layer_intervals(table: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Add ``<column>_ci_low`` and ``_ci_high`` for every mean and ratio of layers.csv."""
    resampled = Resampled(table, rows[~_of_one_image(rows)], _BY_LAYER)
    own_of_tokens, own_of_samples = _own_numbers(rows)
    drawn = resampled.of_tokens((*TOKEN_METRICS, *OTHER_TOKEN_METRICS, *own_of_tokens))
    for metric in (*SAMPLE_METRICS, *own_of_samples):
        drawn[f"{metric}_mean"] = resampled.means(metric, by_tokens=False)
    drawn["rms_mean"] = drawn["norm_mean"] / np.sqrt(table["hidden_size"].to_numpy())
    for kind, ratios in (("mean", RATIOS_TO_TEXT), ("geometric_mean", GEOMETRIC_RATIOS)):
        for metric, column in ratios.items():
            drawn[column] = resampled.to_text(drawn[f"{metric}_{kind}"])
    behind = table["layer"] > 0  # what enters the decoder is told by itself
    together = [
        Together([column], (table["group"] == group) & behind)
        for group in (VISUAL, *OTHER_MEDIA)
        if group == VISUAL or (table["group"] == group).any()
        for column in GEOMETRIC_RATIOS.values()
    ]
    modalities = table["group"].isin([VISUAL, TEXT])
    together += [Together([f"{metric}_mean"], modalities) for metric in TOKEN_METRICS]
    return with_intervals(table, drawn, resampled.units, resampled.held, together)


#: Below this angle the rounding of the stored states, not the layer, sets the value (radians).
ANGLE_RESOLUTION = {"bfloat16": 3e-3, "float16": 4e-4, "float32": 0.0}


def tables(
    rows: pd.DataFrame, model: MeasuredModel, *, intervals: bool = True
) -> dict[str, pd.DataFrame]:
    """Everything that a run of ``layers`` contains; without intervals these columns are empty."""
    rows = with_images(rows)
    token_text = quoted(model.token_text)
    layers = layers_table(rows, token_text)
    judged_by = rows if intervals else rows.iloc[:0]
    if intervals:
        layers = layer_intervals(layers, rows)
    else:
        layers = layers.reindex(columns=list(layer_intervals(layers.iloc[:1], rows)))
    layers = layers.rename(columns=lambda name: name.removeprefix(OWN))
    theory = theory_table(judged_by)
    judged = theory if model.norm_placement.endswith("applies") else theory.iloc[:0]
    asked = {
        "images": images_table(rows),
        "branches": branches_table(rows),
        "turns": turns_table(rows),
    }
    return {
        "layers": layers,
        "theory": theory,
        "assumptions": assumptions_table(judged),
        "accounted": accounted_table(judged_by, layers),
        **{name: table for name, table in asked.items() if not table.empty},
        **massive_tables(rows, token_text),
    }


def _own_numbers(rows: pd.DataFrame) -> tuple[list[str], list[str]]:
    """The user's own numbers in sample rows: those of tokens, and those of groups and pairs."""
    own = [name for name in map(str, rows) if name.startswith(OWN)]
    of_tokens = [name.removesuffix("_m2") for name in own if name.endswith("_m2")]
    parts = {f"{name}_{part}" for name in of_tokens for part in ("mean", "m2", "tokens")}
    return of_tokens, [name for name in own if name not in parts]


def images_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Sample rows to images.csv: the visual tokens of each image, where a sample has several."""
    of_images = rows[_of_one_image(rows)]
    means = ["norm_mean", "cosine_mean", "angle_mean"]
    table = of_images.reindex(columns=["sample_id", IMAGE, "layer", "tokens", *means])
    table.insert(5, "norm_std", np.sqrt(of_images["norm_m2"] / of_images["tokens"]))
    return table.astype({IMAGE: int, "tokens": int}).reset_index(drop=True)


def _of_one_image(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Which rows are of one of several images of a sample."""
    return rows.get(IMAGE, pd.Series(np.nan, rows.index)) > 0


def layers_table(
    rows: pd.DataFrame, token_text: Callable[[int], str] | None = None
) -> pd.DataFrame:
    """Sample rows of any number of batches to layers.csv."""
    rows = rows[~rows["group"].isin([PAIR, TURN]) & ~_of_one_image(rows)]
    by = ["layer", "group", "hidden_size", "dtype"]
    own_of_tokens, own_of_samples = _own_numbers(rows)
    table = merge(rows, by, (*TOKEN_METRICS, *OTHER_TOKEN_METRICS, *own_of_tokens))
    table["rms_mean"] = table["norm_mean"] / np.sqrt(table["hidden_size"])
    text = table[table["group"] == TEXT].drop_duplicates("layer").set_index("layer")
    for kind, ratios in (("mean", RATIOS_TO_TEXT), ("geometric_mean", GEOMETRIC_RATIOS)):
        for metric, column in ratios.items():
            mean = f"{metric}_{kind}"
            table[column] = table[mean] / table["layer"].map(text[mean])
    table = table.merge(loudest_columns(rows, by, token_text), on=by)
    of_samples = rows.groupby(by, sort=False)[[*SAMPLE_METRICS, *own_of_samples]]
    spread = of_samples.mean().add_suffix("_mean").join(of_samples.std(ddof=0).add_suffix("_std"))
    table = table.merge(spread.reset_index(), on=by)
    table["angle_below_resolution"] = table["angle_mean"] < table["dtype"].map(ANGLE_RESOLUTION)
    order = {group: place for place, group in enumerate(TABLE_GROUPS)}
    table = table.sort_values(
        ["layer", "group"], key=lambda c: c.map(order) if c.name == "group" else c
    )
    return table.drop(columns="dtype").reset_index(drop=True)


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
        special_token_ids: ids to report as ``special`` rather than ``text``,
            usually ``tokenizer.all_special_ids``.

    Returns:
        The rows of layers.csv without intervals: one row a layer (0 is the decoder input) and
        token group.

    Raises:
        NormprobeError: when the parts are not found, or the batch does not fit the model.
    """
    inputs = named_inputs(model, inputs)
    parts, found_by = find_or_trace(model, named or {}, lambda: inputs)
    measured = MeasuredModel(model, parts, [*(special_token_ids or ())], found_by=found_by)
    return layers_table(with_images(rows(observe(measured, inputs), None)))
