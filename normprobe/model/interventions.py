"""Interventions on the tokens of a decoder, each for one forward, by hooks.

    with intervened(layers, Intervention("scale", 0.5), rows):
        run_until(model.model, inputs)

Each changes states of one token group where a decoder layer reads or writes them, or rounds what
its linear layers read. Nothing stays.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers.pytorch_utils import Conv1D

from normprobe.errors import NormprobeError
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
from normprobe.model.find.residual import Residual, Term
from normprobe.model.intervention_plan import (
    BLANK,
    FREEZE,
    FREEZE_ATTENTION,
    FREEZE_LAYER,
    FREEZE_MLP,
    FREEZE_TEXT,
    GAIN,
    KNOCKOUT,
    KNOCKOUT_LAYER,
    OF_ANOTHER_PICTURE,
    OF_UPDATES,
    PATCH_LAYER,
    PERMUTE,
    PLACEBO,
    SCALE,
    SCALE_TEXT,
    SCALE_TO_TEXT,
    SWAP,
    Intervention,
)
from normprobe.schema import BRANCHES
from normprobe.statistics.token_metrics import token_norms, widened


@dataclass(frozen=True)
class TokenRows:
    """Which positions of the decoder hold what."""

    visual: Tensor  # ``[batch, positions]`` bool
    text: Tensor  # likewise
    seeds: Sequence[int]  # of each sample, for what is drawn by chance

    @cached_property
    def drawn(self) -> Tensor:
        """Text tokens by chance: as many as visual ones, at most half of the text."""
        visual, text = self.visual.cpu(), self.text.cpu()
        chosen = torch.zeros_like(text)
        for row, seed in enumerate(self.seeds):
            places = text[row].nonzero().flatten()
            count = min(int(visual[row].sum()), len(places) // 2)
            chosen[row, places[_order(len(places), seed)[:count]]] = True
        return chosen.to(self.text.device)

    def only(self, tokens: Tensor) -> "TokenRows":
        """With some of the visual positions, ``[batch, positions]`` bool, in place of all."""
        return TokenRows(self.visual & tokens.to(self.visual.device), self.text, self.seeds)

    def touched(self, name: str) -> Tensor:
        """What an intervention changes."""
        if name in (PLACEBO, FREEZE_TEXT):
            return self.drawn
        return self.text if name == SCALE_TEXT else self.visual

    def watched(self, name: str) -> Tensor:
        """What no intervention of its side changes, so that it tells how far others move it.

        Text that the placebo leaves alone, the same rows in each forward; where text is scaled,
        visual rows.
        """
        return self.visual if name == SCALE_TEXT else self.text & ~self.drawn


@contextmanager
def intervened(
    layers: Sequence[nn.Module], done: Intervention, rows: TokenRows, other: Tensor | None = None
) -> Iterator[None]:
    """Intervene in every forward of this thread inside the block.

    Args:
        layers: of the decoder, which pass ``[batch, positions, hidden]``.
        done: what to do.
        rows: of the batch that runs.
        other: of ``OF_ANOTHER_PICTURE`` its states at the decoder input, of ``PATCH_LAYER`` at that
            layer, of ``BLANK`` those of a grey picture; [batch, positions, hidden].

    Raises:
        NormprobeError: of ``OF_UPDATES``, a layer adds nothing that can be followed; of
            ``KNOCKOUT``, a layer takes no mask of pairs of tokens.
    """
    chosen = {number: layers[number] for number in done.layers(len(layers))}
    with ExitStack() as stack:
        if done.name in (FREEZE, FREEZE_LAYER, FREEZE_TEXT):
            frozen = rows.touched(done.name)
            stack.enter_context(attached(*(_freezing(each, frozen) for each in chosen.values())))
        elif done.name in (KNOCKOUT, KNOCKOUT_LAYER):
            hidden = (_hiding(each, number, rows.visual) for number, each in chosen.items())
            stack.enter_context(attached(*hidden))
        elif done.name in OF_UPDATES:
            stack.enter_context(_updated(chosen, done, rows))
        elif done.name == PATCH_LAYER:
            patched = partial(_patched, rows.visual, other)
            stack.enter_context(attached(*(changing_input(e, patched) for e in chosen.values())))
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

    # Layers of Gemma 4 leave keys and values in a mapping, which the next ones read.
    own = {name: copy(v) if isinstance(v, MutableMapping) else v for name, v in kwargs.items()}
    args, kwargs = with_changed_input(change, args, own)
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
        return partial(_placebo, rows, done.dose)
    if done.name == SCALE_TO_TEXT:
        return lambda x: _scaled(x, rows.visual, as_loud_as_text(x, rows))
    if done.name == PERMUTE:
        return partial(_permuted, rows)
    if done.name == BLANK:  # of all tokens the whole picture is another one
        return partial(_patched, rows.visual, other) if done.tokens else None
    if done.name in OF_ANOTHER_PICTURE:
        assert other is not None
        return partial(_swapped, rows.visual, other, directions=done.name == SWAP)
    return None


def _scaled(x: Tensor, mask: Tensor, by: float | Tensor) -> Tensor:
    """The states of a mask times a number, or one of each sample."""
    by = by.unsqueeze(-1) if isinstance(by, Tensor) else by
    wide = widened(x)
    return torch.where(mask.to(x.device).unsqueeze(-1), wide * by, wide).to(x.dtype)


def _placebo(rows: TokenRows, dose: float, x: Tensor) -> Tensor:
    """The drawn text rows times a dose, as visual ones are scaled.

    Where a prompt has fewer than there are visual ones: times what changes the sum of their squares
    by as much as ``SCALE`` changes that of the visual ones, but never below the dose.
    """
    squares = token_norms(x).square()
    drawn, visual = (mask.to(x.device) for mask in (rows.drawn, rows.visual))
    sums = [torch.where(mask, squares, 0.0).sum(dim=-1) for mask in (visual, drawn)]
    by = (1 + (dose**2 - 1) * sums[0] / sums[1]).clamp_min(min(dose, 1.0) ** 2).sqrt()
    fewer = drawn.sum(dim=-1) < visual.sum(dim=-1)
    return _scaled(x, drawn, torch.where(fewer, by, dose).unsqueeze(-1))


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


def _patched(visual: Tensor, other: Tensor | None, x: Tensor) -> Tensor:
    """Visual states of another picture in place of one's own."""
    assert other is not None
    return torch.where(visual.to(x.device).unsqueeze(-1), other.to(x), x)


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


