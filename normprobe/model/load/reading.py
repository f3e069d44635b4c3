"""Says what a load will read, before it starts."""

from rich.filesize import decimal

from normprobe.model.load.plan import LoadPlan


def reading_sentence(plan: LoadPlan) -> str:
    """One line: how many weight files and bytes are read or fetched, of how many."""
    checkpoint = plan.checkpoint
    if checkpoint.adapter is None:
        return _reading(plan, checkpoint.name)
    base = f"the base {checkpoint.source}"
    return f"{_reading(plan, base)}, with the adapter {checkpoint.name} merged into it"


def _reading(plan: LoadPlan, name: str) -> str:
    weights = plan.weights
    absent = _absent(plan)
    whole = _size(weights.size_of(weights.files))
    if plan.keys is None or plan.because:
        verb = "fetches" if absent else "reads"
        return f"{verb} every weight of {name}, {whole}" + (
            f": {plan.because}" if plan.because else ""
        )
    number = len(weights.files)
    files = f"of {number} weight file{'s' if number > 1 else ''} of {name}"
    if not absent:
        return f"reads {len(plan.files)} {files}, {decimal(plan.nbytes_in(plan.files))} of {whole}"
    needed = decimal(plan.nbytes_in(absent))
    if reads_ranges(plan):
        return f"fetches bytes of {len(absent)} {files}, {needed} of {whole}"
    fetched = _size(weights.size_of(absent))
    return f"fetches {len(absent)} {files}, {fetched} of {whole}, for {needed} of tensors"


def reading_record(plan: LoadPlan) -> dict[str, object]:
    """What a load reads, for ``run.json``: names of files, and bytes of the tensors."""
    return {
        "files": plan.files,
        "bytes": None if plan.keys is None else plan.nbytes_in(plan.files),
        "base_of_adapter": plan.checkpoint.source if plan.checkpoint.adapter else None,
        "everything_because": plan.because or None,
    }


def bytes_to_fetch(plan: LoadPlan) -> int | None:
    """Bytes of weights that a load is about to fetch; None where that is unknown."""
    absent = _absent(plan)
    return plan.nbytes_in(absent) if reads_ranges(plan) else plan.weights.size_of(absent)


def fetched_files(plan: LoadPlan) -> dict[str, int | None]:
    """The weight files that a load will fetch from, and how many bytes; None: that is unknown."""
    absent = _absent(plan)
    if reads_ranges(plan):
        return {file: plan.nbytes_in([file]) for file in absent}
    return plan.weights.repository.sizes(absent)


def reads_ranges(plan: LoadPlan) -> bool:
    """Whether ranges of files on a hub are fetched; where everything is read, files are."""
    return plan.weights.range_reads and plan.keys is not None


def cached_bytes(plan: LoadPlan) -> int:
    """Bytes of the tensors to read that lie in the hub's cache; none of a local folder."""
    if plan.weights.repository.is_local:
        return 0
    return plan.nbytes_in(set(plan.files) - set(_absent(plan)))


def _absent(plan: LoadPlan) -> list[str]:
    """The files to read that are not on this machine."""
    return [file for file in plan.files if plan.weights.repository.path_here(file) is None]


def _size(size: int | None) -> str:
    return "an unknown size" if size is None else decimal(size)
