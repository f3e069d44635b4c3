"""What layers.csv says, in sentences."""

import numpy as np
import pandas as pd

from normprobe.measurements.layers.accounted import accounted_verdict
from normprobe.measurements.layers.assumptions import theory_verdict
from normprobe.measurements.layers.branches import branches_verdict
from normprobe.measurements.layers.massive import massive_verdict
from normprobe.measurements.layers.ratios import (
    ratio_after,
    ratios_to_text,
    visual_states_are_attended,
)
from normprobe.measurements.layers.turns import turns_verdict
from normprobe.report.ratio_words import (
    FAST,
    LOUD,
    brackets,
    hold_inverses,
    ratio_in_words,
    times,
)
from normprobe.report.readable import significant
from normprobe.report.sentences import (
    broken_states_sentence,
    carried_sentence,
    carried_sentences,
    layers_in_words,
    other_media,
    out_of,
)
from normprobe.runs.run_folder import RunStore
from normprobe.schema import ATTENTION_INPUT, RATIOS_TO_TEXT, SPECIAL, TEXT, VISUAL


def verdict(run: RunStore) -> str:
    """What the layers say, their branches and massive tokens, and what the theory says of them."""
    branches = branches_verdict(run.table("branches")) if run.has_table("branches") else ""
    turns = turns_verdict(run.table("turns")) if run.has_table("turns") else ""
    theory = theory_verdict(run.table("assumptions"))
    return " ".join(filter(None, [run_verdict(run), branches, massive_words(run), turns, theory]))


def massive_words(run: RunStore) -> str:
    """What ``--also massive`` found; empty where it was not asked for."""
    if not run.has_table("massive"):
        return ""
    named = run.table("massive_tokens") if run.has_table("massive_tokens") else None
    return massive_verdict(run.table("massive"), run.table("dimensions"), named)


def run_verdict(run: RunStore) -> str:
    """What stands under the table of layers: what it says, and whom the paper's theory is about."""
    placement = placement_sentence(str(run.record.get("norm_placement") or ""))
    layers = run.table("layers")
    asked = run.record.get("intervals", {}) is not None
    sentences = [broken_states_sentence(layers), layers_verdict(layers, intervals=asked)]
    sentences.append(attention_input_verdict(layers))
    if run.has_table("accounted"):
        sentences.append(accounted_verdict(run.table("accounted")))
    return " ".join(filter(None, [*sentences, placement]))


def layers_verdict(layers: pd.DataFrame, *, intervals: bool = True) -> str:
    """How loud visual tokens are, and how fast they turn, against text tokens in every layer."""
    norms, angles = ratios_to_text(layers, "norm"), ratios_to_text(layers, "angle")
    several = [ratio for ratio in (*norms.values(), *angles.values()) if ratio.usable]
    media = other_media(layers)
    others = [ratio_after(layers, 0, group=group) for group in media]
    several += [r for group in media for r in ratios_to_text(layers, "angle", group).values()]
    told = [ratio for ratio in (ratio_after(layers, 0), *several, *others) if ratio.usable]
    if not told:
        return text_verdict(layers)
    samples = int(layers["samples"].max()) if intervals else None
    closing = brackets(told, samples, "layers" if several else "")
    arithmetic = ratio_after(layers, 0, RATIOS_TO_TEXT["norm"])
    beside = hold_inverses([ratio_after(layers, 0), arithmetic])
    louder, visual = loudness(layers, beside_inverses=beside), _tokens(layers, VISUAL)
    if louder and arithmetic.usable:
        means = ratio_in_words([arithmetic], LOUD, beside_inverses=beside)
        louder += f" by geometric means, {means} by arithmetic ones"
    if visual_states_are_attended(layers):
        states = visual.replace("tokens", "states")
        return f"Text attends to {states} {louder} at the decoder input. {closing}"
    sentences = [f"{visual.capitalize()} enter the decoder {louder}."] if louder else []
    for by_layer, verb in (
        (layers_in_words(norms, LOUD, "after"), "are"),
        (turning(layers), "turn"),
    ):
        if by_layer:
            subject = "They" if sentences else f"Against {_tokens(layers, TEXT)}, {visual}"
            sentences.append(f"{subject} {verb} {by_layer}.")
    for group, entry in zip(media, others, strict=True):
        if entry.usable:
            louder = ratio_in_words([entry], LOUD, _tokens(layers, TEXT))
            turn = turning(layers, group)
            entering = f"{_tokens(layers, group).capitalize()} enter the decoder {louder}"
            sentences.append(f"{entering}{turn and f', and turn {turn}'}.")
    return " ".join([*sentences, closing, *carried_sentences(layers)])


def text_verdict(layers: pd.DataFrame) -> str:
    """Of prompts without pictures: how text tokens grow, and which special token is loud."""
    text = layers[layers["group"] == TEXT].sort_values("layer")
    norms, numbers = text["norm_mean"].to_numpy(float), text["layer"].to_numpy(int)
    known = len(norms) > 1 and np.isfinite(norms).all() and norms.min() > 0
    if (layers["group"] == VISUAL).any() or not known:
        return ""
    grown = norms[1:] / norms[:-1]
    sentence = (
        f"Text tokens enter the decoder with a mean norm of {significant(norms[0])} and leave "
        f"layer {numbers[-1]} with {significant(norms[-1])}, {times(norms[-1] / norms[0])} as "
        f"much; layer {numbers[1:][grown.argmax()]} alone makes it {times(grown.max())}."
    )
    carried = carried_sentence(layers[layers["group"] == SPECIAL], SPECIAL)
    return " ".join(filter(None, [sentence, carried]))


def loudness(layers: pd.DataFrame, *, beside_inverses: bool = False) -> str:
    """How loud visual tokens enter the decoder: "57 x [49, 66] louder than text tokens"."""
    entry, text = ratio_after(layers, 0), _tokens(layers, TEXT)
    return (
        ratio_in_words([entry], LOUD, text, beside_inverses=beside_inverses) if entry.usable else ""
    )


def _tokens(layers: pd.DataFrame, group: str) -> str:
    """``visual tokens``; ``visual tokens from 1 of 5 samples``, where the others have none."""
    held = layers.loc[layers["group"] == group, "samples"].max()
    return f"{group} tokens{out_of(held, layers['samples'].max())}"


def turning(layers: pd.DataFrame, group: str = VISUAL) -> str:
    """How fast visual tokens turn: "3.2 to 36 x [2.9, 40] more slowly in layers 1-6"."""
    return layers_in_words(ratios_to_text(layers, "angle", group), FAST)


def attention_input_verdict(layers: pd.DataFrame) -> str:
    """How loud visual tokens are where attention reads them, behind each layer's input norm."""
    told = layers_in_words(ratios_to_text(layers, ATTENTION_INPUT), LOUD)
    return f"Where attention reads them, visual tokens are {told}." if told else ""


def placement_sentence(norm_placement: str) -> str:
    """Where the norms of the decoder stand, if the paper's theory is not about such decoders."""
    placement, _, theory = norm_placement.partition(": ")
    if not placement or theory.endswith("applies"):
        return ""
    return f"Norm placement of this decoder: {placement}. The paper's theory is about pre-norm."