def _hiding(layer: nn.Module, number: int, visual: Tensor) -> RemovableHandle:
    """No token but visual ones attends to these: the mask that the layer is given loses them."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = hidden_state_of((kwargs.get("hidden_states"), args, kwargs))
        mask = kwargs.get("attention_mask", _NONE)
        seen = visual.to(x.device)
        hidden = (~seen[:, :, None] & seen[:, None, :])[:, None]  # [batch, 1, reads, is read]
        if mask is None and _is_causal(layer):  # SDPA needs none
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
            mask = mask.expand(len(x), 1, -1, -1)
        if not isinstance(mask, Tensor) or mask.shape[-2:] != hidden.shape[-2:]:
            raise NormprobeError(
                f"decoder layer {number + 1} takes no mask that says which token attends to which",
                f"pass --attn-implementation eager or sdpa, or leave {KNOCKOUT} out",
            )
        least = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
        return args, {**kwargs, "attention_mask": mask.masked_fill(hidden, least)}

    return layer.register_forward_pre_hook(on_this_thread(hook), with_kwargs=True)


_NONE = object()


def _is_causal(layer: nn.Module) -> bool:
    """Whether its attention, given no mask, lets each token see those before it."""
    causal = [getattr(m, "is_causal", None) for m in layer.modules() if hasattr(m, "is_causal")]
    names = [
        getattr(getattr(m, "config", None), "_attn_implementation", "") for m in layer.modules()
    ]
    return bool(causal) and all(causal) and "sdpa" in names


@contextmanager
def _updated(
    layers: Mapping[int, nn.Module], done: Intervention, rows: TokenRows
) -> Iterator[None]:
    """Change what is added to visual states, term by term: an MLP reads what came before.

    ``layers``: by their numbers, from 0.
    """
    changed = dict.fromkeys(layers, 0)
    number = -1
    drawn = [torch.Generator().manual_seed(seed) for seed in rows.seeds]

    def change(term: Tensor, terms: tuple[Term, ...]) -> Tensor:
        changed[number] += 1
        visual = rows.visual.reshape(term.shape[:-1])
        if done.name == GAIN:
            return _scaled(term, visual, done.dose)
        if done.name in _WITHOUT:
            new = _without(term, terms, _WITHOUT[done.name])
        else:
            new = _random_like(term, rows.visual, drawn)
        return torch.where(visual.to(term.device).unsqueeze(-1), new, term)

    def begin(place: int, *_: Any) -> None:
        nonlocal number
        number = place

    handles = [
        layer.register_forward_pre_hook(on_this_thread(partial(begin, place)))
        for place, layer in layers.items()
    ]
    with attached(*handles), Residual(change).following(layers.values()):
        yield
    if lost := [place for place, count in changed.items() if not count]:
        raise NormprobeError(
            f"what decoder layer {lost[0] + 1} adds to its input cannot be followed",
            f"leave {done.name} out; {FREEZE} and {SCALE} need not follow it",
        )


#: Which branches add nothing.
_WITHOUT = {FREEZE_ATTENTION: frozenset(BRANCHES[:2]), FREEZE_MLP: frozenset(BRANCHES[2:])}


def _without(term: Tensor, terms: tuple[Term, ...], branches: frozenset[str]) -> Tensor:
    """What is added without that of some branches."""
    kept = [each for each in terms if not each.branches or not each.branches <= branches]
    if any(each.branches & branches for each in kept):
        raise NormprobeError(
            "what attention and MLP add cannot be told apart in this decoder",
            f"leave {FREEZE_ATTENTION} and {FREEZE_MLP} out; {FREEZE} is both of them",
        )
    if len(kept) == len(terms):
        return term
    return sum((each.tensor.expand(term.shape) for each in kept), torch.zeros_like(term))


def _random_like(term: Tensor, visual: Tensor, drawn: Sequence[torch.Generator]) -> Tensor:
    """As much in random directions: vectors of the same norms, for the visual rows of a sample."""
    made = torch.zeros_like(term).view(*visual.shape, -1)
    for row, generator in enumerate(drawn):
        places = visual[row].nonzero().flatten()
        noise = torch.randn(len(places), term.shape[-1], generator=generator)
        made[row, places.to(made.device)] = noise.to(made)
    sizes = [token_norms(each).unsqueeze(-1) for each in (term, made.view(term.shape))]
    found = widened(made.view(term.shape)) * torch.where(sizes[1] > 0, sizes[0] / sizes[1], 0.0)
    return found.to(term.dtype)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """``[batch]``: the mean of the finite values of a mask; NaN: there is none."""
    held = mask & values.isfinite()
    total: Tensor = torch.where(held, values, 0.0).sum(dim=-1)
    return total / held.sum(dim=-1)
