"""What the package must compute, in plain float64 NumPy and by other formulas where there are some.

Angles come from the chord between unit vectors (Kahan), the part of a state orthogonal to another
from the state itself, means over pairs from all pairs, deviations from all tokens at once, and
quantiles from sorted values.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import scipy.stats
from numpy.typing import NDArray
from transformers import PreTrainedModel

from normprobe import schema
from support.capture import Array, Layer, States, capture
from support.expected_parts import ExpectedParts
from support.tiny_inputs import Inputs, perturbed

PADDING = ""
Groups = NDArray[np.str_]
Row = dict[str, float]


# --- token groups -------------------------------------------------------------------------------


def token_groups(
    model: PreTrainedModel,
    inputs: Inputs,
    parts: ExpectedParts,
    special_ids: Collection[int] = (),
) -> Groups:
    """The group of each token, ``[batch, sequence]``.

    Placeholders whose state at the decoder's door stays when the pixels change are structural.
    """
    ids = inputs["input_ids"].numpy()
    groups = np.full(ids.shape, schema.TEXT, dtype="<U16")
    groups[np.isin(ids, list(special_ids))] = schema.SPECIAL
    if "pixel_values" in inputs:
        placeholder = np.isin(ids, parts.image_token_ids)
        before, after = (
            capture(model, batch, parts).layers[0].entered for batch in (inputs, perturbed(inputs))
        )
        moved = (before != after).any(axis=-1)
        groups[placeholder & moved] = schema.VISUAL
        groups[placeholder & ~moved] = schema.STRUCTURAL
    groups[inputs["attention_mask"].numpy() == 0] = PADDING
    return groups


def members(groups: Groups) -> dict[str, NDArray[np.bool_]]:
    """One mask a group that occurs; ``non_visual`` where there are special tokens beside text."""
    masks = {group: groups == group for group in schema.TOKEN_GROUPS if (groups == group).any()}
    if schema.SPECIAL in masks:
        masks[schema.NON_VISUAL] = (groups == schema.TEXT) | masks[schema.SPECIAL]
    return masks


# --- vectors: the last axis is the hidden one ---------------------------------------------------


def norm(vectors: Array) -> Array:
    return np.sqrt((vectors**2).sum(axis=-1))


# Rows of zeros, such as padding, have no direction: NaN, without a warning.
undefined_is_nan = np.errstate(divide="ignore", invalid="ignore")


@undefined_is_nan
def unit(vectors: Array) -> Array:
    return vectors / norm(vectors)[..., None]


def dot(a: Array, b: Array) -> Array:
    return (a * b).sum(axis=-1)


def angle(a: Array, b: Array) -> Array:
    """Between two vectors; accurate from 0 to pi, where arccos is not."""
    return 2.0 * np.arctan2(norm(unit(a) - unit(b)), norm(unit(a) + unit(b)))


def orthogonal_part(a: Array, b: Array) -> Array:
    """The part of a that is orthogonal to b."""
    return a - dot(a, unit(b))[..., None] * unit(b)


@undefined_is_nan
def token_metrics(layer: Layer) -> dict[str, Array]:
    """The metrics of each token of a decoder layer."""
    x, h = layer.entered, layer.left
    update = h - x
    return {
        "norm": norm(h),
        "cosine": dot(unit(x), unit(h)),
        "angle": angle(x, h),
        "update_norm": norm(update),
        "relative_update": norm(update) / norm(x),
        "update_angle": angle(update, x),
    }


def pooled_cosine(layer: Layer, chosen: NDArray[np.bool_]) -> float:
    """Cosine of the mean vectors of some tokens, the finite ones of each state."""
    before, after = (
        state[chosen & np.isfinite(state).all(axis=-1)].mean(axis=0)
        for state in (layer.entered, layer.left)
    )
    return float(dot(unit(before), unit(after)))


def turn_towards(layer: Layer, turning: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """The mean direction in which some tokens turn, against the mean direction of others."""
    turn = unit(orthogonal_part(layer.left[turning], layer.entered[turning])).mean(axis=0)
    return float(turn @ unit(layer.entered[other]).mean(axis=0))


def turn_with(layer: Layer, turning: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    """The mean directions in which some tokens and others turn, against each other."""
    turns = [
        unit(orthogonal_part(layer.left[chosen], layer.entered[chosen])).mean(axis=0)
        for chosen in (turning, other)
    ]
    return float(turns[0] @ turns[1])


def within_modal_cosine(tokens: Array) -> float:
    """The mean of the cosines of all pairs of different tokens, each pair formed."""
    if len(tokens) < 2:
        return np.nan
    pairs = combinations(unit(tokens), 2)
    return float(np.mean([dot(a, b) for a, b in pairs]))


def centered_cross_modal_cosine(visual: Array, text: Array) -> float:
    """As ``cross_modal_cosine``, of unit vectors less the mean of both modalities' means."""
    common = (unit(visual).mean(axis=0) + unit(text).mean(axis=0)) / 2
    return cross_modal_cosine(unit(visual) - common, unit(text) - common)


def cross_modal_cosine(visual: Array, text: Array) -> float:
    """The mean of the cosines of all pairs, each pair formed."""
    return float(np.mean([[dot(unit(v), unit(t)) for t in text] for v in visual]))


