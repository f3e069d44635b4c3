"""How often intervals and bands are right, and how many images a question needs, by simulation.

Images are made by worlds in which the truth is known, and go through the package's own tables,
intervals and bands. ``python -m experiments.statistics`` prints the tables of
docs/explanation/statistics.md; ``--write`` puts them there.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
import typer
from numpy.typing import NDArray

from experiments.tables import EXPLANATION, markdown, publish
from normprobe.measurements.layers.accounted import ONE_LAYER, accounted_table
from normprobe.measurements.layers.theory import eq_13
from normprobe.report.ranking import widened_for_pairs
from normprobe.report.ratio_words import ALIKE, Ratio
from normprobe.schema import GEOMETRIC_RATIOS, PAIR, RATIOS_TO_TEXT, TEXT, VISUAL
from normprobe.statistics import bootstrap, resampling
from normprobe.statistics.bootstrap import (
    FISHER,
    LEVEL,
    LINEAR,
    LOGARITHM,
    Scale,
    draw_weights,
    interval,
    left_out,
    rank_correlation,
    ratio_draws,
)
from normprobe.statistics.resampling import Resampled, add_intervals
from normprobe.tidy import Numbers, Quantity, Table, select

Array = NDArray[np.float64]
Method = Callable[[Array, int, Scale, "NDArray[np.integer[Any]] | None"], Array]

IMAGES = (5, 10, 20, 50, 200)
LAYERS = (8, 32, 80)
SETS = 1000
AT_ONCE = 500  # data sets that are simulated as one table

# --- coverage -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class World:
    """How images differ.

    Attributes:
        skewed: their logarithms are lognormal (skewness 1.75) and not normal.
        questions: at most so many of one image, from 1, each as often.
        token_spread: deviation of the logarithm of the token counts.
    """

    skewed: bool = False
    questions: int = 1
    token_spread: float = 0.0


WORLDS = {
    "normal": World(),
    "skewed": World(skewed=True),
    "1 to 6 questions an image": World(questions=6),
    "unequal token counts": World(token_spread=0.7),
}

#: What has an interval.
QUANTITIES = {
    GEOMETRIC_RATIOS["norm"]: "norm ratio, geometric",
    RATIOS_TO_TEXT["norm"]: "norm ratio, arithmetic",
    GEOMETRIC_RATIOS["angle"]: "angle ratio, geometric",
    "norm_share": "share of the norms",
    "visual_cosine": "cosine near 0.99",
    "text_cosine": "cosine near 0.83",
}
#: Their scales, but for the share, which its own table makes.
TABLE = Table(
    "measured",
    "a row a data set",
    [
        Quantity(name, words, forms=f"mean interval {'fisher' if 'cosine' in name else 'log'}")
        for name, words in QUANTITIES.items()
    ],
)

NORM, SPREAD = {VISUAL: 20.0, TEXT: 4.0}, {VISUAL: 0.3, TEXT: 0.2}
TOKENS = {VISUAL: 256.0, TEXT: 20.0}
WITHIN = 0.3  # deviation of the log norm within a sample


def noise(world: World, random: np.random.Generator, *shape: int) -> Array:
    """What images differ by: mean 0, deviation 1."""
    drawn = random.normal(size=shape)
    if not world.skewed:
        return drawn
    return skew(drawn, 0.5)


def skew(drawn: Array, spread: float) -> Array:
    """Normal numbers to lognormal ones whose logarithm deviates so much: mean 0, deviation 1."""
    standard: Array = np.expm1(spread * drawn - spread**2 / 2) / np.sqrt(np.expm1(spread**2))
    return standard


def sample_rows(world: World, units: int, sets: int, random: np.random.Generator) -> pd.DataFrame:
    """Sample rows of several data sets, each a layer, from 1, of the same number of images."""
    questions = random.integers(1, world.questions + 1, size=sets * units)
    question = np.concatenate([np.arange(of_image) for of_image in questions])
    image = np.repeat(np.tile(np.arange(units), sets), questions)
    common = {
        "layer": np.repeat(np.repeat(np.arange(sets) + 1, units), questions),
        "sample_id": image * world.questions + question,
        "image_hash": image,
    }

    def drawn(group: str) -> Array:
        of_image = np.repeat(noise(world, random, sets * units), questions)
        if group == VISUAL or world.questions == 1:  # visual tokens are those of the picture
            return of_image
        both: Array = (of_image + noise(world, random, len(question))) / np.sqrt(2)
        return both

    made = []
    for group, norm in NORM.items():
        loud = drawn(group)
        log_norm = np.log(norm) + SPREAD[group] * loud
        log_update, phi = np.log(3.0) + 0.2 * drawn(group), 1.4 + 0.05 * drawn(group)
        angle = eq_13(np.exp(log_norm), np.exp(log_update), phi) * np.exp(0.05 * drawn(group))
        # Images with many tokens are louder ones, so that weights matter.
        counts = world.token_spread * (loud + random.normal(size=len(loud))) / np.sqrt(2)
        tokens = np.maximum(1, np.round(TOKENS[group] * np.exp(counts)))
        numbers = {
            "tokens": tokens,
            "log_tokens": tokens,
            "norm_mean": np.exp(log_norm + WITHIN**2 / 2),
            "norm_log_mean": log_norm,
            "log_norm_mean": log_norm,
            "log_update_mean": log_update,
            "update_angle_mean": phi,
            "angle_log_mean": np.log(angle),
            "log_angle_mean": np.log(angle),
            "cosine_mean": np.cos(angle),
        }
        made.append(pd.DataFrame({**common, "group": group, **numbers}))
    return pd.concat(made, ignore_index=True)


def measured(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """``QUANTITIES`` with their intervals, as the package's tables have them.

    Returns:
        ``mean``, ``low`` and ``high`` of each, a row a data set.
    """
    layers = np.unique(rows["layer"])
    cells = pd.MultiIndex.from_product([layers, [VISUAL, TEXT]], names=["layer", "group"])
    resampled = Resampled(cells.to_frame(index=False), rows, ["layer", "group"])
    norms = resampled.means("norm_mean", by_tokens=True)
    cosines = resampled.means("cosine_mean", by_tokens=True)
    drawn = {RATIOS_TO_TEXT["norm"]: norms[:, ::2] / norms[:, 1::2]}
    for metric in ("norm", "angle"):
        means = resampled.geometric_means(metric)
        drawn[GEOMETRIC_RATIOS[metric]] = means[:, ::2] / means[:, 1::2]
    drawn |= {"visual_cosine": cosines[:, ::2], "text_cosine": cosines[:, 1::2]}
    numbers: Numbers = {name: {"mean": values[0]} for name, values in drawn.items()}
    draws = {(name, "mean"): values for name, values in drawn.items()}
    add_intervals(numbers, draws, resampled.units, table=TABLE)
    # A share is of layers in which visual tokens clearly turn more slowly.
    slower = {"quantity": GEOMETRIC_RATIOS["angle"], "mean": 0.2, "band_low": 0.1, "band_high": 0.3}
    pairs = rows[["sample_id", "image_hash"]].drop_duplicates().assign(layer=1, group=PAIR)
    clear = pd.DataFrame({"layer": layers, "group": VISUAL, **slower})
    shares = accounted_table(pd.concat([rows, pairs], ignore_index=True), clear)
    share = select(shares, "norm_share", scope=ONE_LAYER).reset_index(drop=True)
    return {name: pd.DataFrame(of) for name, of in numbers.items()} | {"norm_share": share}


def truth(world: World, images: int = 400_000) -> dict[str, float]:
    """``QUANTITIES`` over very many images."""
    rows = sample_rows(world, images, 1, np.random.default_rng(0))
    tokens = rows["tokens"].to_numpy()
    means = rows.filter(like="_mean").mul(tokens, axis=0).groupby(rows["group"]).sum()
    counts = rows.groupby("group")[["tokens", "log_tokens"]].sum()
    merged = means.div(counts["tokens"], axis=0).join(counts).reset_index()
    with np.errstate(invalid="ignore"):  # without the one image there is none
        found = measured(merged.assign(layer=1, sample_id=0, image_hash=0))
    return {name: float(of["mean"].iloc[0]) for name, of in found.items()}


def percentile(
    drawn: Array, units: int, scale: Scale, held: "NDArray[np.integer[Any]] | None" = None
) -> Array:
    """The ends between which 95 % of the draws lie: the bootstrap without more."""
    del scale, held
    ends: Array = np.quantile(drawn[1 + left_out(units) :], [0.025, 0.975], axis=0)
    return ends


def bca(
    drawn: Array, units: int, scale: Scale, held: "NDArray[np.integer[Any]] | None" = None
) -> Array:
    """BCa: percentiles that are corrected for bias and for skewness (Efron, 1987)."""
    del scale, held
    shift = 1 + left_out(units)
    draws = np.sort(drawn[shift:], axis=0)
    below = (draws < drawn[0]).mean(axis=0).clip(1 / len(draws), 1 - 1 / len(draws))
    bias = torch.special.ndtri(torch.from_numpy(below)).numpy()
    without = drawn[1:shift].mean(axis=0) - drawn[1:shift]
    with np.errstate(invalid="ignore"):
        speed = (without**3).sum(axis=0) / (6 * (without**2).sum(axis=0) ** 1.5)
    ends = []
    for end in (-1, 1):
        z = bias + end * 1.959964
        level = torch.special.ndtr(torch.from_numpy(bias + z / (1 - speed * z))).numpy()
        place = np.nan_to_num(level * (len(draws) - 1)).round().astype(int)
        ends.append(np.take_along_axis(draws, place[None], axis=0)[0])
    return np.array(ends)


#: Ends of intervals: the package's, and what they were chosen over.
METHODS: dict[str, Method] = {"widened": interval, "percentile": percentile, "BCa": bca}


def coverage(
    worlds: Mapping[str, World], images: Iterable[int], sets: int, methods: Iterable[str] = METHODS
) -> pd.DataFrame:
    """How often intervals miss the truth.

    Args:
        worlds: by name.
        images: numbers of images.
        sets: data sets of each world and number.
        methods: of ``METHODS``.

    Returns:
        One row a world, number of images, method and quantity: ``below`` and ``above`` are the
        shares of data sets whose interval lies wholly below or above the truth.
    """
    found = []
    for name, world in worlds.items():
        true = truth(world)
        for units in images:
            missed: dict[tuple[str, str, str], float] = {}
            for chunk, start in enumerate(range(0, sets, AT_ONCE)):
                random = np.random.default_rng([units, chunk])
                rows = sample_rows(world, units, min(AT_ONCE, sets - start), random)
                for method in methods:
                    with patch.object(resampling, "interval", METHODS[method]):
                        found_by = measured(rows)
                    for name_of, table in found_by.items():
                        low, high = table["low"], table["high"]
                        sides = {"below": high < true[name_of], "above": low > true[name_of]}
                        for side, beyond in sides.items():
                            key = method, name_of, side
                            missed[key] = missed.get(key, 0) + beyond.sum() / sets
            by_side = pd.Series(missed).unstack().reset_index(names=["method", "quantity"])
            found.append(by_side.assign(world=name, images=units))
    return pd.concat(found, ignore_index=True)


def rank_coverage(
    correlations: Iterable[float], models: Iterable[int], sets: int
) -> dict[tuple[float, int], tuple[float, float]]:
    """The same of Spearman's correlation of normal numbers, by correlation and number of models."""
    found = {}
    for correlation in correlations:
        true = 6 / np.pi * np.arcsin(correlation / 2)
        for number in models:
            random = np.random.default_rng(number)
            first, own = random.normal(size=(2, sets, number))
            second = correlation * first + np.sqrt(1 - correlation**2) * own
            ranked = [rank_correlation(*pair) for pair in zip(first, second, strict=True)]
            below = np.mean([one.high < true for one in ranked])
            above = np.mean([one.low > true for one in ranked])
            found[correlation, number] = float(below), float(above)
    return found


