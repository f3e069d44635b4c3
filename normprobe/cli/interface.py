"""``normprobe interface``."""

import time
from typing import TYPE_CHECKING

from normprobe.cli import console
from normprobe.cli import options as opt

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from normprobe.cli.subject import Subject
    from normprobe.data.datasets import DataSet
    from normprobe.report.run_dir import RunDir


def interface(
    model: opt.Model = "specimen",
    data: opt.Data = "sample",
    limit: opt.Limit = None,
    seed: opt.Seed = 42,
    skip_bad: opt.SkipBad = False,
    system: opt.System = None,
    revision: opt.Revision = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    device_map: opt.DeviceMap = None,
    attn_implementation: opt.Attention = None,
    range_reads: opt.RangeReads = False,
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
    resume: opt.Resume = False,
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
        from normprobe.cli.run import begin

        subject, samples, run = begin("interface", chosen)
        measure(subject, samples, run, system, console.mode_of(json, quiet))


def measure(
    subject: "Subject", samples: "DataSet", run: "RunDir", system: str | None, mode: console.Mode
) -> None:
    """Run the model up to the decoder's door for each sample, fill the run folder, print."""
    from normprobe.analyses.confidence import interface_intervals
    from normprobe.analyses.interface import interface_table, measure_interface, table_rows
    from normprobe.analyses.visual_table import visual_table_histogram
    from normprobe.cli.collecting import collect, note_confidence
    from normprobe.cli.run import finish_run, note_subject
    from normprobe.report import tables, verdict

    started = time.perf_counter()
    note_subject(run, subject)
    collected = collect(run, subject, samples, measure_interface, 1, system, "interface")
    table = interface_table(collected, table_rows(subject.parts, subject.vocabulary_ids))
    note_confidence(run, collected)
    written = {"interface": interface_intervals(table, collected)}
    histogram = visual_table_histogram(collected, subject.parts)
    if len(histogram):
        written["histogram"] = histogram
    finish_run(run, "interface", written, started)

    def show_interface(table: "pd.DataFrame", target: "Console") -> None:
        tables.interface_table(table, target, aligned="alignment" in run.record)

    console.show(run.path, table, show_interface, verdict.interface_verdict(table), mode)
