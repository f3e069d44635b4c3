"""Is inertia what alignment mends? ``python -m experiments.cause --output DIR``.

Trains the specimen without and with an aligned norm, as ``norm_alignment`` does, then intervenes on
the visual tokens of both: what freezing them costs, and what making them as loud as text does. Runs
that the results file holds already are not repeated. ``README.md`` reports one such run.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from experiments.norm_alignment import ALIGNED, NO_NORM, language_weights, run_variant
from experiments.specimen.pretrain_language import build_tokenizer
from experiments.specimen.training import TrainingLog
from normprobe import Probe
from normprobe.report.ratio_words import Estimate
from normprobe.tidy import QUANTITY, keys_of

RESULTS_FILE = "cause.csv"
VARIANTS = (NO_NORM, ALIGNED)
#: As ``norm_alignment`` trains: language model, projector, both.
STEPS = (350, 60, 200)
#: Names of columns in the results file, which were once those of cause.csv; and their order.
NAMES = {
    "mean": "effect",
    "low": "effect_ci_low",
    "high": "effect_ci_high",
    "band_low": "effect_band_low",
    "band_high": "effect_band_high",
}
KEPT = ("samples", "untouched", "value", *NAMES.values(), "off_map", "variant", "seed")
DONE = ("scale", "scale-to-text", "norm-at-layer", "freeze", "swap-norms", "permute", "blank")

#: Rows of the report: an intervention, its dose, and what of it.
REPORTED = (
    ("norm-at-layer", None, "share_removed"),
    ("scale-to-text", None, "share_removed"),
    ("freeze", None, "nll"),
    ("freeze", None, "accuracy"),
    ("permute", None, "accuracy"),
    ("scale", 0.5, "nll"),
    ("scale", 2.0, "nll"),
    ("blank", None, "accuracy"),
)


def measured(variant: str, seed: int, folder: Path) -> pd.DataFrame:
    """The rows of the whole model of one checkpoint, with its variant and seed."""
    found = Probe(folder).measure("cause", do=DONE, batch_size=8).table
    whole = found[found[QUANTITY].isin({quantity for _, _, quantity in REPORTED})]
    told = whole.rename(columns=NAMES).assign(variant=variant, seed=seed)
    return told[[*keys_of(found), QUANTITY, *KEPT]]


def report(results: pd.DataFrame) -> str:
    """The results as Markdown: by variant and seed, with 95 % intervals over pictures."""
    runs = [(v, s) for v in VARIANTS for s in sorted(results["seed"].unique())]
    lines = [
        f"| effect, 95 % interval over pictures | {' | '.join(f'{v}, {s}' for v, s in runs)} |"
    ]
    lines.append("|---|" + "---:|" * len(runs))
    for name, dose, quantity in (("untouched", None, "accuracy"), *REPORTED):
        cells = [_cell(results, run, name, dose, quantity) for run in runs]
        what = name if dose is None else f"{name} {dose:g}"
        lines.append(f"| {what}: {quantity.replace('_', ' ')} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(
    results: pd.DataFrame, run: tuple[str, int], name: str, dose: float | None, quantity: str
) -> str:
    of_run = results[(results["variant"] == run[0]) & (results["seed"] == run[1])]
    rows = of_run[of_run["quantity"] == quantity]
    if name == "untouched":
        return f"{rows['untouched'].iloc[0]:.3f}"
    rows = rows[rows["intervention"] == name]
    rows = rows if dose is None else rows[rows["dose"] == dose]
    if rows.empty:  # of angles that hardly differ there is no share
        return "-"
    row = rows.iloc[0]
    effect = Estimate(*row[["effect", "effect_ci_low", "effect_ci_high"]].astype(float))
    return f"{effect.value:.3f} [{effect.low:.3f}, {effect.high:.3f}]"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Intervene on the specimen with and without norm.")
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seeds", type=int, default=3, choices=range(1, 11), metavar="1..10")
    parser.add_argument("--steps", type=int, nargs=3, default=STEPS, help="of the three stages")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.output.mkdir(parents=True, exist_ok=True)
    results_file: Path = options.output / RESULTS_FILE
    results = pd.read_csv(results_file) if results_file.exists() else pd.DataFrame()
    log = TrainingLog(options.output / "training_log.jsonl")
    tokenizer = build_tokenizer(0)
    language = language_weights(options.output, tokenizer, options.steps[0], log)
    for seed in range(options.seeds):
        for variant in VARIANTS:
            if len(results) and ((results.variant == variant) & (results.seed == seed)).any():
                continue
            folder = options.output / f"{variant.replace(' ', '-')}-{seed}"
            steps = (options.steps[1], options.steps[2])
            run_variant(variant, seed, language, tokenizer, steps, 2, log, keep=folder)
            results = pd.concat([results, measured(variant, seed, folder)], ignore_index=True)
            results.to_csv(results_file, index=False, float_format="%.6g")
    sys.stdout.write(report(results))


if __name__ == "__main__":
    main()