# --- which mean ---------------------------------------------------------------------------------

ESTIMATORS: dict[str, Callable[[Array], Array]] = {
    "geometric mean": lambda tokens: np.exp(np.log(tokens).mean(axis=(1, 2))),
    "median": lambda tokens: np.median(tokens, axis=(1, 2)),
    "arithmetic mean": lambda tokens: tokens.mean(axis=(1, 2)),
}


def headline(sets: int, images: int = 10) -> pd.DataFrame:
    """The ratio of visual to text norms (5 without massive tokens) by each estimator.

    Args:
        sets: data sets.
        images: of each.

    Returns:
        One row a case and estimator: the ``mean`` of the ratio over data sets, and the ``spread``,
        the deviation of its logarithm.
    """
    random = np.random.default_rng(0)
    spread = WITHIN * random.normal(size=(sets, images, 88)) + 0.1 * random.normal(
        size=(sets, images, 1)
    )
    text = 4 * np.exp(spread)
    massive = text.copy()
    massive[:, :, 0] = 2000.0
    between = 0.1 * random.normal(size=(sets, images, 1))
    visual = np.exp(WITHIN * random.normal(size=(sets, images, 256)) + between)
    # Two kinds of visual token, 10 and 40, whose share differs between images.
    loud = random.uniform(size=(sets, images, 256)) < random.uniform(
        0.2, 0.8, size=(sets, images, 1)
    )
    cases = {
        "even tokens": (20 * visual, text),
        "one massive text token an image": (20 * visual, massive),
        "visual tokens of two kinds": (visual * np.where(loud, 40.0, 10.0), text),
    }
    found = []
    for case, (above, below) in cases.items():
        for name, estimator in ESTIMATORS.items():
            ratio = estimator(above) / estimator(below)
            numbers = {"mean": ratio.mean(), "spread": np.log(ratio).std()}
            found.append({"case": case, "estimator": name, **numbers})
    return pd.DataFrame(found)


