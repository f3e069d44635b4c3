"""What a run is called on the page."""

from collections.abc import Sequence
from pathlib import Path

from normprobe.runs.run_folder import RunStore


def run_title(run: RunStore) -> str:
    """E.g. ``layers: llava-hf/llava-1.5-7b-hf, mmbench, aligned, step 100``."""
    told = _listed(model_name(run), _data(run), *_variant(run))
    return f"{_command(run)}: {told or run.name}"


def short_titles(runs: Sequence[RunStore]) -> list[str]:
    """As few words as tell some runs apart: ``layers``, ``layers, aligned``."""
    for titles in (
        [_listed(_command(run), *_variant(run)) for run in runs],
        [_listed(_command(run), model_name(run), *_variant(run)) for run in runs],
        [run_title(run) for run in runs],
    ):
        if len(set(titles)) == len(runs):
            return titles
    return [f"{title} ({place})" for place, title in enumerate(titles, start=1)]


def subject(run: RunStore) -> str:
    """What a run is of, and where it lies: ``org/model, mmbench, 100 samples, run folder one``."""
    samples = len(run.record.get("sample_ids") or [])
    return _listed(
        model_name(run),
        _data(run),
        f"{samples} samples" if samples else "",
        "" if run.path is None else f"run folder {run.name}",
    )


def model_name(run: RunStore) -> str:
    """A hub id, or the name of a local folder; empty where the run is of no model."""
    model = str(run.record.get("model") or "")
    return Path(model).name if model.startswith(("/", ".")) else model


def _data(run: RunStore) -> str:
    return str(run.record.get("data") or "")


def _listed(*facts: str) -> str:
    return ", ".join(filter(None, facts))


def _command(run: RunStore) -> str:
    return str(run.record.get("command", "run"))


def _variant(run: RunStore) -> list[str]:
    step = run.record.get("step")
    aligned = ["aligned"] if run.record.get("alignment") else []
    return [*aligned, *([] if step is None else [f"step {step}"])]
