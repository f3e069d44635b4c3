"""The states of every decoder layer, taken without hooks.

Each layer's ``forward`` is replaced by one that keeps what it takes and returns. The model's own
``output_hidden_states`` gives most of these states a second time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

from torch import Tensor, nn

from normprobe.hooks import observing
from normprobe.nested import with_tensors
from normprobe.schema import MASKS


@dataclass(frozen=True)
class CapturedStates:
    """What one forward showed, copied to the CPU in the dtype of the model.

    Attributes:
        entered: what each decoder layer took.
        left: what each returned.
        told: ``hidden_states`` of the model's output, the last of them as it leaves the decoder;
            None: the model does not offer them.
    """

    entered: list[Tensor]
    left: list[Tensor]
    told: list[Tensor] | None


def captured_states(
    model: nn.Module, layers: Sequence[nn.Module], inputs: Mapping[str, Any]
) -> CapturedStates:
    """Run the model once, to its end.

    Args:
        model: on its device.
        layers: its decoder layers; of one that runs several times the last run counts.
        inputs: what its processor returned, on the same device.
    """
    entered: dict[int, Tensor] = {}
    left: dict[int, Tensor] = {}
    taken = {name: value for name, value in inputs.items() if name not in MASKS}
    with observing(model), ExitStack() as stack:
        for number, layer in enumerate(layers):
            stack.enter_context(_replaced_forward(layer, number, entered, left))
        output = model(**with_tensors(taken, Tensor.clone), **_options(model))
    told = getattr(output, "decoder_hidden_states", None) or getattr(output, "hidden_states", None)
    return CapturedStates(
        [entered[number] for number in sorted(entered)],
        [left[number] for number in sorted(left)],
        None if told is None else [_on_cpu(state) for state in told],
    )


@contextmanager
def _replaced_forward(
    module: nn.Module, number: int, entered: dict[int, Tensor], left: dict[int, Tensor]
) -> Iterator[None]:
    own = vars(module).get("forward")  # accelerate replaces it, too
    original: Callable[..., Any] = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        state = _first_state([kwargs.get("hidden_states"), *args, *kwargs.values()])
        before = None if state is None else _on_cpu(state)  # a layer may overwrite it
        output = original(*args, **kwargs)
        returned = _first_state(output if isinstance(output, tuple | list) else [output])
        if before is not None and returned is not None:
            entered[number], left[number] = before, _on_cpu(returned)
        return output

    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


def _first_state(values: Sequence[Any]) -> Tensor | None:
    tensors = (value for value in values if isinstance(value, Tensor))
    return next((value for value in tensors if value.is_floating_point()), None)


def _on_cpu(state: Tensor) -> Tensor:
    return state.detach().to("cpu", copy=True)


def _options(model: nn.Module) -> dict[str, bool]:
    """Those that the model takes of: no cache, all hidden states."""
    parameters = signature(model.forward).parameters
    any_name = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    wanted = {"use_cache": False, "output_hidden_states": True}
    return {name: value for name, value in wanted.items() if any_name or name in parameters}
