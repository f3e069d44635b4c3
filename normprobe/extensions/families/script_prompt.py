"""What a script asked its model: the call to make again, with other pixels and other words."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from inspect import unwrap
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from normprobe.errors import NormprobeError, first_line
from normprobe.extensions.families.asked import is_of_an_answer
from normprobe.extensions.families.script_calls import (
    CACHE,
    CallOfModel,
    as_it_is_now,
    is_picture,
)
from normprobe.extensions.families.script_inside import (
    IDS,
    PIXELS,
    TakenInside,
    found_inside,
    width_of,
)
from normprobe.extensions.families.script_layers import (
    Enough,
    HowLayersRun,
    how_layers_run,
    passing_once,
    run_as_called,
)
from normprobe.extensions.families.script_machine import (
    drawing_as,
    of_one_beam,
    on_this_machine,
    without_inference_mode,
)
from normprobe.extensions.families.script_run import Caught
from normprobe.failures import is_native, last_line_of
from normprobe.hooks import attached, hidden_state_of
from normprobe.inputs.on_device import pixel_inputs
from normprobe.model.config import fields
from normprobe.model.find.structure import find_parts
from normprobe.model.tracing.recording import tensors

#: Beside a batch: what is drawn at random is drawn anew.
_ANEW = "drawn anew"

#: What no function that runs again may get: it holds what was written before.
_USED_UP = ("streamer",)

#: Beyond rounding, of the largest number: the state of another prompt.
_OTHER = 1e-2


@dataclass(frozen=True)
class ScriptPrompt:
    """What a script asked its model once.

    Attributes:
        model: that was asked.
        forward: asks it again, ``forward(model, **batch)``, until its layers have run.
        batch: what it was given.
        plain: what the model's own forward was given, where that is all there is to it.
        doubt: what is not as it was when the script ran.
    """

    model: nn.Module
    forward: Callable[..., Any]
    batch: Mapping[str, Any]
    plain: Mapping[str, Any] | None = None
    doubt: str = ""


def prompt_of(caught: Caught) -> ScriptPrompt:
    """What made the layers run, to be called again.

    Of the functions that were running it is the outermost that was given ids and pixels; where
    there is none, the outermost that was given pixels, else the outermost, and pixels are what a
    module takes. Where rows were made of pixels before, both calls are made again. What does not
    bring the same rows to the first layer is passed over.

    Raises:
        NormprobeError: nothing that was running can be called again.
    """
    layer = caught.calls[-1].named["self"]
    calls = [call for call in caught.calls[:-1] if _model_around(call, layer) is not None]
    known = [(call, function) for call in calls if (function := _function_of(call)) is not None]
    ways = [_Way(call, function) for call, function in known]
    if known and (before := _made_before(*known[0], caught, layer)) is not None:
        ways.insert(0, before)
    owner = calls[-1].named["self"] if calls else layer
    how = _how_layers_run(ways, caught)
    if how is None:
        width = 0 if caught.state is None else caught.state.shape[-1]
        ways.sort(key=lambda each: _rank(_inputs_of(each.call), width), reverse=True)
    else:  # the outermost call alone reads the whole prompt
        ways, layer = ways[:1], how.layers[0]
    failed, found = "", list[tuple[bool, bool, ScriptPrompt]]()
    for way in ways:
        try:
            prompt = _prompt_by(way, caught, layer, owner, how)
            same, draws = _brings_the_same(prompt, caught, layer, how)
        except Exception as error:  # code of any kind: another way may do
            if not failed:
                failed = f"{type(error).__name__}: {first_line(error)}{last_line_of(error)}"
                failed = f"{way.call.code.co_name} cannot be called again: {failed}"
            continue
        prompt = replace(prompt, doubt=_DRAWS if draws else "" if same else _CHANGES)
        found.append((_shows(prompt.batch), same, prompt))
        if all(found[-1][:2]):
            break
    if not found:
        raise NormprobeError(
            f"what makes {type(layer).__name__} run cannot be told: "
            f"{failed or 'no function with the model was called'}",
            "measure the model in Python: Probe(model, forward=...)",
        )
    shown, same, prompt = max(found, key=lambda each: each[:2])
    if caught.opened and not shown and IDS not in prompt.batch:
        raise NormprobeError(
            f"rows of words and pixels are put together before {type(prompt.model).__name__} is "
            "called" + f"; {failed}" * bool(failed),
            "put what makes them and what asks into a function that is given the model, and call "
            "it: def ask(model): ...",
        )
    if caught.opened and not shown:
        return replace(prompt, doubt=UNSEEN + f"; {failed}" * bool(failed))
    changes = prompt.doubt + _IN_TRAINING * bool(prompt.doubt and prompt.model.training)
    doubts = [changes, _masked_places(prompt), _short_mask(caught)]
    return replace(prompt, doubt="; ".join(filter(None, doubts)))


def _short_mask(caught: Caught) -> str:
    """A doubt where the mask of rows is shorter than they are: versions read it otherwise."""
    if caught.state is None:
        return ""
    rows = caught.state.shape[-2]
    for call in caught.calls:
        mask: Any = call.named.get("attention_mask")
        of_rows = any(each.shape == caught.state.shape for each in tensors([*call.named.values()]))
        if of_rows and isinstance(mask, Tensor) and mask.dim() == 2 and mask.shape[-1] < rows:
            return (
                f"the attention_mask of what holds the layers tells of {mask.shape[-1]} of {rows} "
                "rows: which of them attention reads is up to the version of transformers"
            )
    return ""


def _masked_places(prompt: ScriptPrompt) -> str:
    """A doubt where places that an answer will fill in are among the rows (LLaDA-V)."""
    settings: dict[str, Any] = getattr(getattr(prompt.model, "config", None), "to_dict", dict)()
    masks = [value for name, value in fields(settings) if name == "mask_token_id"]
    ids: Tensor | None = prompt.batch.get(IDS)
    known = torch.tensor([value for value in masks if isinstance(value, int)])
    if ids is None or not (count := int(torch.isin(ids, known.to(ids)).sum())):
        return ""
    return f"{count} rows are places of the answer (config.mask_token_id), and count as text"


UNSEEN = (
    "the script opened a picture, and nothing that runs its layers takes pixels: rows of the "
    "picture may count as text; where ids of the text table stand for it, name them in an --inputs "
    'file: parts = {"fusion": "discrete", "image_token_ids": tuple(range(FIRST, LAST + 1))}'
)
_CHANGES = (
    "asked the same again, the model of the script enters its first layer with other rows: it "
    "keeps what it was asked"
)
_DRAWS = (
    "the model of the script draws rows at random before its first layer: measured is what the "
    "script drew"
)

_IN_TRAINING = ", or drops some: it is in training mode, and measured without; call its eval()"


@dataclass(frozen=True)
class _Way:
    """How layers are made to run: a call, and what takes what it returns."""

    call: CallOfModel
    function: Callable[..., Any]
    then: Callable[[Any], Any] = lambda returned: returned


def _how_layers_run(ways: Sequence[_Way], caught: Caught) -> HowLayersRun | None:
    """By the outermost call."""
    for way in ways[:1]:
        with suppress(Exception):  # code of any kind
            return how_layers_run(caught.layers, partial(_asked_by, way, caught, way.call.named))
    return None


def _asked_by(
    way: _Way, caught: Caught, named: Mapping[str, Any], *, drawn_anew: bool = False
) -> Any:
    """Make the call with arguments by their names, as things were when the script made it."""
    given = {name: value for name, value in named.items() if name not in _USED_UP}
    with ExitStack() as stack:
        stack.enter_context(on_this_machine())
        stack.enter_context(without_inference_mode())
        stack.enter_context(of_one_beam())
        stack.enter_context(nullcontext() if drawn_anew else drawing_as(way.call.drawing))
        for kind, dtype in caught.precision.items():
            stack.enter_context(torch.autocast(kind, dtype))
        for holder, held in way.call.kept:  # each time as it was
            vars(holder).update(as_it_is_now(held))
        if CACHE in given:
            given[CACHE] = deepcopy(given[CACHE])
        return way.then(_called(way.function, way.call, given))


def _prompt_by(
    way: _Way, caught: Caught, layer: nn.Module, owner: nn.Module, how: HowLayersRun | None
) -> ScriptPrompt:
    call, model = way.call, _model_around(way.call, layer)
    assert model is not None
    inputs = _inputs_of(call)
    ids = _ids_in(inputs)
    others = {
        name: value
        for name, value in call.named.items()
        if name not in inputs and value is not None and name not in _USED_UP
    }
    inside: dict[str, TakenInside] = {}

    def forward(_: nn.Module, **given: Any) -> Any:
        anew = _ANEW in given
        given = {name: given[name] for name in batch if name in given}  # and nothing else
        inner = [inside[name].taking(given.pop(name)) for name in inside]
        named = {ids if name == IDS else name: value for name, value in given.items()} | others
        run = partial(_asked_by, way, caught, named, drawn_anew=anew)
        with ExitStack() as stack:
            for taking in inner:
                stack.enter_context(taking)
            if how is not None:
                return run_as_called(how, run)
            stack.enter_context(passing_once(owner, layer))
            return run()

    batch = {IDS if name == ids else name: value for name, value in inputs.items()}
    shape = None if caught.state is None else caught.state.shape
    width = shape[-1] if shape else None
    found = found_inside(model, lambda: forward(model, **batch), layer, width)
    made = any(each.shape == shape for each in tensors([*inputs.values()]))  # of pixels, before
    taken = None if _shows(batch) or made else found.get(PIXELS)
    read = sum(each.numel() for each in found[IDS].tensors) if IDS in found else 0
    if read and (not ids or read > batch[IDS].numel()):  # the method writes more (OpenVLA-OFT)
        if ids:
            others[ids] = batch[IDS]
        inside[IDS] = found[IDS]
        rows = [each.reshape(-1, width_of(each)) for each in found[IDS].tensors]
        batch[IDS] = torch.cat(rows, -1)
    if taken is not None:
        pixels = _name_of_pixels(model, batch.get(IDS))
        inside[pixels], batch[pixels] = taken, taken.tensors
    plain = None
    if (
        is_native(model)
        and way.function is type(model).forward
        and not (inside or caught.precision)
    ):
        kept = {name: value for name, value in others.items() if not is_of_an_answer(name)}
        plain = {name: value for name, value in kept.items() if value is not model} | inputs
    return ScriptPrompt(model, forward, batch, plain)


def _name_of_pixels(model: nn.Module, ids: Tensor | None) -> str:
    """By the placeholders in a prompt: of a video, else of pictures."""
    with suppress(NormprobeError):
        parts = find_parts(model)
        video, image = (
            ids is not None and bool(torch.isin(ids, torch.tensor(known, device=ids.device)).any())
            for known in (parts.video_token_ids, parts.image_token_ids)
        )
        return f"{PIXELS}_videos" if video and not image else PIXELS
    return PIXELS


def _model_around(call: CallOfModel, layer: nn.Module) -> nn.Module | None:
    """The model of a call that holds a layer."""
    return next((model for model in call.models if _holds(model, layer)), None)


def _holds(module: nn.Module, other: nn.Module) -> bool:
    return module is not other and any(inside is other for inside in module.modules())


def _function_of(call: CallOfModel) -> Callable[..., Any] | None:
    """The function whose code ran: of the class of its first argument, with what decorates it."""
    for kind in type(call.named[call.first[0]]).__mro__ if call.first else ():
        for value in vars(kind).values():
            if callable(value) and getattr(unwrap(value), "__code__", None) is call.code:
                return value  # type: ignore[no-any-return]
    found = [each for each in gc.get_referrers(call.code) if isinstance(each, FunctionType)]
    return found[-1] if found else None


def _made_before(
    call: CallOfModel, function: Callable[..., Any], caught: Caught, layer: nn.Module
) -> _Way | None:
    """A call that had ended and returned what the outermost call takes (DeepSeek-VL).

    It takes it by itself, or as the one picture in a list, or in one of lists (MiniGPT-4).
    """
    for earlier, returned in reversed(caught.ended):
        made = list(tensors(returned))
        for name, value in call.named.items():
            held = _alone_in(value)
            if not isinstance(held, Tensor) or not held.is_floating_point():
                continue
            place = next((i for i, each in enumerate(made) if _are_equal(each, held)), None)
            before = None if place is None else _function_of(earlier)
            if before is None or place is None or _model_around(earlier, layer) is None:
                continue
            return _Way(earlier, before, partial(_go_on, function, call, name, place))
    return None


def _go_on(
    function: Callable[..., Any], call: CallOfModel, name: str, place: int, returned: Any
) -> Any:
    """Make a call again with what another one returned."""
    before = call.named[name]
    held = _alone_in(before)
    rows: Any = list(tensors(returned))[place].to(held.dtype)
    rows = rows.reshape((1,) * (held.dim() - rows.dim()) + rows.shape[-held.dim() :])
    while before is not held:
        before, rows = before[0], [rows]
    given = {key: value for key, value in call.named.items() if key not in _USED_UP}
    return _called(function, call, {**given, name: rows})


def _alone_in(value: Any) -> Any:
    while type(value) is list and len(value) == 1:
        value = value[0]
    return value


def _called(function: Callable[..., Any], call: CallOfModel, named: Mapping[str, Any]) -> Any:
    """Call a function by names, and by places where that is how what follows gets in."""
    by_place = [name for name in call.first[: None if call.more else 1] if name in named]
    named = {name: as_it_is_now(value) for name, value in named.items()}
    given = {name: value for name, value in named.items() if name not in by_place}
    return function(*(named[name] for name in by_place), *call.more, **given)


def _are_equal(made: Tensor, taken: Tensor) -> bool:
    alike = made.is_floating_point() and made.numel() == taken.numel() > 0
    return alike and torch.equal(made.detach().flatten().to(taken.dtype), taken.detach().flatten())


def _brings_the_same(
    prompt: ScriptPrompt, caught: Caught, layer: nn.Module, how: HowLayersRun | None
) -> tuple[bool, bool]:
    """Whether the first layer gets what it got in the script, twice, and whether that is drawn.

    Of pieces it is the first one.
    """
    first, second = (_state_entering(layer, prompt) for _ in range(2))
    if caught.state is None or first is None or second is None:
        return caught.state is None and first is not None, False
    begins = first
    if how is not None:
        begins = first[..., : caught.state.shape[-2], :].reshape(caught.state.shape)
    same = _are_close(begins, caught.state) and _are_close(second, first)
    anew = _state_entering(layer, prompt, **{_ANEW: True}) if same else None
    return same, anew is not None and not _are_close(anew, first)


def _state_entering(layer: nn.Module, prompt: ScriptPrompt, **more: bool) -> Tensor | None:
    seen: list[Tensor] = []

    def see(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(hidden_state_of((kwargs.get("hidden_states"), args, kwargs)).detach())
        raise Enough

    handle = layer.register_forward_pre_hook(see, with_kwargs=True)
    with attached(handle), torch.no_grad(), suppress(Enough):
        prompt.forward(prompt.model, **prompt.batch, **more)
    return seen[0] if seen else None


def _are_close(now: Tensor, before: Tensor) -> bool:
    if now.shape != before.shape:
        return False
    now, before = now.float(), before.float()
    return bool((now - before).abs().max() <= _OTHER * before.abs().max())


def _inputs_of(call: CallOfModel) -> dict[str, Any]:
    """Arguments that hold tensors."""
    return {
        name: value
        for name, value in call.named.items()
        if name not in ("self", *_USED_UP)
        and not is_of_an_answer(name)
        and not isinstance(value, nn.Module)
        and any(True for _ in tensors(value))
    }


def _rank(inputs: Mapping[str, Any], width: int) -> tuple[bool, bool]:
    """Whether a call is given pixels and ids, and pixels: decoder rows are none (VTG-LLM)."""
    held = {name: [*tensors(value)] for name, value in inputs.items()}
    rows = {name for name, them in held.items() if all(t.shape[-1:] == (width,) for t in them)}
    pixels = _shows({name: value for name, value in inputs.items() if name not in rows})
    return pixels and bool(_ids_in(inputs)), pixels


def _shows(inputs: Mapping[str, Any]) -> bool:
    """Whether there are pixels, and no rows that were made of them."""
    return any(
        not name.endswith(("embeds", "features", "embeddings"))
        or any(is_picture(tensor) for tensor in tensors(value))
        for name, value in pixel_inputs(inputs).items()
    )


def _ids_in(inputs: Mapping[str, Any]) -> str:
    """The name by which a method takes the ids of a prompt; "" where it takes none."""
    whole = (
        name
        for name, value in sorted(inputs.items(), key=lambda item: item[0] != IDS)
        if isinstance(value, Tensor) and value.dim() == 2 and value.dtype in (torch.int64,)
        if value.numel() and "mask" not in name and "position" not in name
    )
    return next(whole, "")
