"""``watch``: a training from inside, with one line and without a forward of its own.

with normprobe.watch(model, every=100) as watch:
    for batch in loader:                # your loop, as it is
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
watch.run().verdict
"""

import atexit
import logging
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Literal, Self

import pandas as pd
import torch
from accelerate.utils import extract_model_from_parallel
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from normprobe.errors import NormprobeError
from normprobe.extensions.training.alarms import Alarm, Judge
from normprobe.extensions.training.beside import Hook, Stopped, before_step, call, never_fatal
from normprobe.extensions.training.loggers import logged, logger_of
from normprobe.extensions.training.measure import (
    ForwardReader,
    UpdateReader,
    part_weights,
)
from normprobe.extensions.training.processed import processed_by
from normprobe.extensions.training.table import (
    log_values,
    not_loaded,
    training_tables,
    weights_differ,
)
from normprobe.hooks import (
    hidden_state_of,
    is_partitioned,
    is_sharded,
    observing,
    refuse_hidden_weights,
    run_until,
    same_random_numbers,
)
from normprobe.inputs.on_device import moved_to, pixel_inputs
from normprobe.model.find.structure import find_parts
from normprobe.model.measured_model import MeasuredBatch, MeasuredModel
from normprobe.options import AUTO, Output
from normprobe.run import Run, finished
from normprobe.runs.begin import open_store, provenance, warn
from normprobe.runs.facts import model_facts, note_model
from normprobe.runs.run_folder import PARTIAL, RunFolder, RunStore, read_record
from normprobe.schema import STRUCTURAL, VIDEO, VISUAL

log = logging.getLogger(__name__)

#: Seconds between two writes of what was measured.
_WRITTEN_EVERY = 10.0


