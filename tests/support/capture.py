"""States of a model in float64, taken by replacing ``forward`` attributes, without hooks."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from normprobe.versions import is_line_5
from support.expected_parts import ExpectedParts
from support.tiny_inputs import Inputs

Array = NDArray[np.float64]


@dataclass
class Layer:
    """What one decoder layer took and returned, ``[batch, sequence, width]``.

    ``attended`` is what its attention took; None where the layer has none by that name.
    """

    entered: Array
    left: Array
    attended: Array | None = None


@dataclass
class States:
    """What one forward showed; lists hold one array a call."""

    layers: list[Layer] = field(default_factory=list)
    vision_encoder: list[Array] = field(default_factory=list)
    projector_input: list[Array] = field(default_factory=list)
    projector_output: list[Array] = field(default_factory=list)


@torch.no_grad()
def capture(
    model: PreTrainedModel, inputs: Inputs, parts: ExpectedParts, run: nn.Module | None = None
) -> States:
    """Run the model, or one module of it, once. Each layer of the stack is called once."""
    states = States()
    calls: list[list[Layer]] = []

    def see_encoder(_: Any, output: Any) -> None:
        if hasattr(output, "last_hidden_state"):
            states.vision_encoder.append(to_numpy(output.last_hidden_state))

    def see_states_inside(entered: Array, _: Any) -> None:
        states.vision_encoder.append(entered)

    def see_projector(entered: Array, output: Any) -> None:
        states.projector_input.append(entered)
        states.projector_output.append(to_numpy(output))

    with ExitStack() as stack:
        if parts.vision_encoder is not None:
            encoder = model.get_submodule(parts.vision_encoder)
            stack.enter_context(replaced_forward(encoder, see_encoder))
            if not is_line_5():  # where the encoder of transformers 4 does not return its states
                for name in ("merger", "head_linear"):
                    if hasattr(encoder, name):
                        inside = getattr(encoder, name)
                        stack.enter_context(replaced_forward(inside, see_states_inside))
        if parts.projector is not None:
            projector = model.get_submodule(parts.projector)
            stack.enter_context(replaced_forward(projector, see_projector))
        if parts.decoder_layers is not None:
            for layer in model.get_submodule(parts.decoder_layers):
                calls.append([])
                attended: list[Array] = []
                for name, child in layer.named_children():
                    if name in ("self_attn", "self_attention", "attention", "cross_attn"):
                        see_attended = partial(_see_attended, attended)
                        stack.enter_context(replaced_forward(child, see_attended))
                stack.enter_context(replaced_forward(layer, _see_layer(calls[-1], attended)))
        (run or model)(**inputs)
    states.layers = [call for (call,) in calls]
    return states


def _see_attended(attended: list[Array], entered: Array, _: Any) -> None:
    attended.append(entered)


def _see_layer(calls: list[Layer], attended: list[Array]) -> Callable[[Array, Any], None]:
    def see(entered: Array, output: Any) -> None:
        left = output[0] if isinstance(output, tuple) else output
        calls.append(Layer(entered, to_numpy(left), attended[0] if attended else None))

    return see


@contextmanager
def replaced_forward(module: nn.Module, see: Callable[[Any, Any], None]) -> Iterator[None]:
    """Show each call's first argument, copied before the call, and its output.

    Calls with integers are left out: Ovis2 also looks its indicator rows up in its projector.
    """
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else next(iter(kwargs.values()))
        entered = to_numpy(first) if first.is_floating_point() else None
        output = original(*args, **kwargs)
        if entered is not None:
            see(entered, output)
        return output

    with patch.object(module, "forward", forward):
        yield


def to_numpy(tensor: Tensor) -> Array:
    """A float64 copy: bfloat16 has no NumPy counterpart, and models may write in place."""
    return tensor.detach().to(torch.float64, copy=True).numpy()
