"""What was measured, for the first screen: model, data, samples."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from normprobe.report.page.titles import model_name
from normprobe.runs.run_folder import RunStore

_MOST = 4  # names in a line


def models(runs: Sequence[RunStore]) -> list[str]:
    """The models of some runs, each once; of a comparison only where there is nothing else."""
    return _once(model_name(run) for run in _measuring(runs))


def measured(runs: Sequence[RunStore]) -> list[tuple[str, str]]:
    """Words and values of what is known of model, data and samples."""
    runs = _measuring(runs)
    names, sizes = models(runs), _once(_size(run.record) for run in runs)
    facts = {
        "Model": _listed(names if len(names) > 1 else sizes),  # of one, the heading has the name
        "Data": _listed(_once(_data(run.record) for run in runs)),
        "Samples": _listed(_once(_samples(run.record) for run in runs)),
    }
    return [(words, value) for words, value in facts.items() if value]


def _measuring(runs: Sequence[RunStore]) -> list[RunStore]:
    """Those that ran a model."""
    return [run for run in runs if "model_type" in run.record] or list(runs)


def _size(record: Mapping[str, Any]) -> str:
    sizes = record.get("sizes")
    if not isinstance(sizes, dict):
        return ""
    layers, width = sizes.get("decoder_layers"), sizes.get("hidden_size")
    told = [
        str(record.get("model_type") or ""),
        f"{layers} decoder layers" if layers else "",
        f"hidden size {width}" if width else "",
    ]
    return ", ".join(filter(None, told))


def _data(record: Mapping[str, Any]) -> str:
    """E.g. ``sample (10 mmbench, 16 mmstar, 30 pope)``."""
    name = str(record.get("data") or "")
    provenance = record.get("data_provenance")
    sources = provenance.get("sources") if isinstance(provenance, dict) else None
    parts = [
        f"{source.get('questions')} {source.get('benchmark')}"
        for source in (sources if isinstance(sources, list) else [])
        if isinstance(source, dict)
    ]
    return f"{name} ({', '.join(parts)})" if len(parts) > 1 else name


def _samples(record: Mapping[str, Any]) -> str:
    """E.g. ``56 with 10 images``."""
    samples, hashes = record.get("sample_ids"), record.get("image_hashes")
    if not samples:
        return ""
    images = len(set(map(str, hashes.values()))) if isinstance(hashes, dict) else 0
    return f"{len(samples)}{f' with {images} images' if images else ''}"


def _once(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text for text in texts if text))


def _listed(texts: Sequence[str]) -> str:
    """Some names, and how many more there are."""
    more = len(texts) - _MOST
    return "; ".join(texts[:_MOST]) + (f"; {more} more" if more > 0 else "")
