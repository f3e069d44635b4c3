"""Tables whose ratios touch the ends of what a sentence may say, and sample rows behind tables.

The tables are flat.
"""

from collections.abc import Mapping, Sequence
from math import inf, nan
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from normprobe.measurements.layers.table import tables
from normprobe.runs.run_folder import RunStore
from normprobe.schema import (
    ATTENTION_INPUT,
    BRANCH_METRICS,
    GEOMETRIC_RATIOS,
    INJECTION,
    PAIR,
    PAIR_METRICS,
    RATIOS_TO_TEXT,
    SAMPLE_METRICS,
    TEXT,
    TOKEN_METRICS,
    VISUAL,
)
from normprobe.statistics.sample_statistics import co_moments, statistics_by_layer
from support.flat import tidied

Triple = tuple[float, float, float]

#: Value, low and high: where a number, as it is printed, comes to stand on the other side.
BORDERS: list[Triple] = [
    (57.2, 49.1, 66.0),
    (1.01, 0.97, 1.05),
    (40.0, 0.9, 200.0),
    *((1.3, low, 1.6) for low in (0.995, 1.0, 1.001, 1.004, 1.0049, 1.005, 1.0051, 1.006, 1.01)),
    *((0.8, 0.6, high) for high in (1.005, 1.0, 0.999, 0.996, 0.9951, 0.995, 0.9949, 0.994, 0.99)),
    *((1.0, low, 1.1) for low in (0.79, 0.794, 0.7949, 0.795, 0.7951, 0.796, 0.799, 0.8, 0.805)),
    *((1.0, 0.9, high) for high in (1.245, 1.2499, 1.25, 1.2501, 1.2549, 1.255, 1.2551, 1.26)),
    *((1.1, 1.02, high) for high in (1.25, 1.2549, 1.2551, 1.26)),  # beside 1, and in the range
    *((0.9, low, 0.98) for low in (0.8, 0.7951, 0.7949, 0.79)),
    *((one, one, one) for one in (1.0, 2.0, 0.5, 0.8, 1.25, 1.2551, 0.7949)),  # ties: no width
    (1e6, 9e5, 1.1e6),
    (1e-3, 9e-4, 1.1e-3),
    (1.0, 1e-6, 1e6),
    (99_999.5, 99_998.0, 100_001.0),
    (99.6, 99.0, 99.8),
    (9.96, 9.94, 9.99),
    (1.996, 1.99, 1.999),
    (5.0, 1.5, 14.99),  # just of one size, and just not
    (5.0, 1.49, 15.1),
    (0.3, 0.0994, 0.996),
    (0.1, 0.0, 0.5),
    (3.0, 1.5, inf),
]
WITHOUT_ENDS: list[Triple] = [
    (value, nan, nan) for value in (57.2, 1.0, 1.25, 1.2549, 1.2551, 0.8, 0.7951, 0.7949, 1e-3, 1e6)
]
UNUSABLE: list[Triple] = [(value, nan, nan) for value in (nan, inf, 0.0, -1.0)]


def ratio_columns(column: str, ratios: Sequence[Triple], ends: str = "band") -> dict[str, Any]:
    """A ratio and its ends, which are a layer's band, or an interval."""
    value, low, high = zip(*ratios, strict=True) if ratios else ((), (), ())
    return {column: value, f"{column}_{ends}_low": low, f"{column}_{ends}_high": high}


def layers_csv(
    entry: Triple, norms: Sequence[Triple], angles: Sequence[Triple], samples: int = 20
) -> pd.DataFrame:
    """The visual and the text rows of layers.csv with these ratios; layer 0 has no angle."""
    columns: dict[str, Any] = {"layer": range(len(norms) + 1), "samples": samples}
    columns |= {"tokens": 64 * samples, "nonfinite": 0, "norm_mean": 1.0, "norm_q50": 1.0}
    text = pd.DataFrame({"group": TEXT, **columns})
    for metric, ratios in (("norm", norms), ("angle", angles), (ATTENTION_INPUT, norms)):
        rows = [entry if metric == "norm" else UNUSABLE[0], *ratios]
        for ends in ("ci", "band"):
            columns |= ratio_columns(GEOMETRIC_RATIOS[metric], rows, ends)
    columns |= ratio_columns(RATIOS_TO_TEXT["norm"], [entry] * (len(norms) + 1), "ci")
    return pd.concat([pd.DataFrame({"group": VISUAL, **columns}), text], ignore_index=True)


def run_of(
    made: Mapping[str, pd.DataFrame], placement: str = "pre: the paper's theory applies"
) -> RunStore:
    """A run of ``layers`` in memory that holds some of its tables, tidy or flat."""
    run = RunStore({"command": "layers", "norm_placement": placement})
    empty = {"theory": pd.DataFrame(columns=["layer"]), "assumptions": pd.DataFrame()}
    for name, table in {**empty, **made}.items():
        run.write_table(name, tidied(name, table))
    return run


