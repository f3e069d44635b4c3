"""``AxolotlPlugin``: ``plugins: [normprobe.AxolotlPlugin]`` in the YAML file of a training."""

from typing import Any

from transformers import TrainerCallback

from normprobe.callback import NormProbeCallback
from normprobe.errors import NormprobeError

try:
    from axolotl.integrations.base import BasePlugin
except ImportError as error:
    raise NormprobeError(
        "AxolotlPlugin needs axolotl, which is not installed", "pip install axolotl"
    ) from error


class AxolotlPlugin(BasePlugin):  # type: ignore[misc]
    """Adds ``NormProbeCallback()`` to the trainer that axolotl builds."""

    def add_callbacks_pre_trainer(self, cfg: Any, model: Any) -> list[TrainerCallback]:
        """The callback, before there is a trainer."""
        return [NormProbeCallback()]
