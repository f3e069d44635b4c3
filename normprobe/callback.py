"""``NormProbeCallback``: the norms of visual and text tokens while a model trains.

    trainer.add_callback(NormProbeCallback(trainer, inputs, every=100, output="runs/training"))

``normprobe compare runs/training/*`` puts its run folders side by side (Figure 5).
"""

import io
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from transformers import (
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.integrations.integration_utils import TensorBoardCallback, WandbCallback

from normprobe.errors import NormprobeError
from normprobe.measurements.layers.compared import measures
from normprobe.probe import Probe
from normprobe.report.figures.draw import png
from normprobe.run import Run
from normprobe.schema import STRUCTURAL, TEXT, VISUAL

if TYPE_CHECKING:
    import pandas as pd
    from transformers import Trainer

_FIGURE = "layers"
_DPI = 100


class NormProbeCallback(TrainerCallback):
    """Measure fixed inputs while the Trainer trains, log the disparity, keep run folders.

    All loggers of the Trainer get the numbers; TensorBoard and Weights & Biases also the figure of
    norm and cosine by layer.

    A measurement costs one forward of the inputs up to the last decoder layer, without gradients;
    the first, and every one of a model with structural tokens, runs the vision side twice more. The
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
        self._probe: Probe | None = None

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
        if self._probe is None:
            self._probe = Probe(model, special_token_ids=self._special)
        run = self._probe.layers(self._inputs)
        if STRUCTURAL in set(run.table["group"]):
            # Structural tokens are weights, and each process may hold others of them: all of them
            # ask again, whatever they see change.
            self._probe = None
        seconds = time.perf_counter() - started
        # Logging tells the Trainer that its own turn is done; it may still be due.
        due = control.should_log
        values = {**disparity(run.table), "seconds": seconds}
        self._trainer.log({f"normprobe/{name}": value for name, value in values.items()})
        control.should_log = due
        if state.is_world_process_zero:
            self._log_figure(run, state.global_step)
        if self._output is not None and state.is_world_process_zero:
            step = state.global_step
            run.store.note(
                options={"every": self._every},
                step=step,
                epoch=state.epoch,
                seconds=round(seconds, 3),
            )
            run.save(self._output / f"step-{step:06d}", overwrite=True, figures=False)

    def _log_figure(self, run: Run, step: int) -> None:
        """Give norm and cosine by layer to the loggers that take pictures; else draw nothing."""
        loggers = self._trainer.callback_handler.callbacks
        boards = [logger for logger in loggers if isinstance(logger, TensorBoardCallback)]
        writers = [board.tb_writer for board in boards if board.tb_writer is not None]
        wandb = sys.modules.get("wandb")  # the logger has imported it, where it is used
        if not any(isinstance(logger, WandbCallback) for logger in loggers):
            wandb = None
        if not writers and wandb is None:
            return
        picture = Image.open(io.BytesIO(png(run.figure(_FIGURE), dpi=_DPI))).convert("RGB")
        name = f"train/normprobe/{_FIGURE}"  # beside the numbers, which the Trainer puts there
        for writer in writers:
            writer.add_image(name, np.asarray(picture), step, dataformats="HWC")
        if wandb is not None:
            wandb.log({name: wandb.Image(picture), "train/global_step": step})


def disparity(layers: "pd.DataFrame") -> dict[str, float]:
    """A few numbers for a training log.

    Args:
        layers: the table of ``layers.csv``.

    Returns:
        Those that ``compare`` ranks runs by, without intervals, and ``angle_visual`` and
        ``angle_text``: mean over all layers of the mean angular velocity (Eq. 8), radians per
        layer. NaN where the inputs hold no such tokens.
    """
    angles = layers.groupby("group")["angle_mean"].mean().reindex([VISUAL, TEXT])
    ranked = {name: number for name, number in measures(layers).items() if "_ci_" not in name}
    return ranked | {f"angle_{g}": float(a) for g, a in angles.items()}
