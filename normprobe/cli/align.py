"""``normprobe align``, and ``--align`` of the measuring commands."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normprobe.cli import console
from normprobe.cli import options as opt

if TYPE_CHECKING:
    from normprobe.cli.subject import Subject
    from normprobe.data.datasets import DataSet
    from normprobe.model.checkpoint import Checkpoint
    from normprobe.report.run_dir import RunDir

#: Samples that the target is measured on: the prompts of a data set differ little.
_EXAMPLES = 16


def align(
    model: opt.Model = "specimen",
    target: opt.AlignTarget = "table",
    stats: Annotated[
        bool,
        typer.Option(
            "--stats",
            help="Of an adapter or a trained checkpoint: size of gain and bias (Table 5).",
        ),
    ] = False,
    data: opt.Data = "sample",
    limit: opt.Limit = None,
    seed: opt.Seed = 42,
    system: opt.System = None,
    revision: opt.Revision = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    device_map: opt.DeviceMap = None,
    trust_remote_code: opt.TrustRemoteCode = False,
    vision_encoder: opt.PartName = None,
    projector: opt.PartName = None,
    decoder_layers: opt.PartName = None,
    text_embedding: opt.PartName = None,
    image_token_id: opt.ImageTokenId = None,
    output: opt.Output = None,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Save a norm that makes visual tokens as loud as text, to train with (Section 5).

    The folder is an adapter: pass it as MODEL to the other commands, or to
    `normprobe.load_aligned` in Python. The model itself is left as it is.
    """
    chosen = dict(locals())
    mode = console.mode_of(json, quiet)
    with console.reported(verbose):
        if stats:
            _show_statistics(model, revision, trust_remote_code, mode)
            return
        import pandas as pd

        from normprobe.cli.run import begin, note_subject
        from normprobe.model.alignment_files import ADAPTER_FILES, save_alignment
        from normprobe.model.checkpoint import VISION_LANGUAGE
        from normprobe.report import tables
        from normprobe.report.atomic import write_failures

        options = chosen | {"align": True, "align_target": target}
        options |= {"verify": False, "skip_bad": False, "resume": False}
        subject, _, run = begin("align", options, kinds=[VISION_LANGUAGE])
        with run.discarded_on_failure(), write_failures(run.path):
            note_subject(run, subject)
            run.note(files=[*run.record["files"], *ADAPTER_FILES])
            base, commit = _base_of(subject.checkpoint)
            save_alignment(subject.model, run.path, base_model=base, revision=commit)
            run.finish()
        table = pd.DataFrame([run.record["alignment"]])
        console.show(run.path, table, tables.alignment_table, "", mode)


def align_subject(
    run: "RunDir", subject: "Subject", samples: "DataSet", options: Mapping[str, Any]
) -> None:
    """Align the loaded model where ``--align`` asks for it.

    Args:
        run: its record gets ``alignment``: how the norm was chosen.
        subject: the loaded model, changed in place.
        samples: the target and the model's own scales are measured on the first of them.
        options: the command's options by name.
    """
    if not options.get("align"):
        return
    from normprobe.analyses.align import PROMPT
    from normprobe.analyses.align import align as align_model
    from normprobe.analyses.inputs import inputs_for
    from normprobe.cli.subject import example_inputs
    from normprobe.data.batches import batches

    target = _number_or_name(options["align_target"])
    checkpoint, processor, system = subject.checkpoint, subject.processor, options["system"]
    examples = [example_inputs(checkpoint, processor, samples, system)]
    if target == PROMPT:
        model_type = checkpoint.config.model_type
        few = islice(
            batches(samples, processor, 1, system, model_type=model_type, bad=samples.bad),
            _EXAMPLES,
        )
        examples = [inputs for _, inputs in few]
    aligned = align_model(
        subject.model,
        subject.parts,
        target,
        [inputs_for(subject.model, inputs) for inputs in examples],
        special_token_ids=subject.special_token_ids,
    )
    facts = {name: value for name, value in vars(aligned).items() if name != "norm"}
    run.note(alignment=facts | {"hidden_size": aligned.norm.normalized_shape[0]})
    if aligned.scale is None:
        warning = (
            "behind the projector the model does more than scale visual rows (it adds positions or "
            "normalises): their norm at the decoder input is not the target"
        )
        run.add_warning(warning)
        console.talk(f"warning: {warning}")


def _base_of(checkpoint: "Checkpoint") -> tuple[str, str | None]:
    """What opens the model without its norm from anywhere, and its revision."""
    from normprobe.model.checkpoint import SPECIMEN
    from normprobe.specimen import SPECIMEN_DIR

    source, revision = checkpoint.source, checkpoint.revision
    if checkpoint.adapter is not None:
        source, revision = checkpoint.adapter, checkpoint.adapter_revision
    if source == str(SPECIMEN_DIR):
        return SPECIMEN, None
    return (str(Path(source).resolve()) if Path(source).is_dir() else source), revision


def _number_or_name(target: str) -> float | str:
    try:
        return float(target)
    except ValueError:
        return target


def _show_statistics(
    source: str, revision: str | None, trust_remote_code: bool, mode: console.Mode
) -> None:
    """Print Table 5 of a saved norm. Nothing is loaded but its weights."""
    from normprobe.model.alignment_files import adapter_files, adapter_settings, norm_weights
    from normprobe.model.checkpoint import open_checkpoint
    from normprobe.model.norm_alignment import norm_statistics
    from normprobe.model.weight_files import weight_files_of
    from normprobe.report import tables

    if adapter_settings(Path(source)) is not None:  # its base model need not be here
        files = adapter_files(Path(source))
    else:
        files = weight_files_of(
            open_checkpoint(source, revision=revision, trust_remote_code=trust_remote_code)
        )
    weights = norm_weights(files)
    table = norm_statistics(weights["weight"], weights["bias"])
    if mode == "json":
        console.data(tables.to_json(table))
    else:
        tables.norm_statistics_table(table, console.stdout_console())
