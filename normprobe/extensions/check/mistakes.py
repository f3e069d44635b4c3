"""Are the states that another engine saved the model's? If not, which mistake saved them?

A mistake is a transformation of the model's own states. One is named where it makes nearly all
states of a sample those that were saved, which they were not without it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

import pandas as pd
import torch
from torch import Tensor, nn

from normprobe.errors import NormprobeError
from normprobe.extensions.check.baseline import (
    BASELINE_COLUMNS,
    DIFFERENT,
    UNKNOWN,
    Baseline,
    Checked,
    allowed_of,
    checked,
)
from normprobe.extensions.check.engine_states import described
from normprobe.extensions.check.gate import batches_of, take_baseline
from normprobe.extensions.check.layers_alone import layers_alone
from normprobe.extensions.check.measure import SeenStates, layer_stage, reduced, rows, tables
from normprobe.extensions.check.saved import ENDS, saved_pixels, saved_states, saved_vision
from normprobe.extensions.check.states import file_of
from normprobe.extensions.check.tower_states import own_vision, vision_names
from normprobe.hooks import attached, observing, on_input, on_output, run_until
from normprobe.inputs.on_device import inputs_for, moved_to, pixel_inputs
from normprobe.model.load.required_tensors import everything
from normprobe.model.measured_model import MeasuredModel
from normprobe.probe import Probe
from normprobe.schema import DECODER_INPUT, TOKEN_GROUPS, VISUAL
from normprobe.tensors import arrays_as_tensors, find_named, flattened

#: A share of a sample's states that has to be explained, and how near: in parts of their length,
#: beside what is allowed anyway. A state is another one where it is further off than that.
_MOST, _NEAR = 0.8, 0.02
_INSIDE = 4  # layers whose modules are looked into
_EXPLAINED = 3  # samples whose states are held against what mistakes would have saved
#: Factors of states that have a name.
_ROOTS = ((0.5, "the square root of the hidden size"), (-0.5, "1 / the square root of it"))

States = Mapping[int, Tensor]  # ``[rows, hidden]`` by the number of layers behind them


def against_files(
    probe: Probe, folder: Path, tolerance: float | None = None, **sampling: Any
) -> Checked:
    """Are the states that another engine saved, a file a sample, those of the model?

    The layout of a file is that of ``normprobe.extensions.check.saved``. What differs in blocks of
    the vision encoder or the projector is told where it is first.
    """
    before = take_baseline(probe, **sampling)
    model = probe.source.measured([everything])
    part = model.parts.decoder_layers
    decoder, stages = "" if part is None else part.name, [DECODER_INPUT]
    stages += [layer_stage(number) for number in range(1, len(model.decoder_layers) + 1)]
    hidden = before.states.groupby("stage")["hidden_size"].first()
    sizes = {n: int(hidden[stage]) for n, stage in enumerate(stages) if stage in hidden}
    found, made, types = [], [], set[str]()
    known = vision_names(model)
    kept: dict[str, tuple[Mapping[str, Any], Path]] = {}
    for sample, batch in batches_of(probe, before):
        inputs = inputs_for(model.model, batch)
        names = dict.fromkeys((file_of(sample.id), quote(sample.id, "", errors="surrogatepass")))
        files = [
            file for name in names for end in ENDS if (file := folder / f"{name}{end}").is_file()
        ]
        if len(files) != 1:
            raise NormprobeError(
                f"{folder} holds {'two' if files else 'no'} states of {sample.id}",
                f"save them as {file_of(sample.id)}{' or '.join(ENDS)}",
            )
        kept[sample.id] = batch, files[0]
        groups = model.batch(inputs).groups_at(model.decoder_input(inputs)).flatten().cpu()
        ids = find_named(inputs, "input_ids")[0].tolist()
        vision = saved_vision(files[0], known, partial(own_vision, model, inputs))
        states = saved_states(files[0], ids, len(groups), sizes, decoder, beside=bool(vision))
        saved = {stages[n]: (state, groups) for n, state in states.items()}
        saved |= {stage: (theirs, _visual(theirs)) for stage, (theirs, _) in vision.items()}
        types |= {str(state.dtype).removeprefix("torch.") for state, _ in saved.values()}
        found.append(_summed(saved, sample.id))
        own = {stage: (ours, _visual(ours)) for stage, (_, ours) in vision.items()}
        made += [_summed(own, sample.id)] * bool(own)
    facts = {**before.facts, "model": str(folder), "dtype": " and ".join(sorted(types))}
    table = _table(found)
    states_before = before.states[before.states["stage"].isin(table["stage"])]
    seen: list[str] = []  # stages that this alone looks at, or looks at otherwise
    if made:
        ours_too = _table(made)
        seen = [*ours_too["stage"].unique()]
        others = states_before[~states_before["stage"].isin(seen)]
        states_before = pd.concat([ours_too, others]) if len(others) else ours_too
    now, before = (
        Baseline(facts, before.samples, table),
        replace(before, states=states_before),
    )
    judged, pixels = checked(now, before, tolerance), _other_pixels(kept)
    if judged.verdict == DIFFERENT:
        differs = judged.table["differs"].astype(bool)
        before_decoder = judged.table.loc[differs, "stage"].iloc[0] in seen
        allowed = allowed_of(now, before, tolerance)
        hint = "" if before_decoder else _explained(model, kept, sizes, decoder, allowed)
        if hint:
            judged = checked(now, before, tolerance, hint=hint)
        elif pixels:
            return replace(judged, verdict=UNKNOWN, sentence=f"Not enough evidence: {pixels}")
        elif not before_decoder:
            (batch, file), *_ = kept.values()
            inputs = inputs_for(model.model, batch)
            ids = find_named(inputs, "input_ids")[0].tolist()
            length = len(own_states(model, inputs).states[0])
            saved_layers = saved_states(file, ids, length, sizes, decoder)
            alone = layers_alone(model, inputs, saved_layers, allowed)
            judged = replace(judged, sentence=f"{judged.sentence} {alone}".strip())
    compared = table["stage"].str.startswith("layer ")
    layers = table["stage"][compared].nunique()
    few = f" Of {len(model.decoder_layers)} layers {layers} were saved."
    also = few * (layers < len(model.decoder_layers)) + (f" Besides, {pixels}" if pixels else "")
    return replace(judged, sentence=f"{judged.sentence}{also}")


def _visual(state: Tensor) -> Tensor:
    """The group of each row of a picture."""
    return torch.full((len(state),), TOKEN_GROUPS.index(VISUAL), dtype=torch.int8)


def _table(found: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The states of a baseline, of rows of samples."""
    return tables(pd.concat(found))["check"].reindex(columns=[*BASELINE_COLUMNS])


