"""Sample rows of tokens whose metrics are known exactly."""

import numpy as np
import pandas as pd

from normprobe.schema import PAIR_METRICS, TEXT, TOKEN_METRICS, VISUAL
from normprobe.statistics.sample_statistics import co_moments, statistics_by_layer
from support.slow_bootstrap import SAMPLES


def tokens_of(seed: int, images: list[tuple[str, str | None]]) -> dict[tuple[str, str], np.ndarray]:
    """``[layers, metrics, tokens]`` by sample and modality; each token in a plane, exactly."""
    random = np.random.default_rng(seed)
    made = {}
    for sample, _ in images:
        for group, loudness in ((VISUAL, 20.0), (TEXT, 4.0)):
            x = random.lognormal(np.log(loudness), 0.3, (2, int(random.integers(4, 9))))
            update = x**0.2 * random.lognormal(0, 0.3, x.shape)
            phi = random.normal(1.3, 0.2, x.shape)
            across, along = update * np.sin(phi), x + update * np.cos(phi)
            angle = np.arctan2(across, along)
            metrics = [np.hypot(across, along), np.cos(angle), angle, update, update / x, phi]
            made[sample, group] = np.stack(metrics, axis=1)
    return made


def rows_of_tokens(tokens: dict[tuple[str, str], np.ndarray]) -> pd.DataFrame:
    made = []
    for (sample, group), metrics in tokens.items():
        common = {"sample_id": sample, "group": group, "hidden_size": 64}
        entering = statistics_by_layer(metrics[:1, :1] * 2, TOKEN_METRICS[:1])
        layers = statistics_by_layer(metrics, TOKEN_METRICS) | co_moments(metrics)
        made += [pd.DataFrame({"layer": [0], **entering}).assign(**common)]
        made += [pd.DataFrame({"layer": [1, 2], **layers}).assign(**common)]
    random = np.random.default_rng(1)
    for sample in {sample: None for sample, _ in tokens}:
        pair = {name: random.uniform(0.1, 0.9, 3) for name in PAIR_METRICS}
        made.append(
            pd.DataFrame({"layer": [0, 1, 2], "injected": False, **pair}).assign(
                sample_id=sample, group="visual_text", hidden_size=64
            )
        )
    rows = pd.concat(made, ignore_index=True)
    return rows.assign(image_hash=rows["sample_id"].map(dict(SAMPLES)))