class Watch:
    """Watch a training: norms, angles, gradients and updates of the forwards that it runs anyway.

    On steps that are due the first batch is read, as the model trains on it, and the gradients as
    the optimizer gets them; where that batch has no pictures, the next one that has some is read,
    too. On other steps nothing is computed but whether the loss is finite, and no device is waited
    for. The weights are the same to the last bit as without it. What fails on the way, such as a
    full disk, costs a warning and what would have been measured. Copies of the model and files that
    it is saved to are not watched. A context manager, whose run is partial where an exception ends
    the training; else ``close()`` it.

    Args:
        model: that trains, wrapped or not: a transformers model, or one of PEFT. Watch it before
            ``torch.compile`` first runs.
        every: steps from one measurement to the next; the first step is measured.
        log: what else gets the numbers, of ``loggers.logger_of``: a function of a dict, a run of
            W&B, the module of MLflow, a ``SummaryWriter``, a ``.jsonl`` or ``.prom`` file. The run
            folder has them in any case.
        keys: which numbers: patterns such as ``layers/visual/*``, ``*`` for all; none: a dozen.
        output: the run folder. ``auto``: below ``runs/``; None: the run stays in memory. A folder
            that holds a training goes on: what it had from the same step on is replaced.
        on_alarm: ``stop``: the next forward raises what was wrong.
        special_token_ids: ids to report as ``special``, usually ``tokenizer.all_special_ids``.
        named: parts named by hand, as ``find_parts`` takes them.
        processor: of the model; then an alarm tells pixels and placeholders that are not as it
            makes them.

    Attributes:
        step: optimizer steps that were taken; set it where a training goes on.
        alarms: what seems wrong so far.
        gave_up: whether something failed, so that nothing is measured any more.

    Raises:
        NormprobeError: the parts are not found, or the folder cannot be written.
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 100,
        log: Any = None,
        *,
        output: str | Path | None = AUTO,
        on_alarm: Literal["warn", "stop"] = "warn",
        special_token_ids: Iterable[int] = (),
        named: Mapping[str, Any] | None = None,
        processor: Any = None,
        keys: Iterable[str] = (),
    ) -> None:
        if every < 1:
            raise NormprobeError(f"every={every}: expected at least 1 step", "pass every=100")
        if on_alarm not in ("warn", "stop"):
            raise NormprobeError(f"on_alarm={on_alarm!r}: no such choice", "pass warn or stop")
        self.every, self.step, self.alarms = every, 0, list[Alarm]()
        self._log, self._keys = None if log is None else logger_of(log), [*keys]
        self._stops = on_alarm == "stop"
        refuse_hidden_weights(model)  # as it was given: the next line takes wrappers off
        self._root = root = extract_model_from_parallel(model, keep_torch_compile=False)
        base: nn.Module = root.get_base_model() if hasattr(root, "get_base_model") else root
        self._model = MeasuredModel(base, find_parts(base, named=named), [*special_token_ids])
        layers = self._model.decoder_layers
        self._several = torch.distributed.is_initialized()
        self._writes = not self._several or torch.distributed.get_rank() == 0
        ids = self._model.parts.image_token_ids
        self._judge = Judge(None if processor is None else processed_by(processor, ids))
        self._buffer = list[pd.DataFrame]()
        self.gave_up, self._told = False, set[str]()
        # Processes read weights together there: none may leave out its part.
        self.with_others = is_sharded(root) or is_partitioned(root)
        self._started = time.perf_counter()
        self._store, self._attempt = self._opened(output if self._writes else None)
        self._ours: weakref.WeakKeyDictionary[Optimizer, bool] = weakref.WeakKeyDictionary()
        self._busy = self._stepped = self._went_on = self._looked = False
        parts = self._model.parts
        self._sees = parts.vision_encoder is not None or parts.projector is not None
        self._lacks = False  # of the batches that were due, the last one had no pictures
        self._lost: torch.Tensor | None = None  # on the device: the first step of a broken loss
        self._begin_step()
        self._handles: list[RemovableHandle] = [
            root.register_forward_pre_hook(Hook(self._before_forward), with_kwargs=True),
            root.register_forward_hook(Hook(self._after_forward)),
        ]
        for number, layer in enumerate(layers, start=1):
            enter, leave = Hook(self._enter), Hook(partial(self._leave, number))
            self._handles.append(layer.register_forward_pre_hook(enter, with_kwargs=True))
            self._handles.append(layer.register_forward_hook(leave))
        # Hooks on all optimizers there are: they shall not keep the model.
        before, after = weakref.WeakMethod(self._before_update), weakref.WeakMethod(self._updated)
        self._handles += [
            register_optimizer_step_pre_hook(partial(before_step, before)),
            register_optimizer_step_post_hook(lambda opt, *_: call(after, opt)),
        ]
        for handle in self._handles[-2:]:
            weakref.finalize(self, handle.remove)
        self._at_exit = partial(_at_exit, weakref.WeakMethod(self._end))
        atexit.register(self._at_exit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(complete=kind is None)

    def run(self) -> Run:
        """What was measured so far: ``.table``, ``.verdict``, ``.figures()``, ``compare``."""
        self._write()
        for name, table in training_tables(self._store.rows(), self.alarms).items():
            self._store.write_table(name, table)
        return Run(self._store)

    def close(self) -> None:
        """Remove every hook, and finish the run: its tables and figures."""
        self._end(complete=True)

    def _end(self, *, complete: bool) -> None:
        if not self._handles:
            return
        try:
            self.end_step()
            self._judge_loss()
        finally:
            for handle in self._handles:
                handle.remove()
            self._handles = []
            atexit.unregister(self._at_exit)
        if self._writes and not self.gave_up:
            self._finish() if complete else self._leave_partial()

    @never_fatal
    def _leave_partial(self) -> None:
        """The training did not come to its end: what was measured is there, and called partial."""
        self.run()
        if isinstance(self._store, RunFolder):
            self._store.unlock()

    @never_fatal
    def _finish(self) -> None:
        self._write()
        rows = self._store.rows()
        if "layer" not in rows or rows["layer"].isna().all():
            warn(
                self._store,
                "no forward of the model was seen that was due: is it the model that trains, and "
                "was it watched before torch.compile first ran?",
            )
        else:
            if self._sees and not rows["group"].isin([VISUAL, STRUCTURAL]).any():
                warn(self._store, "no step that was measured had pictures")
            if "stage" not in rows:
                warn(self._store, "no step of an optimizer of torch was seen: no gradient was read")
            finished(self._store, training_tables(rows, self.alarms), self._started)

    def give_up(self, error: Exception) -> None:
        """Measure no more; what was written stays."""
        if not self.gave_up:
            self.gave_up, self._buffer = True, []
            self._begin_step()
            told = error.problem if isinstance(error, NormprobeError) else f"{error!r}"
            log.warning("warning: nothing is measured any more, the training goes on: %s", told)

    # --- a step -------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        self._reader: ForwardReader | None = None
        self._inputs: Mapping[str, Any] = {}
        self._seen: ForwardReader | None = None
        self._states: pd.DataFrame | None = None
        self._updates: UpdateReader | None = None
        self._warmth, self._read = 1.0, False

    @property
    def due(self) -> bool:
        """Whether the step that comes, or is under way, is measured."""
        return self.step % self.every == 0

    @never_fatal
    def end_step(self) -> None:
        """The step is over: wait for its numbers, judge, log and keep them."""
        if not self._read:
            self._stepped = False
            return
        self._judge_states()
        self._judge_loss()
        found = [] if self._states is None else [self._states]
        if self._updates is not None and not self._updates.any_gradient:
            self._warn_once(
                f"step {self.step}: no weight had a gradient when the optimizer stepped: what "
                "clears them inside the backward cannot be read"
            )
        elif self._updates is not None:
            found.append(self._updates.rows())
            visual = bool(pixel_inputs(self._inputs))
            self._tell(self._judge.weights(self.step, found[-1], visual, self._warmth))
        step, self._stepped = self.step, False
        self._begin_step()
        if self._writes and found:
            rows = pd.concat(found, ignore_index=True)
            rows.insert(0, "sample_id", f"{self._attempt}:{step}")
            rows.insert(1, "attempt", self._attempt)
            rows.insert(2, "training_step", step)
            self._keep(step, rows)
        if self._stops and self.alarms and self._handles:
            alarm = self.alarms[-1]
            raise Stopped(
                f"step {alarm.step}: {alarm.words}", "on_alarm='warn' goes on in spite of alarms"
            )

    def _judge_states(self) -> None:
        if self._seen is not None:
            seen, self._seen = self._seen, None
            self._states = seen.rows()
            self._tell(self._judge.states(self.step, self._states, seen))

    def _tell(self, alarms: list[Alarm]) -> None:
        for alarm in alarms:
            warn(self._store, f"step {alarm.step}: {alarm.words}")
        self.alarms += alarms

    def _warn_once(self, told: str) -> None:
        if told.partition(": ")[2] not in self._told:
            self._told.add(told.partition(": ")[2])
            warn(self._store, told)

    def _keep(self, step: int, rows: pd.DataFrame) -> None:
        if self.gave_up:
            return
        if self._attempt and not self._went_on:
            self._went_on = True
            if told := weights_differ(self._store.rows(), rows):
                warn(self._store, f"step {step}: {told}. Did the weights load?")
        self._buffer.append(rows)
        if time.monotonic() - self._written > _WRITTEN_EVERY:
            self._write()
        if self._log is not None:
            try:
                alarms = [alarm for alarm in self.alarms if alarm.step == step]
                self._log(logged(log_values(step, rows, alarms), self._keys), alarms)
            except Exception as error:  # it is anybody's
                self._log = None
                warn(self._store, f"step {step}: the logger failed and gets no more: {error!r}")

    def _write(self) -> None:
        self._written = time.monotonic()
        if self._buffer:
            self._store.append(pd.concat(self._buffer, ignore_index=True))
            self._buffer = []

    # --- hooks --------------------------------------------------------------------------------

    @never_fatal
    def _before_forward(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if self._busy or not torch.is_grad_enabled():
            return  # an evaluation, or a generation
        if self._stepped:
            taken = self.step + 1
            self.end_step()
            self.step = taken
        self._judge_states()  # of an earlier batch of the step: a scaler may skip the whole step
        self._reader = None
        first = self.due and not self._read
        if not (self._writes or self.with_others):  # here gradients are whole in each process
            if first:
                self._judge_loss()
            return
        # A step that is not due has another process read along where weights are shared out.
        if first or (self._lacks and (self._read or not self.with_others)):
            names = signature(module.forward).parameters
            inputs = {**kwargs, **dict(zip(names, args, strict=False))}
            pictures = any(pixel_inputs(inputs, group) for group in (VISUAL, VIDEO))
            if first or pictures:
                self._lacks = self._sees and not pictures
                self._begin_reading(inputs)

    def _begin_reading(self, inputs: Mapping[str, Any]) -> None:
        self._read, self._inputs = True, inputs
        self._tell(self._judge.adapters(self.step, self._root))
        try:
            self._reader = ForwardReader(self._batch(inputs))
        except NormprobeError as error:
            warn(self._store, f"states are not measured: {error.problem}")

    def _batch(self, inputs: Mapping[str, Any]) -> MeasuredBatch:
        """The token groups. Those of structural tokens are weights, and are looked at anew."""
        if is_sharded(self._root):  # a forward inside a forward is not for FSDP2
            placed = self._model.placed(inputs)
            return MeasuredBatch(self._model, inputs, placed.groups, None, placed.ids)
        self._busy = True
        try:
            with same_random_numbers():
                self._model.notice_changed_weights()
                return self._model.batch(inputs)
        finally:
            self._busy = False

    @never_fatal
    def _enter(self, _: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if self._reader is not None:
            self._reader.enter(hidden_state_of((kwargs.get("hidden_states"), args, kwargs)))

    @never_fatal
    def _leave(self, number: int, _: nn.Module, args: Any, output: Any) -> None:
        if self._reader is not None:
            self._reader.leave(number, hidden_state_of(output))

    @never_fatal
    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self._busy and torch.is_grad_enabled():
            self._note_loss(getattr(output, "loss", None))
        reader, self._reader = self._reader, None
        if reader is not None and not self._busy:
            self._seen = reader if reader.send(self._inputs) else None
            for layer in reader.skipped:
                warn(self._store, f"layer {layer} overwrites its input: its update is not known")

    @torch.no_grad()
    def _note_loss(self, loss: Any) -> None:
        """Keep the first step of a loss that is not finite; the host waits for nothing."""
        if isinstance(loss, torch.Tensor):
            here = torch.where(loss.sum().isfinite(), torch.inf, float(self.step))
            lost = here if self._lost is None else self._lost.to(here.device)
            self._lost = torch.minimum(here, lost)

    def _judge_loss(self) -> None:
        lost, self._lost = self._lost, None
        if lost is not None and (step := float(lost)) < torch.inf:
            rank = f" in process {torch.distributed.get_rank()}" if self._several else ""
            self._tell(self._judge.loss(int(step), rank))

    @never_fatal
    def read_inputs(self, inputs: Mapping[str, Any]) -> None:
        """Measure inputs of your own in the step that comes, in place of what the model trains on.

        It costs a forward up to the last decoder layer.
        """
        model = self._root if is_sharded(self._root) else self._model.model
        self._begin_reading(moved_to(model, inputs))
        reader, self._busy = self._reader, True
        try:
            with same_random_numbers(), observing(model):
                run_until(model, self._inputs, leaving=self._model.decoder_layers[-1])
        finally:
            self._busy, self._reader = False, None
        if reader is not None:
            self._seen = reader if reader.send(self._inputs) else None

    @never_fatal
    def _before_update(self, optimizer: Optimizer) -> None:
        """Gradients of its weights are complete, and the weights not moved yet."""
        if not self._trains(optimizer):
            return
        if self._attempt and not self._looked:
            self._look_at_weights()
        if not self._read:
            return
        if self._updates is None:
            self._updates = UpdateReader(part_weights(self._root, self._model.parts))
            self._warmth = 0.0
        self._updates.read(optimizer)
        rates = (
            float(group["lr"]) / float(group.get("initial_lr") or group["lr"] or 1.0)
            for group in optimizer.param_groups
        )
        self._warmth = max([self._warmth, *rates])

    def _look_at_weights(self) -> None:
        """Whether a training that goes on has the weights that it began with."""
        self._looked = True
        weights = UpdateReader(part_weights(self._root, self._model.parts)).digests()
        if self.step and (parts := not_loaded(self._store.rows(), weights)):
            told = " and ".join(part.replace("_", " ") for part in parts)
            warn(
                self._store,
                f"step {self.step}: the weights of {told} are those with which the training "
                "began. Did the weights load?",
            )

    @never_fatal
    def _updated(self, optimizer: Optimizer) -> None:
        self._stepped = self._stepped or self._trains(optimizer)

    def _trains(self, optimizer: Optimizer) -> bool:
        if optimizer not in self._ours:
            own = {id(weight) for weight in self._root.parameters()}
            held = (weight for group in optimizer.param_groups for weight in group["params"])
            ours = any(id(weight) in own for weight in held)
            self._ours[optimizer] = ours or is_partitioned(self._root)
        return self._ours[optimizer]

    # --- the run ------------------------------------------------------------------------------

    def _opened(self, output: str | Path | None) -> tuple[RunStore, int]:
        """A new run, or that of a training that goes on; and which attempt this one is."""
        self._written = time.monotonic()
        before = None if output in (None, AUTO) else read_record(Path(str(output)))
        if before is not None and before.get("command") == "training":
            store: RunStore = RunFolder.open(Path(str(output)))
            assert isinstance(store, RunFolder)
            store.lock()
            store.set_unreadable_aside()
            store.note(status=PARTIAL)
            rows = store.rows(["attempt"])
            if store.has_table("alarms"):
                kept = store.table("alarms").itertuples(index=False)
                self.alarms = [Alarm(*row) for row in kept]
            return store, 0 if rows.empty else int(rows["attempt"].max()) + 1
        options = {"every": self.every}
        facts = model_facts(self._model.model)
        record = provenance(sys.argv, options, command="training", data=None, **facts)
        store = open_store(record, Output(None if output is None else Path(output)))
        if self._writes and not is_sharded(self._root):  # it runs a layer by itself
            for warning in note_model(store, self._model, None):
                log.warning("warning: %s", warning)
        return store, 0


#: Said as what it does.
watch = Watch


def _at_exit(end: "weakref.WeakMethod[Callable[..., None]]") -> None:
    call(end, complete=getattr(sys, "last_value", None) is None)  # else an exception came here
