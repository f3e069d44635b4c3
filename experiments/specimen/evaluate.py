"""Evaluate a specimen: ``python -m experiments.specimen.evaluate [DIR]``.

Prints the accuracy per question kind and the norms, as Markdown or as JSON.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from experiments.specimen.accuracy import Score, held_out_items, score
from experiments.specimen.norms import NormProfile, measure_norms
from normprobe.specimen import SPECIMEN_DIR

ITEMS_PER_KIND = 200
NORM_PROMPTS_PER_KIND = 20
EVALUATION_FILE = "evaluation.json"


@dataclass(frozen=True)
class Evaluation:
    """All that the model card reports.

    Attributes:
        parameters: Number of trained weights.
        scores: Accuracy per question kind.
        norms: Norms and cosines.
    """

    parameters: int
    scores: dict[str, Score]
    norms: NormProfile

    def to_json(self) -> str:
        """Write the evaluation as JSON, floats with four decimal places."""
        exact = json.dumps(asdict(self))
        values = json.loads(exact, parse_float=lambda text: round(float(text), 4))
        return json.dumps(values, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Evaluation":
        """Read what ``to_json`` wrote."""
        values = json.loads(text)
        return cls(
            parameters=values["parameters"],
            scores={kind: Score(**numbers) for kind, numbers in values["scores"].items()},
            norms=NormProfile(**values["norms"]),
        )

    def to_markdown(self) -> str:
        """Write the evaluation as Markdown tables."""
        return "\n".join([*self._accuracy_lines(), "", *self._norm_lines()]) + "\n"

    def _accuracy_lines(self) -> list[str]:
        """Return the table of accuracies."""
        lines = [
            "| question kind | n | accuracy | with shuffled images |",
            "|---|---:|---:|---:|",
        ]
        for kind, value in self.scores.items():
            lines.append(
                f"| {kind} | {value.n} | {value.accuracy:.3f} ± {value.standard_error:.3f} "
                f"| {value.shuffled:.3f} ± {value.shuffled_standard_error:.3f} |"
            )
        return lines

    def _norm_lines(self) -> list[str]:
        """Return the norms outside and inside the language model."""
        norms = self.norms
        ratio = norms.projector_output / norms.prompt_embeddings
        lines = [
            "| where | mean norm |",
            "|---|---:|",
            f"| vision encoder output | {norms.encoder_output:.3f} |",
            f"| projector output | {norms.projector_output:.3f} |",
            f"| text embeddings of the prompts | {norms.prompt_embeddings:.3f} |",
            f"| token embedding table, all rows | {norms.embedding_table:.3f} |",
            f"| projector output / prompt embeddings | {ratio:.1f} |",
            "",
            "| layer | visual norm | text norm | visual cosine | text cosine |",
            "|---:|---:|---:|---:|---:|",
        ]
        cosines = zip(
            ["-", *(f"{value:.4f}" for value in norms.visual_cosines)],
            ["-", *(f"{value:.4f}" for value in norms.text_cosines)],
            strict=True,
        )
        rows = zip(norms.visual_norms, norms.text_norms, cosines, strict=True)
        for layer, (visual, text, (visual_cosine, text_cosine)) in enumerate(rows):
            lines.append(
                f"| {layer} | {visual:.2f} | {text:.2f} | {visual_cosine} | {text_cosine} |"
            )
        return lines


def load(folder: Path) -> tuple[Any, Any]:
    """Load a specimen in float32, from disk only.

    Args:
        folder: Checkpoint folder.

    Returns:
        Model and processor.
    """
    model: Any = AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    )
    processor = AutoProcessor.from_pretrained(  # type: ignore[no-untyped-call]
        folder, local_files_only=True
    )
    return model.eval(), processor


def evaluate(folder: Path, items_per_kind: int = ITEMS_PER_KIND) -> Evaluation:
    """Measure accuracies and norms of a saved specimen.

    Args:
        folder: Checkpoint folder.
        items_per_kind: Test items of each question kind.

    Returns:
        The evaluation.
    """
    model, processor = load(folder)
    items = held_out_items(items_per_kind)
    prompts = [item for group in items.values() for item in group[:NORM_PROMPTS_PER_KIND]]
    return Evaluation(
        parameters=sum(weight.numel() for weight in model.parameters()),
        scores={kind: score(model, processor, group) for kind, group in items.items()},
        norms=measure_norms(model, processor, prompts),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Evaluate a specimen checkpoint.")
    parser.add_argument("folder", nargs="?", type=Path, default=SPECIMEN_DIR)
    parser.add_argument("--items", type=int, default=ITEMS_PER_KIND, help="items per kind")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    options = parser.parse_args(arguments)
    evaluation = evaluate(options.folder, options.items)
    sys.stdout.write(evaluation.to_json() if options.json else evaluation.to_markdown())


if __name__ == "__main__":
    main()
