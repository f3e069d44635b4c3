"""Stage 1: the vision encoder learns to recognise objects, without language.

Each patch token must tell what covers its patch; the class token must tell what the whole scene
holds. The patch loss is read from the layer that the language model will see.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional
from transformers import CLIPVisionModel

from experiments.specimen.architecture import (
    HIDDEN_SIZE,
    VISION_FEATURE_LAYER,
    build_vision_encoder,
)
from experiments.specimen.chat import PATCH_SIZE, VISUAL_TOKENS
from experiments.specimen.pixels import to_pixel_values
from experiments.specimen.questions import COLOR_NAMES
from experiments.specimen.scenes import (
    DIGITS,
    IMAGE_SIZE,
    MAX_OBJECTS,
    SHAPES,
    Scene,
    render,
    sample_scene,
)
from experiments.specimen.training import Averages, Trainer, TrainingLog, is_log_step

LEARNING_RATE = 1e-3
WEIGHT_DECAY = 0.05
BATCH_SIZE = 32
# Most patches are background; without this weight the encoder learns to see nothing.
OBJECT_WEIGHT = 3.0

KINDS = SHAPES + DIGITS
PAIRS = len(SHAPES) * len(COLOR_NAMES)
PATCH_TARGETS = {"kind": 1 + len(KINDS), "color": 1 + len(COLOR_NAMES), "cell": 1 + 9}
"""Classes per patch target; class 0 is background."""


@dataclass(frozen=True)
class SceneLabels:
    """What the vision encoder must tell about B scenes.

    Attributes:
        patches: Class of each patch per target of ``PATCH_TARGETS``, shape (B, 64) each.
        pairs: 1 where a coloured shape is present, shape (B, 24).
        count: Number of objects, shape (B,).
    """

    patches: dict[str, torch.Tensor]
    pairs: torch.Tensor
    count: torch.Tensor


class RecognitionHeads(nn.Module):
    """Linear readouts that exist only during this stage."""

    def __init__(self) -> None:
        """Create one head per target."""
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN_SIZE)
        self.patches = nn.ModuleDict(
            {name: nn.Linear(HIDDEN_SIZE, classes) for name, classes in PATCH_TARGETS.items()}
        )
        self.pairs = nn.Linear(HIDDEN_SIZE, PAIRS)
        self.count = nn.Linear(HIDDEN_SIZE, MAX_OBJECTS + 1)

    def forward(
        self, patch_features: torch.Tensor, scene_features: torch.Tensor, labels: SceneLabels
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Compare the readouts with the labels.

        Args:
            patch_features: Shape (B, 64, 128).
            scene_features: Shape (B, 128).
            labels: The truth.

        Returns:
            The loss and the accuracy of each target (patch targets on object patches only).
        """
        features = self.norm(patch_features)
        scores = {}
        loss = 4 * functional.binary_cross_entropy_with_logits(
            self.pairs(scene_features), labels.pairs
        )
        count = self.count(scene_features)
        loss = loss + functional.cross_entropy(count, labels.count)
        scores["count"] = _accuracy(count, labels.count)
        for name, head in self.patches.items():
            logits, truth = head(features).flatten(0, 1), labels.patches[name].flatten()
            losses = functional.cross_entropy(logits, truth, reduction="none")
            on_object = truth > 0
            loss = loss + losses.mean() + OBJECT_WEIGHT * losses[on_object].mean()
            scores[name] = _accuracy(logits[on_object], truth[on_object])
        return loss, scores


def label_scenes(scenes: list[Scene]) -> SceneLabels:
    """Turn scenes into training targets.

    Args:
        scenes: B scenes.

    Returns:
        The targets.
    """
    patches = {
        name: np.zeros((len(scenes), VISUAL_TOKENS), dtype=np.int64) for name in PATCH_TARGETS
    }
    pairs = np.zeros((len(scenes), PAIRS), dtype=np.float32)
    for row, scene in enumerate(scenes):
        for item in scene.objects:
            color = COLOR_NAMES.index(item.color)
            covered = _covered_patches(item.center, item.radius)
            patches["kind"][row, covered] = 1 + KINDS.index(item.kind)
            patches["color"][row, covered] = 1 + color
            patches["cell"][row, covered] = 1 + item.cell
            if not item.is_digit:
                pairs[row, SHAPES.index(item.kind) * len(COLOR_NAMES) + color] = 1
    return SceneLabels(
        patches={name: torch.from_numpy(values) for name, values in patches.items()},
        pairs=torch.from_numpy(pairs),
        count=torch.tensor([len(scene.objects) for scene in scenes]),
    )


def pretrain_vision(steps: int, seed: int, log: TrainingLog) -> CLIPVisionModel:
    """Train the vision encoder on scene recognition.

    Args:
        steps: Optimizer steps.
        seed: Seed of the weights and of the scenes.
        log: Where progress goes.

    Returns:
        The trained vision encoder, without the readout heads.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 10])
    model, heads = build_vision_encoder(), RecognitionHeads()
    trainer = Trainer(
        [*model.parameters(), *heads.parameters()],
        steps=steps,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
    )
    averages = Averages()
    for step in range(1, steps + 1):
        scenes = [sample_scene(rng) for _ in range(BATCH_SIZE)]
        pixels = to_pixel_values([render(scene) for scene in scenes])
        output = model(pixel_values=pixels, output_hidden_states=True)
        patch_features = output.hidden_states[VISION_FEATURE_LAYER][:, 1:]
        loss, scores = heads(patch_features, output.pooler_output, label_scenes(scenes))
        trainer.step(loss)
        averages.add("loss", loss.item())
        averages.add("patch_norm", patch_features.detach().norm(dim=-1).mean().item())
        for name, score in scores.items():
            averages.add(name, score)
        if is_log_step(step, steps):
            log.record("pretrain_vision", step, **averages.take())
    return model


def _covered_patches(center: tuple[int, int], radius: int) -> NDArray[np.bool_]:
    """Return the patches whose centre lies inside the square around an object, shape (64,)."""
    centers = np.arange(IMAGE_SIZE // PATCH_SIZE) * PATCH_SIZE + PATCH_SIZE // 2
    columns, rows = (np.abs(centers - middle) <= radius for middle in center)
    covered: NDArray[np.bool_] = (rows[:, None] & columns[None, :]).ravel()
    return covered


def _accuracy(logits: torch.Tensor, truth: torch.Tensor) -> float:
    """Return the share of right classes."""
    return (logits.argmax(-1) == truth).float().mean().item()
