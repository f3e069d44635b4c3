"""Tables with the numbers of a small trained model, and deep or odd variants of them.

They are flat: a column a number. ``flat.tidied`` makes of them what a run holds.
"""

import numpy as np
import pandas as pd

from normprobe.measurements.layers.assumptions import assumptions_table
from normprobe.schema import TOKEN_METRICS
from normprobe.tidy import QUANTILES, QUANTITY, tidy
from support.flat import tidied

VISUAL_NORM = [16.53, 16.52, 16.51, 16.55, 16.7, 16.8, 16.9]
TEXT_NORM = [0.2911, 1.5, 2.4, 3.6, 5.0, 6.0, 7.0]
VISUAL_ANGLE = [np.nan, 0.0316, 0.0632, 0.0632, 0.0633, 0.0775, 0.0894]
TEXT_ANGLE = [np.nan, 1.126, 0.660, 0.495, 0.377, 0.318, 0.284]

NASTY_TOKENS = [
    "<|im_start|>",
    " the",
    "\n\n",
    "\t\r",
    "[bold red]x[/]",
    "e\u0301",
    "\u202eabc",
    "漢字仮名交じり文の長いトークンです",
    "<0x0A>",
    "\x00\x1b[31m",
    '"',
    "$x_1^2$",
    ":smile:",
    "😀\u200d",
    "\ufffd",
    "nan",
    "שלום",
    " " * 60,
    "\\n",
    "🏳\ufe0f\u200d🌈",
]


def layer_rows(group, norms, angles, *, tokens=3584, samples=56, spread=0.2, special=1.0):
    norms, angles = np.asarray(norms, float), np.asarray(angles, float)
    table = {
        "layer": range(len(norms)),
        "group": group,
        "hidden_size": 128,
        "tokens": tokens,
        "samples": samples,
        "nonfinite": 0,
    }
    means = {
        "norm": norms,
        "cosine": np.cos(angles),
        "angle": angles,
        "update_norm": norms * angles,
        "relative_update": np.tan(angles),
        "update_angle": angles * 0 + 1.4,
    }
    for metric in TOKEN_METRICS:
        table[f"{metric}_mean"] = means[metric]
        table[f"{metric}_std"] = np.abs(means[metric]) * spread
        table[f"{metric}_sample_mean"] = means[metric]
        table[f"{metric}_sample_std"] = np.abs(means[metric]) * spread / 4
    for name, level in QUANTILES.items():
        factor = 1 + spread * 1.8 * (2 * level - 1)
        table[f"norm_{name}"] = norms * factor
        table[f"angle_{name}"] = angles * factor
        table[f"cosine_{name}"] = np.cos(angles * (1 + spread * 1.8 * (1 - 2 * level)))
    table["rms_mean"] = norms / np.sqrt(128)
    table["pooled_cosine_mean"] = np.cos(angles)
    table["pooled_cosine_std"] = 0.001
    table["angle_below_resolution"] = False
    return pd.DataFrame(table)


def layers(depth=6):
    """layers.csv; deeper models stretch the same curves."""
    at = np.linspace(0, 6, depth + 1)

    def stretch(values):
        return np.interp(at, range(7), values)

    def angle(values):
        return np.concatenate([[np.nan], stretch([values[1], *values[1:]])[1:]])

    return with_ratios(
        layer_rows("visual", stretch(VISUAL_NORM), angle(VISUAL_ANGLE)),
        layer_rows("structural", stretch(TEXT_NORM) * 1.7, angle(TEXT_ANGLE) * 0.8, tokens=56),
        layer_rows("special", stretch(TEXT_NORM) * 3, angle(TEXT_ANGLE) * 0.5, tokens=112),
        layer_rows("text", stretch(TEXT_NORM), angle(TEXT_ANGLE), tokens=1630),
        layer_rows("non_visual", stretch(TEXT_NORM) * 1.1, angle(TEXT_ANGLE), tokens=1742),
    )


def tower():
    """tower.csv, tidy: six blocks whose fifth makes two patches of a picture loud."""
    flat = layers()
    made = tidied("layers", flat[flat["group"].isin(("visual", "special"))])
    made = made[~made[QUANTITY].str.contains("ratio")]
    cells = made[["layer", "group"]].drop_duplicates(ignore_index=True)
    visual, late = cells["group"] == "visual", cells["layer"] >= 5
    numbers = {
        "high_norm_a_picture": 2.0 * (visual & late),
        "peak": 4.0 + 800.0 * (visual & late) + cells["layer"],
        "inner_peak": np.where(cells["layer"] > 0, 9.0 + 30_000 * (visual & late), np.nan),
    }
    more = tidy(cells, {name: {"mean": values} for name, values in numbers.items()})
    return pd.concat([made, more], ignore_index=True)


