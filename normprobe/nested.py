"""Values inside dicts, lists and tuples, as models take them."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same value with other tensors in it. The value itself stays as it is.

    Args:
        value: tensors in any depth of dicts, lists and tuples; what else there is stays.
        change: gives the tensor to put in the place of one.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: with_tensors(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [with_tensors(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def find_named(inputs: Mapping[str, Any], name: str) -> Any:
    """The value of a name that is not None: of the inputs themselves, else of a dict inside them.

    MiniCPM-V takes most of its inputs as one dict.

    Args:
        inputs: what a model takes.
        name: of an input.

    Returns:
        The outermost such value; None where there is none.
    """
    if inputs.get(name) is not None:
        return inputs[name]
    inside = (find_named(inner, name) for inner in inputs.values() if isinstance(inner, Mapping))
    return next((value for value in inside if value is not None), None)
