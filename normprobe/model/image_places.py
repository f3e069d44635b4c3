"""Which part of an image each visual token stands for: derived, then put to the test.

``image_places`` asks it of the decoder input, ``places_of_rows`` of any states with a row a token.

1. What the processor makes of an image whose grey values are coordinates tells from where in the
   image each input pixel comes: resizing, cropping, padding, tiles, thumbnails, patch order.
2. The visual tokens are laid over these pixels as a grid in reading order: of each tile, of
   squares of patches, or of a thumbnail and then lines that end in newlines.
3. The model has the last word. Random patches of the image are changed, and each token must react
   to changes in its own place, more than the same map would explain when moved by one cell,
   mirrored or transposed.

Where a step fails there is no map: a resampler's queries, for example, stand for no place.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from normprobe.data.sample import Box
from normprobe.inputs.on_device import inputs_for, pixel_inputs
from normprobe.model.measured_model import MeasuredModel

Array = NDArray[np.float64]
#: From a picture to what the processor makes of it with the prompt in question.
Build = Callable[[Image.Image], Mapping[str, Any]]
#: From the model's inputs to states ``[rows, hidden]``: one or several, with as many rows each.
StatesOf = Callable[[Mapping[str, Any]], Sequence[torch.Tensor]]

#: Random changes of the image that test a map; each costs a run of the vision encoder.
_CHANGES = 16

#: How much a coordinate image rises along the other axis: places are found to 0.0002 of a picture
#: of 300 pixels or more, where they are not those of whole pictures, which are exact.
_TILT = 0.35

#: The usual side of a patch in pixels.
_PATCH = 14

#: Least correlation of where the image changed with which tokens reacted: this, or of few tokens
#: as many standard deviations of a correlation by chance.
_LEAST_AGREEMENT, _DEVIATIONS = 0.1, 4.0


class PlacesUnknown(Exception):
    """There is no map from visual tokens to the image; the text says why."""


def image_places(
    model: MeasuredModel, build: Build, image: Image.Image, visual: NDArray[np.bool_]
) -> tuple[Array, float]:
    """The place of each visual token in the image.

    Args:
        model: on its device.
        build: makes the model's inputs of a picture, the prompt and other images being the same.
        image: RGB.
        visual: ``[positions]`` bool: those of the decoder input that come from its pixels.

    Returns:
        ``[visual tokens, 4]``: left, top, right and bottom as fractions of the image, within 0 and
        1; empty where a token stands for padding. And how well the model agrees: the correlation
        of changes with reactions.
    """

    def states_of(inputs: Mapping[str, Any]) -> list[torch.Tensor]:
        states = model.decoder_input(inputs_for(model.model, inputs))[0]
        if len(states) != len(visual):
            raise PlacesUnknown("the number of visual tokens depends on more than the image's size")
        return [states[torch.from_numpy(visual).to(states.device)]]

    boxes, (agreement,) = places_of_rows(build, image, states_of, lines_after_thumbnail(visual))
    if isinstance(agreement, str):
        raise PlacesUnknown(agreement)
    return boxes, agreement


def places_of_rows(
    build: Build,
    image: Image.Image,
    states_of: StatesOf,
    lines: tuple[int, int, int] | None = None,
) -> tuple[Array, list[float | str]]:
    """The place in the image of each row of some states.

    Returns:
        ``[rows, 4]`` as ``image_places``; and for each of the states how well it agrees, or why
        its rows do not lie there.
    """
    inputs = build(image)
    before = states_of(inputs)
    tokens = len(before[0])
    if tokens < 4:
        raise PlacesUnknown(f"{tokens} visual tokens are too few to tell places apart")
    across, down = _pixel_coordinates(build, image.size)
    if _is_list_of_patches(across, tokens):
        boxes = _over_patches(across, down, tokens, inputs)
    elif lines is not None:
        boxes = _over_thumbnail_and_lines(across, down, *lines)
    else:
        boxes = _over_tiles(across, down, tokens)
    return boxes, _tested(build, image, states_of, before, boxes)


def share_inside(boxes: Array, box: Box, size: tuple[int, int]) -> Array:
    """Which share of each visual token's place lies in a region of the image.

    Args:
        boxes: ``[visual tokens, 4]`` of ``image_places``.
        box: the region.
        size: width and height of the image in pixels.

    Returns:
        ``[visual tokens]``, 0 to 1; 0 of an empty place.
    """
    left, top, right, bottom = np.array(box) / [*size, *size]
    width = np.minimum(boxes[:, 2], right) - np.maximum(boxes[:, 0], left)
    height = np.minimum(boxes[:, 3], bottom) - np.maximum(boxes[:, 1], top)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    share: Array = width.clip(0) * height.clip(0) / np.where(areas > 0, areas, np.inf)
    return share.clip(0, 1)


def _pixel_coordinates(build: Build, size: tuple[int, int]) -> tuple[Array, Array]:
    """For every number of the pixel tensor, from where in the image it comes, 0 to 1.

    The values of two coordinate images, between those of a black and those of a white one. Each is
    a plane that also rises a little along the other axis: whole grey values are coarse, but along
    a row or column all of their fractions occur, and cancel in its mean. NaN: padding, or an empty
    tile.
    """
    width, height = size
    x = np.broadcast_to((np.arange(width) + 0.5) / width, (height, width))
    y = np.broadcast_to((np.arange(height)[:, None] + 0.5) / height, (height, width))
    planes = ((1 - _TILT) * x + _TILT * y, _TILT * x + (1 - _TILT) * y)
    values = (np.zeros((height, width)), np.ones((height, width)), *planes)
    at_black, at_white, at_x, at_y = (_pixels(build(_grey(255 * value))) for value in values)
    if not at_black.shape == at_white.shape == at_x.shape == at_y.shape:
        raise PlacesUnknown("the processor cuts images of one size differently")
    span = at_white - at_black
    span[np.abs(span) < 1e-3] = np.nan
    if np.isnan(span).all():
        raise PlacesUnknown("what the processor returns does not depend on the image")
    first, second = (at_x - at_black) / span, (at_y - at_black) / span
    determinant = (1 - _TILT) ** 2 - _TILT**2
    return (
        ((1 - _TILT) * first - _TILT * second) / determinant,
        ((1 - _TILT) * second - _TILT * first) / determinant,
    )


def _grey(values: Array) -> Image.Image:
    return Image.fromarray(np.round(values).astype(np.uint8)).convert("RGB")


def _pixels(inputs: Mapping[str, Any]) -> Array:
    """The pixel tensor among the inputs."""
    tensors = {k: v for k, v in pixel_inputs(inputs).items() if isinstance(v, torch.Tensor)}
    # DeepSeek-VL hybrid also has a larger copy of the image for a second encoder.
    pixels = tensors.get("pixel_values", next(iter(tensors.values()), None))
    if pixels is None:
        raise PlacesUnknown("the processor returns no pixel tensor")
    return pixels.double().numpy()


def _is_list_of_patches(pixels: Array, tokens: int) -> bool:
    """Rather than pictures ``[..., channels, height, width]`` of at least a token each."""
    if pixels.ndim < 4 or pixels.shape[-3] not in (1, 3):
        return True
    return int(np.isfinite(pixels).any(axis=(-3, -2, -1)).sum()) > tokens


def _over_tiles(across: Array, down: Array, tokens: int) -> Array:
    """Each tile of the input is a grid of tokens in reading order."""
    tiles = list(zip(_tiles(across), _tiles(down), strict=True))
    return np.concatenate([_cells(x, y, tokens / len(tiles)) for x, y in tiles])


def lines_after_thumbnail(visual: NDArray[np.bool_]) -> tuple[int, int, int] | None:
    """Tokens of a thumbnail, then rows and columns of a grid with a newline after each row.

    Args:
        visual: ``[positions]`` of the decoder input, newlines being none.

    Returns:
        None where the tokens do not stand like that.
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[0], visual, [0]]).astype(int)))
    widths = edges[1::2] - edges[::2]
    if len(widths) < 2:
        return None
    first, *others = widths
    if set(others) != {others[-1]} or first <= others[-1]:
        return None
    return int(first - others[-1]), len(others) + 1, int(others[-1])


