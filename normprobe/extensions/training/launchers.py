"""``LightningCallback`` and ``AxolotlPlugin``: ``watch`` where no Trainer takes a callback.

In the YAML file of axolotl: ``plugins: [normprobe.AxolotlPlugin]``.
"""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Literal

from torch import nn
from transformers import PreTrainedModel

from normprobe.errors import NormprobeError
from normprobe.extensions.training.callback import NormProbeCallback
from normprobe.extensions.training.watch import Watch, watch


def _base(package: str, name: str, *modules: str) -> Any:
    """The class to derive from; where its package is not installed, one that says so."""
    for module in modules:
        with suppress(ImportError):
            return getattr(import_module(module), name)

    def missing(own: type, *_: Any, **__: Any) -> None:
        told = f"{own.__name__} needs {package}, which is not installed"
        raise NormprobeError(told, f"pip install {package}")

    return type(name, (), {"__new__": missing})


class AxolotlPlugin(_base("axolotl", "BasePlugin", "axolotl.integrations.base")):  # type: ignore[misc]
    """Adds ``NormProbeCallback()`` to the trainer that axolotl builds."""

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> list[NormProbeCallback]:
        """The callback, before there is a trainer."""
        return [NormProbeCallback()]


class LightningCallback(
    _base("lightning", "Callback", "lightning.pytorch", "pytorch_lightning")  # type: ignore[misc]
):
    """Watch a Lightning training; all of its loggers get the numbers.

    Args:
        find: which module of a LightningModule is the model; None: the outermost of transformers
            or PEFT.
        on_alarm: ``stop``: the training ends behind the step.
        log: as of ``watch``, beside the loggers of the Trainer.
        **options: ``every``, ``output``, ``keys``, ``special_token_ids``, ``named`` and
            ``processor`` of ``watch``.

    Attributes:
        watch: what watches, once the training has begun.
    """

    def __init__(
        self,
        find: Callable[[Any], nn.Module] | None = None,
        *,
        on_alarm: Literal["warn", "stop"] = "warn",
        log: Callable[[dict[str, float]], Any] | None = None,
        **options: Any,
    ) -> None:
        self._find, self._options, self._stops = find or _model_in, options, on_alarm == "stop"
        self._log = log
        self.watch: Watch

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch, at the step at which the training begins or goes on."""

        def send(values: dict[str, float]) -> None:
            if self._log is not None:
                self._log(dict(values))
            for logger in trainer.loggers:
                logger.log_metrics(values, step=int(values["normprobe/step"]))

        self.watch = watch(self._find(pl_module), log=send, **self._options)
        self.watch.step = trainer.global_step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Stop, where an alarm asks for it."""
        trainer.should_stop = trainer.should_stop or (self._stops and bool(self.watch.alarms))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Finish the run."""
        self.watch.close()


def _model_in(module: nn.Module) -> nn.Module:
    kinds: Any = (PreTrainedModel,)
    for each in module.modules():
        if isinstance(each, kinds) or hasattr(each, "peft_config"):
            return each
    raise NormprobeError(
        f"{type(module).__name__} holds no model of transformers or PEFT",
        "LightningCallback(lambda module: module.model) says where it is",
    )
