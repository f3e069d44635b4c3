"""Pixels and ids that modules of a model take, and no argument of what a script calls holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.extensions.families.script_calls import is_picture
from normprobe.extensions.families.script_layers import Enough
from normprobe.hooks import attached, path_to_state, with_changed_input
from normprobe.model.find.structure import find_parts

#: What a batch calls the ids of a prompt, ``[batch, seq]``, and pixels that no argument holds.
IDS, PIXELS = "input_ids", "pixel_values"


@dataclass(frozen=True)
class TakenInside:
    """What a module takes that no argument of the method holds, one tensor a call."""

    module: nn.Module
    tensors: list[Tensor]

    @contextmanager
    def taking(self, others: Any) -> Iterator[None]:
        """Let the module take other tensors inside the block: as many, or those in a row."""
        if isinstance(others, Tensor):
            others = torch.split(others, [width_of(each) for each in self.tensors], -1)
        left = iter(others)

        def change(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return _with_other(
                lambda held: next(left, held).reshape(held.shape).to(held), args, kwargs
            )

        with attached(self.module.register_forward_pre_hook(change, with_kwargs=True)):
            yield


def width_of(tensor: Tensor) -> int:
    """How many ids, or numbers of a row, a tensor holds side by side."""
    return tensor.shape[-1] if tensor.dim() else 1  # one id by itself (RetinaVLM)


def _with_other(
    change: Callable[[Tensor], Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a module with another hidden state, or with other ids."""
    if path_to_state((args, kwargs)) is not None:
        return with_changed_input(change, args, kwargs)
    if args and isinstance(args[0], Tensor):
        return (change(args[0]), *args[1:]), kwargs
    return args, {name: change(v) if isinstance(v, Tensor) else v for name, v in kwargs.items()}


def found_inside(
    model: nn.Module, run: Callable[[], object], layer: nn.Module, width: int | None
) -> dict[str, TakenInside]:
    """What takes pixels, and what ids, before the decoder runs.

    Pixels: the first module that takes a picture, ``[..., 3, height, width]``; else the vision
    encoder; else what takes numbers before any id is looked up, or first of another width than the
    decoder's. Ids: of the tables as wide as the decoder, else of all, the one with most rows.
    """
    encoder = None
    with suppress(NormprobeError):
        encoder = find_parts(model).vision_encoder
    named = None if encoder is None else encoder.module
    pictured, passed = dict[nn.Module, list[Tensor]](), set[nn.Module]()
    tables, numbers = dict[nn.Module, list[Tensor]](), dict[nn.Module, list[Tensor]]()

    def see(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        taken: list[Tensor] = []

        def keep(held: Tensor) -> Tensor:
            taken.append(held)
            return held

        _with_other(keep, args, kwargs)
        copied = [each.detach().clone() for each in taken if is_picture(each)]
        if len(copied) == len(taken) and taken and module not in passed:
            pictured.setdefault(module, []).extend(copied)
        else:
            passed.add(module)
            pictured.pop(module, None)
        if isinstance(module, nn.Embedding):
            tables.setdefault(module, []).extend(each.detach().clone() for each in taken)
        elif taken and (
            module is named
            or module in numbers
            or (not numbers and (not tables or taken[0].shape[-1] != width))
        ):
            numbers.setdefault(module, []).extend(each.detach().clone() for each in taken)

    def stop(*_: Any) -> None:
        raise Enough

    handles = [each.register_forward_pre_hook(see, with_kwargs=True) for each in model.modules()]
    handles.append(layer.register_forward_pre_hook(stop))
    with attached(*handles), torch.no_grad(), suppress(Enough):
        run()
    inside = {}
    if tables:
        sizes = {each: each.weight.shape for each in tables if isinstance(each, nn.Embedding)}
        table = max(sizes, key=lambda each: (sizes[each][1] == width, sizes[each][0]))
        inside[IDS] = TakenInside(table, tables[table])
    vision = next(iter(pictured), named if named in numbers else next(iter(numbers), None))
    if vision is not None:
        inside[PIXELS] = TakenInside(vision, pictured.get(vision) or numbers[vision])
    return inside
