"""The baseline of a model, run or dtype, and what a difference of two models comes from and costs.

before = read_baseline("baseline.json")                 # of normprobe.measurements.check.baseline
checked(take_baseline(Probe("org/port"), before), before).sentence
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from normprobe.data.data_set import open_data
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError, first_line
from normprobe.hooks import after_call, attached, observing, run_until
from normprobe.inputs.answers import AnswerTokens, answer_tokens, with_tokens
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
    logits_in,
    reduced,
    rows,
    tables,
)
from normprobe.model.first_difference import first_difference
from normprobe.model.interventions import quantised_inputs
from normprobe.model.load.required_tensors import everything
from normprobe.model.measured_model import MeasuredModel
from normprobe.probe import Probe
from normprobe.report.readable import number_of, significant
from normprobe.run import Run, explained
from normprobe.schema import DECODER_INPUT, PADDING, TOKEN_GROUPS, VISUAL
from normprobe.statistics.bootstrap import LINEAR, LOGARITHM, interval
from normprobe.statistics.resampling import Resampled
from normprobe.statistics.token_metrics import in_group, masks_of
from normprobe.tensors import find_named

#: Of files with states.
_LOADERS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    ".safetensors": load_file,
    ".npz": np.load,
}
#: ``layer_3`` is behind three layers, and so is ``model.layers.2``.
_LAYER = re.compile(r"layers?[._ ]?(?P<number>\d+)(\.output)?$")

#: Factors of headroom that are worth a sentence.
_NEAR = 100.0


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
    for sample, batch in _batches(probe, before):
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
    _, batch = next(_batches(other, before))
    allowed = allowed_of(now, before, tolerance)
    first = first_difference(model, port, inputs_for(model, batch), allowed)
    return replace(found, sentence=f"{found.sentence} {first}".strip())


def against_precision(
    probe: Probe, other: Probe, how: str = "", tolerance: float | None = None, **sampling: Any
) -> Checked:
    """What does another precision do to states, and what does that cost in answers?

    Args:
        probe: the model in the precision that is in question.
        other: the same model in another type; with ``how``, ``probe``.
        how: the inputs of the decoder's linear layers are ``fake_quantised`` so; empty: not.
        tolerance: in parts of a state's length; None: by type, and with ``how`` none.
        **sampling: of ``Probe.measure``.

    Returns:
        With ``costs``; with ``how`` its table has ``input_sqnr``: squares of what a linear layer of
        a decoder layer reads over those of the error, in dB, where that is lowest.
    """
    before = take_baseline(other, **sampling)
    old, new = (each._source.measured([everything]) for each in (other, probe))

    def rounding(chosen: Tensor | None = None) -> AbstractContextManager[dict[nn.Module, Tensor]]:
        return quantised_inputs(new.decoder_layers, how, chosen) if how else nullcontext({})

    with rounding() as read:
        now = take_baseline(probe, before, workers=sampling.get("workers"))
    if how and not read:
        raise NormprobeError(
            f"the decoder layers of {new} call no linear layer: nothing is rounded to {how}",
            "compare types with --against-dtype",
        )
    # Rows that are routed to experts, or of a picture beside the prompt, are no positions.
    by_row = len({squares.shape[1] for squares in read.values()}) == 1
    errors, costs = list[dict[str, Any]](), list[dict[str, Any]]()
    for sample, batch in _batches(other, before):
        inputs, answer = _answered(probe, sample, batch)
        was = _log_probabilities(old, inputs, answer)
        named = {"sample_id": sample.id, "image_hash": before.samples[sample.id]["picture"]}
        sets: dict[str, Tensor | None] = {"all": None}
        if how:
            given = inputs_for(new.model, inputs)
            groups = new.batch(given).groups_at(new.decoder_input(given)).flatten().cpu().clone()
            visual = in_group(VISUAL, groups)
            sets |= {VISUAL: visual, "other": ~visual} if by_row and visual.any() else {}
        for name, chosen in sets.items():
            with rounding(chosen) as read:
                cost = _cost(was, _log_probabilities(new, inputs, answer), answer)
            costs += [{"rounded": name, **named, **cost}] * bool(cost)
            if how and chosen is None:
                groups[len(groups) - answer.length :] = PADDING
                errors += _errors(new, read, groups)
    told = [headroom(now)]
    if how:
        now = replace(now, facts={**now.facts, "dtype": f"{now.facts['dtype']} reading {how}"})
        tolerance = math.inf if tolerance is None else tolerance
        told = [_share(new, read)]
    if errors:
        sums = pd.DataFrame(errors).groupby(["stage", "group", "linear"]).sum()
        with np.errstate(divide="ignore"):
            sqnr = 10 * (np.log10(sums["signal"]) - np.log10(sums["noise"])).dropna()
        worst = sqnr.groupby(["stage", "group"]).min().rename("input_sqnr")
        now = replace(now, states=now.states.join(worst, on=["stage", "group"]))
        lowest = sqnr.groupby("group").idxmin()
        words = [f"{at[1]} {significant(sqnr[at], 2)} dB ({at[0]} {at[2]})" for at in lowest]
        told += [f"Lowest SQNR of what they read: {', '.join(words)}."] * bool(words)
    table = _costs(pd.DataFrame(costs)) if costs else None
    found = checked(now, before, tolerance)
    told = [found.sentence, *told, "" if table is None else _told(table)]
    return replace(found, sentence=" ".join(filter(None, told)), costs=table)


def _errors(
    model: MeasuredModel, read: Mapping[nn.Module, Tensor], groups: Tensor
) -> Iterator[dict[str, Any]]:
    """Sums of what ``quantised_inputs`` saw, by layer, linear layer and token group."""
    for number, layer in enumerate(model.decoder_layers, start=1):
        for name, module in layer.named_modules():
            if module not in read or read[module].shape[1] != len(groups):
                continue
            squares = read[module].cpu().double()
            for group, mask in masks_of(groups.numpy()).items():
                if group in TOKEN_GROUPS:
                    signal, noise = squares[:, torch.from_numpy(mask)].sum(-1).tolist()
                    of = {"stage": layer_stage(number), "group": group, "linear": name}
                    yield {**of, "signal": signal, "noise": noise}


def _log_probabilities(
    model: MeasuredModel, inputs: Mapping[str, Any], answer: AnswerTokens
) -> Tensor:
    """``[1 + tokens, vocabulary]`` behind the prompt and behind each token of the answer."""
    found = list[Tensor]()

    def see(_: nn.Module, args: object, kwargs: object, output: Any) -> None:
        if (logits := logits_in(output)) is None or logits.shape[1] <= answer.length:
            raise NormprobeError(
                f"{model} returns no logits of its tokens: nothing tells what a difference costs",
                "compare with --against MODEL, or pass a model with its head",
            )
        found.append(torch.log_softmax(logits[0, -1 - answer.length :].cpu().double(), dim=-1))

    with observing(model.model), attached(after_call(model.model, see)):
        run_until(model.model, inputs_for(model.model, inputs))
    return found[0]


def _cost(was: Tensor, now: Tensor, answer: AnswerTokens) -> dict[str, float]:
    """What a sample costs: how far the next token diverges, and its right answer before and now.

    Nothing is known where a number overflowed.
    """
    if was.isnan().any() or now.isnan().any():
        return {}
    terms = torch.where(was[0].exp() > 0, was[0].exp() * (was[0] - now[0]), 0.0)
    changed = float(was[0].argmax() != now[0].argmax())
    found = {"kl": float(terms.sum().clamp_min(0.0)), "changed": changed}
    if answer.scored:
        for when, logs in (("_before", was), ("", now)):
            nll, right = answer.outcome(logs[len(answer.given) : -1])
            found |= {f"nll{when}": float(nll), f"accuracy{when}": float(right)}
    return found


def _costs(of_samples: pd.DataFrame) -> pd.DataFrame:
    """Means over samples before and now, by what was rounded, and intervals of their change."""
    sets, found = of_samples[["rounded"]].drop_duplicates(ignore_index=True), []
    for name in [name for name in ("kl", "changed", "nll", "accuracy") if name in of_samples]:
        known = of_samples.dropna(subset=[name])
        drawn = Resampled(sets, known, ["rounded"])
        now = drawn.means(name, by_tokens=False)
        own = f"{name}_before" in known  # nothing diverges from itself
        was = drawn.means(f"{name}_before", by_tokens=False) if own else np.zeros_like(now)
        low, high = interval(now - was, drawn.units, LOGARITHM if name == "kl" else LINEAR)
        low, high = np.where(low < high, [low, high], np.nan)  # rarer changes have not been seen
        samples = sets["rounded"].map(known["rounded"].value_counts())
        of_one = {"quantity": name, "samples": samples, "before": was[0], "now": now[0]}
        ends = {"change": now[0] - was[0], "change_ci_low": low, "change_ci_high": high}
        found.append(sets.assign(**of_one, **ends))
    return pd.concat(found, ignore_index=True).dropna(subset=["now"])


def _told(costs: pd.DataFrame) -> str:
    """What a precision costs, in a sentence."""
    of = {row["quantity"]: row for row in costs[costs["rounded"] == "all"].to_dict("records")}
    if "kl" not in of:
        return ""
    told = f"It costs {significant(of['kl']['now'], 2)} nats of KL in the next token"
    if "nll" in of:
        ends = (of["nll"][name] for name in ("change", "change_ci_low", "change_ci_high"))
        told += ", and {} nats ({} to {}) a token".format(*(significant(end, 2) for end in ends))
        right = of["accuracy"]
        told += f" of right answers; {right['now']:.0%} are right, {right['before']:.0%} were"
    return f"{told}."


def headroom(of: Baseline) -> str:
    """How near states come to the largest number of their type; empty: not within ``_NEAR``."""
    row = max(of.states.to_dict("records"), key=lambda row: row["largest"])
    dtype = getattr(torch, str(of.facts["dtype"]), None)  # a model may be of several
    if dtype is None or (factor := torch.finfo(dtype).max / row["largest"]) > _NEAR:
        return ""
    most = f"within a factor of {significant(factor, 2)} of the largest {of.facts['dtype']} number"
    return f"Headroom: at {row['stage'].replace('_', ' ')} {row['group']} tokens come {most}."


def _share(model: MeasuredModel, read: Mapping[nn.Module, Tensor]) -> str:
    """How much of the decoder reads rounded inputs: experts in one weight do not."""
    weights = {w for layer in model.decoder_layers for w in layer.parameters() if w.dim() > 1}
    held = weights.intersection(w for module in read for w in module.parameters(recurse=False))
    share = sum(w.numel() for w in held) / sum(w.numel() for w in weights)
    layers = number_of(len(read), "linear layer")
    return f"{layers} of the decoder ({share:.0%} of its weights) read rounded inputs."


def _answered(
    probe: Probe, sample: Sample, batch: Mapping[str, Any]
) -> tuple[Mapping[str, Any], AnswerTokens]:
    """The inputs, with the right answer behind the prompt where one is known and fits."""
    config = getattr(probe._source.measured([everything]).model, "config", None)
    builder, ids = probe._source.builder, find_named(batch, "input_ids")
    encoder_reads = getattr(config, "is_encoder_decoder", False)  # and another stack answers
    if sample.answer is None or builder.tokenizer is None or ids is None or encoder_reads:
        return batch, AnswerTokens()
    answer = answer_tokens(builder, sample, sample.answer)
    told = [(*answer.given, *answer.scored)]
    inputs, (start,) = with_tokens(batch, told, str(getattr(config, "model_type", "")))
    return (inputs, answer) if start == ids.shape[1] else (batch, AnswerTokens())


def _batches(probe: Probe, of: Baseline) -> Iterator[tuple[Sample, Mapping[str, Any]]]:
    """The samples of a baseline, and what the processor makes of each."""
    data = open_data(of.facts["data"], prompt=of.facts["prompt"]).subset(of.samples)
    for (sample,), inputs in batches(data, probe._source.builder, 1):
        yield sample, inputs
