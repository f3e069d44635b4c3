"""What another precision does to the states of a model, and what that costs in answers.

against_precision(probe, probe, "int8-token", data="scenes").sentence
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError, number_of
from normprobe.extensions.check.baseline import (
    Baseline,
    Checked,
    checked,
)
from normprobe.extensions.check.gate import batches_of, take_baseline
from normprobe.extensions.check.measure import (
    layer_stage,
    logits_in,
)
from normprobe.hooks import after_call, attached, observing, run_until
from normprobe.inputs.answers import AnswerTokens, answer_tokens, with_tokens
from normprobe.inputs.on_device import inputs_for
from normprobe.model.interventions import quantised_inputs
from normprobe.model.load.required_tensors import everything
from normprobe.model.measured_model import MeasuredModel
from normprobe.probe import Probe
from normprobe.report.readable import significant
from normprobe.schema import PADDING, TOKEN_GROUPS, VISUAL
from normprobe.statistics.bootstrap import LINEAR, LOGARITHM, interval
from normprobe.statistics.resampling import Resampled
from normprobe.statistics.token_metrics import in_group, masks_of
from normprobe.tensors import find_named
from normprobe.tidy import INTERVAL, QUANTITY

#: Factors of headroom that are worth a sentence.
_NEAR = 100.0


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
    old, new = (each.source.measured([everything]) for each in (other, probe))

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
    for sample, batch in batches_of(other, before):
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
    found = checked(now, before, tolerance, judged=not how or tolerance is not None)
    told = [found.sentence, *told, "" if table is None else _cost_words(table)]
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
    """Changes of means over samples, by what was rounded, and these means before and now."""
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
        change = {QUANTITY: name, "mean": now[0] - was[0], "low": low, "high": high}
        found.append(sets.assign(**change, before=was[0], now=now[0], samples=samples))
    return pd.concat(found, ignore_index=True).dropna(subset=["now"])


def _cost_words(costs: pd.DataFrame) -> str:
    """What a precision costs, in a sentence."""
    of = {row[QUANTITY]: row for row in costs[costs["rounded"] == "all"].to_dict("records")}
    if "kl" not in of:
        return ""
    told = f"It costs {significant(of['kl']['now'], 2)} nats of KL in the next token"
    if "nll" in of:
        change, low, high = (significant(of["nll"][name], 2) for name in ("mean", *INTERVAL))
        told += f", and {change} nats ({low} to {high}) a token"
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
    config = getattr(probe.source.measured([everything]).model, "config", None)
    builder, ids = probe.source.builder, find_named(batch, "input_ids")
    encoder_reads = getattr(config, "is_encoder_decoder", False)  # and another stack answers
    if sample.answer is None or builder.tokenizer is None or ids is None or encoder_reads:
        return batch, AnswerTokens()
    answer = answer_tokens(builder, sample, sample.answer)
    told = [(*answer.given, *answer.scored)]
    inputs, (start,) = with_tokens(batch, told, str(getattr(config, "model_type", "")))
    return (inputs, answer) if start == ids.shape[1] else (batch, AnswerTokens())
