"""Sample rows of ``layers --massive``, of random states."""

import numpy as np
import pandas as pd
import torch

from normprobe.measurements.layers.massive import massive_tables
from normprobe.measurements.layers.watchers import MassiveActivations
from normprobe.schema import INJECTION, TEXT, TOKEN_METRICS, VISUAL
from normprobe.statistics.loud_tokens import PEAK_METRICS, peaks
from normprobe.statistics.sample_statistics import statistics_by_layer
from normprobe.statistics.token_metrics import token_metrics, token_norms
from support.slow_bootstrap import SAMPLES

WIDTH, DIMENSION = 16, 5


def sample_rows(*, massive: bool = False, groups=(VISUAL, TEXT), layers: int = 3) -> pd.DataFrame:
    """Rows of a few samples; with ``massive`` the first visual token is, after layer 1 and on."""
    random = torch.Generator().manual_seed(0)
    made = []
    for sample, image in SAMPLES:
        for group in groups:
            h = torch.randn(layers + 1, 4 + len(made) % 3, WIDTH, generator=random)
            h *= 3.0 if group == VISUAL else 1.0
            if massive and group == VISUAL:
                h[1:, 0, DIMENSION] = 40_000.0
            named = {"sample_id": sample, "image_hash": image, "hidden_size": WIDTH, "group": group}
            columns = {"layer": list(range(layers + 1)), **_columns(h)}
            made += [
                named | dict(zip(columns, row, strict=True))
                for row in zip(*columns.values(), strict=True)
            ]
    return pd.DataFrame(made)


def tables(**options: object) -> dict[str, pd.DataFrame]:
    """massive.csv and dimensions.csv of such rows."""
    return massive_tables(sample_rows(**options))


def _columns(h: torch.Tensor) -> dict[str, list]:
    """The columns of one group of a sample: each state is a layer's."""
    metrics = torch.full((len(h), len(TOKEN_METRICS), h.shape[1]), torch.nan)
    metrics[0, 0] = token_norms(h[0])
    metrics[1:] = token_metrics(h[:-1], h[1:]).swapaxes(0, 1)
    tokens = dict(zip(TOKEN_METRICS, metrics.swapaxes(0, 1).numpy(), strict=True))
    tokens |= dict(zip(PEAK_METRICS, peaks(h).numpy(), strict=True))
    tokens[INJECTION] = np.zeros_like(tokens["norm"])
    columns = {"tokens": [h.shape[1]] * len(h)}
    for name in (*TOKEN_METRICS, *PEAK_METRICS):
        found = statistics_by_layer(tokens[name][:, None], (name,))
        columns |= {part: found[part] for part in found if part.endswith(("_mean", "_m2"))}
    tokens["position"] = tokens["id"] = np.tile(np.arange(h.shape[1]), (len(h), 1))
    watcher = MassiveActivations()
    masks = torch.ones(len(h), 1, h.shape[1], dtype=torch.bool)
    return columns | dict(watcher.columns(tokens, watcher.see_groups(1, h, masks)[:, 0].numpy()))
