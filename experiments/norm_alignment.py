"""Does norm alignment help the specimen? ``python -m experiments.norm_alignment``.

The paper's four variants (Tables 4 and 5, Figure 4) from one pretrained vision encoder and one
pretrained language model, each with the same seeds, scenes and steps: no norm, a norm as PyTorch
initialises it, an aligned norm, an aligned norm with Global Weight Compensation. Runs that the
results file holds already are not repeated. ``README.md`` beside this file reports one such run.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from experiments.specimen.accuracy import held_out_items, score
from experiments.specimen.architecture import build_language_model, join
from experiments.specimen.evaluate import NORM_PROMPTS_PER_KIND, load
from experiments.specimen.finetune import align_projector, answer_loss, ask_caption, finetune
from experiments.specimen.norms import measure_norms
from experiments.specimen.packing import Encoder
from experiments.specimen.pretrain_language import build_tokenizer, pretrain_language
from experiments.specimen.training import TrainingLog
from normprobe.model.align.norm import insert_norm, inserted_norm
from normprobe.model.find.structure import find_parts
from normprobe.specimen import SPECIMEN_DIR
from normprobe.statistics.weights import norm_statistics, row_norms

NO_NORM, DEFAULT, ALIGNED, COMPENSATED = "no norm", "default init", "aligned", "aligned + GWC"
VARIANTS = (NO_NORM, DEFAULT, ALIGNED, COMPENSATED)

RESULTS_FILE = "norm_alignment.csv"
COLUMNS = ["variant", "seed", "quantity", "layer", "value"]

#: Two-sided 95 % points of Student's t, by degrees of freedom.
_T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}

#: Quantities of the report, and how they are named there.
REPORTED = {
    "accuracy": "held-out accuracy",
    "accuracy_shuffled": "same, images shuffled",
    "gradient_vision_encoder": "gradient, vision encoder, first step",
    "gradient_projector": "gradient, projector, first step",
    "gradient_projector_stage_1": "gradient, projector, after stage 1",
    "gain_l2": "gain after stage 1, L2 norm",
    "gain_mean_abs": "gain after stage 1, mean of abs.",
    "gain_start": "gain at the start",
    "gain_mean_abs_change": "gain, mean abs. change in stage 1",
    "bias_mean_abs": "bias after stage 1, mean of abs.",
}


def run_variant(
    variant: str,
    seed: int,
    language: dict[str, torch.Tensor],
    tokenizer: Any,
    steps: tuple[int, int],
    items_per_kind: int,
    log: TrainingLog,
    keep: Path | None = None,
) -> pd.DataFrame:
    """Train and measure one variant.

    Args:
        variant: one of ``VARIANTS``.
        seed: of the projector's weights and of the scenes; the same for every variant.
        language: weights of the pretrained language model.
        tokenizer: its tokenizer.
        steps: of stage 1 (projector) and stage 2 (projector and language model).
        items_per_kind: test items of each question kind.
        log: where progress goes.
        keep: a folder for the trained checkpoint; None: it is not kept.

    Returns:
        The rows of the results file.
    """
    specimen, processor = load(SPECIMEN_DIR)
    decoder = build_language_model(len(tokenizer))
    decoder.load_state_dict(language)
    vision = specimen.model.vision_tower
    torch.manual_seed(seed)
    model: Any = join(vision, decoder)
    _insert(model, variant)
    norm = inserted_norm(model)
    values: dict[tuple[str, int | None], float] = {}
    start = None if norm is None else norm.weight.detach().clone()
    for part, length in gradient_norms(model, tokenizer, seed).items():
        values[f"gradient_{part}", None] = length
    align_projector(model, tokenizer, steps[0], seed, log, also=norm)
    for part, length in gradient_norms(model, tokenizer, seed).items():
        values[f"gradient_{part}_stage_1", None] = length
    if norm is not None and start is not None:
        for _, row in norm_statistics(norm.weight, norm.bias).iterrows():
            values[f"{row['parameter']}_l2", None] = row["l2_norm"]
            values[f"{row['parameter']}_mean_abs", None] = row["mean_abs"]
        values["gain_start", None] = float(start.mean())
        values["gain_mean_abs_change", None] = float((norm.weight - start).abs().mean())
    finetune(model, tokenizer, steps[1], seed, log)
    model.eval()
    if keep is not None:
        model.save_pretrained(keep)
        processor.save_pretrained(keep)
    items = held_out_items(items_per_kind)
    scores = {kind: score(model, processor, group) for kind, group in items.items()}
    for kind, result in scores.items():
        values[f"accuracy_{kind}", None] = result.accuracy
    values["accuracy", None] = float(np.mean([s.accuracy for s in scores.values()]))
    values["accuracy_shuffled", None] = float(np.mean([s.shuffled for s in scores.values()]))
    prompts = [item for group in items.values() for item in group[:NORM_PROMPTS_PER_KIND]]
    profile = measure_norms(model, processor, prompts)
    for modality in ("visual", "text"):
        for layer, length in enumerate(getattr(profile, f"{modality}_norms")):
            values[f"{modality}_norm", layer] = length
        for layer, cosine in enumerate(getattr(profile, f"{modality}_cosines"), start=1):
            values[f"{modality}_cosine", layer] = cosine
    return pd.DataFrame(
        [(variant, seed, quantity, layer, value) for (quantity, layer), value in values.items()],
        columns=COLUMNS,
    ).astype({"layer": "Int64"})


def _insert(model: Any, variant: str) -> None:
    """The norm of a variant: gain 1, or the mean norm of the text table / sqrt(hidden) (Eq. 11)."""
    if variant == NO_NORM:
        return
    norms = row_norms(model.get_input_embeddings().weight)
    hidden = model.config.text_config.hidden_size
    aligned = float(norms[norms > 0].mean()) / math.sqrt(hidden)
    gain = 1.0 if variant == DEFAULT else aligned
    insert_norm(model, find_parts(model), gain, compensate=variant == COMPENSATED)


def gradient_norms(model: Any, tokenizer: Any, seed: int) -> dict[str, float]:
    """L2 norm of the gradient of the caption loss, by part, on a batch that no stage trains on.

    Args:
        model: the joined model, in training mode; its weights stay as they are.
        tokenizer: its tokenizer.
        seed: of the scenes.

    Returns:
        By part: ``vision_encoder``, ``projector``.
    """
    parts = {
        "vision_encoder": model.model.vision_tower,
        "projector": model.model.multi_modal_projector,
    }
    model.train()
    model.requires_grad_(True)
    loss, _ = answer_loss(model, Encoder(tokenizer), np.random.default_rng([seed, 50]), ask_caption)
    loss.backward()  # type: ignore[no-untyped-call]
    lengths = {name: _gradient_norm(part) for name, part in parts.items()}
    model.zero_grad(set_to_none=True)
    return lengths


def _gradient_norm(part: nn.Module) -> float:
    gradients = [w.grad.norm() for w in part.parameters() if w.grad is not None]
    return float(torch.stack(gradients).norm())


def report(results: pd.DataFrame) -> str:
    """The results as Markdown: means over seeds with 95 % intervals of Student's t.

    Args:
        results: of the results file, complete for each seed that is in it.
    """
    seeds = results["seed"].nunique()
    lines = [f"| mean over {seeds} seeds, 95 % interval | {' | '.join(VARIANTS)} |"]
    lines.append("|---|" + "---:|" * len(VARIANTS))
    for quantity, name in REPORTED.items():
        cells = [interval(_by_seed(results, variant, quantity)) for variant in VARIANTS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| accuracy against no norm, paired by seed | difference |", "|---|---:|"]
    baseline = _by_seed(results, NO_NORM, "accuracy")
    for variant in VARIANTS[1:]:
        gained = _by_seed(results, variant, "accuracy") - baseline
        lines.append(f"| {variant} | {interval(gained, sign='+')} |")
    gained = _by_seed(results, COMPENSATED, "accuracy") - _by_seed(results, ALIGNED, "accuracy")
    lines.append(f"| {COMPENSATED}, against {ALIGNED} | {interval(gained, sign='+')} |")
    for quantity, title in (("norm", "visual / text norm"), ("cosine", "visual / text cosine")):
        lines += ["", f"| layer: {title} | {' | '.join(VARIANTS)} |"]
        lines.append("|---:|" + "---:|" * len(VARIANTS))
        layers = sorted(results.loc[results["quantity"] == f"visual_{quantity}", "layer"].unique())
        for layer in layers:
            cells = []
            for variant in VARIANTS:
                visual, text = (
                    _by_seed(results, variant, f"{group}_{quantity}", layer).mean()
                    for group in ("visual", "text")
                )
                cells.append(f"{visual:.3g} / {text:.3g}")
            lines.append(f"| {layer} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _by_seed(
    results: pd.DataFrame, variant: str, quantity: str, layer: int | None = None
) -> "pd.Series[float]":
    chosen = results[(results["variant"] == variant) & (results["quantity"] == quantity)]
    if layer is not None:
        chosen = chosen[chosen["layer"] == layer]
    return chosen.set_index("seed")["value"]


def interval(values: "pd.Series[float]", sign: str = "") -> str:
    """Mean and half the width of the 95 % interval; the mean alone of a single seed."""
    if values.empty:
        return "-"
    shown = f"{values.mean():{sign}.3g}"
    if len(values) < 2:
        return shown
    half = _T95[len(values) - 1] * values.std(ddof=1) / math.sqrt(len(values))
    return f"{shown} ± {half:.2g}"


def missing_runs(results: pd.DataFrame, seeds: int) -> Iterator[tuple[int, str]]:
    """Seed and variant of the runs that the results do not hold, seed by seed."""
    there = set(zip(results["seed"], results["variant"], strict=True))
    return (
        (seed, variant)
        for seed in range(seeds)
        for variant in VARIANTS
        if (seed, variant) not in there
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Try norm alignment on the specimen.")
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seeds", type=int, default=3, choices=range(1, 11), metavar="1..10")
    parser.add_argument("--language-steps", type=int, default=350)
    parser.add_argument("--projector-steps", type=int, default=60)
    parser.add_argument("--finetune-steps", type=int, default=200)
    parser.add_argument("--items", type=int, default=100, help="test items per question kind")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    options.output.mkdir(parents=True, exist_ok=True)
    results_file: Path = options.output / RESULTS_FILE
    results = pd.DataFrame(columns=COLUMNS)
    if results_file.exists():
        results = pd.read_csv(results_file, dtype={"layer": "Int64"})
    runs = list(missing_runs(results, options.seeds))
    if runs:
        log = TrainingLog(options.output / "training_log.jsonl")
        tokenizer = build_tokenizer(0)
        language = language_weights(options.output, tokenizer, options.language_steps, log)
    for seed, variant in runs:
        log.record("run", 0, variant=variant, seed=seed)
        steps = (options.projector_steps, options.finetune_steps)
        rows = run_variant(variant, seed, language, tokenizer, steps, options.items, log)
        results = pd.concat([results, rows], ignore_index=True) if len(results) else rows
        results.to_csv(results_file, index=False, float_format="%.6g")
    sys.stdout.write(report(results))


def language_weights(
    folder: Path, tokenizer: Any, steps: int, log: TrainingLog
) -> dict[str, torch.Tensor]:
    """The pretrained language model of all runs, trained once a folder."""
    path = folder / "language.pt"
    if not path.exists():
        torch.save(pretrain_language(tokenizer, steps, 0, log).state_dict(), path)
    weights: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
    return weights


if __name__ == "__main__":
    main()