def _over_thumbnail_and_lines(
    across: Array, down: Array, tokens: int, rows: int, columns: int
) -> Array:
    """The tiles joined to one picture, cut to the image's shape (LLaVA-NeXT)."""
    thumbnail = _cells(next(_tiles(across)), next(_tiles(down)), tokens)
    row, column = np.divmod(np.arange(rows * columns), columns)
    left, top = column / columns, row / rows
    lines = np.stack([left, top, left + 1 / columns, top + 1 / rows], axis=1)
    return np.concatenate([thumbnail, lines])


def _cells(x: Array, y: Array, tokens: float) -> Array:
    """The places of one tile's tokens, ``[tokens, 4]``."""
    rows, columns = _grid(tokens, x.shape[0] / x.shape[1])
    lefts, rights = _edges(x, axis=1, cells=columns)
    tops, bottoms = _edges(y, axis=0, cells=rows)
    boxes = [
        (left, top, right, bottom)
        for top, bottom in zip(tops, bottoms, strict=True)
        for left, right in zip(lefts, rights, strict=True)
    ]
    return np.array(boxes).clip(0.0, 1.0)


def _tiles(coordinates: Array) -> Iterator[Array]:
    """``[height, width]``, the mean over the channels of each tile that shows the image."""
    for tile in coordinates.reshape(-1, *coordinates.shape[-3:]):
        known = np.isfinite(tile)
        if not known.any():
            continue
        total = np.where(known, tile, 0.0).sum(0)
        yield total / np.where(known.any(0), known.sum(0), np.nan)


