"""Whether decoder layers return their rows in the order in which these enter.

A residual stream carries each row on. So the rows that enter layer 1 are marked by a little noise
of their own, in a forward beside one without: where the noise that entered a layer in one row
leaves it in another, positions no longer tell tokens. Code of transformers keeps the order.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normprobe.errors import NormprobeError
from normprobe.hooks import (
    attached,
    changing_input,
    observing,
    on_input,
    on_output,
    run_until,
    same_random_numbers,
)
from normprobe.inputs.on_device import moved_to
from normprobe.model.measured_model import MeasuredModel
from normprobe.statistics.token_metrics import token_norms

#: Noise relative to the mean norm of the rows.
_MARK = 2**-3
#: Dimensions in which noise is compared, at most.
_DIMENSIONS = 128
#: The noise of a row is that of another one where its cosine with it is larger than this, than what
#: chance makes, and than twice that with its own.
_ALONG = 0.5
#: Whose modules keep the order, draw by generators that are known, and count no calls.
_LIBRARIES = ("torch.", "transformers.", "accelerate.", "peft.", "normprobe.")
#: Rows that are compared, at most.
_ROWS = 2048


def runs_other_code(module: nn.Module) -> bool:
    """Whether a module runs code that is none of the libraries', be it in a hook."""
    if "forward" in vars(module) and not hasattr(module, "_hf_hook"):  # accelerate replaces it, too
        return True
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    homes = (getattr(each, "__module__", None) for each in (type(module), *hooks))
    return not all(str(home).startswith(_LIBRARIES) for home in homes)


def check_order(model: MeasuredModel, inputs: Mapping[str, Any]) -> None:
    """Run the decoder layers twice, and hold the rows on their way against those before.

    Raises:
        NormprobeError: at least two of them changed places.
    """
    calm, marked = _sketches(model, inputs, mark=False), _sketches(model, inputs, mark=True)
    if len(calm) != len(marked):
        return
    noise = [after - before for before, after in zip(calm, marked, strict=True)]
    for step, (before, after) in enumerate(pairwise(noise)):
        if before.shape != after.shape:
            continue  # said where they are measured
        entered, left = (nn.functional.normalize(rows[:_ROWS], dim=-1) for rows in (before, after))
        cosines = left @ entered.T
        best, place = cosines.max(-1)
        by_chance = (4 * math.log(len(left)) / left.shape[-1]) ** 0.5  # of all pairs of rows
        elsewhere = (best > max(_ALONG, by_chance)) & (cosines.diagonal() < best / 2)
        # A row that others attend to is found in them, too, and stays where it is.
        moved = (elsewhere & elsewhere[place]).nonzero().flatten()
        if len(moved) > 1:
            layer, row = step // 2 + 1, int(moved[0])
            where = f"between decoder layers {layer} and {layer + 1}" if step % 2 else ""
            where = where or f"in decoder layer {layer}"
            raise NormprobeError(
                f"{model} changes the order of its tokens {where}: row {int(place[row])} leaves as "
                f"row {row}",
                "reorder them before the first layer or behind the last: between these a token is "
                "known by its row",
            )


def _sketches(model: MeasuredModel, inputs: Mapping[str, Any], *, mark: bool) -> list[Tensor]:
    """What enters layer 1, leaves it, enters layer 2, ...: each ``[rows, dimensions]``."""
    layers, found = model.decoder_layers, list[Tensor]()

    def keep(state: Tensor) -> None:
        rows = state.flatten(0, -2).float()
        if rows.shape[-1] > _DIMENSIONS:
            rows = rows @ _noise(rows.shape[-1], _DIMENSIONS).to(rows.device)
        found.append(rows.to("cpu", copy=True))  # a layer may write into what it received

    handles = [_marking(layers[0])] if mark else []
    handles += [watch(layer, keep) for layer in layers for watch in (on_input, on_output)]
    with same_random_numbers(), observing(model.model), attached(*handles):
        run_until(model.model, moved_to(model.model, inputs), leaving=layers[-1])
    return found


def _marking(layer: nn.Module) -> RemovableHandle:
    """Add noise of its own to each row that enters a layer."""

    def change(state: Tensor) -> Tensor:
        rows = state.flatten(0, -2)
        noise = _noise(*rows.shape).to(rows.device)
        size = _MARK * token_norms(rows.float()).mean() / rows.shape[-1] ** 0.5
        added: Tensor = (size * noise).view(state.shape).to(state.dtype)
        return state + added

    return changing_input(layer, change)


def _noise(rows: int, width: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(0))