# --- bands --------------------------------------------------------------------------------------

#: How layers go together: each by itself; or each a sum of all steps up to it, as a residual
#: stream is.
INDEPENDENT, RESIDUAL = "independent", "residual"


def by_layer(random: np.random.Generator, kind: str, *shape: int) -> Array:
    """What images differ by in each layer, the last axis: mean 0, deviation 1."""
    drawn = random.normal(size=shape)
    if kind == INDEPENDENT:
        return drawn
    summed: Array = drawn.cumsum(axis=-1) / np.sqrt(np.arange(shape[-1]) + 1)
    return summed


def image_draws(values: Array, tokens: "Array | None" = None) -> Array:
    """Means over images, as they are and without each image: all that a band asks.

    Args:
        values: ``[images, cells]``.
        tokens: likewise; None: one each.
    """
    counts = np.ones_like(values) if tokens is None else tokens
    weights = draw_weights(len(values), draws=0)
    return ratio_draws(weights, values * counts, counts)


def gaps(random: np.random.Generator, kind: str, images: int, layers: int) -> list[bool]:
    """Whether the band of any gap excludes 0, the truth."""
    drawn = image_draws(by_layer(random, kind, images, layers))
    (low, high), *_ = bootstrap.band([drawn], images, [LINEAR])
    return [bool(((low > 0) | (high < 0)).any())]


