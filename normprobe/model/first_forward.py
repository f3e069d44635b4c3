"""What one forward tells of a decoder before it is measured: layers that run once, in one stream.

Hooks read what leaves a layer as what enters the next. A decoder that runs its layers several
times, or whose layers return another tensor first, would be measured all the same, and wrongly.
Nor would positions tell tokens where layers return their rows in another order.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normprobe.errors import FixedStates, NormprobeError
from normprobe.failures import is_native
from normprobe.hooks import (
    after_call,
    attached,
    before_call,
    changing_input,
    hidden_state_of,
    in_full_precision,
    observing,
    on_input,
    on_output,
    on_this_thread,
    run_until,
    same_random_numbers,
)
from normprobe.inputs.on_device import moved_to
from normprobe.model.find.norms import NOT_SHOWN, norm_placement_note
from normprobe.model.find.overrides import CROSS_ATTENTION
from normprobe.model.find.parts import (
    cuts_patches,
    head_of,
    holders_of,
    holds_blocks,
    size_of,
)
from normprobe.model.measured_model import MeasuredModel
from normprobe.model.provenance import text_ids
from normprobe.model.tracing.language import holds
from normprobe.model.tracing.recording import tensors
from normprobe.statistics.token_metrics import token_norms

#: How far two forwards may be apart by the order in which kernels add, relative to norms.
_ROUNDING = 1e-3

#: How many of an encoder's parameters another one has, at least.
_TOWER = 0.2


def check_forward(model: MeasuredModel, inputs: Mapping[str, Any]) -> None:
    """See once, by the first batch, that the decoder is one that is measured rightly.

    What speaks against it without refuting it becomes a doubt of the model.

    Raises:
        NormprobeError: a layer runs more than once a forward, or does not return first what enters
            the next one.
    """
    if model.forward_seen:
        return
    first = _Forward(model.decoder_layers, _larger_lists(model))
    drew = first.run(model, inputs)
    if not first.calls[len(first.layers)]:
        return  # it fails on these inputs: the measurement says how
    first.refuse_several_passes(model)
    doubts = [model.doubt, _padding_doubt(model, inputs)]
    between = model.parts.fusion == CROSS_ATTENTION and is_native(model.model)  # known to do so
    if first.apart and not between:
        doubts.append(
            f"no token enters decoder layer {first.apart[0]} as it left the layer before: its turn "
            "there is not seen; where another list of layers runs between, let one module hold both"
        )
    if first.continued:
        doubts.append(
            f"behind the decoder layers, {first.continued} runs on as many rows and is larger: it "
            f"may be the language model; `--part decoder_layers={first.continued}` measures it"
        )
    if any(map(runs_other_code, model.decoder_layers)):
        with suppress(FixedStates):
            check_order(model, inputs)
    if drew or _may_differ(model.model):
        second = _Forward(model.decoder_layers)
        second.run(model, inputs)
        doubts.append(first.difference(second))
    model.doubt = "; ".join(filter(None, doubts))
    if model.norm_placement == NOT_SHOWN:
        given = moved_to(model.model, inputs)
        model.norm_placement = norm_placement_note(model.model, model.parts, given)
    model.forward_seen = True


def _larger_lists(model: MeasuredModel) -> dict[str, nn.Module]:
    """The first layer of each list of layers that is larger than the decoder's (HoVLE)."""
    ours = model.parts.decoder_layers
    if ours is None or is_native(model.model):
        return {}
    return {
        name: next(module.children())
        for name, module in model.model.named_modules()
        if isinstance(module, nn.ModuleList)
        and len(module) > 1
        and holds_blocks(module)
        and not (holds(ours.name, name) or holds(name, ours.name))
        and size_of(module) > size_of(ours.module)
    }


def _larger_beside_words(model: MeasuredModel) -> str:
    """A doubt where a list beside the text table is larger than the decoder's (Xoron).

    Where the forward is followed to its end, it is seen which runs behind which.
    """
    table = model.parts.text_embedding
    around = holders_of(table.name) if table else []
    for name in _larger_lists(model):
        if name.rpartition(".")[0] in around:
            return (
                f"{name} lies beside {table.name if table else ''} and is larger than the decoder "
                f"layers: it may be the language model; `--part decoder_layers={name}` measures it"
            )
    return ""


