"""``normprobe interface``."""

import time
from typing import TYPE_CHECKING

from normprobe.cli import console
from normprobe.cli import options as opt

if TYPE_CHECKING:
    from normprobe.cli.subject import Subject
    from normprobe.data.datasets import DataSet
    from normprobe.report.run_dir import RunDir


def interface(
    model: opt.Model = "specimen",
    data: opt.Data = "sample",
    limit: opt.Limit = None,
    seed: opt.Seed = 42,
    system: opt.System = None,
    revision: opt.Revision = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    device_map: opt.DeviceMap = None,
    attn_implementation: opt.Attention = None,
    trust_remote_code: opt.TrustRemoteCode = False,
    vision_encoder: opt.PartName = None,
    projector: opt.PartName = None,
    decoder_layers: opt.PartName = None,
    text_embedding: opt.PartName = None,
    image_token_id: opt.ImageTokenId = None,
    verify: opt.Verify = False,
    align: opt.Align = False,
    align_target: opt.AlignTarget = "table",
    output: opt.Output = None,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Norms from the vision encoder to the decoder input, against the text table (Tables 1-3).

    MODEL may be a vision-language model, a bare vision encoder or a bare language model: the side
    that exists is reported. No decoder layer runs.
    """
    chosen = dict(locals())
    with console.reported(verbose):
        from normprobe.cli.subject import begin

        subject, samples, run = begin("interface", chosen)
        measure(subject, samples, run, system, console.mode_of(json, quiet))


def measure(
    subject: "Subject", samples: "DataSet", run: "RunDir", system: str | None, mode: console.Mode
) -> None:
    """Run the model up to the decoder's door for each sample, fill the run folder, print."""
    from normprobe.analyses.interface import interface_table, measure_interface, table_rows
    from normprobe.cli.subject import collect, finish_run, input_batches, note_subject
    from normprobe.report import tables, verdict

    started = time.perf_counter()
    note_subject(run, subject)
    rows = measure_interface(
        subject.model,
        subject.parts,
        input_batches(subject, samples, 1, system, run),
        subject.special_token_ids,
    )
    collected = collect(run, rows, samples, 1, "interface")
    table = interface_table(collected, table_rows(subject.parts, subject.vocabulary_ids))
    finish_run(run, "interface", {"interface": table}, started)
    console.show(run.path, table, tables.interface_table, verdict.interface_verdict(table), mode)
