"""``NormProbeCallback``: the norms of visual and text tokens while a model trains.

    trainer.add_callback(NormProbeCallback(trainer, inputs, every=100, output="runs/training"))

``normprobe compare runs/training/*`` puts its run folders side by side (Figure 5).
"""

import io
import logging
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
from normprobe.report.readable import significant
from normprobe.run import Run, load_run
from normprobe.runs.run_folder import read_record
from normprobe.schema import STRUCTURAL, TEXT, VISUAL

if TYPE_CHECKING:
    import pandas as pd
    from transformers import Trainer

log = logging.getLogger(__name__)

#: Mean norms of the same weights and inputs differ by less, from one process to the next.
_SAME = 1e-3

_FIGURE = "layers"
_DPI = 100


class NormProbeCallback(TrainerCallback):
    """Measure fixed inputs while the Trainer trains, log the disparity, keep run folders.

    All loggers of the Trainer get the numbers; TensorBoard and Weights & Biases also the figure of
    norm and cosine by layer.

    A measurement costs one forward of the inputs up to the last decoder layer, without gradients,
    then the tables and the run folder; the first, and every one of a model with structural tokens,
    runs the vision side twice more. The log tells the seconds of all of it. Training is the same to
    the last bit with and without it: evaluation mode and random numbers are put back.

    Every process measures, because a sharded weight needs them all; the first one writes. A model
    that FSDP2 shards runs as a whole.

    A training that goes on at a step of which there is a run is compared with that: another norm
    of any layer, of the same inputs, is a warning, since weights may not have been loaded.
    """

    def __init__(
        self,
        trainer: "Trainer",
        inputs: Mapping[str, Any],
        *,
        every: int = 100,
        output: str | Path | None = "runs/training",
        special_token_ids: Iterable[int] = (),
        intervals: bool = False,
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
            intervals: put 95 % intervals and what the theory says into the run folders, too. They
                take longer than the forward of a small model.

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
        self._intervals = intervals
        self._probe: Probe | None = None
        self._began = False

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
        model, step = self._trainer.model, state.global_step
        assert model is not None
        if self._probe is None:
            self._probe = Probe(model, special_token_ids=self._special)
        run = self._probe.measure("layers", self._inputs, intervals=self._intervals)
        if STRUCTURAL in set(run.table["group"]):
            # Structural tokens are weights, and each process may hold others of them: all of them
            # ask again, whatever they see change.
            self._probe = None
        values = disparity(run.table)
        if state.is_world_process_zero:
            self._log_figure(run, step)
            if self._output is not None:
                run = self._kept(run, self._output / f"step-{step:06d}", state)
        values["seconds"] = time.perf_counter() - started
        if run.path is not None:
            run.store.note(seconds=round(values["seconds"], 3))
        # Logging tells the Trainer that its own turn is done; it may still be due.
        due = control.should_log
        self._trainer.log({f"normprobe/{name}": value for name, value in values.items()})
        control.should_log = due

    def _kept(self, run: Run, folder: Path, state: TrainerState) -> Run:
        """The run in its folder; where a training that goes on differs from it, beside it."""
        resumed = not self._began and state.global_step > 0
        self._began = True
        if resumed and read_record(folder) is not None and (told := _differs(folder, run)):
            beside = folder.with_name(f"{folder.name}-resumed")
            told += ". Did the weights load, and are the inputs the same?"
            run.store.add_warning(f"{folder}: {told}")
            log.warning("warning: %s: %s This run is in %s", folder, told, beside)
            folder = beside
        run.store.note(options={"every": self._every}, step=state.global_step, epoch=state.epoch)
        return run.save(folder, overwrite=True, figures=False)

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


def _differs(folder: Path, run: Run) -> str:
    """How far norms are from those of an earlier run of the step; empty where they agree."""
    tables = [table.set_index(["layer", "group"]) for table in (load_run(folder).table, run.table)]
    before, now = (table["norm_mean"] for table in tables)
    far = (now / before - 1).abs().dropna()
    if far.empty or far.max() <= _SAME:
        return ""
    worst: Any = far.idxmax()
    return (
        f"the mean norm of {worst[1]} tokens in layer {worst[0]} was "
        f"{significant(before[worst])} at this step and is {significant(now[worst])} as training "
        "goes on"
    )


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
