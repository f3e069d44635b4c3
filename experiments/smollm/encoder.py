"""The specimen's vision encoder with a quarter of its tokens: 16 patches of 16 x 16 pixels.

Its features are taught to be those of the specimen, averaged over 2 x 2 patches. An object lies
within patches of its own cell, so an average mixes no two objects.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import CLIPVisionConfig, CLIPVisionModel

from experiments.specimen.architecture import VISION_FEATURE_LAYER
from experiments.specimen.chat import PATCH_SIZE
from experiments.specimen.evaluate import load
from experiments.specimen.pixels import to_pixel_values
from experiments.specimen.scenes import IMAGE_SIZE, render, sample_scene
from experiments.specimen.training import Averages, Trainer, TrainingLog, is_log_step
from normprobe.specimen import SPECIMEN_DIR

POOLED_PATCH_SIZE = 2 * PATCH_SIZE
VISUAL_TOKENS = (IMAGE_SIZE // POOLED_PATCH_SIZE) ** 2
STEPS = 500
BATCH_SIZE = 32
LEARNING_RATE = 1e-3


def vision_encoder(folder: Path, steps: int, log: TrainingLog) -> CLIPVisionModel:
    """The vision encoder of all runs, trained once a folder.

    Args:
        folder: where ``encoder.pt`` is kept.
        steps: of its training.
        log: where progress goes.
    """
    path = folder / "encoder.pt"
    teacher = load(SPECIMEN_DIR)[0].model.vision_tower
    pooled = halved(teacher)
    if path.exists():
        pooled.load_state_dict(torch.load(path, weights_only=True))
    else:
        distil(teacher, pooled, steps, log)
        torch.save(pooled.state_dict(), path)
    return pooled.requires_grad_(False)


def halved(teacher: CLIPVisionModel) -> CLIPVisionModel:
    """The encoder as its training begins: kernels are spread, positions averaged, 2 x 2."""
    config = CLIPVisionConfig(**{**teacher.config.to_dict(), "patch_size": POOLED_PATCH_SIZE})
    pooled = CLIPVisionModel(config)
    weights: dict[str, Tensor] = dict(teacher.state_dict())
    for name, weight in weights.items():
        if name.endswith("patch_embedding.weight"):
            weights[name] = weight.repeat(1, 1, 2, 2) / 4
        elif name.endswith("position_embedding.weight"):
            weights[name] = torch.cat([weight[:1], averaged(weight[None, 1:])[0]])
    pooled.load_state_dict(weights, strict=False)
    return pooled


def averaged(patches: Tensor) -> Tensor:
    """Means over 2 x 2 patches: ``[batch, 64, width]`` becomes ``[batch, 16, width]``."""
    side = IMAGE_SIZE // PATCH_SIZE
    grid = patches.mT.reshape(len(patches), -1, side, side)
    return functional.avg_pool2d(grid, 2).flatten(2).mT


def features(encoder: Any, pixels: Tensor) -> Tensor:
    """What the projector will read, ``[batch, patches, width]``."""
    states = encoder(pixel_values=pixels, output_hidden_states=True).hidden_states
    found: Tensor = states[VISION_FEATURE_LAYER][:, 1:]
    return found


def distil(teacher: Any, pooled: Any, steps: int, log: TrainingLog) -> None:
    """Train ``pooled`` on fresh scenes; the log has the share of variance that it misses."""
    rng = np.random.default_rng([0, 60])
    trainer = Trainer(
        pooled.parameters(), steps=steps, learning_rate=LEARNING_RATE, weight_decay=0.0
    )
    averages = Averages()
    for step in range(1, steps + 1):
        pixels = to_pixel_values([render(sample_scene(rng)) for _ in range(BATCH_SIZE)])
        with torch.no_grad():
            wanted = averaged(features(teacher, pixels))
        missed = (features(pooled, pixels) - wanted).square().mean()
        loss = missed / (wanted - wanted.mean((0, 1))).square().mean()
        trainer.step(loss)
        averages.add("missed", loss.item())
        if is_log_step(step, steps):
            log.record("encoder", step, **averages.take())