#: The deviation of a logarithm, by the skewness of its lognormal distribution.
SKEWED = {0.8: 0.25, 1.75: 0.5, 3.3: 0.75}


def skewed_gaps(random: np.random.Generator, kind: str, images: int, layers: int) -> list[bool]:
    """The same of images that are skewed, by ``SKEWED``."""
    drawn = random.normal(size=(images, layers))
    told = []
    for spread in SKEWED.values():
        values = skew(drawn, spread)
        if kind == RESIDUAL:
            values = values.cumsum(axis=-1) / np.sqrt(np.arange(layers) + 1)
        (low, high), *_ = bootstrap.band([image_draws(values)], images, [LINEAR])
        told.append(bool(((low > 0) | (high < 0)).any()))
    return told


def asked_gaps(random: np.random.Generator, kind: str, images: int, layers: int) -> list[bool]:
    """The same of images with 1 to 10 questions each, as the specimen's have."""
    questions = random.integers(1, 11, size=(images, 1)) * np.ones(layers)
    drawn = image_draws(by_layer(random, kind, images, layers), questions)
    (low, high), *_ = bootstrap.band([drawn], images, [LINEAR])
    return [bool(((low > 0) | (high < 0)).any())]


def gaps_beside_prompts(
    random: np.random.Generator, kind: str, images: int, layers: int
) -> list[bool]:
    """The same of images beside 8 prompts without a picture."""
    held = np.arange(images + 8)[:, None] < np.full(layers, images)
    values = by_layer(random, kind, images + 8, layers)
    drawn = image_draws(values, held.astype(float))
    (low, high), *_ = bootstrap.band([drawn], images + 8, [LINEAR], [held])
    return [bool(((low > 0) | (high < 0)).any())]


