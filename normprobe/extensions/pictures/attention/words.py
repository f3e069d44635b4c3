"""What attention.csv says."""

import pandas as pd

from normprobe.report.ratio_words import Ratio, Words
from normprobe.report.sentences import LayerPhrases, layer_findings, layer_names, layers_headline
from normprobe.report.verdict import Finding, Verdict, verdict_of
from normprobe.runs.run_folder import RunStore
from normprobe.tidy import select, wide

_SPREAD = LayerPhrases(
    "share",
    "Visual tokens get more attention than an even spread would give",
    "Visual tokens get less attention than an even spread would give",
    "Attention to visual tokens and an even spread",
)
_BOX = LayerPhrases(
    "box",
    "A visual token inside the box gets more attention than one outside",
    "A visual token inside the box gets less attention than one outside",
    "Attention to visual tokens inside and outside the box",
)
_SHOWN = ["share", "even_share", "entropy", "signal_to_noise", "score_gap"]


def verdict(run: RunStore) -> Verdict:
    """What the attention to the image says."""
    return attention_verdict(run.table("attention"))


def attention_verdict(attention: pd.DataFrame) -> Verdict:
    """How much attention of the text reaches the image, how widely it spreads, how well it aims."""
    rows = wide(attention[attention["query"] == attention["query"].iloc[0]]).set_index("layer")
    rows = rows[rows["heads"] > 0].reindex(columns=_SHOWN)
    headline, spread = _share(rows)
    return verdict_of(headline, [*spread, _entropy(rows), *_box(rows)], "One prompt, no intervals.")


def focused_and_wide(attention: pd.DataFrame) -> list[int]:
    """The two layers that the sentence names: where text looks most narrowly and most widely."""
    rows = select(attention, "entropy", query=attention["query"].iloc[0]).dropna(subset="mean")
    if rows.empty:
        return []
    ends = rows["mean"].argmin(), rows["mean"].argmax()
    return sorted({int(rows["layer"].iloc[end]) for end in ends})


def _share(rows: pd.DataFrame) -> tuple[str, list[Finding]]:
    """The headline, and how the share compares with an even spread."""
    share, even = rows["share"].dropna(), rows["even_share"]
    if share.empty:
        return "", []
    if even.eq(1).all():
        return (
            f"In {layer_names(list(rows.index))} text attends to visual states alone "
            "(cross-attention): that they get all of it is no finding.",
            [],
        )
    ratios = {layer: Ratio(share.get(layer, float("nan")) / even[layer]) for layer in rows.index}
    told, _ = layers_headline(ratios, "", Words("more", "less"), "an even spread")
    spread = f", {told}" * bool(told)
    headline = f"Text gives {_percent(share)} of its attention to visual tokens{spread}."
    alone = Finding("even", f"An even spread would give visual tokens {_percent(even.dropna())}.")
    return headline, [*layer_findings(ratios, _SPREAD), *([alone] if told else [])]


def _entropy(rows: pd.DataFrame) -> Finding:
    entropy = rows["entropy"].dropna()
    told = (
        f"Entropy of attention over visual tokens: {_ends(entropy)} of 1." if len(entropy) else ""
    )
    return Finding("entropy", told)


def _box(rows: pd.DataFrame) -> list[Finding]:
    """What the box draws."""
    ratios = {layer: Ratio(rows["signal_to_noise"][layer]) for layer in rows.index}
    found, gap = layer_findings(ratios, _BOX), rows["score_gap"].dropna()
    if found and len(gap):
        told = f"Score before the softmax, inside less outside: {_ends(gap)}."
        found.append(Finding("box.score", told))
    return found


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
