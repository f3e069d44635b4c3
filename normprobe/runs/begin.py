"""How a run begins, or goes on where it was interrupted, if it is the same run."""

import logging
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, count
from pathlib import Path
from typing import Any

from normprobe.data.data_set import DataSet
from normprobe.errors import NormprobeError
from normprobe.options import AUTO, PART_ROLES, Output, part_flag
from normprobe.runs.files import jsonable
from normprobe.runs.fingerprints import fingerprints
from normprobe.runs.folder_lock import holds_files
from normprobe.runs.run_folder import PARTIAL, RunFolder, RunStore, default_run_path, read_record
from normprobe.schema import SCHEMA_VERSION

log = logging.getLogger(__name__)


def start_run(
    command: str,
    model: Mapping[str, Any],
    options: Mapping[str, Any],
    output: Output,
    data: DataSet | None = None,
) -> RunStore:
    """Create a run before anything slow is done: a bad ``output`` costs no time."""
    if output.resume and output.output is None:
        raise NormprobeError(
            "only a run in a folder can be resumed", 'pass output=FOLDER, or output="auto"'
        )
    if output.resume and output.overwrite:
        raise NormprobeError(
            "--resume goes on with a run and --overwrite deletes it", "pass one of them"
        )
    sources = data.provenance.get("sources", []) if data else []
    record = provenance(
        sys.argv,
        options,
        command=command,
        **model,
        data=data.name if data else None,
        data_provenance=data.provenance if data else None,
        data_files=fingerprints(*(source["path"] for source in sources if "path" in source)),
        sample_ids=data.ids if data else [],
    )
    return open_store(record, output)


def open_store(record: dict[str, Any], output: Output) -> RunStore:
    """A store for a run that begins. Errors are those of ``start_run``."""
    if output.output is None:
        return RunStore(record)
    path = Path(output.output)
    if str(output.output) == AUTO:
        path = default_run_path(record["model"], record["command"], record.get("data"))
        if output.resume:
            path = unfinished_run(path.parent, record)
            log.info("resumes %s", path)
        else:
            path = _free(path)
    found = resumed(path, record) if output.resume else None
    return found or RunFolder.create(path, overwrite=output.overwrite, record=record, later=True)


def default_compare_path(command: str) -> Path:
    """Where a comparison goes when no folder is named."""
    return Path("runs") / "compare" / f"{command}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def _free(path: Path) -> Path:
    """The path, numbered where another run began in the same second."""
    taken = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(free for free in chain([path], taken) if not free.exists())


#: Whose versions a run records: what computes, then what reads and resizes pictures, clips, sounds.
PACKAGES = (
    "normprobe", "torch", "transformers", "accelerate", "datasets", "numpy", "pandas",
    "tokenizers", "torchvision", "pillow", "av", "soundfile",
)  # fmt: skip


def provenance(
    argv: Sequence[str], options: Mapping[str, object], **facts: object
) -> dict[str, Any]:
    """The first content of ``run.json``."""
    record = {
        "schema_version": SCHEMA_VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": list(argv),
        "options": options,
        "versions": {
            "python": platform.python_version(),
            **{package: installed_version(package) for package in PACKAGES},
        },
        "platform": platform.platform(),
        **facts,
    }
    made: dict[str, Any] = jsonable(record)
    return made


def installed_version(package: str) -> str | None:
    """The installed version of a distribution, None where it is absent; imports nothing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


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
        for damaged in run.set_unreadable_aside():
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
    for package, now in record["versions"].items():
        before = run.record.get("versions", {}).get(package, now)
        if before != now:
            run.add_warning(f"resumed with {package} {now} after {before}")


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
    if name in PART_ROLES:
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


def warn(run: RunStore, text: str) -> None:
    """Record a warning, and say it."""
    run.add_warning(text)
    log.warning("warning: %s", text)


def doubt(run: RunStore, text: str) -> None:
    """Warn that the run's own numbers are in doubt; ``doubts`` of its record lists such warnings.

    ``--strict`` turns them into exit code 1.
    """
    warn(run, text)
    run.note(doubts=list(dict.fromkeys([*run.record.get("doubts", []), text])))
