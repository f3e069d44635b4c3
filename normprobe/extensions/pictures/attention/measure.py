"""``attention``: how text attends to the image, layer by layer (Appendix G).

One forward of one prompt. Each layer's attention is reduced while it is there: the rows of the
asked text tokens, chunk by chunk, to a few numbers a head and row and one map over the image.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from transformers import BatchFeature

from normprobe.data.sample import Box, Sample, spans_of_word
from normprobe.errors import NormprobeError
from normprobe.extensions.pictures.attention.reader import HeadNumbers, Reader
from normprobe.extensions.pictures.attention.words import focused_and_wide
from normprobe.extensions.pictures.watched import run_watched
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.on_device import inputs_for
from normprobe.model.find.overrides import CROSS_ATTENTION
from normprobe.model.first_forward import check_forward
from normprobe.model.image_places import Array, Build, PlacesUnknown, image_places, share_inside
from normprobe.model.measured_model import (
    MeasuredBatch,
    MeasuredModel,
    layers_of_all_depths,
)
from normprobe.model.token_places import Decode, text_after_image, tokens_of_word
from normprobe.schema import IMAGE, VISUAL
from normprobe.statistics.attention_rows import score_gap, signal_to_noise
from normprobe.statistics.token_metrics import in_group
from normprobe.tidy import ESTIMATES, QUANTITY, keys_of

#: The query of all text tokens after the image; the others are words of the prompt.
ALL_TEXT = "all text"

_SHOWN = 4  # depths of the heat maps of a query, where no layers are chosen

#: By quantity and estimate.
_Numbers = dict[str, dict[str, float]]


class MeasuredAttention(NamedTuple):
    """What ``measure_attention`` finds."""

    table: pd.DataFrame  # attention.csv
    heads: pd.DataFrame  # heads.csv; heads are numbered from 1
    # the rows of heatmaps.csv, one a layer, query and visual token: the token's place as fractions
    # of the image, and the attention it receives; with several images also the number of its image.
    # None: places are unknown.
    heatmaps: pd.DataFrame | None
    # with several images images.csv: how much of the attention falls on the tokens of each. None:
    # one image, or they cannot be told apart.
    images: pd.DataFrame | None
    # for each image, how well the model confirmed the places, the correlation of where the image
    # was changed with which tokens reacted; or why they are unknown
    places: list[float | str]


def check_request(
    builder: InputBuilder,
    sample: Sample,
    words: Sequence[str],
    layers: Sequence[int],
    box: Box | None,
    *,
    decoder_layers: int | None,
) -> None:
    """Refuse what can be refused before a weight is read."""
    _check_box(box, sample.images)
    if decoder_layers is not None:
        _check_layers(layers, decoder_layers)
    if not words or builder.inputs_file.build is not None:  # that may ask the model
        return
    ids = builder.build([sample])["input_ids"][0].tolist()
    for word in words:
        if not spans_of_word(word, builder.tokenizer.decode(ids)):
            raise _absent(word, sample.prompt)


def attention_of(
    model: MeasuredModel,
    builder: InputBuilder,
    sample: Sample,
    *,
    words: Sequence[str] = (),
    layers: Sequence[int] = (),
    box: Box | None = None,
) -> MeasuredAttention:
    """Measure how the text of a sample attends to its images."""
    found = measure_attention(
        model,
        lambda pictures: builder.build([replace(sample, images=tuple(pictures))]),
        sample.images,
        decode=builder.tokenizer.decode,
        words=words,
        layers=layers,
        box=box,
    )
    if layers or found.heatmaps is None:
        return found
    kept = found.heatmaps[found.heatmaps["layer"].isin(layers_to_show(found.table))]
    return found._replace(heatmaps=kept.reset_index(drop=True))


def layers_to_show(attention: pd.DataFrame) -> list[int]:
    """A few layers of all depths, and the two that the sentence names."""
    of_all_depths = layers_of_all_depths(int(attention["layer"].max()), _SHOWN)
    return sorted({*of_all_depths, *focused_and_wide(attention)})


def measure_attention(
    model: MeasuredModel,
    build: Callable[[Sequence[Image.Image]], Mapping[str, Any]],
    images: Sequence[Image.Image],
    *,
    decode: Decode,
    words: Sequence[str] = (),
    layers: Sequence[int] = (),
    box: Box | None = None,
) -> MeasuredAttention:
    """Measure how the text of one prompt attends to its images."""
    decoder_layers = model.decoder_layers
    _check_layers(layers, len(decoder_layers))
    _check_box(box, images)

    inputs = inputs_for(model.model, BatchFeature(dict(build(images))))
    check_forward(model, inputs)
    batch = model.batch(inputs)
    at_entry = batch.groups_at(model.decoder_input(inputs))
    # The groups of the one sample at the decoder input, [positions], on the CPU.
    groups = at_entry[0].cpu()
    queries = _queries(batch, groups, decode, words)
    positions = torch.unique(torch.cat(list(queries.values())))
    attends = model.parts.fusion == CROSS_ATTENTION
    visual = None if attends else in_group(VISUAL, groups)
    members = torch.stack([torch.isin(positions, query) for query in queries.values()])
    reader = Reader(visual, members)
    run_watched(model, inputs, positions, reader.see, lambda: reader.has_seen)

    pictured = None if attends else in_group(IMAGE, groups)
    own = own_tokens(pictured, batch.images_at(at_entry), len(images))
    places = [
        _places(
            model,
            partial(_with_other, build, images, place),
            image,
            None if own is None else own[place],
        )
        for place, image in enumerate(images)
    ]
    boxes = places[0][0]
    inside = None if box is None or boxes is None else _share_in_box(boxes, box, images[0].size)
    shown = set(layers or range(1, len(decoder_layers) + 1))
    several = len(images) > 1
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    heatmaps: list[pd.DataFrame] = []
    for number in range(1, len(decoder_layers) + 1):
        for place, query in enumerate(queries):
            named: dict[str, Any] = {"layer": number, "query": query}
            tokens, seen = reader.tokens(place), reader.numbers(number, place)
            if seen is None:
                rows["table"] += _rows(named, {"heads": {"mean": 0}}, tokens=tokens)
                continue
            parts = parts_by_image(seen.by_key, visual, own, len(images))
            heights = _heights(parts, [boxes for boxes, _ in places])
            numbers = _numbers(seen)
            if inside is not None:
                (scores, *_) = parts_by_image(seen.scores, visual, own, len(images))
                numbers["signal_to_noise"] = {"mean": signal_to_noise(_mean(parts[0]), inside)}
                numbers["score_gap"] = {"mean": score_gap(torch.from_numpy(scores), inside)}
            rows["table"] += _rows(named, numbers | heights.of_all, tokens=tokens)
            for head, of_head in enumerate(_heads(seen, heights.of_heads), start=1):
                rows["heads"] += _rows({**named, "head": head}, of_head)
            for image, (part, (boxes, _)) in enumerate(zip(parts, places, strict=True), start=1):
                of_image = {**named, IMAGE: image} if several else named
                drawn = part.mean(axis=0)
                if several:
                    tokens_seen = len(drawn) if own is not None else int((drawn > 0).sum())
                    numbers = {
                        "visual_tokens": {"mean": tokens_seen},
                        "share": {"mean": float(drawn.sum())},
                    }
                    rows["images"] += _rows(of_image, numbers)
                if boxes is not None and number in shown:
                    heatmaps.append(_heatmap(of_image, boxes, drawn))
    tables = {name: _table(of_table) for name, of_table in rows.items()}
    return MeasuredAttention(
        tables["table"],
        tables["heads"],
        pd.concat(heatmaps, ignore_index=True) if heatmaps else None,
        tables.get("images"),
        [confirmed for _, confirmed in places],
    )


def _rows(keys: Mapping[str, Any], numbers: _Numbers, **counts: int) -> list[dict[str, Any]]:
    """A row a number."""
    return [{**keys, QUANTITY: name, **of, **counts} for name, of in numbers.items()]


def _table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows of numbers that are known."""
    table = pd.DataFrame(rows)
    columns = [*keys_of(table), QUANTITY, *(name for name in ESTIMATES if name in table)]
    return table[columns].dropna(subset="mean").reset_index(drop=True)