def gaps_alone(random: np.random.Generator, kind: str, images: int, layers: int) -> list[bool]:
    """The same by the interval of each layer."""
    values = by_layer(random, kind, images, layers)
    drawn = ratio_draws(draw_weights(images), values, np.ones_like(values))
    low, high = interval(drawn, images, LINEAR)
    return [bool(((low > 0) | (high < 0)).any())]


def ratios(random: np.random.Generator, kind: str, images: int, layers: int) -> list[bool]:
    """Whether the band of any ratio excludes 1, the truth, and whether a sentence says so."""
    logs = np.zeros((1 + left_out(images), layers))
    for factor in (0.5, -0.5):  # visual tokens over text tokens, whose counts differ
        tokens = np.exp(0.5 * random.normal(size=(images, 1))) * np.ones(layers)
        logs += factor * image_draws(by_layer(random, kind, images, layers), tokens)
    (low, high), *_ = bootstrap.band([np.exp(logs)], images, [LOGARITHM])
    told = [Ratio(1.0, *ends).state in (1, -1) for ends in zip(low, high, strict=True)]
    return [bool(((low > 1) | (high < 1)).any()), any(told)]


#: Numbers that assumptions are judged by: on which scale, how many, and where their range ends.
JUDGED = ((LOGARITHM, 3, ALIKE), (FISHER, 7, 0.05), (LINEAR, 7, 0.1))


def assumptions(random: np.random.Generator, kind: str, images: int, layers: int) -> list[bool]:
    """Whether any number is told to lie outside its range: all at its end, all in its middle."""
    values = [
        image_draws(by_layer(random, kind, images, numbers, layers).reshape(images, -1))
        for _, numbers, _ in JUDGED
    ]
    told = []
    for place in (1.0, 0.0):
        drawn = [
            np.exp(place * np.log(end) + 0.2 * of_scale)
            if scale is LOGARITHM
            else end * (place + of_scale)
            for of_scale, (scale, _, end) in zip(values, JUDGED, strict=True)
        ]
        bands = bootstrap.band(drawn, images, [scale for scale, _, _ in JUDGED])
        outside = [(low > end).any() for (low, _), (_, _, end) in zip(bands, JUDGED, strict=True)]
        told.append(any(outside))
    return told