def shares():
    """shares.csv, tidy: visual tokens get most attention in the middle layers."""
    layer = np.arange(1, 7)
    share = np.array([0.21, 0.34, 0.52, 0.55, 0.4, 0.3])
    means = {
        "share": share,
        "even_share": np.full(6, 0.61),
        "share_to_even": share / 0.61,
        "share_of_content": share / (share + 0.12),
        "entropy": 0.98 - share / 4,
        "visual_key_norm": 9 + layer,
        "text_key_norm": 12 + layer / 2,
        "key_norm_ratio": (9 + layer) / (12 + layer / 2),
    }
    numbers = {
        name: {"mean": mean, "low": 0.95 * mean, "high": 1.04 * mean}
        for name, mean in means.items()
    }
    return tidy(pd.DataFrame({"layer": layer, "samples": 24}), numbers)


def nearest():
    """nearest.csv, tidy: visual tokens are near words in the middle, near none at the end."""
    layer = np.arange(7)
    above = np.array([0.05, 0.09, 0.3, 0.42, 0.2, 0.06, 0.0])
    means = {
        "nearest_cosine": 0.3 + above / 4,
        "permuted_cosine": np.full(7, 0.29),
        "text_cosine": np.array([1.0, 0.4, 0.36, 0.35, 0.33, 0.3, 0.28]),
        "above_chance": above,
        "chance": np.full(7, 3 / 65),
        "to_chance": above * 65 / 3,
    }
    numbers = {
        name: {"mean": mean, "low": 0.95 * mean, "high": 1.04 * mean}
        for name, mean in means.items()
    }
    return tidy(pd.DataFrame({"layer": layer, "samples": 24}), numbers)


def follow():
    """follow.csv, tidy: a register of the tower stays loud and is attended to in the middle."""
    groups = {"visual": 1.0, "loudest_1": 9.0, "loudest_2": 6.0, "loudest_5": 3.0, "quiet": 0.9}
    stages = [("tower", block) for block in range(4)] + [("projector", 0)]
    stages += [("decoder", layer) for layer in range(5)]
    rows = []
    for place, (stage, layer) in enumerate(stages):
        for group, louder in groups.items():
            norm = 10 * louder ** min(1.0, place / 3) + layer
            rows.append((stage, layer, group, "norm", norm))
            if stage == "decoder" and layer and group in ("loudest_1", "loudest_2", "loudest_5"):
                rows.append((stage, layer, group, "attention_to_quiet", louder ** (layer / 4)))
        if stage == "decoder":
            rows.append((stage, layer, "text", "norm", 1.0 + 2 * layer))
    table = pd.DataFrame(rows, columns=["stage", "layer", "group", "quantity", "mean"])
    return table.assign(low=0.93 * table["mean"], high=1.06 * table["mean"], samples=24)


def with_ratios(*groups):
    """The rows of some groups below each other, with their ratios to the text."""
    table = pd.concat(groups, ignore_index=True)
    text = table[table["group"] == "text"].set_index("layer")
    for metric in ("norm", "angle"):
        beside = table["layer"].map(text[f"{metric}_mean"])
        table[f"{metric}_ratio_to_text"] = table[f"{metric}_mean"] / beside
        # Tokens of one size: all means are the same.
        table[f"{metric}_geometric_mean"] = table[f"{metric}_mean"]
        table[f"{metric}_geometric_ratio_to_text"] = table[f"{metric}_ratio_to_text"]
    return table