def _numbers(seen: HeadNumbers) -> _Numbers:
    """Means and deviations over heads and tokens."""
    numbers: _Numbers = {
        "heads": {"mean": len(seen.share)},
        "visual_tokens": {"mean": seen.visible},
    }
    for name in ("share", "even_share", "entropy"):
        values = getattr(seen, name)
        known = values[np.isfinite(values)]
        numbers[name] = {"mean": known.mean(), "std": known.std()} if known.size else {}
    numbers["even_share"].pop("std", None)
    return numbers


def _heads(seen: HeadNumbers, heights: Array) -> Iterator[_Numbers]:
    """Of each head; means and deviations over tokens."""
    known = np.isfinite(seen.entropy)
    with np.errstate(invalid="ignore"):  # a head that gives the image nothing
        entropy = np.where(known, seen.entropy, 0.0).sum(axis=1) / known.sum(axis=1)
    columns = seen.share.mean(axis=1), seen.share.std(axis=1), entropy, heights
    for mean, std, evenness, height in zip(*columns, strict=True):
        yield {
            "share": {"mean": mean, "std": std},
            "entropy": {"mean": evenness},
            "vertical_center": {"mean": height},
        }


class _Heights(NamedTuple):
    of_heads: Array  # [heads]
    of_all: _Numbers


