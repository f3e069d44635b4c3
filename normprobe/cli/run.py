"""A run from its first check to its last file: how measuring commands begin and end."""

import sys
import time
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normprobe.cli import console
from normprobe.cli.options import named_parts
from normprobe.cli.subject import Subject, load_subject, verify_parts
from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    import pandas as pd

    from normprobe.data.datasets import DataSet
    from normprobe.model.checkpoint import Checkpoint
    from normprobe.report.run_dir import RunDir


def begin(
    command: str, options: Mapping[str, Any], kinds: Sequence[str] | None = None
) -> "tuple[Subject, DataSet, RunDir]":
    """Check everything that can be wrong, create the run folder, then load.

    Args:
        command: names the run folder.
        options: the command's options by name, recorded as they are.
        kinds: the kinds of checkpoint that the command can measure; None: any.

    Returns:
        The model with its parts, the samples, and the run folder.

    Raises:
        NormprobeError: whatever of these fails; nothing is written before the run folder is due.
    """
    from normprobe.cli.align import align_subject
    from normprobe.cli.processes import join_processes
    from normprobe.data.datasets import open_data
    from normprobe.model.checkpoint import open_checkpoint
    from normprobe.model.overrides import OVERRIDES
    from normprobe.model.unneeded import EVERYTHING

    checkpoint = open_checkpoint(
        options["model"],
        revision=options["revision"],
        trust_remote_code=options["trust_remote_code"],
    )
    if kinds is not None and checkpoint.kind not in kinds:
        raise NormprobeError(
            f"{checkpoint.name} is a {checkpoint.kind}; {command} needs a {' or '.join(kinds)}",
            f"measure the side that exists: normprobe interface {options['model']}",
        )
    if OVERRIDES.get(checkpoint.config.model_type, {}).get("videos_only"):
        raise NormprobeError(
            f"{checkpoint.name} ({checkpoint.config.model_type}) reads videos; {command} measures "
            "images",
            "`normprobe embeddings` and `normprobe inspect` work without images",
        )
    samples = open_data(
        options["data"],
        limit=options["limit"],
        seed=options["seed"],
        skip_bad=options["skip_bad"],
    )
    require_fitting_data(command, checkpoint, samples, options)
    processes = join_processes(options["device"], options["device_map"])
    run = processes.shared(
        lambda: start_run(
            command,
            checkpoint,
            samples,
            options["output"],
            options["overwrite"],
            options,
            resume=options["resume"],
        )
    )
    loading = ("dtype", "device_map", "attn_implementation", "range_reads", "quiet")
    with run.discarded_on_failure():
        subject = load_subject(
            EVERYTHING if options["verify"] else command,  # a trace runs the whole model
            checkpoint,
            device=processes.device,
            **{name: options[name] for name in loading if name in options},
            named=named_parts(options),
            samples=samples,
            system=options["system"],
        )
        if options["verify"]:
            verify_parts(run, subject, samples, options["system"])
        align_subject(run, subject, samples, options)
    return subject, samples, run


def require_fitting_data(
    command: str, checkpoint: "Checkpoint", samples: "DataSet", options: Mapping[str, Any]
) -> None:
    """Refuse images for the layers of a language model, and text for a vision encoder.

    Raises:
        NormprobeError: the model cannot take these samples.
    """
    from normprobe.model.checkpoint import LANGUAGE_MODEL, VISION_ENCODER

    if checkpoint.kind == LANGUAGE_MODEL and command == "layers" and samples.has_images:
        raise NormprobeError(
            f"{checkpoint.name} is a {checkpoint.kind}, and the samples of --data "
            f"{options['data']} hold images",
            "pass --data text, or measure the side that exists: normprobe interface "
            f"{options['model']}",
        )
    if checkpoint.kind == VISION_ENCODER and not samples.has_images:
        raise NormprobeError(
            f"{checkpoint.name} is a {checkpoint.kind}, and the samples of --data "
            f"{options['data']} hold no images",
            "pass --data with images, such as --data sample",
        )


