"""How a run begins, and what its record says of model, data and doubts."""

import logging
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, count
from pathlib import Path
from typing import Any

import torch

from normprobe.data.data_set import DataSet
from normprobe.errors import NormprobeError
from normprobe.model.align.norm import inserted_norm
from normprobe.model.attention_weights import attention_of
from normprobe.model.checkpoint import Checkpoint
from normprobe.model.find.overrides import FUSIONS
from normprobe.model.find.parts import family_of
from normprobe.model.load.device import device_and_dtype
from normprobe.model.load.weight_checks import is_relabelled, quantised_parts
from normprobe.model.measured_model import MeasuredModel
from normprobe.options import AUTO, Output
from normprobe.runs.files import jsonable
from normprobe.runs.fingerprints import fingerprints
from normprobe.runs.resuming import resumed, unfinished_run
from normprobe.runs.run_folder import RunFolder, RunStore, default_run_path
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
    return found or RunFolder.create(path, overwrite=output.overwrite, record=record)


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


PACKAGES = ("normprobe", "torch", "transformers", "accelerate", "datasets", "numpy", "pandas")


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


def note_model(
    run: RunStore,
    model: MeasuredModel,
    weights: dict[str, object] | None,
    notes: Sequence[str] = (),
) -> list[str]:
    """Record what was loaded: parts, alignment norm, device, dtype, attention."""
    parts = model.parts
    device, dtype = device_and_dtype(model.model)
    run.note(
        parts_found_by=model.found_by,
        parts={role: part.name for role, part in parts},
        image_token_ids=list(parts.image_token_ids),
        video_token_ids=list(parts.video_token_ids),
        audio_token_ids=list(parts.audio_token_ids),
        family=family_of(parts),
        norm_placement=model.norm_placement,
        sizes=_sizes(model),
        fusion=f"{parts.fusion}: {FUSIONS[parts.fusion]}",
        residual_stream=parts.stream.meaning,
        device=device,
        dtype=dtype,
        threads=torch.get_num_threads(),  # they split sums, whose last bits follow
        weights=weights,
        attn_implementation=attention_of(model.model, parts),
    )
    norm = inserted_norm(model.model)
    if norm is not None and "alignment" not in run.record:
        run.note(alignment=norm.placement)
    warnings = list(notes)
    kind = re.split("[:,]", device)[0]
    if kind and torch.is_autocast_enabled(kind):
        computes = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
        run.note(autocast=computes)
        warnings.append(f"torch.autocast is on: the model, of {dtype}, computes in {computes}")
    if family_of(parts) == "projector" and parts.projector is None:
        warnings.append(
            "no projector found: its stages are left out; --part projector=NAME names one"
        )
    if quantised := quantised_parts(parts):
        names = " and ".join(name.replace("_", " ") for name in quantised)
        warnings.append(f"the weights of {names} are quantised: their norms are not the original's")
    table = getattr(parts.text_embedding and parts.text_embedding.module, "weight", None)
    if parts.text_embedding is not None and table is not None and is_relabelled(table):
        warnings.append(
            f"the numbers of {parts.text_embedding.name} are nearly all of one size, as those of "
            "bfloat16 are that are read as float16: trained weights spread like a bell curve"
        )
    for warning in warnings:
        run.add_warning(warning)
    return warnings


def _sizes(model: MeasuredModel) -> dict[str, int | None]:
    """Hidden size and number of decoder layers, and the parameters of the whole model.

    None where there is no decoder, or where quantised weights do not show how many they are.
    """
    config: Any = getattr(model.model, "config", None)
    text = config.get_text_config(decoder=True) if config is not None else None
    counted = not quantised_parts(model.parts)
    return {
        "hidden_size": getattr(text, "hidden_size", None) if model.has_decoder else None,
        "decoder_layers": len(model.decoder_layers) if model.has_decoder else None,
        "parameters": sum(p.numel() for p in model.model.parameters()) if counted else None,
    }
