"""``LightningCallback``: ``watch`` for the Trainer of Lightning."""

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from normprobe.errors import NormprobeError
from normprobe.training import Watch, watch

try:
    from lightning.pytorch import Callback
except ImportError:
    try:
        from pytorch_lightning import Callback
    except ImportError as error:
        raise NormprobeError(
            "LightningCallback needs Lightning, which is not installed", "pip install lightning"
        ) from error


class LightningCallback(Callback):  # type: ignore[misc]
    """Watch a Lightning training; all of its loggers get the numbers.

    Args:
        find: which module of a LightningModule is the model; None: the outermost of transformers
            or PEFT.
        on_alarm: ``stop``: the training ends behind the step.
        **options: ``every``, ``log``, ``output``, ``special_token_ids``, ``named`` of ``watch``.

    Attributes:
        watch: what watches, once the training has begun.
    """

    def __init__(
        self,
        find: Callable[[Any], nn.Module] | None = None,
        *,
        on_alarm: str = "warn",
        **options: Any,
    ) -> None:
        self._find, self._options, self._stops = find or _model_in, options, on_alarm == "stop"
        self._log = options.pop("log", None)
        self.watch: Watch | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch, at the step at which the training begins or goes on."""

        def send(values: dict[str, float]) -> None:
            if self._log is not None:
                self._log(dict(values))
            for logger in trainer.loggers:
                logger.log_metrics(values, step=int(values["normprobe/step"]))

        self.watch = watch(self._find(pl_module), log=send, **self._options)
        self.watch.step = trainer.global_step

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Read the gradients: Lightning runs forward and backward inside ``optimizer.step``."""
        assert self.watch is not None
        self.watch.before_update(optimizer)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Stop, where an alarm asks for it."""
        assert self.watch is not None
        if self._stops and self.watch.alarms:
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Finish the run."""
        assert self.watch is not None
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
