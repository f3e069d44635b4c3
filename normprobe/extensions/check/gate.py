"""The baseline of a model or a run, and where two models begin to differ.

before = read_baseline("baseline.json")                 # of normprobe.extensions.check.baseline
checked(take_baseline(Probe("org/port"), before), before).sentence
"""

import re
from collections.abc import Iterator, Mapping
from contextvars import Context
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from xxhash import xxh3_64_hexdigest

from normprobe.data.data_set import open_data
from normprobe.data.sample import Sample
from normprobe.errors import NormprobeError, first_line
from normprobe.extensions.check.baseline import (
    BASELINE_COLUMNS,
    DIFFERENT,
    UNKNOWN,
    Baseline,
    Checked,
    allowed_of,
    checked,
    states_of,
    unlike_it,
)
from normprobe.extensions.check.measure import layer_stage
from normprobe.hooks import after_call, attached, before_call, observing, run_until
from normprobe.inputs.on_device import dtype_of, inputs_for, moved_to
from normprobe.inputs.prefetch import batches
from normprobe.model.load.required_tensors import everything
from normprobe.model.tracing.recording import tensors
from normprobe.options import Loading
from normprobe.probe import Probe
from normprobe.run import Run, explained
from normprobe.schema import DECODER_INPUT, TOKEN_GROUPS
from normprobe.tensors import with_tensors
from normprobe.tidy import wide


def take_baseline(probe: Probe, like: Baseline | None = None, **sampling: Any) -> Baseline:
    """The states of a model on samples that ``Probe.measure`` takes, or on those of a baseline."""
    if like is not None:
        before, asked = like.facts.get("system"), probe.source.loading.system
        if before != asked:
            raise NormprobeError(
                f"the baseline's system prompt is {_prompt(before)}; received {_prompt(asked)}",
                "pass the same --system, or write another baseline with it",
            )
        sampling |= {name: like.facts.get(name) for name in ("data", "prompt")}
        sampling["only"] = list(like.samples)
    taken = baseline_of(probe.measure("check", **sampling))
    processor = getattr(probe.source.builder, "processor", None)
    template = getattr(processor, "chat_template", None)
    told = None if template is None else xxh3_64_hexdigest(str(template).encode())
    return replace(taken, facts={**taken.facts, "template": told})


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
        if run.command != "check":
            geometric = wide(states, "geometric_mean")["norm"]
            states = wide(states).rename(columns={"norm": "norm_mean"})
            states = states.assign(norm_geometric_mean=geometric)
        stages = states.get("stage")
        if stages is None:
            stages = states["layer"].map(lambda n: layer_stage(n) if n else DECODER_INPUT)
        states = states.reindex(columns=[*BASELINE_COLUMNS]).assign(stage=stages)
        known = states["group"].isin(TOKEN_GROUPS)  # not rows of embedding tables
        facts = {name: record.get(name) for name in ("model", "model_revision", "dtype")}
        facts |= {name: record["options"].get(name) for name in ("data", "prompt", "system")}
        attention = sorted(set((record.get("attn_implementation") or {}).values()))
        facts |= {"attention": ", ".join(attention) or None, "template": None}
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
        return Baseline(facts, samples, states.astype({"hidden_size": int, "nonfinite": int}))


def against_baseline(
    probe: Probe,
    before: Baseline,
    loading: Loading,
    tolerance: float | None = None,
    *,
    other: Probe | None = None,
    workers: int | None = None,
) -> Checked:
    """Are the states those of a baseline, measured as it was but for what ``loading`` asks for?

    Args:
        probe: of the model, made with ``like_it``.
        before: the baseline.
        loading: as it was asked for.
        tolerance: how far states may be apart, in parts of their length; None: that of the type.
        other: the model that the baseline is of, in memory: then the first module that differs is
            named.
        workers: as of ``Probe.measure``.
    """
    now = take_baseline(probe, before, workers=workers)
    found = checked(now, before, tolerance)
    if reason := unlike_it(now, before, loading):
        return replace(found, verdict=UNKNOWN, sentence=f"Not enough evidence: {reason}.")
    if other is None or found.verdict != DIFFERENT:
        return found
    model, port = (each.source.measured([everything]).model for each in (other, probe))
    _, batch = next(batches_of(other, before))
    allowed = allowed_of(now, before, tolerance)
    first = first_difference(model, port, inputs_for(model, batch), allowed)
    return replace(found, sentence=f"{found.sentence} {first}".strip())