def _heights(parts: Sequence[Array], boxes: Sequence[Array | None]) -> _Heights:
    """Where the attention to the images has its vertical centre of mass: 0 top, 1 bottom.

    Each visual token counts where the middle of its place is in its own image; those that show
    nothing of it count not.

    Args:
        parts: for each image ``[heads, visual tokens]`` weights.
        boxes: for each image ``[visual tokens, 4]``; None: places are unknown.
    """
    heads = len(parts[0])
    known = [(part, box) for part, box in zip(parts, boxes, strict=True) if box is not None]
    if len(known) < len(parts):
        return _Heights(np.full(heads, np.nan), {})
    weights = np.concatenate([part for part, _ in known], axis=1)
    places = np.concatenate([box for _, box in known])
    shown = (places[:, 2] > places[:, 0]) & (places[:, 3] > places[:, 1])
    weights, middles = weights[:, shown], places[shown][:, [1, 3]].mean(axis=1)
    with np.errstate(invalid="ignore"):  # a head that gives the image nothing
        of_heads: Array = weights @ middles / weights.sum(axis=1)
        of_all = float(weights.sum(axis=0) @ middles / weights.sum())
    even = float(middles.mean())
    numbers = {"vertical_center": {"mean": of_all}, "even_vertical_center": {"mean": even}}
    return _Heights(of_heads, numbers)


def _queries(
    batch: MeasuredBatch,
    groups: Tensor,
    decode: Decode,
    words: Sequence[str],
) -> dict[str, Tensor]:
    """The rows of each query, ascending. A causal row before the image cannot see it."""
    text, ids = text_after_image(batch, groups)
    queries = {ALL_TEXT: text}
    for word in words:
        queries[word] = text[tokens_of_word(word, ids, decode)]
        if not len(queries[word]):
            raise _absent(word, decode(ids))
    return queries


def _absent(word: str, text: str) -> NormprobeError:
    return NormprobeError(
        f"--word: {word!r} is not in the text after the image: {' '.join(text.split())[:200]}",
        "pass a whole word or phrase of the prompt",
    )