def theory(depth=6, **changed):
    """theory.csv of a model whose visual tokens turn to the text in its last layers.

    Args:
        depth: how many layers.
        changed: columns with other numbers, one number or one a layer from 0 on.
    """
    layer = np.arange(depth + 1)
    moved = np.where(layer > 0, 1.0, np.nan)
    numbers = {
        "cross_modal_cosine_mean": 0.4 * 0.95**layer,
        "retention_mean": moved * 0.8,
        "predicted_cross_modal_cosine_mean": moved * 0.4 * 0.95 ** (layer - 1.0) * 0.8,
        "cosine_residual_mean": moved * 0.4 * 0.95 ** (layer - 1.0) * 0.15,
        "compounded_cross_modal_cosine_mean": 0.4 * 0.8**layer,
        "lag_angle_mean": 0.02 * layer,
        "visual_turn_to_text_mean": moved * 0.02 * layer,
        "text_turn_to_visual_mean": moved * -0.01,
        "turn_to_turn_mean": moved * 0.02,
        "norm_ratio": 80.0 / (1 + 5 * layer),
        "update_norm_ratio": moved * 0.7,
        "update_angle_difference": moved * 0.25,
        "angle_ratio": moved * 8.0,
        "predicted_angle_ratio": moved * 5.0,
        "angle_ratio_error": moved * 1.6,
    }
    for name, visual, text in (
        ("update_norm_cv", 0.1, 0.4),
        ("update_norm_correlation", -0.1, 0.5),
        ("update_angle_mean", 1.45, 1.2),
        ("update_angle_std", 0.05, 0.2),
        ("norm_angle_correlation", -0.8, -0.3),
        ("norm_angle_slope", -0.9, -0.3),
        ("predicted_norm_angle_slope", -0.95, -0.8),
        ("log_norm_std", 0.2, 0.2),
    ):
        numbers |= {f"{name}_visual": moved * visual, f"{name}_text": moved * text}
    numbers |= {name: moved * value for name, value in changed.items()}
    counts = {"layer": layer, "hidden_size": 128, "samples": 56}
    counts |= {"lag_angle_samples": 56, "nonfinite": 0}
    # A tenth of a percent either side: far from the end of any range.
    around = {
        f"{name}_{ends}_{end}": values + way * 1e-3 * np.abs(values)
        for name, values in numbers.items()
        for ends in ("ci", "band")
        for end, way in (("low", -1), ("high", 1))
    }
    return pd.DataFrame({**counts, **numbers, **around})


def assumptions(theory):
    """assumptions.csv of a flat theory.csv."""
    return assumptions_table(tidied("theory", theory))


def accounted(depth=6):
    """accounted.csv: norms account for most, update sizes for some, update angles go against it."""
    layer = np.arange(1, depth + 1)
    ratio = 9.0 / layer
    numbers = {"angle_ratio": ratio}
    for part, share in (
        ("norm", 0.8),
        ("update_norm", 0.3),
        ("update_angle", -0.15),
        ("rest", 0.05),
    ):
        numbers |= {f"log_{part}": share * np.log(ratio), f"{part}_share": share + 0 * ratio}
    numbers["norm_share_absolute"] = 0.75 + 0 * ratio
    numbers |= {"visual_angle": 0.16 / layer, "text_angle": 1.5 / layer**1.5}
    numbers["visual_angle_at_text_norm"] = 1.2 / layer**1.5
    table = pd.DataFrame({"scope": "layer", "layers": layer.astype(str), "samples": 56, **numbers})
    together = table.iloc[[0]].assign(scope="slower", layers=f"1-{depth}")
    table = pd.concat([table, together], ignore_index=True)
    for name in numbers:
        table[f"{name}_ci_low"] = table[name] - 1e-2 * table[name].abs()
        table[f"{name}_ci_high"] = table[name] + 1e-2 * table[name].abs()
    return table


def turns(depth=6):
    """Two more turns whose pictures enter quieter than those of the first, and turn faster."""
    rows = []
    for layer in range(depth + 1):
        for turn in (1, 2, 3):
            row = {"layer": layer, "turn": turn, "group": "visual", "tokens": 3584, "samples": 56}
            row["samples_with_first_turn"] = 56
            numbers = {"norm_mean": 80.0 / turn, "angle_mean": 0.05 * turn}
            numbers |= {"norm_geometric_ratio_to_first_turn": 1 / turn}
            numbers |= {"angle_geometric_ratio_to_first_turn": float(turn) if layer else np.nan}
            for name, number in numbers.items():
                row |= {
                    name: number,
                    f"{name}_ci_low": 0.9 * number,
                    f"{name}_ci_high": 1.1 * number,
                }
            rows.append(row)
    return pd.DataFrame(rows)