def start_run(
    command: str,
    checkpoint: "Checkpoint",
    data: "DataSet | None",
    output: Path | None,
    overwrite: bool,
    options: Mapping[str, object],
    *,
    resume: bool = False,
) -> "RunDir":
    """Create the run folder before anything slow is done: a bad --output costs no time.

    With ``resume``, an unfinished run in it is gone on with.
    """
    from normprobe.cli.resuming import file_states, resumed
    from normprobe.report.provenance import provenance
    from normprobe.report.run_dir import RunDir, default_run_path

    if resume and output is None:
        raise NormprobeError(
            "--resume needs the run folder to go on with", "pass --output DIR --resume"
        )
    if resume and overwrite:
        raise NormprobeError(
            "--resume goes on with a run and --overwrite deletes it", "pass one of them"
        )
    path = output or _free(default_run_path(checkpoint.name, command, data.name if data else None))
    sources = data.provenance.get("sources", []) if data else []
    record = provenance(
        sys.argv,
        options,
        command=command,
        model=checkpoint.name,
        model_revision=checkpoint.revision,
        model_type=checkpoint.config.model_type,
        model_files=file_states(*checkpoint.local_folders),
        adapter_revision=checkpoint.adapter_revision,
        data=data.name if data else None,
        data_provenance=data.provenance if data else None,
        data_files=file_states(*(source["path"] for source in sources if "path" in source)),
        sample_ids=data.ids if data else [],
    )
    found = resumed(path, record) if resume else None
    return found or RunDir.create(path, overwrite=overwrite, record=record)


def _free(path: Path) -> Path:
    """The path, numbered where another run began in the same second."""
    taken = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(free for free in chain([path], taken) if not free.exists())


def note_subject(run: "RunDir", subject: Subject) -> None:
    """Record what was loaded: parts, alignment norm, device, dtype, attention."""
    from normprobe.analyses.inspect import norm_placement_note
    from normprobe.model.guard import quantised_parts
    from normprobe.model.loading import device_and_dtype
    from normprobe.model.norm_alignment import inserted_norm
    from normprobe.model.overrides import FUSIONS
    from normprobe.model.parts import family_of
    from normprobe.report.reading import reading_record

    device, dtype = device_and_dtype(subject.model)
    run.note(
        parts_found_by=subject.found_by,
        parts={role: part.name for role, part in subject.parts},
        image_token_ids=list(subject.parts.image_token_ids),
        family=family_of(subject.parts),
        norm_placement=norm_placement_note(subject.model, subject.parts),
        fusion=f"{subject.parts.fusion}: {FUSIONS[subject.parts.fusion]}",
        residual_stream=subject.parts.stream.meaning,
        device=device,
        dtype=dtype,
        weights=reading_record(subject.plan),
        attn_implementation=getattr(subject.model.config, "_attn_implementation", None),
    )
    norm = inserted_norm(subject.model)
    if norm is not None and "alignment" not in run.record:  # one that --align did not insert
        run.note(alignment=norm.placement)
    warnings = []
    if family_of(subject.parts) == "projector" and subject.parts.projector is None:
        warnings.append("no projector found: its stages are left out; --projector NAME names one")
    if quantised := quantised_parts(subject.parts):
        names = " and ".join(name.replace("_", " ") for name in quantised)
        warnings.append(f"the weights of {names} are quantised: their norms are not the original's")
    for warning in warnings:
        run.add_warning(warning)
        console.talk(f"warning: {warning}")


def finish_run(
    run: "RunDir", command: str, tables: "Mapping[str, pd.DataFrame]", started: float
) -> None:
    """Write the tables, draw the plots from them, call the run complete."""
    from normprobe.report.beside_paper import write_published
    from normprobe.report.plots import draw

    for name, table in tables.items():
        run.write_table(name, table)
    write_published(run, str(run.record["model"]))
    draw(command, run.path)
    run.finish(seconds=round(time.perf_counter() - started, 3))
