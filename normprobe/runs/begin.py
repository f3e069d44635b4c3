"""How a run begins: its record, and where it is kept, in memory or in a folder."""

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

from normprobe.data.data_set import DataSet
from normprobe.errors import NormprobeError
from normprobe.model.checkpoint import Checkpoint
from normprobe.runs.fingerprints import fingerprints
from normprobe.runs.provenance import provenance
from normprobe.runs.resuming import resumed, unfinished_run
from normprobe.runs.run_folder import RunFolder, default_run_path
from normprobe.runs.run_store import RunStore

log = logging.getLogger(__name__)

#: As ``output``: a folder below ``runs/``, named by the model, the command, the data and the time.
AUTO = "auto"

Output = str | Path | None


def start_run(
    command: str,
    model: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    data: DataSet | None = None,
    output: Output = None,
    overwrite: bool = False,
    resume: bool = False,
) -> RunStore:
    """Create a run before anything slow is done: a bad ``output`` costs no time."""
    if resume and output is None:
        raise NormprobeError(
            "only a run in a folder can be resumed", 'pass output=FOLDER, or output="auto"'
        )
    if resume and overwrite:
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
    return open_store(record, output, overwrite=overwrite, resume=resume)


def open_store(
    record: dict[str, Any], output: Output, *, overwrite: bool = False, resume: bool = False
) -> RunStore:
    """A store for a run that begins. Arguments and errors are those of ``start_run``."""
    if output is None:
        return RunStore(record)
    path = Path(output)
    if output == AUTO:
        path = default_run_path(record["model"], record["command"], record.get("data"))
        if resume:
            path = unfinished_run(path.parent, record)
            log.info("resumes %s", path)
        else:
            path = _free(path)
    found = resumed(path, record) if resume else None
    return found or RunFolder.create(path, overwrite=overwrite, record=record)


def checkpoint_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """What a record says of a checkpoint before its weights are read."""
    return {
        "model": checkpoint.name,
        "model_revision": checkpoint.revision,
        "model_type": checkpoint.config.model_type,
        "model_files": fingerprints(*checkpoint.local_folders),
        "adapter_revision": checkpoint.adapter_revision,
    }


def model_facts(model: Any) -> dict[str, Any]:
    """What a record says of a model in memory: its name, if it has one, and its type."""
    config = getattr(model, "config", None)
    return {
        "model": getattr(config, "name_or_path", None) or type(model).__name__,
        "model_revision": None,
        "model_type": getattr(config, "model_type", None),
        "model_files": {},
        "adapter_revision": None,
    }


def default_compare_path(command: str) -> Path:
    """Where a comparison goes when no folder is named."""
    return Path("runs") / "compare" / f"{command}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def _free(path: Path) -> Path:
    """The path, numbered where another run began in the same second."""
    taken = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(free for free in chain([path], taken) if not free.exists())
