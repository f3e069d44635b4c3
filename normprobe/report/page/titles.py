"""What a run is called on the page."""

from collections.abc import Sequence
from pathlib import Path

from normprobe.runs.run_store import RunStore


def run_title(run: RunStore) -> str:
    """E.g. ``layers: llava-hf/llava-1.5-7b-hf, mmbench, aligned, step 100``."""
    facts = [model_name(run), str(run.record.get("data") or ""), *_variant(run)]
    subject = ", ".join(fact for fact in facts if fact) or run.name
    return f"{_command(run)}: {subject}"


def short_titles(runs: Sequence[RunStore]) -> list[str]:
    """As few words as tell some runs apart: ``layers``, ``layers, aligned``."""
    titles = [", ".join([_command(run), *_variant(run)]) for run in runs]
    if len(set(titles)) < len(runs):
        titles = [run_title(run) for run in runs]
    seen: dict[str, int] = {}
    for place, title in enumerate(titles):
        seen[title] = seen.get(title, 0) + 1
        if titles.count(title) > 1:
            titles[place] = f"{title} ({seen[title]})"
    return titles


def subject(run: RunStore) -> str:
    """What a run is of, and where it lies: ``org/model, mmbench, 100 samples, in runs/one``."""
    samples = len(run.record.get("sample_ids") or [])
    facts = [
        model_name(run),
        str(run.record.get("data") or ""),
        f"{samples} samples" if samples else "",
        "" if run.path is None else f"run folder {run.name}",
    ]
    return ", ".join(filter(None, facts))


def model_name(run: RunStore) -> str:
    """A hub id, or the name of a local folder; empty where the run is of no model."""
    model = str(run.record.get("model") or "")
    return Path(model).name if model.startswith(("/", ".")) else model


def _command(run: RunStore) -> str:
    return str(run.record.get("command", "run"))


def _variant(run: RunStore) -> list[str]:
    step = run.record.get("step")
    aligned = ["aligned"] if run.record.get("alignment") else []
    return [*aligned, *([] if step is None else [f"step {step}"])]
