"""Going on with an interrupted run, where it is the same run."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from normprobe.errors import NormprobeError
from normprobe.options import MODULE_ROLES, TOKEN_ROLES, part_flag
from normprobe.runs.folder_lock import holds_files
from normprobe.runs.run_folder import PARTIAL, RunFolder, RunStore, read_record

log = logging.getLogger(__name__)

#: Options that change how a run is done or shown, not what it measures.
_FREE = {
    "output", "overwrite", "resume", "verify", "batch_size", "device", "workers", "quiet",
    "verbose", "allow_long_prompts",
}  # fmt: skip

_FACTS = (
    "schema_version",
    "command",
    "model",
    "model_revision",
    "model_files",
    "adapter_revision",
    "inputs_file",
    "data",
    "data_provenance",
    "data_files",
    "sample_ids",
)


def resumed(path: Path, record: Mapping[str, Any]) -> RunFolder | None:
    """Open the run in a folder to go on with it; None where the folder is absent or empty."""
    if not path.is_dir() or not holds_files(path):
        return None
    run = RunFolder.open(path)
    run.lock()
    try:
        run.record = RunFolder.open(path).record  # another process may have gone on until now
        _check_same(run, path, record)
        for damaged in run.put_in_order():
            run.add_warning(f"measured again, for its file was damaged: {damaged}")
            log.warning("warning: %s cannot be read: its samples are measured again", damaged)
    except BaseException:
        run.unlock()
        raise
    return run


def note_weights(run: RunStore, digests: Mapping[str, str]) -> None:
    """Record the tensors that a run measures; of one that goes on, they have to be the same."""
    before = run.record.get("weight_digests", digests)
    if changed := differing(before, digests):
        old, new = (found.get(changed[0], "absent") for found in (before, digests))
        more = f", and {len(changed) - 1} more" if changed[1:] else ""
        raise NormprobeError(
            f"{run.path} was measured with other weights: {changed[0]} was {old}, is {new}{more}",
            "put the weights back that it was started with, or choose another --output",
        )
    run.note(weight_digests=digests)


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The names under which two mappings differ, those of one alone among them, in their order."""
    names = dict.fromkeys((*before, *now))
    return [name for name in names if before.get(name) != now.get(name)]


def _check_same(run: RunFolder, path: Path, record: Mapping[str, Any]) -> None:
    """Refuse to go on with another run, and note other versions."""
    for difference in _differences(run.record, record):
        raise NormprobeError(
            f"{path} was measured {difference}",
            "repeat the options it was started with, or choose another --output",
        )
    for package, version in record["versions"].items():
        before = run.record.get("versions", {}).get(package)
        if before != version:
            run.add_warning(f"resumed with {package} {version} after {before}")


def unfinished_run(folder: Path, record: Mapping[str, Any]) -> Path:
    """The last run of the same command, model and data below a folder that is not complete."""
    found = []
    for path in folder.glob(f"{record['command']}-*"):
        before = read_record(path)
        if before and before["status"] == PARTIAL and before.get("data") == record["data"]:
            found.append((str(before.get("created")), path))
    if not found:
        raise NormprobeError(
            f"--resume: no unfinished run of {record['command']} on {record['data']} in {folder}",
            "leave --resume out to begin one, or name its folder with --output",
        )
    return max(found)[1]


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What differs, then and now, in a few words."""
    then = before.get("options", {})
    for name in sorted(now["options"].keys() | then.keys()):
        old, new = then.get(name), now["options"].get(name)
        if name not in _FREE and old != new:
            yield f"{_given(name, old)}; this command comes {_given(name, new)}"
    for name in _FACTS:
        old, new = before.get(name), now.get(name)
        if old != new:
            expected, received = _short(old, new)
            name = name.replace("_", " ")
            yield f"with another {name}: expected {expected}, received {received}"


def _given(name: str, value: Any) -> str:
    """An option and its value as they are typed."""
    if name in (*MODULE_ROLES, *TOKEN_ROLES, "kind"):
        return f"with {part_flag(name, value)}" if value else f"without --part {name}"
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, list):
        value = ",".join(map(str, value)) or None
    if value is None or value is False:
        return f"without {flag}"
    return f"with {flag}" if value is True else f"with {flag} {value}"


def _short(before: Any, now: Any) -> tuple[str, str]:
    """Of lists and mappings, the first entries that differ."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        key = min(k for k in before.keys() | now.keys() if before.get(k) != now.get(k))
        return _short(before.get(key), now.get(key))
    if isinstance(before, list) and isinstance(now, list):
        lengths = f"{len(before)} entries", f"{len(now)} entries"
        pairs = ((old, new) for old, new in zip(before, now, strict=False) if old != new)
        return lengths if len(before) != len(now) else _short(*next(pairs))
    before, now = ("none" if value is None else str(value) for value in (before, now))
    return before, now
