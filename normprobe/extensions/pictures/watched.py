"""One forward of one prompt with attention rows, keys and values in sight."""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from normprobe.errors import NormprobeError
from normprobe.hooks import attached, observing, run_until
from normprobe.model.attention_weights import SeeKeys, SeeRows, watching_attention
from normprobe.model.measured_model import MeasuredModel

_ASK = "output_attentions"


def run_watched(
    model: MeasuredModel,
    inputs: Mapping[str, Any],
    positions: Tensor,
    see: SeeRows,
    has_seen: Callable[[], bool],
    *handles: RemovableHandle,
    see_keys: SeeKeys | None = None,
) -> None:
    """Run a model up to its last decoder layer.

    Args:
        model: which has decoder layers.
        inputs: of one prompt, on the model's device.
        positions: ``[rows]`` whose attention is handed over, ascending.
        see: takes it, as in ``watching_attention``.
        has_seen: whether it was given any that it could use.
        *handles: hooks that are removed afterwards.
        see_keys: as in ``watching_attention``.

    Raises:
        NormprobeError: no attention can be watched.
    """
    last = model.decoder_layers[-1]
    assert model.parts.decoder_layers is not None
    with (
        observing(model.model),
        attached(*handles),
        watching_attention(model.parts.decoder_layers, positions, see, see_keys),
    ):
        run_until(model.model, inputs, leaving=last)
        if not has_seen() and _ASK in signature(model.model.forward).parameters:
            # Attention of its own may return its weights only where it is asked.
            run_until(model.model, {**inputs, _ASK: True}, leaving=last)
    if not has_seen():
        raise NormprobeError(
            f"the attention of {model} to visual tokens cannot be watched: inside "
            "its decoder layers nothing calls the AttentionInterface or returns weights",
            "try --attn-implementation eager; attention between the layers is not supported",
        )
