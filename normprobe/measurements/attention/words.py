"""What attention.csv says, in sentences."""

import pandas as pd

from normprobe.report.significant import significant
from normprobe.runs.run_store import RunStore


def verdict(run: RunStore) -> str:
    """What the attention to the image says."""
    return attention_verdict(run.table("attention"))


def attention_verdict(attention: pd.DataFrame) -> str:
    """How much attention of the text reaches the image, how widely it spreads, how well it aims.

    Args:
        attention: ``attention.csv``; its first query, all text, is told.

    Returns:
        E.g. "Text gives 12 % of its attention to visual tokens (even attention: 88 %), most in
        layer 2 (31 %). Its entropy over them is 0.71 of the possible."
    """
    rows = attention[attention["query"] == attention["query"].iloc[0]].set_index("layer")
    rows = rows[rows["heads"] > 0]
    share = rows["share_mean"]
    if share.empty:
        return ""
    sentence = f"Text gives {share.mean():.0%} of its attention to visual tokens"
    if (rows["even_share_mean"] < 1).any():  # cross-attention sees nothing else
        sentence += (
            f" (spread evenly: {rows['even_share_mean'].mean():.0%}), most in layer "
            f"{share.idxmax()} ({share.max():.0%})"
        )
    sentences = [sentence]
    entropy = rows["entropy_mean"].dropna()
    if len(entropy):
        sentences.append(
            f"Over them it is most focused in layer {entropy.idxmin()} (entropy "
            f"{entropy.min():.2f} of 1)"
        )
    target = rows["signal_to_noise"].dropna()
    if len(target):
        sentences.append(
            f"A token inside the box draws {significant(float(target.mean()), 2)} x the attention "
            f"of one outside, at best {significant(float(target.max()), 2)} x in layer "
            f"{target.idxmax()}"
        )
    return ". ".join(sentences) + "."
