"""``NormProbeCallback``: ``watch`` for the transformers Trainer, and for what is built on it.

Trainer(..., callbacks=[NormProbeCallback(every=100)])
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from normprobe.extensions.training.watch import Watch, watch
from normprobe.options import AUTO


class NormProbeCallback(TrainerCallback):
    """Watch a Trainer: all of its loggers get the numbers, alarms are warnings, a run is kept.

    It needs no argument. Launchers that build their callbacks as ``cls(args, trainer)`` or
    ``cls(trainer)`` are served, too.

    Args:
        *given: what a launcher passes: training arguments, its trainer, or inputs.
        inputs: a batch of the model's processor that is measured in place of the training's own,
            the same on each due step, the last one included. It costs a forward each.
        every: as of ``watch``, like ``output``.
        output: the run folder.
        log: a function of a dict that gets them beside the loggers of the Trainer.
        keys: as of ``watch``.
        on_alarm: ``stop``: the training ends behind the step.
        special_token_ids: ids to report as ``special``; None: those of the Trainer's tokenizer.

    Attributes:
        watch: what watches, once the training has begun.
    """

    def __init__(
        self,
        *given: Any,
        inputs: Mapping[str, Any] | None = None,
        every: int = 100,
        output: str | Path | None = AUTO,
        log: Callable[[dict[str, float]], Any] | None = None,
        keys: Iterable[str] = (),
        on_alarm: Literal["warn", "stop"] = "warn",
        special_token_ids: Iterable[int] | None = None,
    ) -> None:
        self._trainer = next((each for each in given if isinstance(each, Trainer)), None)
        passed = (each for each in given if isinstance(each, Mapping))
        self._inputs = inputs if inputs is not None else next(passed, None)
        self._every, self._output, self._log, self._on_alarm = every, output, log, on_alarm
        self._special, self._keys = special_token_ids, [*keys]
        self.watch: Watch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to watch the model, at the step at which the training begins or goes on."""
        special, processor = self._special, kwargs.get("processing_class")
        if special is None:
            tokenizer = getattr(processor, "tokenizer", processor)
            special = getattr(tokenizer, "all_special_ids", ())
        if self.watch is not None:
            self.watch.close()
        self._trainer = self._trainer or _calling_trainer()
        self.watch = watch(
            kwargs["model"],
            self._every,
            partial(self._send, args, state, control),
            output=self._output,
            keys=self._keys,
            special_token_ids=special,
            processor=processor if hasattr(processor, "image_processor") else None,
        )

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tell the step."""
        assert self.watch is not None
        self.watch.step = state.global_step
        if self._inputs is not None and self.watch.due:
            self.watch.read_inputs(self._inputs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Wait for the numbers of a step that was due."""
        assert self.watch is not None
        due = self.watch.due
        self.watch.end_step()
        if due and self._on_alarm == "stop" and _in_any_process(bool(self.watch.alarms), args):
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Finish the run, whose main process draws its figures."""
        self.on_step_begin(args, state, control)
        assert self.watch is not None
        self.watch.close()

    def _send(self, args: Any, state: Any, control: Any, values: dict[str, float]) -> None:
        """Give the numbers to the loggers; a progress bar would print them all."""
        if self._log is not None:
            self._log(dict(values))
        logs = {name: value for name, value in values.items() if name != "normprobe/step"}
        state.log_history.append({**logs, "step": int(values["normprobe/step"])})
        trainer = self._trainer
        if trainer is None:
            return
        due = control.should_log  # a logger would tell that the Trainer's own turn is done
        for each in trainer.callback_handler.callbacks:
            if not isinstance(each, PrinterCallback | ProgressCallback | NormProbeCallback):
                each.on_log(args, state, control, logs=dict(logs), model=trainer.model)
        control.should_log = due


def _calling_trainer() -> Trainer | None:
    """The Trainer whose event is under way: it passes itself to no callback."""
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        if isinstance(found := frame.f_locals.get("self"), Trainer):
            return found
    return None


def _in_any_process(wanted: bool, args: TrainingArguments) -> bool:
    """All processes have to stop behind the same step."""
    if not torch.distributed.is_initialized():
        return wanted
    flag = torch.tensor(float(wanted), device=args.device)
    torch.distributed.all_reduce(flag)
    return bool(flag)