#: What may be told of a data set without effect, by what is simulated.
ALARMS: dict[Callable[..., list[bool]], tuple[str, ...]] = {
    gaps_alone: ("a gap of 0, by each layer's own interval",),
    gaps: ("a gap of 0",),
    skewed_gaps: tuple(f"a gap of 0, skewness {skewness:g}" for skewness in SKEWED),
    asked_gaps: ("a gap of 0, 1 to 10 questions an image",),
    gaps_beside_prompts: ("a gap of 0, beside 8 prompts without a picture",),
    ratios: ("a ratio of 1: the band excludes it", "a ratio of 1: called larger or smaller"),
    assumptions: (
        "17 numbers at the end of their range: called outside",
        "17 numbers in the middle: called outside",
    ),
}


def false_alarms(
    layers: Iterable[int],
    images: Iterable[int],
    sets: int,
    simulated: Iterable[Callable[..., list[bool]]] = ALARMS,
) -> pd.DataFrame:
    """In which share of data sets without effect any layer is named.

    Args:
        layers: numbers of layers.
        images: numbers of images.
        sets: data sets of each.
        simulated: of ``ALARMS``.

    Returns:
        One row each: ``told`` (what is), ``kind`` of layers, ``layers``, ``images``, ``share``.
    """
    found = []
    for simulate in simulated:
        for kind in (INDEPENDENT, RESIDUAL):
            for number in layers:
                for units in images:
                    random = np.random.default_rng([number, units])
                    told = [simulate(random, kind, units, number) for _ in range(sets)]
                    for name, share in zip(ALARMS[simulate], np.mean(told, axis=0), strict=True):
                        found.append((name, kind, number, units, float(share)))
    return pd.DataFrame(found, columns=["told", "kind", "layers", "images", "share"])


def compared(runs: Iterable[int], images: Iterable[int], sets: int) -> pd.DataFrame:
    """How often equal models, each with images of its own, are told apart.

    Args:
        runs: numbers of runs.
        images: numbers of images.
        sets: comparisons of each.

    Returns:
        One row each: ``share`` of comparisons in which two runs are told apart, and by which factor
        their intervals would have to be wider, on their scale, for that to be in 5 %.
    """
    found = []
    for number in runs:
        alike = {str(run): Ratio(1.0, 1 / math.e, math.e) for run in range(number)}
        widened = math.log(widened_for_pairs(alike)["0"].high)
        for units in images:
            random = np.random.default_rng([number, units])
            values = 3 + 0.3 * random.normal(size=(units, sets * number))
            drawn = np.exp(ratio_draws(draw_weights(units), values, np.ones_like(values)))
            low, high = np.log(interval(drawn, units, LOGARITHM)).reshape(2, sets, number)
            value = np.log(drawn[0]).reshape(sets, number)
            # Two that just touch are as far apart as one reaches up and the other down.
            apart, reach = (
                one[:, :, None] - other[:, None]
                for one, other in ((value, value), (high - value, low - value))
            )
            needed = (apart / reach).max(axis=(1, 2))
            found.append(
                (number, units, float((needed > widened).mean()), np.quantile(needed, LEVEL))
            )
    return pd.DataFrame(found, columns=["runs", "images", "share", "factor"])


# --- power --------------------------------------------------------------------------------------

EFFECTS = (0.1, 0.2, 0.5, 1.0, 2.0)  # in deviations between images
OFTEN = 0.8


