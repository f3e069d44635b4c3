"""What attention.csv says, in sentences."""

import pandas as pd

from normprobe.report.ratio_words import Ratio, Words
from normprobe.report.sentences import layer_names, layers_in_words
from normprobe.runs.run_folder import RunStore

_SPREAD = Words("more", "less", "about as much")
_DRAWN = Words("more attention", "less attention", "about as much attention")


def verdict(run: RunStore) -> str:
    """What the attention to the image says."""
    return attention_verdict(run.table("attention"))


def attention_verdict(attention: pd.DataFrame) -> str:
    """How much attention of the text reaches the image, how widely it spreads, how well it aims."""
    rows = attention[attention["query"] == attention["query"].iloc[0]].set_index("layer")
    rows = rows[rows["heads"] > 0]
    sentences = [_share(rows), _entropy(rows), _target(rows)]
    told = [sentence for sentence in sentences if sentence]
    return f"{'. '.join(told)}. One prompt, no intervals." if told else ""


def focused_and_wide(attention: pd.DataFrame) -> list[int]:
    """The two layers that the sentence names: where text looks most narrowly and most widely."""
    rows = attention[attention["query"] == attention["query"].iloc[0]].set_index("layer")
    entropy = rows["entropy_mean"].dropna()
    return sorted({int(entropy.idxmin()), int(entropy.idxmax())}) if len(entropy) else []


def _share(rows: pd.DataFrame) -> str:
    share, even = rows["share_mean"].dropna(), rows["even_share_mean"]
    if share.empty:
        return ""
    if even.eq(1).all():
        return (
            f"In {layer_names(list(rows.index))} text attends to visual states alone "
            "(cross-attention): that they get all of it is no finding"
        )
    ratios = {layer: Ratio(share.get(layer, float("nan")) / even[layer]) for layer in rows.index}
    given = f"Text gives {_percent(share)} of its attention to visual tokens"
    told = layers_in_words(ratios, _SPREAD)
    return f"{given}. Against an even spread ({_percent(even)}) that is {told}" if told else given


def _entropy(rows: pd.DataFrame) -> str:
    entropy = rows["entropy_mean"].dropna()
    return f"Its entropy over them is {_ends(entropy)} of 1" if len(entropy) else ""


def _target(rows: pd.DataFrame) -> str:
    """What the box draws."""
    ratios = {layer: Ratio(rows["signal_to_noise"][layer]) for layer in rows.index}
    drawn = layers_in_words(ratios, _DRAWN)
    if not drawn:
        return ""
    sentence = f"Against a visual token outside the box, one inside draws {drawn}"
    gap = rows["score_gap"].dropna()
    if len(gap):
        sentence += f"; its score before the softmax differs by {_ends(gap)}"
    return sentence


def _percent(shares: "pd.Series[float]") -> str:
    low, high = (f"{100 * share:.0f}" for share in (shares.min(), shares.max()))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _ends(values: "pd.Series[float]") -> str:
    """``0.71 (layer 2) to 0.93 (layers 5, 6)``: the smallest and the largest, and where."""
    texts = [f"{value:.2f}" for value in values]
    ends = [f"{end:.2f}" for end in (values.min(), values.max())]
    if ends[0] == ends[1]:
        return ends[0]
    pairs = list(zip(values.index, texts, strict=True))
    where = [layer_names([layer for layer, text in pairs if text == end]) for end in ends]
    return f"{ends[0]} ({where[0]}) to {ends[1]} ({where[1]})"
