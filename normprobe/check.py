"""The baseline of a model or a run, and where two models begin to differ.

before = read_baseline("baseline.json")                 # of normprobe.measurements.check.baseline
checked(take_baseline(Probe("org/port"), before), before).sentence
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from normprobe.data.data_set import open_data
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError
from normprobe.inputs.on_device import inputs_for
from normprobe.inputs.prefetch import batches
from normprobe.measurements.check.baseline import (
    BASELINE_COLUMNS,
    DIFFERENT,
    Baseline,
    Checked,
    allowed_of,
    checked,
    states_of,
)
from normprobe.measurements.check.measure import (
    SeenStates,
    layer_stage,
    reduced,
    rows,
    tables,
)
from normprobe.measurements.check.saved import ENDS, saved_states
from normprobe.model.first_difference import first_difference
from normprobe.model.load.required_tensors import everything
from normprobe.probe import Probe
from normprobe.run import Run, explained
from normprobe.schema import DECODER_INPUT, TOKEN_GROUPS
from normprobe.tensors import find_named


def take_baseline(probe: Probe, like: Baseline | None = None, **sampling: Any) -> Baseline:
    """The states of a model on samples that ``Probe.measure`` takes, or on those of a baseline."""
    if like is not None:
        before, asked = like.facts.get("system"), probe._source.loading.system
        if before != asked:
            raise NormprobeError(
                f"the baseline's system prompt is {_prompt(before)}; received {_prompt(asked)}",
                "pass the same --system, or write another baseline with it",
            )
        sampling |= {name: like.facts.get(name) for name in ("data", "prompt")}
        sampling["only"] = list(like.samples)
    return baseline_of(probe.measure("check", **sampling))


def _prompt(system: str | None) -> str:
    return "the template's" if system is None else repr(system)


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
        facts |= {name: record["options"].get(name) for name in ("data", "prompt", "system")}
        facts["versions"] = record["versions"]
        pictures, prompts = (record.get(name) or {} for name in ("image_hashes", "prompt_hashes"))
        samples = {
            i: {"picture": pictures.get(i), "prompt": prompts.get(i)}
            for i in sorted(record["sample_ids"])
            if i in prompts
        }
        states = states.loc[known].reset_index(drop=True)
        if run.path is not None:  # what others may have written
            rows = [
                {name: None if value != value else value for name, value in row.items()}
                for row in states.to_dict("records")
            ]
            states = states_of(rows, norms_alone=run.command != "check")
        return Baseline(facts, samples, states)


def against_files(
    probe: Probe, folder: Path, tolerance: float | None = None, **sampling: Any
) -> Checked:
    """Are the states that another engine saved, a file a sample, those of the model?

    The layout of a file is that of ``measurements.check.saved``.
    """
    before = take_baseline(probe, **sampling)
    model = probe._source.measured([everything])
    part = model.parts.decoder_layers
    decoder, stages = "" if part is None else part.name, [DECODER_INPUT]
    stages += [layer_stage(number) for number in range(1, len(model.decoder_layers) + 1)]
    hidden = before.states.groupby("stage")["hidden_size"].first()
    sizes = {n: int(hidden[stage]) for n, stage in enumerate(stages) if stage in hidden}
    there = {file.name: file for file in folder.glob("*") if file.is_file()}
    found, types = [], set[str]()
    for sample, batch in batches_of(probe, before):
        name, inputs = quote(sample.id, "", errors="surrogatepass"), inputs_for(model.model, batch)
        files = [there[f"{name}{end}"] for end in ENDS if f"{name}{end}" in there]
        if len(files) != 1:
            raise NormprobeError(
                f"{folder} holds {'two' if files else 'no'} states of {sample.id}",
                f"save them as {name}{' or '.join(ENDS)}",
            )
        groups = model.batch(inputs).groups_at(model.decoder_input(inputs)).flatten().cpu()
        ids = find_named(inputs, "input_ids")[0].tolist()
        states = saved_states(files[0], ids, len(groups), sizes, decoder)
        types |= {str(state.dtype).removeprefix("torch.") for state in states.values()}
        seen = [(stages[n], s.shape[-1]) for n, s in states.items()]
        kept = [reduced(state).numpy() for state in states.values()]
        arrays = [*kept, *[groups.numpy()] * len(kept)]
        found.append(rows(SeenStates(seen, partial(list, arrays)), [sample.id]))
    facts = {**before.facts, "model": str(folder), "dtype": " and ".join(sorted(types))}
    table = tables(pd.concat(found))["check"].reindex(columns=[*BASELINE_COLUMNS])
    held = before.states["stage"].isin(table["stage"])
    now = Baseline(facts, before.samples, table)
    return checked(now, replace(before, states=before.states[held]), tolerance)


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