def _summed(states: Mapping[str, tuple[Tensor, Tensor]], sample_id: str) -> pd.DataFrame:
    """What a run of ``check`` keeps of states ``[rows, hidden]`` and groups ``[rows]`` by stage."""
    seen = [(stage, state.shape[-1]) for stage, (state, _) in states.items()]
    arrays = [reduced(state).numpy() for state, _ in states.values()]
    arrays += [groups.numpy() for _, groups in states.values()]
    return rows(SeenStates(seen, partial(list, arrays)), [sample_id])


def _other_pixels(kept: Mapping[str, tuple[Mapping[str, Any], Path]]) -> str:
    """Whether the engine read other pixels than the model; empty: the same, or nobody knows."""
    for i, (batch, file) in kept.items():
        if not (theirs := saved_pixels(file)):
            continue
        dtype = getattr(torch, theirs["dtype"], None)
        inputs = pixel_inputs(arrays_as_tensors(dict(batch)))
        if not isinstance(dtype, torch.dtype) or not inputs:
            continue
        ours = described({name: value.to(dtype) for name, value in flattened(inputs).items()})
        if ours and ours["digest"] != theirs["digest"]:
            far = (f"{each['mean']:.5f} ± {each['std']:.5f}" for each in (theirs, ours))
            return (
                f"the engine read other pixels of {i} ({' for '.join(far)}): usually those of "
                "another image processor, as transformers takes one where torchvision is installed."
            )
    return ""


def _explained(
    model: MeasuredModel,
    kept: Mapping[str, tuple[Mapping[str, Any], Path]],
    sizes: Mapping[int, int],
    decoder: str,
    allowed: float,
) -> str:
    """What was saved in place of the states of the first sample whose mistake is known."""
    few = dict(islice(kept.items(), _EXPLAINED))
    inputs = {i: inputs_for(model.model, batch) for i, (batch, _) in few.items()}
    own = {i: own_states(model, of) for i, of in inputs.items()}
    for i, (_, file) in few.items():
        ids, rows = find_named(inputs[i], "input_ids")[0].tolist(), len(own[i].states[0])
        saved = saved_states(file, ids, rows, sizes, decoder)
        others = {other: own[other].states for other in own if other != i}
        if told := mistake(saved, own[i], others, allowed):
            return told
    return ""


class Own(NamedTuple):
    """What the model itself makes of a sample, on the CPU."""

    states: dict[int, Tensor]
    inside: dict[int, dict[str, Tensor]]  # of the first layers: what their modules return, by name
    normed: Mapping[str, Tensor] = MappingProxyType({})  # what norms beside the layers return


def own_states(model: MeasuredModel, inputs: Mapping[str, Any]) -> Own:
    """The states of one sample, and what the modules inside the first layers return."""
    states: dict[int, Tensor] = {}
    inside: dict[int, dict[str, Tensor]] = {}
    normed: dict[str, Tensor] = {}

    def keep(into: dict[Any, Tensor], name: Any, state: Tensor) -> None:
        into[name] = state.detach().flatten(0, -2).cpu()

    layers = model.decoder_layers
    handles = [on_input(layers[0], partial(keep, states, 0))]
    for number, layer in enumerate(layers, 1):
        handles.append(on_output(layer, partial(keep, states, number)))
        children = layer.named_children() if number <= _INSIDE else ()
        for name, module in children:
            of_layer = inside.setdefault(number, {})
            handles.append(on_output(module, partial(keep, of_layer, name)))
    part = model.parts.decoder_layers
    above = model.model.get_submodule(part.name.rpartition(".")[0]) if part else nn.Module()
    for name, module in above.named_children():
        if "norm" in type(module).__name__.lower():
            handles.append(on_output(module, partial(keep, normed, name)))
    with observing(model.model), attached(*handles):
        run_until(model.model, moved_to(model.model, inputs))
    return Own(states, inside, normed)