def own_tokens(
    visual: Tensor | None, numbers: Tensor | None, images: int
) -> list[NDArray[np.bool_]] | None:
    """The visual tokens of each image, ``[positions]``; None: they are no rows of the sequence.

    States that text attends to follow each other image by image, with equally many of each.
    """
    if visual is None:
        return None
    if images == 1 or numbers is None:
        return [visual.numpy()]
    if not bool(numbers.any()):
        raise NormprobeError(
            "the images of the prompt cannot be told apart in what the processor returns",
            "ask about one image",
        )
    return [(numbers[0] == number).cpu().numpy() for number in range(1, images + 1)]


def parts_by_image(
    by_key: Array, visual: Tensor | None, own: Sequence[NDArray[np.bool_]] | None, images: int
) -> list[Array]:
    """What of a map over all visual tokens, its last axis, belongs to each image."""
    if own is None or visual is None:
        return np.split(by_key, images, axis=-1)
    return [by_key[..., mask[visual.numpy()]] for mask in own]


def _mean(by_key: Array) -> Tensor:
    return torch.from_numpy(by_key.mean(axis=0))


def _with_other(
    build: Callable[[Sequence[Image.Image]], Mapping[str, Any]],
    images: Sequence[Image.Image],
    place: int,
    picture: Image.Image,
) -> Mapping[str, Any]:
    """The inputs with another picture in place of one image."""
    return build([*images[:place], picture, *images[place + 1 :]])


def _places(
    model: MeasuredModel, build: Build, image: Image.Image, visual: NDArray[np.bool_] | None
) -> tuple[Array | None, float | str]:
    if visual is None:
        return None, "the text attends to visual states that are no rows of its own sequence"
    try:
        return image_places(model, build, image, visual)
    except PlacesUnknown as unknown:
        return None, str(unknown)


def _share_in_box(boxes: Array, box: Box, size: tuple[int, int]) -> Tensor:
    """Which share of each visual token's place lies in the target region."""
    covered = share_inside(boxes, box, size)
    if not 0 < covered.sum() < len(covered):
        lies = "where no visual token looks" if covered.sum() == 0 else "around all visual tokens"
        raise NormprobeError(
            f"--box: {','.join(f'{edge:g}' for edge in box)} lies {lies}; they show "
            f"{_region(boxes, size)} of the image",
            "choose a region that holds some of them",
        )
    return torch.from_numpy(covered)


def _region(boxes: Array, size: tuple[int, int]) -> str:
    """What all places together enclose, in pixels."""
    edges = [*boxes[:, :2].min(0), *boxes[:, 2:].max(0)]
    return ",".join(f"{edge * pixels:.0f}" for edge, pixels in zip(edges, 2 * size, strict=True))


def _heatmap(row: Mapping[str, Any], boxes: Array, by_token: Array) -> pd.DataFrame:
    places = pd.DataFrame(boxes, columns=["left", "top", "right", "bottom"])
    for place, (name, value) in enumerate(row.items()):
        places.insert(place, name, value)
    places["attention"] = by_token
    return places


def _check_layers(layers: Sequence[int], count: int) -> None:
    for layer in layers:
        if not 1 <= layer <= count:
            raise NormprobeError(
                f"--layer: expected 1 to {count}, received {layer}",
                f"the decoder has {count} layers, counted from 1",
            )


def _check_box(box: Box | None, images: Sequence[Image.Image]) -> None:
    if box is None:
        return
    if len(images) > 1:
        raise NormprobeError(
            f"--box: a region of one image; received {len(images)} images",
            "leave --box out, or ask about one image",
        )
    left, top, right, bottom = box
    width, height = images[0].size
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise NormprobeError(
            f"--box: {','.join(f'{edge:g}' for edge in box)} is no region of the image, which has "
            f"{width} x {height} pixels",
            "pass left,top,right,bottom in pixels, e.g. "
            f"--box 0,0,{width // 2},{height // 2} for the upper left quarter",
        )