def _grid(tokens: float, aspect: float) -> tuple[int, int]:
    """Rows and columns of square cells."""
    rows = round((tokens * aspect) ** 0.5)
    columns = round(tokens / max(rows, 1))
    if rows * columns != tokens or not 0.9 < rows / columns / aspect < 1.1:
        raise PlacesUnknown(
            f"{tokens:g} visual tokens a tile form no grid with the shape of its pixels"
        )
    return rows, columns


def _edges(coordinates: Array, axis: int, cells: int) -> tuple[Array, Array]:
    """Where the cells of a tile begin and end in the image, along one axis.

    A resized, cut or padded tile shows the image on a straight scale, which is fitted: 8-bit
    coordinates are too coarse, and resampling bends them at the borders.
    """
    known = np.isfinite(coordinates).any(1 - axis)
    mean = np.nanmean(coordinates[:, known] if axis else coordinates[known], axis=1 - axis)
    size = coordinates.shape[axis]
    edges = _straight(np.flatnonzero(known) + 0.5, mean, np.linspace(0, size, cells + 1), 0.25)
    if edges is None:
        raise PlacesUnknown("the processor does more to the image than resize, cut and pad it")
    return edges[:-1], edges[1:]


def _straight(
    position: NDArray[Any], coordinate: NDArray[Any], edges: Array, near: float
) -> Array | None:
    """Where edges lie in the image, on the straight scale through coordinates of positions.

    Processors cut and pad whole pixels: an outer edge that is nearer than a quarter of one to the
    image's own is the image's own, exactly.

    Returns:
        None where the coordinates form no straight scale.
    """
    inner = slice(1, -1) if len(position) > 4 else slice(None)
    if len(position[inner]) < 2:
        return None
    slope, start = np.polyfit(position[inner], coordinate[inner], 1)
    missed = np.abs(start + slope * position - coordinate)[inner].max()
    if missed > min(0.02, abs(slope) / 2 + 0.004) or slope <= 0:
        return None
    first, last = start + slope * edges[0], start + slope * edges[-1]
    first = 0.0 if abs(first) < near * slope else first
    last = 1.0 if abs(last - 1) < near * slope else last
    places: Array = first + (last - first) * (edges - edges[0]) / (edges[-1] - edges[0])
    return places