def mistake(saved: States, own: Own, others: Mapping[str, States], allowed: float) -> str:
    """What was saved in place of a sample's states, in a sentence; empty: nobody knows.

    Args:
        saved: the states of a file.
        own: the model's, of the same sample.
        others: the model's states of other samples, by their ids.
        allowed: how far states may be apart, in parts of their length.
    """
    saved = {number: state.float() for number, state in saved.items() if number in own.states}
    near = max(allowed, _NEAR)
    apart = {number: _far(saved[number], own.states[number]) for number in saved}
    off = [number for number in saved if apart[number] > near]
    if not off:
        return ""
    for told, expected in _hypotheses(saved, own, others):
        compared = [n for n in off if n in expected and expected[n].shape == saved[n].shape]
        # Where layers hardly add anything, neighbours are about as near as what is a little wrong.
        fits = sum(_far(saved[n], expected[n]) <= min(near, apart[n] / 2) for n in compared)
        if len(compared) >= min(len(off), _INSIDE - 1) and fits >= _MOST * len(compared):
            return told
    return ""


def _hypotheses(
    saved: States, own: Own, others: Mapping[str, States]
) -> Iterator[tuple[str, States]]:
    """What may have been saved: in words, and the states that these would be."""
    states = own.states
    yield (
        "All are zero, as in a forward that an engine runs before the first prompt.",
        {n: torch.zeros_like(state) for n, state in states.items()},
    )
    for by, words in ((-1, "what enters it"), (1, "what the layer after it returns")):
        moved = {n: states[n + by] for n in states if n + by in states}
        yield f"Each layer is one off: under its number stands {words}.", moved
    updates = {n: states[n] - states[n - 1] for n in states if n - 1 in states}
    yield "The residual stream is left out: each is what its layer adds.", updates
    for name in dict.fromkeys(name for of in own.inside.values() for name in of):
        alone = {n: of[name] for n, of in own.inside.items() if name in of}
        yield f"Each is what `{name}` of its layer returns, without the residual stream.", alone
        rest = {n: states[n] - alone[n] for n in alone if alone[n].shape == states[n].shape}
        yield (
            f"What `{name}` of the layer returns is not added: the residual stream before it.",
            rest,
        )
    for name, state in own.normed.items():
        yield (
            f"The last one is what the final norm, `{name}`, makes of it, as transformers returns "
            "it among `output_hidden_states`.",
            {max(states): state},
        )
    for name, theirs in others.items():
        yield f"They are the states of {name}: samples were exchanged.", theirs
    rows = len(next(iter(states.values())))
    for by in (*range(1, rows // 2 + 1), *range(-1, -rows // 2, -1)):
        if _rolls(saved, states, by):
            rolled = {n: _rolled(saved[n], states[n], by) for n in saved}
            where = "later" if by > 0 else "earlier"
            yield f"Each row stands {abs(by)} places {where}: padding, or another prompt.", rolled
    factor = _factor(saved, states)
    root = _named(factor, next(iter(states.values())).shape[-1])
    scaled = {n: factor * state for n, state in states.items()}
    yield f"All are {factor:.4g} times those of the model{root}.", scaled


def _rolls(saved: States, states: States, by: int) -> bool:
    """Whether rows moved so agree at one layer: looked at before all are."""
    number = max(saved)
    return _far(saved[number], _rolled(saved[number], states[number], by)) <= 0.1


def _rolled(saved: Tensor, state: Tensor, by: int) -> Tensor:
    """The rows of a state so many places later; where there are none, what was saved."""
    rolled, kept = saved.clone(), max(0, len(state) - abs(by))
    if by > 0:
        rolled[len(rolled) - kept :] = state[:kept]
    else:
        rolled[:kept] = state[len(state) - kept :]
    return rolled


def _factor(saved: States, states: States) -> float:
    """The middle one of the factors that bring each state nearest."""
    factors = [
        float((saved[n] * states[n]).sum() / (states[n] ** 2).sum().clamp_min(1e-300))
        for n in saved
        if saved[n].shape == states[n].shape
    ]
    return sorted(factors)[len(factors) // 2] if factors else 1.0


def _named(factor: float, size: int) -> str:
    for power, told in _ROOTS:
        if abs(factor / size**power - 1) < 0.01:
            return f" ({told}, {size})"
    return ""


def _far(one: Tensor, other: Tensor) -> float:
    """How far two states are apart, in parts of their length."""
    if one.shape != other.shape:
        return float("inf")
    one, other = one.double(), other.double()
    length = float(torch.maximum(one.norm(), other.norm()))
    return float((one - other).norm()) / length if length else 0.0