# --- tables -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observation:
    """The tokens of one group in one sample.

    A token with a state that is not finite is counted, and enters nothing else. One that is zero
    has no direction: it is left out where one is asked for, and nowhere else.
    """

    metrics: dict[str, Array]  # [tokens that have a value] each
    of_sample: dict[str, float]
    nonfinite: int
    width: int


Observations = dict[tuple[int, str], list[Observation]]


def observe_layers(states: States, groups: Groups) -> Observations:
    """One observation a sample, by layer and group. Layer 0 is what enters the decoder."""
    observations: Observations = defaultdict(list)
    for sample, sample_groups in enumerate(groups):
        for number in range(len(states.layers) + 1):
            layer = _layer_of_sample(states, number, sample)
            metrics = token_metrics(layer) if number else {"norm": norm(layer.left)}
            finite = np.isfinite(norm(layer.entered)) & np.isfinite(norm(layer.left))
            if number and layer.attended is not None:
                metrics[schema.ATTENTION_INPUT] = norm(layer.attended)
            for group, chosen in members(sample_groups).items():
                used = chosen & finite
                of_tokens = {
                    name: values[used & np.isfinite(values)] for name, values in metrics.items()
                }
                of_sample = (
                    {schema.SAMPLE_METRICS[0]: pooled_cosine(layer, chosen)} if number else {}
                )
                observations[number, group].append(
                    Observation(
                        of_tokens, of_sample, (chosen & ~finite).sum(), layer.left.shape[-1]
                    )
                )
    return observations


def observe_pairs(states: States, groups: Groups) -> dict[int, dict[str, list[float]]]:
    """The pair metrics of each sample, by layer. Before the layers nothing turns."""
    observations: dict[int, dict[str, list[float]]] = {}
    for number in range(len(states.layers) + 1):
        metrics: dict[str, list[float]] = defaultdict(list)
        for sample, sample_groups in enumerate(groups):
            layer = _layer_of_sample(states, number, sample)
            visual, text = sample_groups == schema.VISUAL, sample_groups == schema.TEXT
            crossed = layer.left[visual], layer.left[text]
            metrics["cross_modal_cosine"].append(cross_modal_cosine(*crossed))
            metrics["centered_cross_modal_cosine"].append(centered_cross_modal_cosine(*crossed))
            if number and layer.attended is not None:
                attended = layer.attended[visual], layer.attended[text]
                metrics["attention_input_cosine"].append(cross_modal_cosine(*attended))
            if number:
                metrics["visual_turn_to_text"].append(turn_towards(layer, visual, text))
                metrics["text_turn_to_visual"].append(turn_towards(layer, text, visual))
                metrics["turn_to_turn"].append(turn_with(layer, visual, text))
        observations[number] = metrics
    return observations


def _layer_of_sample(states: States, number: int, sample: int) -> Layer:
    if number == 0:
        entered = states.layers[0].entered[sample]
        return Layer(entered, entered)
    layer = states.layers[number - 1]
    attended = None if layer.attended is None else layer.attended[sample]
    return Layer(layer.entered[sample], layer.left[sample], attended)


def merged(several: Iterable[Observations]) -> Observations:
    """The observations of several batches as if they had been one."""
    together: Observations = defaultdict(list)
    for observations in several:
        for key, of_samples in observations.items():
            together[key].extend(of_samples)
    return together


def summary(observations: list[Observation]) -> Row:
    """One row of the table: statistics over the tokens, and over the samples."""
    width = observations[0].width
    row: Row = {
        "hidden_size": width,
        "samples": len(observations),
        "tokens": sum(len(seen.metrics["norm"]) for seen in observations),
        "nonfinite": sum(seen.nonfinite for seen in observations),
    }
    for metric in observations[0].metrics:
        tokens = np.concatenate([seen.metrics[metric] for seen in observations])
        held = [seen.metrics[metric] for seen in observations if len(seen.metrics[metric])]
        samples = np.array([values.mean() for values in held])
        row[f"{metric}_mean"], row[f"{metric}_std"] = tokens.mean(), tokens.std()
        row[f"{metric}_sample_mean"], row[f"{metric}_sample_std"] = samples.mean(), samples.std()
        # Where float32 takes a small angle for 0, its logarithm is another.
        if metric in schema.GEOMETRIC and (metric != "angle" or (tokens > 1e-3).all()):
            row[f"{metric}_geometric_mean"] = scipy.stats.gmean(tokens[tokens > 0])
    row["rms_mean"] = row["norm_mean"] / np.sqrt(width)
    norms = [seen.metrics["norm"] for seen in observations if len(seen.metrics["norm"])]
    row["loudest_share"] = np.mean([of_sample.max() / of_sample.sum() for of_sample in norms])
    for name in observations[0].of_sample:
        values = np.array([seen.of_sample[name] for seen in observations])
        row[f"{name}_mean"], row[f"{name}_std"] = values.mean(), values.std()
    return row


def quantile_bounds(
    observations: list[Observation], metric: str, probability: float
) -> tuple[float, float]:
    """The exact quantile by the inverted distribution function.

    Where probability times tokens is an integer, rounding decides between two neighbours: both.
    """
    tokens = np.concatenate([seen.metrics[metric] for seen in observations])
    low, high = np.quantile(tokens, [probability - 1e-9, probability + 1e-9], method="inverted_cdf")
    return low, high


def layers_table(observations: Observations) -> dict[tuple[int, str], Row]:
    """By layer and group."""
    return {key: summary(of_samples) for key, of_samples in observations.items()}
