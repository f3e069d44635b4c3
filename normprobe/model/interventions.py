"""Interventions on the tokens of a decoder, each for one forward, by hooks.

    with intervened(layers, Intervention("scale", 0.5), rows):
        run_until(model.model, inputs)

Each changes states of one token group where a decoder layer reads or writes them, or rounds what
its linear layers read. Nothing stays.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.pytorch_utils import Conv1D

from normprobe.errors import NormprobeError, did_you_mean
from normprobe.hooks import (
    after_call,
    attached,
    changing_input,
    hidden_state_of,
    on_this_thread,
    path_to_state,
    with_changed_input,
    with_state,
)
from normprobe.model.find.residual import Residual
from normprobe.statistics.token_metrics import token_norms, widened

UNTOUCHED = "untouched"
SCALE = "scale"  # visual states at the decoder input x dose
SCALE_TO_TEXT = "scale-to-text"  # x what makes them as loud as text
SCALE_TEXT = "scale-text"  # text states x dose
NORM_AT_LAYER = "norm-at-layer"  # visual states as loud as text while one layer alone reads them
GAIN = "gain"  # what attention and MLP add to visual states x dose, in all layers
FREEZE = "freeze"  # nothing is added to visual states
FREEZE_LAYER = "freeze-layer"  # in one layer
SWAP = "swap"  # norms kept, directions of another picture
SWAP_NORMS = "swap-norms"  # directions kept, norms of another picture
PERMUTE = "permute"  # visual states in another order
BLANK = "blank"  # a grey picture
PLACEBO = "placebo"  # states of random text tokens x dose

#: Those that ``--do`` can name, and their doses; NaN: there is no dose.
DOSES: dict[str, tuple[float, ...]] = {
    SCALE: (1 / 8, 1 / 4, 1 / 2, 2.0, 4.0, 8.0),
    SCALE_TO_TEXT: (math.nan,),
    SCALE_TEXT: (1 / 8, 8.0),
    NORM_AT_LAYER: (math.nan,),
    GAIN: (1 / 2, 2.0),
    FREEZE: (math.nan,),
    FREEZE_LAYER: (math.nan,),
    SWAP: (math.nan,),
    SWAP_NORMS: (math.nan,),
    PERMUTE: (math.nan,),
    BLANK: (math.nan,),
    PLACEBO: (1 / 8, 8.0),
}

#: What is done where nobody chooses: 13 forwards a sample beside the untouched one.
USUAL = (SCALE, SCALE_TO_TEXT, NORM_AT_LAYER, FREEZE, BLANK, PLACEBO)

#: Those that need the states of another picture.
OF_ANOTHER_PICTURE = (SWAP, SWAP_NORMS)


@dataclass(frozen=True)
class Intervention:
    """What is done in one forward."""

    name: str  # of ``DOSES``, or ``UNTOUCHED``
    dose: float = math.nan  # by how much; NaN: it has none
    layer: int = 0  # of ``FREEZE_LAYER`` which, from 1; 0: all, or the decoder input


def planned(names: Sequence[str], layers: int) -> list[Intervention]:
    """The forwards that names stand for, in a decoder of so many layers."""
    if unknown := [name for name in names if name not in DOSES]:
        raise NormprobeError(
            f"--do: there is no intervention {unknown[0]}: expected {', '.join(DOSES)}",
            did_you_mean(unknown[0], DOSES, f"leave {unknown[0]} out"),
        )
    return [
        Intervention(name, dose, layer)
        for name in dict.fromkeys(names)
        for dose in DOSES[name]
        for layer in (range(1, layers + 1) if name == FREEZE_LAYER else (0,))
    ]


@dataclass(frozen=True)
class TokenRows:
    """Which positions of the decoder hold what."""

    visual: Tensor  # ``[batch, positions]`` bool
    text: Tensor  # likewise
    seeds: Sequence[int]  # of each sample, for what is drawn by chance


@contextmanager
def intervened(
    layers: Sequence[nn.Module], done: Intervention, rows: TokenRows, other: Tensor | None = None
) -> Iterator[None]:
    """Intervene in every forward of this thread inside the block.

    Args:
        layers: of the decoder, which pass ``[batch, positions, hidden]``.
        done: what to do.
        rows: of the batch that runs.
        other: of ``OF_ANOTHER_PICTURE`` its states at the decoder input, [batch, positions,
            hidden].

    Raises:
        NormprobeError: of ``GAIN``, a layer adds nothing that can be followed.
    """
    with ExitStack() as stack:
        if done.name in (FREEZE, FREEZE_LAYER):
            chosen = layers if done.name == FREEZE else [layers[done.layer - 1]]
            stack.enter_context(attached(*(_freezing(layer, rows.visual) for layer in chosen)))
        elif done.name == GAIN:
            stack.enter_context(_gained(layers, done.dose, rows.visual))
        elif (change := _change_of(done, rows, other)) is not None:
            stack.enter_context(attached(changing_input(layers[0], change)))
        yield


#: Largest numbers of the types that inputs of linear layers are rounded to; fp8 is e4m3.
_LARGEST = {"int8": 127.0, "fp8": torch.finfo(torch.float8_e4m3fn).max}


def fake_quantised(x: Tensor, how: str) -> Tensor:
    """``[..., numbers]`` rounded to int8 or fp8 and back: the largest magnitude is the largest one.

    ``how``: ``int8-tensor`` and ``fp8-tensor`` have one scale, ``int8-token``, ``fp8-token`` one a
    row.
    """
    name, _, unit = how.partition("-")
    if not x.numel():
        return x
    wide = widened(x)
    largest = wide.abs().amax(-1, keepdim=True) if unit == "token" else wide.abs().amax()
    scale = torch.where(largest > 0, largest / _LARGEST[name], 1.0)
    scaled = wide / scale
    whole = scaled.round() if name == "int8" else scaled.to(torch.float8_e4m3fn).to(wide)
    return (whole * scale).to(x.dtype)


@contextmanager
def quantised_inputs(
    layers: Sequence[nn.Module], how: str, rows: Tensor | None = None
) -> Iterator[dict[nn.Module, Tensor]]:
    """Round what the linear layers inside decoder layers read, ``fake_quantised``.

    ``rows``: bool ``[positions]``, those of one sample that are rounded, as where all are. Yields
    of the last call of each linear layer ``[2, rows]``: squares of what it reads, summed over
    numbers, and of the error.
    """
    called: dict[nn.Module, Tensor] = {}

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if args else kwargs["input"]
        changed = fake_quantised(x, how)
        apart = torch.stack([widened(x), widened(changed) - widened(x)])
        called[module] = apart.square().sum(-1).flatten(1)
        if rows is not None:
            changed = torch.where(rows.to(x.device).view(*x.shape[:-1], 1), changed, x)
        return ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, "input": changed})

    linear = [m for layer in layers for m in layer.modules() if isinstance(m, nn.Linear | Conv1D)]
    hooked = on_this_thread(hook)
    with attached(*(m.register_forward_pre_hook(hooked, with_kwargs=True) for m in linear)):
        yield called


def as_loud_as_text(x: Tensor, rows: TokenRows) -> Tensor:
    """``[batch, 1]`` what visual states are multiplied by to be as loud as text, by sample.

    Text over visual tokens, the geometric means of their norms.
    """
    logs = token_norms(x).log()
    means = [_mean(logs, mask.to(x.device)) for mask in (rows.text, rows.visual)]
    return (means[0] - means[1]).exp().unsqueeze(-1)


def called_as_loud_as_text(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], rows: TokenRows
) -> tuple[Tensor, Tensor]:
    """What a layer takes and returns where its visual states are as loud as text, beside a forward.

    Args:
        layer: that has run.
        args: what it was called with.
        kwargs: likewise.
        rows: of the batch.
    """
    entered: list[Tensor] = []

    def change(x: Tensor) -> Tensor:
        entered.append(_scaled(x, rows.visual, as_loud_as_text(x, rows)))
        return entered[0]

    args, kwargs = with_changed_input(change, args, kwargs)
    returned = hidden_state_of(layer.forward(*args, **kwargs))  # its hooks have run
    return entered[0], returned


def _change_of(
    done: Intervention, rows: TokenRows, other: Tensor | None
) -> Callable[[Tensor], Tensor] | None:
    """What is done to the decoder input; None: nothing."""
    if done.name == SCALE:
        return lambda x: _scaled(x, rows.visual, done.dose)
    if done.name == SCALE_TEXT:
        return lambda x: _scaled(x, rows.text, done.dose)
    if done.name == PLACEBO:
        return lambda x: _scaled(x, _some_text(rows), done.dose)
    if done.name == SCALE_TO_TEXT:
        return lambda x: _scaled(x, rows.visual, as_loud_as_text(x, rows))
    if done.name == PERMUTE:
        return partial(_permuted, rows)
    if done.name in OF_ANOTHER_PICTURE:
        assert other is not None
        return partial(_swapped, rows.visual, other, directions=done.name == SWAP)
    return None


def _scaled(x: Tensor, mask: Tensor, by: float | Tensor) -> Tensor:
    """The states of a mask times a number, or one of each sample."""
    by = by.unsqueeze(-1) if isinstance(by, Tensor) else by
    wide = widened(x)
    return torch.where(mask.to(x.device).unsqueeze(-1), wide * by, wide).to(x.dtype)


def _some_text(rows: TokenRows) -> Tensor:
    """Text tokens by chance: as many as visual ones, at most half of the text."""
    visual, text = rows.visual.cpu(), rows.text.cpu()
    chosen = torch.zeros_like(text)
    for row, seed in enumerate(rows.seeds):
        places = text[row].nonzero().flatten()
        count = min(int(visual[row].sum()), len(places) // 2)
        chosen[row, places[_order(len(places), seed)[:count]]] = True
    return chosen


def _permuted(rows: TokenRows, x: Tensor) -> Tensor:
    """Visual states of each sample in another order."""
    permuted = x.clone()
    for row, seed in enumerate(rows.seeds):
        places = rows.visual[row].cpu().nonzero().flatten()
        permuted[row, places.to(x.device)] = x[row, places[_order(len(places), seed)].to(x.device)]
    return permuted


def _order(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def _swapped(visual: Tensor, other: Tensor, x: Tensor, *, directions: bool) -> Tensor:
    """Visual states with the directions, or the norms, of another picture."""
    own, others = widened(x), widened(other.to(x.device))
    norms = token_norms(own).unsqueeze(-1), token_norms(others).unsqueeze(-1)
    mixed = others * (norms[0] / norms[1]) if directions else own * (norms[1] / norms[0])
    return torch.where(visual.to(x.device).unsqueeze(-1), mixed, own).to(x.dtype)


def _freezing(layer: nn.Module, visual: Tensor) -> RemovableHandle:
    """A layer adds nothing to visual states; others read them as they are."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        x = hidden_state_of((kwargs.get("hidden_states"), args, kwargs))

        def frozen(h: Tensor) -> Tensor:
            return torch.where(visual.to(h.device).unsqueeze(-1), x.to(h), h)

        path = path_to_state(output)
        assert path is not None  # else reading it has failed before
        return with_state(output, path, frozen)

    return after_call(layer, hook)


@contextmanager
def _gained(layers: Sequence[nn.Module], gain: float, visual: Tensor) -> Iterator[None]:
    """What is added to visual states times a gain, term by term: an MLP reads what came before."""
    changed = [0] * len(layers)
    number = -1

    def change(term: Tensor) -> Tensor:
        changed[number] += 1
        return _scaled(term, visual.reshape(term.shape[:-1]), gain)

    def begin(place: int, *_: Any) -> None:
        nonlocal number
        number = place

    handles = [
        layer.register_forward_pre_hook(on_this_thread(partial(begin, place)))
        for place, layer in enumerate(layers)
    ]
    with attached(*handles), Residual(change).following(layers):
        yield
    if 0 in changed:
        raise NormprobeError(
            f"what decoder layer {changed.index(0) + 1} adds to its input cannot be followed",
            f"leave {GAIN} out; {FREEZE} and {SCALE} need not follow it",
        )


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """``[batch]``: the mean of the finite values of a mask; NaN: there is none."""
    held = mask & values.isfinite()
    total: Tensor = torch.where(held, values, 0.0).sum(dim=-1)
    return total / held.sum(dim=-1)