def branches(depth=6):
    """Attention writes alike into both modalities, the MLP less into visual tokens."""
    norms = {"visual": VISUAL_NORM, "text": TEXT_NORM}
    added = {("attention", "visual"): 2.5, ("attention", "text"): 2.4}
    added |= {("mlp", "visual"): 1.0, ("mlp", "text"): 3.0}
    rows = []
    for (branch, group), size in added.items():
        for layer in range(1, depth + 1):
            relative = size / norms[group][(layer - 1) % len(VISUAL_NORM)]
            row = {"layer": layer, "branch": branch, "group": group, "tokens": 3584, "samples": 56}
            means = {"update_norm": size, "relative_update": relative, "angle": np.arctan(relative)}
            for metric, mean in means.items():
                row |= {f"{metric}_mean": mean, f"{metric}_std": 0.2 * mean}
                row |= {f"{metric}_mean_ci_low": 0.9 * mean, f"{metric}_mean_ci_high": 1.1 * mean}
            for metric, ratio in (("update_norm", size / added[branch, "text"]), ("angle", 0.5)):
                for column in (f"{metric}_ratio_to_text", f"{metric}_geometric_ratio_to_text"):
                    row[column] = ratio if group == "visual" else 1.0
                    row[f"{column}_ci_low"] = 0.9 * ratio
                    row[f"{column}_ci_high"] = 1.1 * ratio
            rows.append(row)
    return pd.DataFrame(rows)


def interface():
    prompt, table = 0.2911, 0.2203
    rows = [
        ("vision_encoder", "visual", 192, 3584, 28.21, 4.1),
        ("vision_encoder", "special", 192, 56, 41.9, 0.3),
        ("projector_input", "visual", 192, 3584, 28.21, 4.1),
        ("projector_output", "visual", 128, 3584, 16.53, 2.2),
        ("decoder_input", "visual", 128, 3584, 16.53, 2.2),
        ("decoder_input", "special", 128, 112, 0.2410, 0.02),
        ("decoder_input", "text", 128, 1630, prompt, 0.06),
        ("text_embedding_table", "all_rows", 128, 512, 0.1880, 0.09),
        ("text_embedding_table", "nonzero_rows", 128, 437, table, 0.05),
        ("text_embedding_table", "tokenizer_rows", 128, 437, table, 0.05),
        ("text_embedding_table", "prompt_rows", 128, 88, prompt, 0.06),
        ("effective_embedding", "all_rows", 128, 512, 0.1880, 0.09),
        ("effective_embedding", "nonzero_rows", 128, 437, table, 0.05),
        ("effective_embedding", "tokenizer_rows", 128, 437, table, 0.05),
        ("effective_embedding", "prompt_rows", 128, 88, prompt, 0.06),
    ]
    frame = pd.DataFrame(
        rows, columns=["stage", "group", "hidden_size", "tokens", "norm_mean", "norm_std"]
    )
    frame["samples"] = np.where(frame["group"].str.endswith("rows"), np.nan, 56)
    frame["nonfinite"] = 0
    frame["norm_sample_mean"] = frame["norm_mean"]
    frame["norm_sample_std"] = frame["norm_std"] / 4
    for name, level in QUANTILES.items():
        frame[f"norm_{name}"] = frame["norm_mean"] + frame["norm_std"] * 1.6 * (2 * level - 1)
    frame["rms_mean"] = frame["norm_mean"] / np.sqrt(frame["hidden_size"])
    frame["norm_geometric_mean"] = frame["norm_mean"]
    frame["ratio_to_table"] = frame["norm_mean"] / table
    frame["ratio_to_prompt"] = frame["norm_mean"] / prompt
    frame["ratio_to_before_projector"] = frame["norm_mean"] / frame["norm_mean"].iloc[0]
    for column in ("ratio_to_prompt", "ratio_to_before_projector"):
        frame[f"geometric_{column}"] = frame[column]
    return frame


def embedding_norms(table="text"):
    random = np.random.default_rng(0)
    if table == "visual":
        return random.normal(64.0, 0.71, 65536)
    body = random.gamma(60, 0.86 / 60, 151000)
    return np.concatenate([body, np.linspace(1.9, 4.02, len(NASTY_TOKENS))])


