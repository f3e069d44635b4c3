"""``NormProbeCallback``: the norms of visual and text tokens while a model trains.

    trainer.add_callback(NormProbeCallback(trainer, inputs, every=100, output="runs/training"))

``normprobe compare runs/training/*`` puts its run folders side by side (Figure 5).
"""

import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from transformers import (
    BatchFeature,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from normprobe.analyses.compare import layers_measures
from normprobe.analyses.inputs import inputs_for
from normprobe.analyses.layers import layer_rows, layers_table
from normprobe.analyses.theory import theory_table
from normprobe.analyses.token_rows import constant_rows, groups_of
from normprobe.errors import NormprobeError
from normprobe.model.norm_alignment import inserted_norm
from normprobe.model.parts import find_parts
from normprobe.report.provenance import provenance
from normprobe.report.run_dir import RunDir
from normprobe.schema import TEXT, VISUAL

if TYPE_CHECKING:
    import pandas as pd
    from transformers import Trainer


class NormProbeCallback(TrainerCallback):
    """Measure fixed inputs while the Trainer trains, log the disparity, keep run folders.

    A measurement costs one forward of the inputs up to the last decoder layer, without gradients;
    the first, and every one of a model with structural rows, runs the vision side twice more. The
    log tells the seconds. Training is the same to the last bit with and without it: evaluation
    mode and random numbers are put back.

    Every process measures, because a sharded weight needs them all; the first one writes.
    """

    def __init__(
        self,
        trainer: "Trainer",
        inputs: Mapping[str, Any],
        *,
        every: int = 100,
        output: str | Path | None = "runs/training",
        special_token_ids: Iterable[int] = (),
    ) -> None:
        """Keep what is measured and where it goes.

        Args:
            trainer: whose loggers are used. It passes itself to no callback.
            inputs: what the model's processor returned for one or more samples with images. They
                stay where they are and are copied to the model's device for each measurement.
            every: steps from one measurement to the next. The first is before training starts.
            output: folder of the run folders ``step-000100``; an older run of that step is
                replaced. None: logs alone.
            special_token_ids: ids to count as ``special``, usually ``tokenizer.all_special_ids``.

        Raises:
            NormprobeError: when ``every`` is less than 1.
        """
        if every < 1:
            raise NormprobeError(f"every={every}: expected at least 1 step", "pass every=100")
        self._trainer = trainer
        self._inputs = dict(inputs)
        self._every = every
        self._output = None if output is None else Path(output)
        self._special = list(special_token_ids)
        self._may_hold_structural = True

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Measure the model as it starts, or goes on."""
        self._measure(state, control)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Measure after every n-th optimiser step."""
        if state.global_step % self._every == 0:
            self._measure(state, control)

    def _measure(self, state: TrainerState, control: TrainerControl) -> None:
        started = time.perf_counter()
        model = self._trainer.model
        assert model is not None
        with _same_random_numbers(model):
            rows = self._rows(model)
        table = layers_table(rows)
        seconds = time.perf_counter() - started
        # Logging tells the Trainer that its own turn is done; it may still be due.
        due = control.should_log
        values = {**disparity(table), "seconds": seconds}
        self._trainer.log({f"normprobe/{name}": value for name, value in values.items()})
        control.should_log = due
        if self._output is not None and state.is_world_process_zero:
            run = self._start_run(model, state)
            run.append(rows)
            run.write_table("layers", table)
            run.write_table("theory", theory_table(rows))
            run.finish(seconds=round(seconds, 3))

    def _rows(self, model: nn.Module) -> "pd.DataFrame":
        """Sample rows of the fixed inputs."""
        parts = find_parts(model)
        inputs = inputs_for(model, BatchFeature(self._inputs))
        groups = groups_of(model, parts, inputs, self._special)
        constants = None
        if self._may_hold_structural:  # those rows are weights, so they are asked for each time
            constants = constant_rows(model, parts, inputs, groups)
            self._may_hold_structural = constants is not None and len(constants) > 0
        names = [str(number) for number in range(len(groups))]
        return layer_rows(model, parts, inputs, groups, names, constants)

    def _start_run(self, model: Any, state: TrainerState) -> RunDir:
        assert self._output is not None
        step = state.global_step
        record = provenance(
            sys.argv,
            {"every": self._every},
            command="layers",
            model=model.config.name_or_path or type(model).__name__,
            model_type=model.config.model_type,
            data="fixed inputs",
            step=step,
            epoch=state.epoch,
            device=model.device,
            dtype=str(model.dtype).removeprefix("torch."),
            parts={role: part.name for role, part in find_parts(model)},
        )
        norm = inserted_norm(model)
        if norm is not None:
            record["alignment"] = norm.placement
        return RunDir.create(self._output / f"step-{step:06d}", overwrite=True, record=record)


def disparity(layers: "pd.DataFrame") -> dict[str, float]:
    """A few numbers for a training log.

    Args:
        layers: the table of ``layers.csv``.

    Returns:
        Those that ``compare`` ranks runs by (``layers_measures``), and ``angle_visual`` and
        ``angle_text``: mean over all layers of the mean angular velocity (Eq. 8), radians per
        layer. NaN where the inputs hold no such tokens.
    """
    angles = layers.groupby("group")["angle_mean"].mean().reindex([VISUAL, TEXT])
    return layers_measures(layers) | {f"angle_{g}": float(a) for g, a in angles.items()}


@contextmanager
def _same_random_numbers(model: nn.Module) -> Iterator[None]:
    """Whatever the block draws, training draws what it would have drawn without it."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    try:
        with torch.random.fork_rng(sorted(device.index for device in devices)):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
