"""What happens between loading a model and measuring it: alignment, and the check of its parts."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch

from normprobe.data.data_set import DataSet
from normprobe.errors import NormprobeError
from normprobe.inputs.builder import InputBuilder
from normprobe.inputs.on_device import inputs_for
from normprobe.inputs.prefetch import batches
from normprobe.model.align.target import PROMPT, aligned
from normprobe.model.find.parts import Parts
from normprobe.model.measured_model import MeasuredModel, text_ids
from normprobe.model.tracing.trace import TracedParts, verify
from normprobe.runs.begin import doubt, warn
from normprobe.runs.model_source import example_inputs
from normprobe.runs.run_folder import RunStore
from normprobe.statistics.agreement import Differences, in_doubt

log = logging.getLogger(__name__)

#: Samples that an alignment target is measured on: the prompts of a data set differ little.
_ALIGNMENT_SAMPLES = 16


@contextmanager
def aligned_for(
    run: RunStore, model: MeasuredModel, target: str | float, examples: Sequence[Mapping[str, Any]]
) -> Iterator[None]:
    """Align a model inside the block, and record how."""
    with aligned(model, _number_or_name(target), examples) as alignment:
        facts = {name: value for name, value in vars(alignment).items() if name != "norm"}
        run.note(alignment=facts | {"hidden_size": alignment.norm.normalized_shape[0]})
        if alignment.scale is None:
            warn(
                run,
                "behind the projector the model does more than scale visual tokens (it adds "
                "positions or normalises): their norm at the decoder input is not the target",
            )
        yield


def alignment_examples(
    builder: InputBuilder, model: MeasuredModel, target: str | float, samples: DataSet
) -> list[Mapping[str, Any]]:
    """Inputs that an alignment target is measured on, on the model's device."""
    found = [example_inputs(builder, samples)]
    if target == PROMPT:
        few = islice(batches(samples, builder, 1, bad=samples.bad), _ALIGNMENT_SAMPLES)
        found = [inputs for _, inputs in few]
    return [inputs_for(model.model, inputs) for inputs in found]


def first_inputs(
    builder: InputBuilder, model: MeasuredModel, samples: DataSet
) -> Mapping[str, Any]:
    """Inputs of the first sample that the processor takes, on the model's device."""
    for _, inputs in batches(samples, builder, 1, bad=samples.bad):
        return inputs_for(model.model, inputs)
    raise NormprobeError("the processor takes no sample of the data", "pass other --data")


def note_verified(run: RunStore, parts: Parts, traced: TracedParts) -> None:
    """Record and say where a trace and the parts in use agree."""
    table = verify(parts, traced)
    run.note(verified=table.to_dict("records"))
    for _, row in table.iterrows():
        word = "agrees" if row["agree"] else f"DIFFERS: the trace finds {row['traced']}"
        log.warning("%s: %s %s", row["part"].replace("_", " "), row["static"], word)
    if not table["agree"].all():
        doubt(run, "parts differ from a trace of the running model, see `verified`")


def note_recomputed(run: RunStore, found: Differences, dtype: torch.dtype) -> None:
    """Record and say how far recomputed numbers are from the measured ones."""
    numbers = {name: value for name, value in found.items() if not isinstance(value, str)}
    reasons: dict[str, list[str]] = {}
    for name, value in found.items():
        if isinstance(value, str):
            reasons.setdefault(value, []).append(_words([name]))
    run.note(recomputed={**found, **{name: float(f"{v:.2g}") for name, v in numbers.items()}})
    told = ", ".join(f"{_words([name])} {value:.1e}" for name, value in numbers.items())
    log.warning("recomputed without hooks in float64, largest differences: %s", told)
    if reasons:
        missing = (f"{', '.join(names)} ({reason})" for reason, names in reasons.items())
        log.warning("not recomputed: %s", "; ".join(missing))
    if doubted := in_doubt(found, dtype):
        doubt(run, f"{_words(doubted)}: DIFFERS when recomputed without hooks, see `recomputed`")


def _words(names: Sequence[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)


def note_buffers(run: RunStore, changed: Sequence[str]) -> None:
    """Say which buffers hold something else than those of a fresh build."""
    if changed:
        names = ", ".join(changed[:3]) + ", ..." * (len(changed) > 3)
        doubt(run, f"buffers DIFFER from those of a fresh build of the model: {names}")


def long_prompt(
    model: MeasuredModel, inputs: Mapping[str, Any], sample_ids: Sequence[str] | None = None
) -> str | None:
    """What to say of the longest prompt of a batch; None: the model has positions for all."""
    ids, mask = text_ids(inputs, model.parts)
    if model.positions is None or ids is None or ids.shape[-1] <= model.positions:
        return None
    fits = mask is not None and mask.shape == ids.shape
    lengths = mask.sum(dim=-1).tolist() if mask is not None and fits else [ids.shape[-1]]
    length, place = max((length, -place) for place, length in enumerate(lengths))
    if length <= model.positions:
        return None
    name = f"sample {-place}" if sample_ids is None else sample_ids[-place]
    return (
        f"the prompt of {name} has {length} tokens, more than the "
        f"{model.positions} positions of the model (max_position_embeddings)"
    )


def _number_or_name(target: str | float) -> str | float:
    try:
        return float(target)
    except ValueError:
        return target
