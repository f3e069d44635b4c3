"""Values inside dicts, lists and tuples, as models take them."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same value with other tensors in it. The value itself stays as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: with_tensors(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [with_tensors(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def find_named(inputs: Mapping[str, Any], name: str) -> Any:
    """The value of an input, wherever it lies."""
    if inputs.get(name) is not None:
        return inputs[name]
    inside = (find_named(inner, name) for inner in inputs.values() if isinstance(inner, Mapping))
    return next((value for value in inside if value is not None), None)


def flattened(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same values without dicts, by dotted names; ``unflattened`` puts them back.

    >>> flattened({"data": {"ids": 1}, "mask": 2})
    {'data.ids': 1, 'mask': 2}
    """
    flat: dict[str, Any] = {}
    for name, value in inputs.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": item for inner, item in flattened(value).items()}
        else:
            flat[name] = value
    return flat


def unflattened(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that ``flattened`` gave these names.

    >>> unflattened({"data.ids": 1, "mask": 2})
    {'data': {'ids': 1}, 'mask': 2}
    """
    inputs: dict[str, Any] = {}
    for path, value in flat.items():
        *outer, name = path.split(".")
        holder = inputs
        for each in outer:
            holder = holder.setdefault(each, {})
        holder[name] = value
    return inputs