def batches_of(probe: Probe, of: Baseline) -> Iterator[tuple[Sample, Mapping[str, Any]]]:
    """The samples of a baseline, and what the processor makes of each."""
    data = open_data(of.facts["data"], prompt=of.facts["prompt"]).subset(of.samples)
    for (sample,), inputs in batches(data, probe.source.builder, 1):
        yield sample, inputs


# --- the first module of two models in memory that makes something else of the same input --------


def first_difference(
    model: nn.Module, other: nn.Module, inputs: Mapping[str, Any], allowed: float
) -> str:
    """Which module of ``other`` returns something else on the same input; empty: none does.

    Before each module of a model runs, the other's of that name does. Modules inside a module come
    before it: where one differs and none inside it does, it is its own code. ``allowed`` is how far
    outputs may be apart, in parts of their length. Where modules of that place in other layers
    differ as well, there is one cause in all of them.
    """
    theirs = dict(other.named_modules())
    made: dict[str, list[Any]] = {}
    found: dict[str, str] = {}

    def run_other(name: str, _: nn.Module, args: Any, kwargs: Any) -> None:
        given = with_tensors((args, kwargs), partial(_matching, other))
        try:
            # In a context of its own: transformers keeps there which states a forward returns.
            output = Context().run(theirs[name], *given[0], **given[1])
        except Exception as error:
            output = error
        made.setdefault(name, []).append(output)

    def compare(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        far = _far(output, made[name].pop())
        if isinstance(far, str) or not far <= allowed:
            found.setdefault(name, _difference_words(name, module, theirs[name], far))

    handles = []
    for name, module in model.named_modules():
        if name in theirs:
            handles.append(before_call(module, partial(run_other, name)))
            handles.append(after_call(module, partial(compare, name), first=True))
    with observing(model), observing(other), attached(*handles):
        run_until(model, moved_to(model, inputs))
    name, told = next(iter(found.items()), ("", ""))
    alike = [each for each in found if _DIGITS.sub("N", each) == _DIGITS.sub("N", name)]
    others = f" So do {len(alike) - 1} more at that place: one cause in all of them."
    return told + others * (len(alike) > 1)


_DIGITS = re.compile(r"\d+")


def _matching(other: nn.Module, tensor: Tensor) -> Tensor:
    """A copy where the other model is, in its type."""
    weight = next(other.parameters())
    dtype = dtype_of(other) if tensor.is_floating_point() else None
    return tensor.to(weight.device, dtype, copy=True)


def _far(output: Any, theirs: Any) -> float | str:
    """How far two outputs are apart, in parts of their length, or in words."""
    if isinstance(theirs, Exception):
        return f"fails: {first_line(theirs)}"
    pairs = list(zip(tensors(output), tensors(theirs), strict=False))
    if any(a.shape != b.shape for a, b in pairs):
        return "returns another shape"
    apart, length = 0.0, 0.0
    for a, b in pairs:
        a, b = a.double(), b.to(a.device).double()
        apart += float(torch.where(a == b, 0.0, a - b).square().sum())
        length += float(a[a.isfinite()].square().sum())
    return float((apart / length) ** 0.5) if length else apart


def _difference_words(name: str, module: nn.Module, other: nn.Module, far: float | str) -> str:
    how = far if isinstance(far, str) else f"returns something else, by {far:.2g} of its length"
    classes = " and ".join(dict.fromkeys(type(each).__name__ for each in (module, other)))
    held = dict(module.named_parameters())
    changed = [
        f"its {key} differs"
        for key, weight in other.named_parameters()
        if key not in held or not torch.equal(held[key].to(weight), weight)
    ]
    why = (*changed, "no weight of it differs, so its code or settings do")[0]
    which = f"{name or 'the model'} ({classes})"
    return f"Given the same input, {which} is the first that {how}: {why}."
