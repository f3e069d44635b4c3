"""What all training stages share: optimizer, learning-rate schedule, and the training log."""

import json
import math
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

GRADIENT_CLIP = 1.0
WARMUP_SHARE = 0.05
LOG_EVERY = 50


class TrainingLog:
    """Writes one JSON line per record to a file and the same line to stderr."""

    def __init__(self, path: Path) -> None:
        """Start an empty log.

        Args:
            path: The JSONL file.
        """
        self._path = path
        self._start = time.perf_counter()
        path.write_text("", encoding="utf-8")

    def record(self, stage: str, step: int, **values: Any) -> None:
        """Append one record.

        Args:
            stage: Name of the training stage.
            step: Optimizer steps done in this stage.
            **values: Measured values; floats are rounded to four digits.
        """
        seconds = round(time.perf_counter() - self._start, 1)
        line = json.dumps({"stage": stage, "step": step, "seconds": seconds} | _rounded(values))
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        sys.stderr.write(line + "\n")


class Trainer:
    """AdamW with gradient clipping, linear warm-up and cosine decay."""

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        steps: int,
        learning_rate: float,
        weight_decay: float,
        undecayed: Iterable[torch.nn.Parameter] = (),
    ) -> None:
        """Prepare the optimizer.

        Args:
            parameters: What to train; vectors (gains, biases) are never decayed.
            steps: Planned number of optimizer steps.
            learning_rate: Peak learning rate.
            weight_decay: AdamW weight decay of the matrices.
            undecayed: Matrices to spare from weight decay.
        """
        self._parameters = list(parameters)
        spared = {id(item) for item in undecayed}
        spared |= {id(item) for item in self._parameters if item.ndim <= 1}
        self._optimizer = torch.optim.AdamW(
            [
                {
                    "params": [item for item in self._parameters if id(item) not in spared],
                    "weight_decay": weight_decay,
                },
                {
                    "params": [item for item in self._parameters if id(item) in spared],
                    "weight_decay": 0.0,
                },
            ],
            lr=learning_rate,
            betas=(0.9, 0.95),
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: learning_rate_factor(step, steps)
        )

    def step(self, loss: torch.Tensor) -> None:
        """Take one optimizer step.

        Args:
            loss: Scalar loss.
        """
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parameters, GRADIENT_CLIP)
        self._optimizer.step()
        self._schedule.step()

    def state(self) -> dict[str, Any]:
        """What a training that goes on needs beside the weights."""
        return {"optimizer": self._optimizer.state_dict(), "schedule": self._schedule.state_dict()}

    def go_on(self, state: dict[str, Any]) -> None:
        """Take up what ``state`` returned."""
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])


class Averages:
    """Running means of named values between two log records."""

    def __init__(self) -> None:
        """Start with no values."""
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, total: float, count: int = 1) -> None:
        """Add the sum of ``count`` values."""
        self._sums[name] = self._sums.get(name, 0.0) + total
        self._counts[name] = self._counts.get(name, 0) + count

    def take(self) -> dict[str, float]:
        """Return the means and start again."""
        means = {name: self._sums[name] / max(1, self._counts[name]) for name in self._sums}
        self._sums, self._counts = {}, {}
        return means


def learning_rate_factor(step: int, steps: int) -> float:
    """Give the learning rate relative to its peak.

    Args:
        step: Steps done.
        steps: Steps planned.

    Returns:
        A factor in (0, 1]: linear warm-up, then cosine decay.
    """
    warmup = max(1, round(steps * WARMUP_SHARE))
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))


def is_log_step(step: int, steps: int) -> bool:
    """Tell whether a record is due after this step (counted from 1)."""
    return step % LOG_EVERY == 0 or step == steps


def _rounded(value: Any) -> Any:
    """Round all floats inside nested dictionaries and lists to four decimal places."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value
