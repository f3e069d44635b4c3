"""Attention of all text behind the pictures, reduced to a few numbers a head while it is there.

One sample a forward. Of every head: what visual tokens get, and of that beside what text tokens
get, how evenly, and how large their keys are. Means over heads and samples, and intervals, follow.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.extensions.pictures.attention.measure import own_tokens, parts_by_image
from normprobe.extensions.pictures.attention.reader import Reader
from normprobe.extensions.pictures.sample_tables import (
    left_out_table,
    means_table,
    measured_rows,
)
from normprobe.extensions.pictures.watched import run_watched
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.on_device import moved_to
from normprobe.model.find.overrides import CROSS_ATTENTION
from normprobe.model.first_forward import check_forward
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.token_places import text_after_image
from normprobe.schema import IMAGE, TEXT, VISUAL
from normprobe.statistics.resampling import Together
from normprobe.statistics.token_metrics import in_group, token_norms
from normprobe.tidy import declared

Array = NDArray[np.float64]

_KEYS = {"visual_key_norm": VISUAL, "text_key_norm": TEXT}
#: What a head has, and what is a ratio of two of their means.
_OF_HEADS = ("share", "share_of_content", "entropy", *_KEYS)
_OF_LAYERS = ("share", "even_share", "share_of_content", "entropy", *_KEYS)
_RATIOS = {
    "share_to_even": ("share", "even_share"),
    "key_norm_ratio": ("visual_key_norm", "text_key_norm"),
}
_BANDS = ("share", "share_of_content", "entropy", *_RATIOS)


@dataclass(frozen=True)
class SeenShares:
    """What one forward leaves."""

    # by layer, by quantity, ``[heads]``
    heads: Mapping[int, Mapping[str, Array]] = field(default_factory=dict)
    # by layer, what each picture gets, mean over heads; nothing of one picture alone
    pictures: Mapping[int, Sequence[float]] = field(default_factory=dict)
    left_out: str = ""  # why the sample was not measured; empty: it was


def observer(
    model: MeasuredModel, _builder: InputBuilder
) -> Callable[[Mapping[str, Any], Sequence[Sample]], SeenShares]:
    """What measures one sample after another."""

    def observe(inputs: Mapping[str, Any], samples: Sequence[Sample]) -> SeenShares:
        (sample,) = samples
        if not (sample.images or sample.videos):
            return SeenShares(left_out="it has no picture")
        check_forward(model, inputs)
        return shares_of(model, inputs, len(sample.images))

    return observe


def shares_of(model: MeasuredModel, inputs: Mapping[str, Any], images: int) -> SeenShares:
    """One forward up to the last decoder layer.

    Args:
        model: on any device.
        inputs: of one sample with visual tokens.
        images: how many pictures it has.
    """
    batch = model.batch(inputs)
    at_entry = batch.groups_at(model.decoder_input(inputs))
    groups = at_entry[0].cpu()
    positions, _ = text_after_image(batch, groups)
    attends = model.parts.fusion == CROSS_ATTENTION
    visual = None if attends else in_group(VISUAL, groups)
    reader = Reader(visual, torch.ones(1, len(positions), dtype=torch.bool))
    on_text = _TextReader(None if attends else in_group(TEXT, groups))

    def see(layer: int, name: str, start: int, weights: Tensor, scores: Tensor | None) -> None:
        reader.see(layer, name, start, weights, scores)
        on_text.see(layer, weights)

    def see_keys(layer: int, _: str, keys: Tensor, __: Tensor) -> None:
        if not attends:
            on_text.see_keys(layer, keys, groups)

    run_watched(
        model,
        moved_to(model.model, inputs),
        positions,
        see,
        lambda: reader.has_seen,
        see_keys=see_keys,
    )
    own = None
    if images > 1:
        numbers = batch.images_at(at_entry)
        try:
            own = own_tokens(None if attends else in_group(IMAGE, groups), numbers, images)
        except NormprobeError:  # they cannot be told apart
            images = 1
    heads: dict[int, dict[str, Array]] = {}
    pictures: dict[int, list[float]] = {}
    for layer in range(1, len(model.decoder_layers) + 1):
        seen = reader.numbers(layer, 0)
        if seen is None:
            continue
        heads[layer] = {
            "share": seen.share.mean(axis=1),
            "even_share": seen.even_share.mean(axis=1),
            "entropy": _known_mean(seen.entropy),
            **on_text.numbers(layer, seen.share, len(positions)),
        }
        if images > 1:
            parts = parts_by_image(seen.by_key, visual, own, images)
            pictures[layer] = [float(part.sum(axis=-1).mean()) for part in parts]
    return SeenShares(heads, pictures)


class _TextReader:
    """What text tokens get, head by head, and how large the keys are of text and visual tokens."""

    def __init__(self, text: Tensor | None) -> None:
        self._text = text
        self._shares: dict[int, list[Tensor]] = defaultdict(list)  # [heads, rows]
        self._keys: dict[int, list[Tensor]] = defaultdict(list)  # [groups, key heads]

    def see(self, layer: int, weights: Tensor) -> None:
        """Take rows ``[heads, rows, keys]``."""
        if self._text is not None:
            chosen = weights[..., self._text.to(weights.device)]
            self._shares[layer].append(chosen.float().sum(-1).sum(-1).cpu())

    def see_keys(self, layer: int, keys: Tensor, groups: Tensor) -> None:
        """Take keys ``[key heads, keys, width]`` of tokens in these groups."""
        norms = token_norms(keys)
        masks = (in_group(group, groups).to(norms.device) for group in _KEYS.values())
        self._keys[layer] = [torch.stack([norms[:, mask].mean(dim=1) for mask in masks]).cpu()]

    def numbers(self, layer: int, share: Array, rows: int) -> dict[str, Array]:
        """Of each head; NaN where it is not known."""
        unknown = np.full(len(share), np.nan)
        found = dict.fromkeys(("share_of_content", *_KEYS), unknown)
        shares = self._shares.get(layer)
        if shares and len(shares[0]) == len(share):
            visual, text = share.sum(axis=1), torch.stack(shares).sum(dim=0).double().numpy()
            with np.errstate(invalid="ignore"):
                found["share_of_content"] = visual / (visual + text)
        for norms in self._keys.get(layer, ()):
            of_heads = norms.double().numpy().repeat(len(share) // norms.shape[1], axis=1)
            found |= dict(zip(_KEYS, of_heads, strict=True))
        return found


def _known_mean(values: Array) -> Array:
    """``[heads]`` over tokens that have a number; NaN where none has."""
    known = np.isfinite(values)
    with np.errstate(invalid="ignore"):
        means: Array = np.where(known, values, 0.0).sum(axis=1) / known.sum(axis=1)
    return means


def rows(seen: SeenShares, sample_ids: Sequence[str] | None) -> pd.DataFrame:
    """One row a layer and head; of several pictures also one a layer and image, of head 0."""
    (sample_id,) = sample_ids or ["0"]
    found = [
        pd.DataFrame({"layer": layer, "head": np.arange(1, len(of["share"]) + 1), **of})
        for layer, of in seen.heads.items()
    ]
    found += [
        pd.DataFrame({"layer": layer, IMAGE: np.arange(1, len(of) + 1), "share": of}).assign(
            head=0, images=len(of)
        )
        for layer, of in seen.pictures.items()
    ]
    if not found:
        found = [pd.DataFrame({"layer": [0], "head": 0, **dict.fromkeys(_OF_LAYERS, np.nan)})]
    table = pd.concat(found, ignore_index=True).reindex(
        columns=["layer", "head", "images", IMAGE, *_OF_LAYERS]
    )
    counts = {name: table[name].fillna(0).astype(int) for name in ("images", IMAGE)}
    return table.assign(sample_id=sample_id, left_out=seen.left_out, **counts)


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Everything that a run contains."""
    measured = measured_rows(rows, "measured", "pass other --data, with pictures")
    heads, pictures = measured[measured["head"] > 0], measured[measured[IMAGE] > 0]
    by_sample = ["sample_id", "image_hash", "layer"]
    of_layers = heads.groupby(by_sample, dropna=False, sort=False)[[*_OF_LAYERS]].mean()
    together = [Together([each]) for each in _BANDS]
    found = {
        "shares": _table("shares", of_layers.reset_index(), ["layer"], _OF_LAYERS, together),
        "share_heads": _table("share_heads", heads, ["layer", "head"], _OF_HEADS),
    }
    if len(pictures):
        keys = ["layer", "images", IMAGE]
        found["share_images"] = _table("share_images", pictures, keys, ["share"])
    return found | left_out_table(rows)


def _table(
    name: str,
    rows: pd.DataFrame,
    keys: list[str],
    quantities: Sequence[str],
    together: Sequence[Together] = (),
) -> pd.DataFrame:
    """Means over samples, and what is a ratio of two of them."""
    cells = rows[keys].drop_duplicates().sort_values(keys).reset_index(drop=True)
    return means_table(declared(__package__)[name], cells, rows, quantities, _RATIOS, together)
