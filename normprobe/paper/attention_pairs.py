"""Appendix G: where text attends, of runs of the same picture and prompt below each other."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.runs.run_store import RunStore, image_name
from normprobe.schema import IMAGE


class AttentionPairs(NamedTuple):
    """Maps of one or more models over pictures.

    Attributes:
        maps: ``heatmaps.csv`` of all runs, with ``run`` (what the model is called) and ``image``.
        images: ``[height, width, 3]`` each; ``image`` counts them from 1.
        captions: of each picture, its name and the text that is asked.
        warnings: which runs stand alone.
    """

    maps: pd.DataFrame
    images: list[NDArray[np.uint8]]
    captions: list[str]
    warnings: list[str]


def attention_pairs(runs: Sequence[tuple[str, RunStore]]) -> AttentionPairs:
    """Bring the maps of runs together that were asked the same of the same pictures."""
    asked: dict[tuple[str, ...], dict[str, RunStore]] = {}
    for name, run in runs:
        pictures = (run.record.get("image_hashes") or {}).values()
        asked.setdefault((_prompt(run), *map(str, pictures)), {}).setdefault(name, run)
    names = list(dict.fromkeys(name for name, _ in runs))
    maps: list[pd.DataFrame] = []
    images: list[NDArray[np.uint8]] = []
    captions: list[str] = []
    warnings: list[str] = []
    for (prompt, *pictures), of_question in asked.items():
        first = next(iter(of_question.values()))
        before = len(images)
        images += [first.image(image_name(n)) for n in range(1, len(pictures) + 1)]
        number = f"picture {before + 1}: " if len(asked) > 1 else ""
        caption = f"{number}{first.record.get('data')}, \N{LEFT DOUBLE QUOTATION MARK}{prompt}"
        captions.append(f"{caption}\N{RIGHT DOUBLE QUOTATION MARK}")
        for name, run in of_question.items():
            table = run.table("heatmaps")
            maps.append(table.assign(run=name, **{IMAGE: table.get(IMAGE, 1) + before}))
        if alone := [name for name in names if name not in of_question]:
            warnings.append(f"{captions[-1]}: no run of {', '.join(alone)}")
    return AttentionPairs(pd.concat(maps, ignore_index=True), images, captions, warnings)


def _prompt(run: RunStore) -> str:
    return str((run.record.get("options") or {}).get("prompt"))
