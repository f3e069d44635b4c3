"""The baseline of a model or a run, and where two models begin to differ.

before = read_baseline("baseline.json")                 # of normprobe.measurements.check.baseline
checked(take_baseline(Probe("org/port"), before), before).sentence
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file
from torch import Tensor

from normprobe.data.data_set import open_data
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError, first_line
from normprobe.inputs.on_device import inputs_for
from normprobe.inputs.prefetch import batches
from normprobe.measurements.check.baseline import (
    BASELINE_COLUMNS,
    DIFFERENT,
    Baseline,
    Checked,
    allowed_of,
    checked,
)
from normprobe.measurements.check.measure import (
    SeenStates,
    layer_stage,
    reduced,
    rows,
    tables,
)
from normprobe.model.first_difference import first_difference
from normprobe.model.load.required_tensors import everything
from normprobe.probe import Probe
from normprobe.run import Run, explained
from normprobe.schema import DECODER_INPUT, TOKEN_GROUPS
from normprobe.tensors import find_named

#: Of files with states.
_LOADERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    ".safetensors": load_file,
    ".npz": np.load,
}
#: ``layer_3`` is behind three layers, and so is ``model.layers.2``.
_LAYER = re.compile(r"layers?[._ ]?(?P<number>\d+)(\.output)?$")


def take_baseline(probe: Probe, like: Baseline | None = None, **sampling: Any) -> Baseline:
    """The states of a model on samples that ``Probe.measure`` takes, or on those of a baseline."""
    if like is not None:
        sampling |= {name: like.facts.get(name) for name in ("data", "prompt")}
        sampling["only"] = list(like.samples)
    return baseline_of(probe.measure("check", **sampling))


def baseline_of(run: Run) -> Baseline:
    """The baseline that a run of ``check`` is; of ``layers`` or ``interface``, of norms alone."""
    if run.command not in ("check", "layers", "interface"):
        raise NormprobeError(
            f"{run.path or 'the run'} is a run of {run.command}; expected one of check, layers or "
            "interface",
            "give a run folder of one of these, or a baseline of check --write",
        )
    with explained(run.store):
        record, states = run.record, run.table
        stages = states.get("stage")
        if stages is None:
            stages = states["layer"].map(lambda n: layer_stage(n) if n else DECODER_INPUT)
        states = states.reindex(columns=[*BASELINE_COLUMNS]).assign(stage=stages)
        known = states["group"].isin(TOKEN_GROUPS)  # not rows of embedding tables
        facts = {name: record.get(name) for name in ("model", "model_revision", "dtype")}
        facts |= {name: record["options"].get(name) for name in ("data", "prompt")}
        facts["versions"] = record["versions"]
        pictures, prompts = (record.get(name) or {} for name in ("image_hashes", "prompt_hashes"))
        samples = {
            i: {"picture": pictures.get(i), "prompt": prompts.get(i)}
            for i in sorted(record["sample_ids"])
            if i in prompts
        }
        return Baseline(facts, samples, states.loc[known].reset_index(drop=True))


def against_files(
    probe: Probe, folder: Path, tolerance: float | None = None, **sampling: Any
) -> Checked:
    """Are the states that another engine saved, a file a sample, those of the model?

    ``hidden_states`` are ``[layers, tokens, hidden]``, or the first two exchanged as vLLM saves
    them, beside ``input_ids`` or ``token_ids``; ``layer_ids`` says behind how many layers each was
    taken, 0: none. Or there is a tensor a layer, ``layer_N`` or as its module is called.
    """
    before = take_baseline(probe, **sampling)
    model = probe._source.measured([everything])
    depth, found, types = len(model.decoder_layers), [], set[str]()
    for sample, batch in batches_of(probe, before):
        name, inputs = quote(sample.id, ""), inputs_for(model.model, batch)
        file = next((f for end in _LOADERS if (f := folder / f"{name}{end}").is_file()), None)
        if file is None:
            raise NormprobeError(
                f"{folder} holds no states of {sample.id}",
                f"save them as {name}.safetensors or .npz",
            )
        states = _by_layer(file, find_named(inputs, "input_ids")[0], depth)
        groups = model.batch(inputs).groups_at(model.decoder_input(inputs)).flatten().cpu()
        for number, state in states.items():
            if len(state) != len(groups):
                raise NormprobeError(
                    f"layer {number} of {file} has {len(state)} rows; expected {len(groups)}",
                    "save the states of the whole prompt, and of nothing behind it",
                )
        types |= {str(state.dtype).removeprefix("torch.") for state in states.values()}
        stages = [(layer_stage(n) if n else DECODER_INPUT, s.shape[-1]) for n, s in states.items()]
        kept = [reduced(state).numpy() for state in states.values()]
        arrays = [*kept, *[groups.numpy()] * len(kept)]
        found.append(rows(SeenStates(stages, partial(list, arrays)), [sample.id]))
    facts = {**before.facts, "model": str(folder), "dtype": " and ".join(sorted(types))}
    table = tables(pd.concat(found))["check"].reindex(columns=[*BASELINE_COLUMNS])
    held = before.states["stage"].isin(table["stage"])
    now = Baseline(facts, before.samples, table)
    return checked(now, replace(before, states=before.states[held]), tolerance)


def _by_layer(file: Path, ids: Tensor, depth: int) -> dict[int, Tensor]:
    """The states ``[tokens, hidden]`` of a file by the number of layers behind them."""
    try:
        held = {name: torch.as_tensor(each) for name, each in _LOADERS[file.suffix](file).items()}
    except Exception as error:  # any file may have that name
        raise NormprobeError(
            f"{file} cannot be read: {first_line(error)}", "save it again"
        ) from error
    told = next((held[name].flatten() for name in ("input_ids", "token_ids") if name in held), None)
    if told is None or told.tolist() != ids.tolist():
        problem = "no input_ids" if told is None else "other token ids than the processor makes"
        raise NormprobeError(f"{file} holds {problem}", "run the engine on the ids of normprobe")
    if "hidden_states" in held:
        states = held["hidden_states"]
        if states.dim() == 3 and (states.shape[1] != len(told) or "token_ids" in held):
            states = states.transpose(0, 1)  # as vLLM saves them
        first = int(len(states) == depth)  # the decoder input may be left out
        numbers = held.get("layer_ids", torch.arange(first, first + len(states)))
        by_layer = dict(zip(numbers.long().tolist(), states, strict=False))
    else:
        names = {name: _LAYER.search(name) for name in held}
        by_layer = {
            int(named["number"]) + ("layers" in named[0]): held[name].flatten(0, -2)
            for name, named in names.items()
            if named
        }
    if lacking := [number for number in range(1, depth + 1) if number not in by_layer]:
        raise NormprobeError(
            f"{file} holds no layer {lacking[0]} of {depth}",
            "save all of them; layer_ids names those of hidden_states, 0 before the first",
        )
    return {number: by_layer[number] for number in sorted(by_layer)}


def against_model(
    probe: Probe, other: Probe, tolerance: float | None = None, **sampling: Any
) -> Checked:
    """Are the states those of another model? If not, which module differs first?"""
    before = take_baseline(other, **sampling)
    now = take_baseline(probe, before, workers=sampling.get("workers"))
    found = checked(now, before, tolerance)
    if found.verdict != DIFFERENT:
        return found
    model, port = (each._source.measured([everything]).model for each in (other, probe))
    _, batch = next(batches_of(other, before))
    allowed = allowed_of(now, before, tolerance)
    first = first_difference(model, port, inputs_for(model, batch), allowed)
    return replace(found, sentence=f"{found.sentence} {first}".strip())


def batches_of(probe: Probe, of: Baseline) -> Iterator[tuple[Sample, Mapping[str, Any]]]:
    """The samples of a baseline, and what the processor makes of each."""
    data = open_data(of.facts["data"], prompt=of.facts["prompt"]).subset(of.samples)
    for (sample,), inputs in batches(data, probe._source.builder, 1):
        yield sample, inputs
