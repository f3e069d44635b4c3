"""Which decoder layers of another engine are wrong by themselves, given what entered them there."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from normprobe.errors import number_of
from normprobe.hooks import attached, changing_input, observing, on_output, run_until
from normprobe.inputs.on_device import moved_to
from normprobe.model.measured_model import MeasuredModel


def layers_alone(
    model: MeasuredModel, inputs: Mapping[str, Any], saved: Mapping[int, Tensor], allowed: float
) -> str:
    """Which layers return something else on what entered them in the engine, and in which tokens.

    Args:
        model: that is right.
        inputs: of one sample.
        saved: the engine's states, ``[rows, hidden]`` by the number of layers behind them.
        allowed: how far states may be apart, in parts of their length.

    Returns:
        A sentence; empty where no layer is known to do so.
    """
    own: dict[int, Tensor] = {}

    def as_saved(number: int, state: Tensor) -> Tensor:
        """What entered the layer there: what stands between two layers is added here, too."""
        if number not in saved or saved[number].numel() != state.numel():
            return state
        theirs = saved[number].to(state).reshape(state.shape)
        return state + theirs - own[number].reshape(state.shape) if number in own else theirs

    def keep(number: int, state: Tensor) -> None:
        own[number] = state.detach()

    layers = model.decoder_layers
    handles = [
        handle
        for number, layer in enumerate(layers, 1)
        for handle in (
            changing_input(layer, partial(as_saved, number - 1)),
            on_output(layer, partial(keep, number)),
        )
    ]
    with observing(model.model), attached(*handles):
        run_until(model.model, moved_to(model.model, inputs))
    known = [n for n in own if n in saved and (n - 1 in saved or n == 1)]
    known = [n for n in known if own[n].numel() == saved[n].numel()]
    far = {n: _apart(own[n].flatten(0, -2), saved[n]) for n in known}
    wrong = [n for n in known if float(far[n].square().mean().sqrt()) > allowed]
    if not wrong or (len(wrong) == len(known) == 1):
        return ""
    rest = len(known) - len(wrong)
    which = f"layer{'s' * (len(wrong) > 1)} {', '.join(map(str, wrong))}"
    which = which if rest else f"each of {number_of(len(known), 'layer')}"
    told = f"Given what enters it there, {which} returns something else"
    told += ": one cause in all of them" * (not rest)
    if all(float(far[n][0]) <= min(allowed, 0.1 * float(far[n].max())) for n in wrong):
        return (
            f"{told}, but not of the first token, which attends to itself alone: look at rotary "
            "positions, mask, and scale and norms of queries and keys."
        )
    return f"{told}, of the first token, too: look at norms and their eps, activation and weights."


def _apart(own: Tensor, saved: Tensor) -> Tensor:
    """How far each row is from the other, in parts of the length of a row."""
    own, saved = own.double().cpu(), saved.double()
    far: Tensor = (own - saved).norm(dim=-1) / own.norm(dim=-1).clamp_min(1e-300)
    return far