class _Forward:
    """A forward to its end: how often each layer ran, and two numbers of each row behind it."""

    def __init__(
        self, layers: Sequence[nn.Module], lists: Mapping[str, nn.Module] | None = None
    ) -> None:
        self.layers = layers
        self.lists = lists or {}  # the first layer of other lists, by the name of the list
        self.continued = ""  # one of them that goes on where the layers end
        self.calls = Counter[int]()  # by layer, from 1
        self.rows: dict[int, Tensor] = {}  # by layer ``[2, rows]``, of ``_sketch``
        self.apart: list[int] = []  # layers that no row enters as it left the one before
        self._output: Any = None  # of the layer that ran last
        self._last, self._looped = 0, False  # that layer; whether one ran on what itself returned
        self._fault: NormprobeError | None = None
        self._two_states: NormprobeError | None = None
        self._second: list[Tensor] = []  # like the state, and handed on beside it

    def run(self, model: MeasuredModel, inputs: Mapping[str, Any]) -> bool:
        """Run it, and say whether it drew random numbers."""
        handles = []
        for number, layer in enumerate(self.layers, start=1):
            handles.append(before_call(layer, partial(self._enter, number)))
            handles.append(after_call(layer, partial(self._leave, number)))
        for name, layer in self.lists.items():
            handles.append(before_call(layer, partial(self._go_on, name)))
        head = head_of(model.model)
        if isinstance(head, nn.Module):  # logits of all tokens may need more memory than all else
            handles.append(head.register_forward_pre_hook(on_this_thread(_last_token)))
        with observing(model.model), attached(*handles):
            inputs, before = moved_to(model.model, inputs), _random_states()
            with suppress(NormprobeError):  # behind the layers weights may not have been read
                run_until(model.model, inputs)
        self._second = []
        if fault := self._fault or self._two_states:
            raise fault
        return before != _random_states()

    def _enter(self, number: int, _: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        if number > 1 and not self.calls[number] and self._output is not None:
            entered = hidden_state_of((kwargs.get("hidden_states"), args, kwargs))
            left = hidden_state_of(self._output)
            if left.dim() == entered.dim() and left[..., 0].numel() != entered[..., 0].numel():
                self._fault = self._fault or NormprobeError(
                    f"{left[..., 0].numel()} rows leave decoder layer {number - 1}, and "
                    f"{entered[..., 0].numel()} enter layer {number}: some are left out, merged or "
                    "added between them, and no turn of theirs can be measured",
                    "switch that off in its config, or in forward(model, **inputs) of an --inputs "
                    "file",
                )
            elif left.shape[-1] != entered.shape[-1]:  # HaploVL
                self._fault = self._fault or NormprobeError(
                    f"decoder layer {number} takes rows of size {entered.shape[-1]}, and layer "
                    f"{number - 1} hands over {left.shape[-1]}: no turn between the two can be "
                    "measured",
                    "measure one of the two halves: prepare(model, processor) of an --inputs file "
                    "keeps its layers, as in model.half = ModuleList(LAYERS[:N]), and parts says "
                    '"decoder_layers": "half"',
                )
            elif not handed_on(self._output, entered):
                self.apart.append(number)
                if self._fault is None and is_among(self._output, entered):
                    self._fault = NormprobeError(
                        f"decoder layer {number - 1} returns several states, and the first of "
                        f"them is not what enters layer {number}",
                        "let the layers return the hidden state first: a module around each that "
                        "does so is enough",
                    )
            else:
                self._see_second_states(number, entered, (args, kwargs))
        self._looped |= number == self._last and len(self.layers) > 1
        self._output, self._last = None, number
        self.calls[number] += 1

    def _see_second_states(self, number: int, entered: Tensor, given: Any) -> None:
        """Refuse a further tensor like the state that left the layer before and enters this one.

        One that enters the next layer unchanged is no state: values of the first layer that all
        read (RWKV-7).
        """
        received = [each for each in tensors(given) if each.shape == entered.shape]
        passed = [each for each in self._second if any(map(partial(_is, each), received))]
        if self._second and len(passed) == len(self._second):
            self._two_states = None
        self._second = [
            each
            for each in tensors(self._output)
            if each.shape == entered.shape
            and each.is_floating_point()
            and not _is(each, entered)
            and any(map(partial(_is, each), received))
        ]
        new = [each for each in self._second if not any(map(partial(_is, each), passed))]
        if new and self._two_states is None:
            self._two_states = NormprobeError(
                f"decoder layer {number - 1} hands two states on to layer {number}: nothing tells "
                "which is the hidden state, or whether it is their sum, as where an update stands "
                "beside its residual",
                "put a module around each layer that hands on one state, such as their sum; of an "
                "engine, hold the states that it saves against the model in transformers: "
                "normprobe check MODEL --states DIR",
            )

    def _go_on(self, name: str, _: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        if self._last != len(self.layers) or self._output is None:
            return
        with suppress(NormprobeError):  # it may take no state
            entered = hidden_state_of((kwargs.get("hidden_states"), args, kwargs))
            if entered.shape[:-1] == hidden_state_of(self._output).shape[:-1]:
                self.continued = self.continued or name

    def _leave(self, number: int, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        self._output = output
        if self.calls[number] == 1:
            self.rows[number] = _sketch(hidden_state_of(output))

    def refuse_several_passes(self, model: MeasuredModel) -> None:
        number, calls = self.calls.most_common(1)[0]
        if calls > 1:
            stack = model.parts.decoder_layers
            named = f" ({stack.name}; --part decoder_layers=NAME names others)" if stack else ""
            raise NormprobeError(
                f"decoder layer {number} of {model}{named} runs {calls} times in one forward: "
                "expected once",
                "layers that are looped over are not supported; `normprobe interface` reads before "
                "them, and a module around each loop, named as decoder_layers, is one layer"
                if self._looped
                else "pass inputs that it reads in one pass, without guidance, or --batch-size 1 "
                "if it reads sample by sample; layers that are looped over are not supported",
            )

    def difference(self, other: "_Forward") -> str:
        """A doubt where the rows of another forward of the same batch are others."""
        for number, rows in self.rows.items():
            if told := _unlike(rows, other.rows.get(number, rows), f"behind layer {number}"):
                return told
        return ""


def check_entry(model: MeasuredModel, inputs: Mapping[str, Any]) -> None:
    """See once, by the first batch, that rows enter the decoder alike in two forwards.

    And that no module runs before it which no stage shows. For what runs no further; what speaks
    against it becomes a doubt of the model.
    """
    if model.entry_seen or not _may_differ(model.model):
        return
    model.entry_seen, beside, towers = True, dict(_beside(model.model)), _other_towers(model)
    if not model.forward_seen:
        model.add_doubt(_larger_beside_words(model))
    elif not beside and not towers:  # rows were compared behind the layers
        return
    entered, ran = list[Tensor](), set[str]()
    first_layer = model.decoder_layers[0]
    for _ in range(2):
        handles = [on_input(first_layer, lambda state: entered.append(_sketch(state)))]
        for name, module in beside.items():
            handles.append(before_call(module, lambda *_, name=name: ran.add(name)))
        for name, module in towers.items():
            handles.append(before_call(module, lambda *_, name=name: ran.add(name)))
        with observing(model.model), attached(*handles):
            run_until(model.model, moved_to(model.model, inputs), entering=first_layer)
    if also := sorted(ran & towers.keys()):
        encoder = model.parts.vision_encoder
        model.add_doubt(
            f"{', '.join(also)} {'reads' if len(also) == 1 else 'read'} pixels beside "
            f"{encoder.name if encoder else 'what was found'}: no stage shows their states; to "
            "measure another, name it and its projector by --part"
        )
    for name in sorted(ran & beside.keys()):
        kind = type(beside[name]).__name__
        model.add_doubt(
            f"{name} is a {kind} that is no module of the model to PyTorch: it runs, no stage "
            "shows its states, and another may stand for it; in prepare(model, processor) of an "
            "--inputs file, register it by model.add_module, and name it as a part"
        )
    first, second = entered
    if told := _unlike(first, second, "at the decoder input"):
        model.add_doubt(told)


def _other_towers(model: MeasuredModel) -> dict[str, nn.Module]:
    """Of encoders beside that which was found what cuts their pictures (Mini-Gemini, MoCHA).

    What is small next to the encoder is none.
    """
    encoder, found = model.parts.vision_encoder, dict[str, nn.Module]()
    if encoder is None or is_native(model.model):
        return found
    within, outside = {*encoder.module.modules()}, [encoder.module, *model.decoder_layers]
    for name, module in model.model.named_modules():
        cuts = isinstance(module, nn.Conv2d | nn.Conv3d) and module.in_channels == 3
        if not cuts or module in within:
            continue
        around = [(name, module), *((n, model.model.get_submodule(n)) for n in holders_of(name))]
        own = [(n, m) for n, m in around if not {*m.modules()} & {*outside}]
        # What cuts the encoder's own patches may stand beside it (OmniLMM).
        inside = own and own[-1][0].rpartition(".")[0] in holders_of(encoder.name)
        if inside and not cuts_patches(encoder.module):
            continue
        if own and size_of(own[-1][1]) > _TOWER * size_of(encoder.module):
            found[own[-1][0]] = module
    return found


def _beside(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules with weights that plain lists and mappings hold, as towers in code of LLaVA's kin.

    None around layers that the model has as its own (PIIP).
    """
    own, weights = set(model.modules()), {*model.parameters()}
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if name.startswith("_") or not isinstance(value, list | tuple | dict):
                continue
            for key, each in value.items() if isinstance(value, dict) else enumerate(value):
                if not isinstance(each, nn.Module) or each in own:
                    continue
                if not weights.issuperset(each.parameters()):
                    yield f"{prefix}.{name}[{key!r}]".lstrip("."), each


def _unlike(rows: Tensor, others: Tensor, where: str) -> str:
    """A doubt where ``_sketch`` of two forwards differ."""
    if rows.shape != others.shape:  # it keeps as many as it draws (LaVIT)
        how = f"have {rows.shape[1]} and {others.shape[1]} rows {where}"
        remedy = "; to seed it, write forward(model, **inputs) in an --inputs file"
    else:
        norms, along = others - rows
        apart = float((norms.square() + along.square()).mean().sqrt() / rows[0].mean())
        if apart <= _ROUNDING:
            return ""
        how, remedy = f"differ, by {apart:.1%} of the mean norm {where}", ""
    return (
        "the model draws random numbers, counts its calls or changes itself: two forwards of one "
        f"batch {how}, and this is one of them{remedy}"
    )


def _sketch(state: Tensor) -> Tensor:
    """Of each row its norm, and its part along a fixed direction times the root of its size."""
    rows = state.flatten(0, -2).float()
    turns = torch.arange(rows.shape[-1], device=rows.device)
    direction = 2**0.5 * torch.cos(2.4 * turns.square())  # of mean square 1, along no axis
    return torch.stack([token_norms(rows), rows @ direction])


def _may_differ(model: nn.Module) -> bool:
    """Whether a forward may differ from the last without a draw that can be seen: own code may."""
    head = head_of(model)
    modules = (module for module in model.modules() if module is not head)
    return not is_native(model) or any(map(runs_other_code, modules))


def handed_on(output: Any, entered: Tensor) -> bool:
    """Whether any row of what a layer returns first enters the next one as it is."""
    state = hidden_state_of(output)
    if state is entered:
        return True
    here = state.to(entered.device)  # layers may lie on several devices
    return here.shape == entered.shape and bool((here == entered).all(-1).any())


def _is(one: Tensor, other: Tensor) -> bool:
    """Whether a tensor is another, or a copy of it, also where it holds NaN."""
    return one is other or (
        other.is_floating_point()
        and torch.allclose(one.to(other), other, rtol=0.0, atol=0.0, equal_nan=True)
    )


def is_among(output: Any, entered: Tensor) -> bool:
    """Whether what enters a layer is one of the tensors that the one before returned."""
    return any(each.shape == entered.shape and _is(each, entered) for each in tensors(output))


def _last_token(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Of what enters the head the last position."""
    state = args[0] if args else None
    return (state[:, -1:], *args[1:]) if isinstance(state, Tensor) and state.dim() == 3 else None


def _random_states() -> list[Any]:
    """Where the generators of Python, NumPy and torch stand."""
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if in_use else ())]
    return [random.getstate(), repr(np.random.get_state()), *(s.numpy().tobytes() for s in states)]


def _padding_doubt(model: MeasuredModel, inputs: Mapping[str, Any]) -> str:
    """A doubt where prompts begin or end in padding, by the tokenizer's id, and no mask says so."""
    ids, mask = text_ids(inputs, model.parts)
    if ids is None or mask is not None or model.padding_id is None:
        return ""
    padding = (ids == model.padding_id).int()
    at_edges = [edge.cumprod(-1).sum(-1) for edge in (padding, padding.flip(-1))]
    # One in every prompt may begin or close it.
    padded = sum(int(edge.sum()) for edge in at_edges if edge.max() > 1 or edge.min() < edge.max())
    if not padded:
        return ""
    return (
        f"{padded} tokens at the edges of the prompts have the id of padding, {model.padding_id}, "
        "and no attention_mask hides them: they are measured as tokens"
    )


# --- whether decoder layers return their rows in the order in which these enter ------------------
#
# A residual stream carries each row on. So the rows that enter layer 1 are marked by a little noise
# of their own, in a forward beside one without: where the noise that entered a layer in one row
# leaves it in another, positions no longer tell tokens. Code of transformers keeps the order.

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
        cosines = in_full_precision(torch.matmul)(left, entered.T)
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