def shares_csv(scope: str, layers: str, ratio: Triple, shares: Sequence[Triple]) -> pd.DataFrame:
    """accounted.csv of one row over some layers; the shares of its four parts, and by size."""
    row: dict[str, Any] = {"scope": scope, "layers": layers, "samples": 20}
    names = [f"{part}_share" for part in ("norm", "update_norm", "update_angle", "rest")]
    for name, triple in zip(
        ["angle_ratio", *names, "norm_share_absolute"], [ratio, *shares, shares[0]], strict=True
    ):
        row |= {column: of[0] for column, of in ratio_columns(name, [triple], "ci").items()}
    return pd.DataFrame([row])


def branches_csv(sizes: Sequence[Triple], turns: Sequence[Triple]) -> pd.DataFrame:
    """The visual rows of branches.csv: the attention of one model, layer by layer."""
    rows = pd.DataFrame({"layer": range(1, len(sizes) + 1), "branch": "attention", "group": VISUAL})
    for metric, ratios in (("update_norm", sizes), ("angle", turns)):
        rows = rows.assign(**ratio_columns(f"{metric}_geometric_ratio_to_text", ratios))
    return rows


# --- sample rows --------------------------------------------------------------------------------


def sample_rows(
    images: int,
    *,
    depth: int = 3,
    loudness: float | Sequence[float] = 20.0,
    spread: float = 0.3,
    visual: bool = True,
    massive: float | None = None,
    questions: int = 1,
) -> pd.DataFrame:
    """Rows of ``layers`` of tokens of known norms; each token turns in a plane.

    Args:
        images: how many.
        depth: layers.
        loudness: norm of visual tokens, one or one a layer from 0; that of text tokens is 1.
        spread: deviation of the logarithms; 0: all tokens are equal.
        visual: whether there are visual tokens.
        massive: norm of one text token of each sample, at position 12 of it; None: none has it.
        questions: samples an image.
    """
    random = np.random.default_rng(images + depth)
    loud = np.broadcast_to(loudness, depth + 1)[:, None]
    groups = {VISUAL: (64, loud), TEXT: (88, np.ones_like(loud))}
    made = []
    for number in range(images * questions):
        common = {
            "sample_id": str(number),
            "image_hash": str(number % images) if visual else None,
            "hidden_size": 64,
            "dtype": "float32",
        }
        for group, (tokens, size) in groups.items() if visual else [(TEXT, groups[TEXT])]:
            shift = random.normal(0, spread / 3)
            x = size * np.exp(shift + random.normal(0, spread, (depth + 1, tokens)))
            if massive is not None and group == TEXT:
                x[:, 12] = massive
            update = np.exp(random.normal(0, spread, x.shape))
            phi = random.normal(1.3, 0.2 * spread, x.shape)
            across, along = update * np.sin(phi), x + update * np.cos(phi)
            angle = np.arctan2(across, along)
            of_token = [np.hypot(across, along), np.cos(angle), angle, update, update / x, phi]
            metrics = np.stack(of_token, axis=1)
            norms = np.vstack([x[:1], metrics[1:, 0]])
            loudest = {
                "loudest_share": norms.max(axis=1) / norms.sum(axis=1),
                "loudest_position": norms.argmax(axis=1) + (0 if group == VISUAL else 64),
                "loudest_id": 30.0,
            }
            numbers = dict.fromkeys(SAMPLE_METRICS, 0.5)
            entering = statistics_by_layer(x[:1, None], TOKEN_METRICS[:1])
            inside = statistics_by_layer(metrics[1:], TOKEN_METRICS) | co_moments(metrics[1:])
            inside |= statistics_by_layer(1 + 0 * x[1:, None], [ATTENTION_INPUT])
            for branch in ("attention", "mlp"):
                halves = np.stack([update[1:] / 2, update[1:] / 2 / x[1:], angle[1:] / 2], axis=1)
                names = [f"{branch}_{metric}" for metric in BRANCH_METRICS]
                inside |= statistics_by_layer(halves, names)
            whole = pd.concat(
                [
                    pd.DataFrame({"layer": [0], **entering}),
                    pd.DataFrame({"layer": range(1, depth + 1), **inside, **numbers}),
                ]
            )
            absent = {f"{INJECTION}_mean": nan, f"{INJECTION}_m2": nan}
            made.append(whole.assign(group=group, **loudest, **absent, **common))
        if visual:
            cosines = {name: random.uniform(0.1, 0.4, depth + 1) for name in PAIR_METRICS}
            pair = pd.DataFrame({"layer": range(depth + 1), "injected": False, **cosines})
            made.append(pair.assign(group=PAIR, **common))
    return pd.concat(made, ignore_index=True)


def tables_of(rows: pd.DataFrame, placement: str) -> dict[str, pd.DataFrame]:
    """What a run of ``layers`` makes of them, in a model with such a decoder."""
    model: Any = SimpleNamespace(norm_placement=placement, token_text=lambda token: chr(token + 16))
    return tables(rows, model)