def reaches(images: int, layers: int, sets: int) -> tuple[Array, Array]:
    """Of the middle layer, in units of the deviation between images, one a data set.

    Args:
        images: of each data set.
        layers: that are told together.
        sets: data sets.

    Returns:
        How far the mean is from the truth, and how far its band reaches below it.
    """
    random = np.random.default_rng([images, layers])
    made = [by_layer(random, RESIDUAL, images, layers) for _ in range(sets)]
    middle = np.stack([values[:, layers // 2] for values in made], axis=1)
    drawn = ratio_draws(draw_weights(images), middle, np.ones_like(middle))
    low, _ = interval(drawn, images, LINEAR)
    if layers > 1:
        bands = [bootstrap.band([image_draws(values)], images, [LINEAR])[0] for values in made]
        low = np.minimum(low, [ends[0, layers // 2] for ends in bands])
    return drawn[0], drawn[0] - low


def power(layers: Iterable[int], images: Iterable[int], sets: int) -> pd.DataFrame:
    """What a number of images finds.

    Args:
        layers: numbers of layers that are told together.
        images: numbers of images.
        sets: data sets of each.

    Returns:
        One row each: the share of data sets in which an effect is found, by ``EFFECTS``;
        ``found``, the effect that is found in ``OFTEN`` of them; ``equal``, the largest deviation
        between images of a log ratio at which equal within ``ALIKE`` is told in ``OFTEN`` of them
        where the ratio is 1.
    """
    found = []
    for number in layers:
        for units in images:
            error, reach = reaches(units, number, sets)
            row: dict[Any, float] = {"layers": number, "images": units}
            row |= {effect: (error + effect > reach).mean() for effect in EFFECTS}
            row["found"] = np.quantile(reach - error, OFTEN)
            # The band reaches about as far up as down.
            row["equal"] = np.log(ALIKE) / np.quantile(np.abs(error) + reach, OFTEN)
            found.append(row)
    return pd.DataFrame(found)


# --- tables -------------------------------------------------------------------------------------


def percent(share: float) -> str:
    """``95.1``."""
    return f"{100 * share:.1f}"


def coverage_table(found: pd.DataFrame) -> str:
    """Of the package's intervals: coverage, and misses below and above."""
    found = found[found["method"] == "widened"]
    rows = []
    for (world, quantity), of_row in found.groupby(["world", "quantity"], sort=False):
        cells = [
            missed(below, above)
            for below, above in of_row[["below", "above"]].itertuples(index=False)
        ]
        rows.append([str(world), QUANTITIES[str(quantity)], *cells])
    return markdown(["images", "", *map(str, found["images"].unique())], rows)


def missed(below: float, above: float) -> str:
    """``95.1 (2.4, 2.5)``; what misses the goal is in bold."""
    covered = 1 - below - above
    text = percent(covered)
    good = 0.935 <= covered <= 0.965
    return f"{text if good else f'**{text}**'} ({percent(below)}, {percent(above)})"


def methods_table(found: pd.DataFrame) -> str:
    """Each method: coverage, mean over quantities, and of ten misses how many are on one side."""
    found = found.assign(
        covered=1 - found["below"] - found["above"],
        uneven=found[["below", "above"]].max(axis=1) / (found["below"] + found["above"]),
    )
    by = ["world", "method", "images"]
    means = found.groupby(by, sort=False)[["covered", "uneven"]].mean()
    rows = []
    for (world, method), of_row in means.groupby(level=[0, 1], sort=False):
        cells = [f"{percent(row['covered'])} ({row['uneven']:.2f})" for _, row in of_row.iterrows()]
        rows.append([str(world), str(method), *cells])
    return markdown(["images", "ends", *map(str, found["images"].unique())], rows)


def ranks_table(found: Mapping[tuple[float, int], tuple[float, float]]) -> str:
    """Coverage and misses of rank correlations."""
    correlations = list(dict.fromkeys(correlation for correlation, _ in found))
    numbers = list(dict.fromkeys(number for _, number in found))
    rows = [
        [f"{correlation:g}", *(missed(*found[correlation, number]) for number in numbers)]
        for correlation in correlations
    ]
    return markdown(["models", *map(str, numbers)], rows)


def headline_table(found: pd.DataFrame) -> str:
    """The mean ratio and its spread by estimator."""
    cells = found.assign(
        text=[
            f"{mean:.2f} ({percent(spread)} %)"
            for mean, spread in found[["mean", "spread"]].to_numpy()
        ]
    )
    wide = cells.pivot(index="case", columns="estimator", values="text")
    wide = wide.loc[found["case"].unique(), list(ESTIMATORS)]
    return markdown(
        ["", *wide],
        [[str(case), *row] for case, row in zip(wide.index, wide.to_numpy(), strict=True)],
    )


def alarms_table(found: pd.DataFrame) -> str:
    """The share of data sets by what is told, the layers, and the number of images."""
    wide = found.pivot(index=["told", "kind", "layers"], columns="images", values="share")
    order = found[["told", "kind", "layers"]].drop_duplicates().apply(tuple, axis=1)
    rows = [[*map(str, key), *map(percent, wide.loc[key])] for key in order]
    return markdown(["images", "layers", "", *map(str, wide)], rows)


def compared_table(found: pd.DataFrame) -> str:
    """The share of comparisons, and the factor, by the numbers of runs and of images."""
    cells = [
        f"{percent(share)} ({factor:.2f})"
        for share, factor in found[["share", "factor"]].to_numpy()
    ]
    wide = found.assign(text=cells).pivot(index="runs", columns="images", values="text")
    rows = [[str(runs), *row] for runs, row in zip(wide.index, wide.to_numpy(), strict=True)]
    return markdown(["images: runs", *map(str, wide)], rows)


def power_table(found: pd.DataFrame) -> str:
    """How often each effect is found."""
    rows = [
        [
            f"{row['layers']:.0f}",
            f"{row['images']:.0f}",
            *(f"{100 * row[effect]:.0f}" for effect in EFFECTS),
        ]
        for _, row in found.iterrows()
    ]
    return markdown(["layers", "images", *(f"{effect:g} s" for effect in EFFECTS)], rows)


def planner_table(found: pd.DataFrame) -> str:
    """What is found, and at which deviation equality is told, in 80 % of data sets."""
    rows = []
    for units, of_row in found.groupby("images"):
        cells = [
            f"{needed:.2g} s, {equal:.2g}"
            for needed, equal in of_row[["found", "equal"]].to_numpy()
        ]
        rows.append([str(units), *cells])
    return markdown(
        [
            "images",
            *(
                f"{layers} layers" if layers > 1 else "1 layer"
                for layers in found["layers"].unique()
            ),
        ],
        rows,
    )


def main(
    quick: Annotated[bool, typer.Option(help="Few data sets: a look, not a result.")] = False,
    write: Annotated[bool, typer.Option(help="Put the tables into the documentation.")] = False,
) -> None:
    """Print the tables of docs/explanation/statistics.md in Markdown."""
    torch.set_num_threads(1)
    sets = 100 if quick else SETS
    missing = coverage(WORLDS, IMAGES, sets)
    needed = power((1, *LAYERS), IMAGES, sets // 5)
    bands = (5, 7, 10, 20, 50)
    tables = {
        "headline": headline_table(headline(sets // 4)),
        "coverage": coverage_table(missing),
        "methods": methods_table(missing),
        "ranks": ranks_table(rank_coverage((0.0, 0.5, 0.9), IMAGES, sets)),
        "alarms": alarms_table(
            pd.concat(
                false_alarms(LAYERS, bands, number, [simulated])
                for simulated, number in (
                    (gaps_alone, sets // 5),
                    *((gap, sets // 5) for gap in (gaps, skewed_gaps, asked_gaps)),
                    (gaps_beside_prompts, sets // 5),
                    (ratios, sets // 5),
                    (assumptions, sets // 20),
                )
            )
        ),
        "compared": compared_table(compared((2, 4, 8), IMAGES, sets)),
        "power": power_table(needed),
        "planner": planner_table(needed),
    }
    publish(tables, EXPLANATION / "statistics.md" if write else None)


if __name__ == "__main__":
    typer.run(main)
