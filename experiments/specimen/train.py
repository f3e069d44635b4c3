"""Train a specimen from nothing: ``python -m experiments.specimen.train --output DIR``.

Four stages run in one process: vision encoder, language model, projector, then projector and
language model together. The result is a checkpoint folder with its training log and evaluation.
No weight is rescaled at any point: the norms are what training makes them.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from experiments.specimen.architecture import join
from experiments.specimen.chat import build_processor
from experiments.specimen.evaluate import EVALUATION_FILE, ITEMS_PER_KIND, evaluate
from experiments.specimen.export import export
from experiments.specimen.finetune import align_projector, finetune
from experiments.specimen.pretrain_language import build_tokenizer, pretrain_language
from experiments.specimen.pretrain_vision import pretrain_vision
from experiments.specimen.training import TrainingLog

STEPS = {"vision": 550, "language": 350, "projector": 60, "finetune": 1300}
LOG_FILE = "training_log.jsonl"


def train(
    output: Path,
    scale: float = 1.0,
    seed: int = 0,
    items_per_kind: int = ITEMS_PER_KIND,
    stages: Path | None = None,
) -> None:
    """Train, save and evaluate a specimen.

    Args:
        output: Checkpoint folder to write.
        scale: Factor on all step counts.
        seed: Seed of all weights and scenes.
        items_per_kind: Test items of each question kind in the evaluation.
        stages: Folder for the weights after each pretraining stage, or None to keep none.
    """
    output.mkdir(parents=True, exist_ok=True)
    steps = {name: max(2, round(count * scale)) for name, count in STEPS.items()}
    log = TrainingLog(output / LOG_FILE)
    log.record("start", 0, seed=seed, scale=scale, steps=steps)

    vision = pretrain_vision(steps["vision"], seed, log)
    _keep(vision, stages, "vision")
    tokenizer = build_tokenizer(seed)
    language = pretrain_language(tokenizer, steps["language"], seed, log)
    _keep(language, stages, "language")
    torch.manual_seed(seed)
    model = join(vision, language)
    align_projector(model, tokenizer, steps["projector"], seed, log)
    _keep(model, stages, "projector")
    finetune(model, tokenizer, steps["finetune"], seed, log)

    export(model, build_processor(tokenizer), output)
    evaluation = evaluate(output, items_per_kind)
    (output / EVALUATION_FILE).write_text(evaluation.to_json(), encoding="utf-8")
    log.record("done", sum(steps.values()))
    sys.stderr.write(evaluation.to_markdown())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Train a specimen checkpoint.")
    parser.add_argument("--output", type=Path, required=True, help="checkpoint folder to write")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all step counts")
    parser.add_argument("--seed", type=int, default=0, help="seed of all weights and scenes")
    parser.add_argument("--stages", type=Path, help="also keep the weights of each stage here")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    train(options.output, options.scale, options.seed, stages=options.stages)


def _keep(module: torch.nn.Module, folder: Path | None, name: str) -> None:
    """Save the weights after a stage, if asked to."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(module.state_dict(), folder / f"{name}.pt")


if __name__ == "__main__":
    main()