def embeddings(*names):
    rows = []
    for name in names or ("text",):
        norms = embedding_norms(name)
        quantiles = {f"norm_{q}": np.quantile(norms, level) for q, level in QUANTILES.items()}
        for scope in ("all_rows", "nonzero_rows", "tokenizer_rows")[: 3 if name == "text" else 2]:
            rows.append(
                {
                    "table": name,
                    "rows": scope,
                    "count": len(norms),
                    "hidden_size": 3584,
                    "norm_mean": norms.mean(),
                    "norm_std": norms.std(),
                    "norm_min": norms.min(),
                    **quantiles,
                    "norm_max": norms.max(),
                    "rms_mean": norms.mean() / np.sqrt(3584),
                }
            )
    return pd.DataFrame(rows)


def tokens(*names):
    frames = []
    for name in names or ("text",):
        top = np.sort(embedding_norms(name))[::-1][: len(NASTY_TOKENS)]
        bottom = np.sort(embedding_norms(name))[: len(NASTY_TOKENS)]
        for end, norms in (("top", top), ("bottom", bottom)):
            frames.append(
                pd.DataFrame(
                    {
                        "table": name,
                        "end": end,
                        "rank": range(1, len(norms) + 1),
                        "token_id": 151643 - np.arange(len(norms)),
                        "token": NASTY_TOKENS if name == "text" else "",
                        "special": [name == "text" and i in (0, 8) for i in range(len(norms))],
                        "norm": norms,
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


def histogram(*names):
    frames = []
    for name in names or ("text",):
        norms = embedding_norms(name)
        counts, edges = np.histogram(norms, bins=60)
        frames.append(
            pd.DataFrame(
                {
                    "table": name,
                    "special": False,
                    "left": edges[:-1],
                    "right": edges[1:],
                    "count": counts,
                }
            )
        )
        if name == "text":
            counts, _ = np.histogram([0.61, 0.7, 0.72, 4.02, 3.1], bins=edges)
            frames.append(frames[-1].assign(special=True, count=counts))
    return pd.concat(frames, ignore_index=True)


def attention(layers=7, queries=("all text", "red cup"), target=True):
    """``attention.csv``; layer 2 has no softmax attention."""
    rows = []
    for layer in range(1, layers + 1):
        for place, query in enumerate(queries):
            row = {
                "layer": layer,
                "query": query,
                "heads": 8,
                "tokens": 12,
                "visual_tokens": 24,
                "share_mean": 0.6 / (layer + place),
                "share_std": 0.05,
                "even_share_mean": 0.9,
                "entropy_mean": 0.8 - 0.01 * layer,
                "entropy_std": 0.1,
                "signal_to_noise": 1.5 + layer / 3 if target else np.nan,
                "score_gap": 0.25 * layer if target else np.nan,
                "vertical_center": 0.5 + 0.02 * layer,
                "even_vertical_center": 0.5,
            }
            if layer == 2:
                row |= {name: np.nan for name in list(row)[4:]} | {"heads": 0}
            rows.append(row)
    return pd.DataFrame(rows)


def grounding(layers=4, intervals=True):
    """``grounding.csv``: gaps below, about and above zero, no score at the decoder input."""
    rows = []
    for layer in range(layers + 1):
        row = {"layer": layer, "samples": 14, "score_samples": 14 * (layer > 0)}
        for quantity, scale in (("cosine", 0.02), ("score", 0.4)):
            gap = scale * (layer - 1) if layer or quantity == "cosine" else np.nan
            means = {"inside": 0.3 + gap, "outside": 0.3, "gap": gap}
            row |= {f"{quantity}_{side}": mean for side, mean in means.items()}
            if intervals:
                for side, mean in means.items():
                    row[f"{quantity}_{side}_ci_low"] = mean - scale / 2
                    row[f"{quantity}_{side}_ci_high"] = mean + scale / 2
                row[f"{quantity}_gap_band_low"] = gap - scale / 2
                row[f"{quantity}_gap_band_high"] = gap + scale / 2
        rows.append(row)
    return pd.DataFrame(rows)


def heads(layers=4, heads=8, queries=("all text", "red cup")):
    """``heads.csv``; one head gives the image nothing."""
    layer, query, head = (part.ravel() for part in np.indices((layers, len(queries), heads)))
    share = 0.1 + 0.1 * head / heads + 0.02 * layer
    quiet = (layer == 1) & (head == 3)
    return pd.DataFrame(
        {
            "layer": layer + 1,
            "query": [queries[place] for place in query],
            "head": head + 1,
            "share_mean": np.where(quiet, 0.0, share + 0.3 * query),
            "share_std": 0.05,
            "entropy_mean": np.where(quiet, np.nan, 0.9 - 0.05 * head),
            "vertical_center": np.where(quiet, np.nan, 0.4 + 0.03 * head),
        }
    )


def heatmaps(layers=(2, 4, 7), queries=("all text", "red cup"), rows=4, columns=6):
    """``heatmaps.csv``, without the left and right sixth of the image."""
    tables = []
    row, column = np.divmod(np.arange(rows * columns), columns)
    for layer in layers:
        for query in queries:
            places = pd.DataFrame({"layer": layer, "query": query, "left": 1 / 6 + column / 9})
            places["top"] = row / rows
            places["right"] = places["left"] + 1 / 9
            places["bottom"] = places["top"] + 1 / rows
            places["attention"] = (1 + (row * column + layer) % 5) / 300
            tables.append(places)
    return pd.concat(tables, ignore_index=True)


def norm_map(column="layer", places=(0, 4, 8), pictures=2, rows=4, columns=6):
    """``map.csv``, without the left and right sixth of the pictures; a loud token is padding."""
    tables = []
    row, col = np.divmod(np.arange(rows * columns), columns)
    for number in range(1, pictures + 1):
        for depth, place in enumerate(places):
            table = pd.DataFrame(
                {"visual_token": 1 + np.arange(rows * columns), "left": 1 / 6 + col / 9}
            )
            table.insert(0, column, place)
            table.insert(0, "image", number)
            table.insert(0, "sample_id", f"mmbench/a-long-name-{number}")
            table["top"] = row / rows
            table["right"] = table["left"] + 1 / 9
            table["bottom"] = table["top"] + 1 / rows
            table.loc[3, "bottom"] = table.loc[3, "top"]
            table["norm"] = 3.0 * (1 + (row * col + number) % 5) * (depth + 1)
            table.loc[3, "norm"] = 90.0
            if column == "layer":
                table["angle"] = np.nan if depth == 0 else 0.9 / table["norm"]
            tables.append(table)
    return pd.concat(tables, ignore_index=True)


def shift(rows=3000, distances=True):
    """shift.csv of a model with two loud tokens that its base lacks."""
    random = np.random.default_rng(1)
    names = [f" word{i}" for i in range(rows)]
    names[:20] = NASTY_TOKENS
    base_norm = random.gamma(60, 0.69 / 60, rows)
    norm = base_norm * random.normal(1.05, 0.05, rows)
    base_norm[-2:], norm[-2:] = np.nan, [2.459, 2.332]
    names[-2:] = ["<|vision_start|>", "<|vision_end|>"]
    norm[40], base_norm[41] = np.nan, 1.4
    table = pd.DataFrame(
        {
            "token": names,
            "token_id": np.where(np.isnan(norm), np.nan, np.arange(rows)),
            "base_id": np.where(np.isnan(base_norm), np.nan, np.arange(rows)),
            "special": [i in (0, rows - 1, rows - 2) for i in range(rows)],
            "visual_token": [i >= rows - 2 for i in range(rows)],
            "norm": norm,
            "base_norm": base_norm,
        }
    ).astype({"token_id": "Int64", "base_id": "Int64"})
    table["rank"] = table["norm"].rank(ascending=False)
    table["base_rank"] = table["base_norm"].rank(ascending=False)
    table["norm_change"] = table["norm"] - table["base_norm"]
    table["distance"] = table["norm_change"].abs() + 0.01 if distances else np.nan
    table["cosine"] = 0.99 if distances else np.nan
    table["emerging"] = table["rank"].le(10) & ~table["base_rank"].le(10)
    return table


def visual_histogram():
    """histogram.csv of an interface run on a model with a visual table."""
    random = np.random.default_rng(2)
    norms = {
        "visual table rows": random.normal(64, 0.7, 5000),
        "visual tokens": random.normal(20, 3, 800),
        "text table rows": random.normal(1.4, 0.3, 5000),
        "text tokens": random.normal(1.2, 0.3, 400),
        "probabilities": random.uniform(0.2, 1.0, 800),
    }
    frames = []
    for source, values in norms.items():
        bins, counts = np.unique(
            np.floor(np.log(values[values > 0]) / np.log(1.02)), return_counts=True
        )
        left = 1.02**bins
        frames.append(
            pd.DataFrame({"source": source, "left": left, "right": left * 1.02, "count": counts})
        )
    return pd.concat(frames, ignore_index=True)