def _over_patches(across: Array, down: Array, tokens: int, inputs: Mapping[str, Any]) -> Array:
    """Flattened patches, of which each square of some makes a token.

    The patches of a square follow each other (Qwen-VL), or all patches are in reading order and
    the model makes the squares (MoonViT). Patches may be padded at the right and below.
    """
    # [..., patches, numbers], or [patches, channels, height, width]
    shape = (-1, across.shape[-1]) if across.ndim < 4 else (len(across), -1)
    rows_of_patches = across.shape[-2] if across.ndim == 3 else None
    x, y = across.reshape(shape), down.reshape(shape)
    shown: NDArray[np.bool_] = np.isfinite(x)
    own, grid = _own_grid(inputs, np.any(shown, axis=1), rows_of_patches)
    x, y, whole = x[own], y[own], shown[own].mean(1) == shown[own].mean(1).max()
    with np.errstate(invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # patches that show nothing of the image
        x, y = np.nanmean(x, axis=1), np.nanmean(y, axis=1)
    patch_rows, patch_columns = grid or _patch_grid(x, y)
    side = max(1, round((len(x) / tokens) ** 0.5))
    if side**2 * tokens != len(x) or patch_rows % side or patch_columns % side:
        raise PlacesUnknown(
            f"{tokens} visual tokens are no squares of {patch_rows} x {patch_columns} patches"
        )
    row, column = np.divmod(np.arange(len(x)), patch_columns)
    squares = np.arange(len(x)).reshape(patch_rows // side, side, -1, side).swapaxes(1, 2).ravel()
    orders = [(row, column), (row[squares], column[squares])]
    if grid is None:  # whole patches in any order
        orders.append(
            (np.floor(y * patch_rows).astype(int), np.floor(x * patch_columns).astype(int))
        )
    for row, column in orders:
        lefts = _scale(column, x, whole, patch_columns, side)
        tops = _scale(row, y, whole, patch_rows, side)
        if lefts is not None and tops is not None:
            break
    else:
        raise PlacesUnknown("the patches of the processor form no grid")
    cell = ((row // side) * (patch_columns // side) + column // side).reshape(tokens, -1)
    if (cell != cell[:, :1]).any():
        cell = np.arange(tokens)[:, None]
    row, column = np.divmod(cell[:, 0], patch_columns // side)
    boxes = np.stack([lefts[column], tops[row], lefts[column + 1], tops[row + 1]], axis=1)
    return boxes.clip(0.0, 1.0)


def _scale(
    place: NDArray[np.int_], coordinate: Array, whole: NDArray[np.bool_], patches: int, side: int
) -> Array | None:
    """Where rows or columns of tokens begin and end; None where no straight scale does it."""
    lines = np.unique(place[whole])
    means = np.array([coordinate[whole & (place == line)].mean() for line in lines])
    edges = np.arange(0, patches + side, side).astype(float)
    found = _straight(lines + 0.5, means, edges, 0.25 / _PATCH)
    if found is None:
        return None
    slope = (found[-1] - found[0]) / patches
    expected = found[0] + slope * (place + 0.5)
    return found if np.abs(expected - coordinate)[whole].max() < slope / 2 else None


def _own_grid(
    inputs: Mapping[str, Any], shown: NDArray[np.bool_], patches: int | None
) -> tuple[slice | NDArray[np.bool_], tuple[int, int] | None]:
    """The patches of the image that ``shown`` is of, and their rows and columns.

    The inputs hold them (image_grid_thw, image_grid_hws, spatial_shapes) where the model needs
    them; then patches that are padding throughout are among them. None: they do not.
    """
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor) or value.ndim != 2 or value.is_floating_point():
            continue
        grids = value.tolist()
        if not ("grid" in name or "spatial" in name) or len(grids[0]) not in (2, 3):
            continue
        counts = [int(np.prod(grid)) for grid in grids]
        starts = [sum(counts[:i]) for i in range(len(counts))]
        if sum(counts) != len(shown):
            if patches is None or len(grids) * patches != len(shown):
                continue
            starts = [i * patches for i in range(len(counts))]
        for grid, start, count in zip(grids, starts, counts, strict=True):
            inside = shown[start : start + count].sum()
            if inside and inside == shown.sum() and count == grid[-1] * grid[-2]:
                return slice(start, start + count), (grid[-2], grid[-1])
    return shown, None


def _patch_grid(x: Array, y: Array) -> tuple[int, int]:
    """Rows and columns of the one grid on which each patch has a cell of its own."""
    patches = len(x)
    for rows in (n for n in range(1, patches + 1) if patches % n == 0):
        columns = patches // rows
        cells = np.floor(y * rows) * columns + np.floor(x * columns)
        if len(np.unique(cells)) == patches:
            return rows, columns
    raise PlacesUnknown("the patches of the processor form no grid")


def _tested(
    build: Build,
    image: Image.Image,
    states_of: StatesOf,
    before: Sequence[torch.Tensor],
    boxes: Array,
) -> list[float | str]:
    """Change random patches of the image, as large as a row's place, and see which rows react."""
    pixels = np.asarray(image)
    height, width = pixels.shape[:2]
    cell_width = max(1, round(width * np.median(boxes[:, 2] - boxes[:, 0])))
    cell_height = max(1, round(height * np.median(boxes[:, 3] - boxes[:, 1])))
    shape = (-(-height // cell_height), -(-width // cell_width))
    random = np.random.default_rng(0)
    changes = [
        np.kron(1.0 * (random.random(shape) < 0.5), np.ones((cell_height, cell_width)))[
            :height, :width
        ]
        for _ in range(_CHANGES)
    ]
    reactions = []
    for change in changes:
        # Half of the range further, around the corner: no value stays near where it was.
        other = np.where(change[..., None] > 0, pixels + np.uint8(128), pixels).astype(np.uint8)
        reactions.append(_moved(before, states_of(build(Image.fromarray(other)))))
    left, top, right, bottom = boxes.T
    turned = (
        np.stack(edges, axis=1)
        for edges in (
            (1 - right, top, 1 - left, bottom),
            (left, 1 - bottom, right, 1 - top),
            (top, left, bottom, right),
        )
    )
    shifts = ((0, 0), (cell_height, 0), (-cell_height, 0), (0, cell_width), (0, -cell_width))
    covered = [
        np.array([_covered(np.roll(change, shift, (0, 1)), boxes) for change in changes])
        for shift in shifts
    ] + [
        np.array([_covered(change, other) for change in changes])
        for other in turned
        if not np.allclose(other, boxes)
    ]
    return [_agreement(covered, np.array(reacted)) for reacted in zip(*reactions, strict=True)]


def _moved(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> list[Array]:
    """How far each row went, relative to where it was."""
    if any(one.shape != other.shape for one, other in zip(before, after, strict=True)):
        raise PlacesUnknown("the number of visual tokens depends on more than the image's size")
    return [
        ((other.float() - one.float()).norm(dim=-1) / one.float().norm(dim=-1))
        .cpu()
        .double()
        .numpy()
        for one, other in zip(before, after, strict=True)
    ]


def _agreement(covered: Sequence[Array], reacted: Array) -> float | str:
    """The correlation of changes with reactions, or why the places are not believed.

    Args:
        covered: the changed share of each place, ``[changes, rows]``; the first as the places are,
            the others as they are not: moved by one cell, mirrored or transposed.
        reacted: likewise ``[changes, rows]``.
    """
    found, *others = (_correlation(of_places, reacted) for of_places in covered)
    chance = ((reacted.shape[1] - 1) * (_CHANGES - 1)) ** -0.5
    if found > max(_LEAST_AGREEMENT, _DEVIATIONS * chance, *others):
        return found
    return (
        "visual tokens do not react to the places where a grid in reading order puts them "
        f"(correlation {found:.2f})"
    )


def _covered(change: Array, boxes: Array) -> Array:
    """The changed share of each place, NaN of an empty one."""
    height, width = change.shape
    scale = np.array([width, height, width, height])
    edges = np.round(boxes * scale).astype(int)
    return np.array(
        [
            change[top:bottom, left:right].mean() if bottom > top and right > left else np.nan
            for left, top, right, bottom in edges
        ]
    )


def _correlation(covered: Array, reacted: Array) -> float:
    """Over tokens and changes, without what a token or a change has in common throughout."""
    known = np.isfinite(covered).all(0) & np.isfinite(reacted).all(0)
    centred = []
    for values in (covered[:, known], reacted[:, known]):
        rest = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
        centred.append(rest / max(float(np.linalg.norm(rest)), 1e-30))
    return float((centred[0] * centred[1]).sum())
