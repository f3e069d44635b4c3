"""``normprobe layers``."""

import time
from typing import TYPE_CHECKING

from normprobe.cli import console
from normprobe.cli import options as opt

if TYPE_CHECKING:
    from normprobe.cli.subject import Subject
    from normprobe.data.datasets import DataSet
    from normprobe.report.run_dir import RunDir


def layers(
    model: opt.Model = "specimen",
    data: opt.Data = "sample",
    batch_size: opt.BatchSize = 1,
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
    """Norms, cosines and angles of every decoder layer, by token group (Figures 2-5)."""
    chosen = dict(locals())
    with console.reported(verbose):
        from normprobe.cli.subject import begin
        from normprobe.model.checkpoint import VISION_LANGUAGE

        subject, samples, run = begin("layers", chosen, kinds=[VISION_LANGUAGE])
        measure(subject, samples, run, batch_size, system, console.mode_of(json, quiet))


def measure(
    subject: "Subject",
    samples: "DataSet",
    run: "RunDir",
    batch_size: int,
    system: str | None,
    mode: console.Mode,
) -> None:
    """Run the model over the samples, fill the run folder, print."""
    from normprobe.analyses.layers import layers_table, measure_layers
    from normprobe.analyses.theory import theory_table
    from normprobe.cli.subject import collect, finish_run, input_batches, note_subject
    from normprobe.report import tables, verdict

    started = time.perf_counter()
    note_subject(run, subject)
    rows = measure_layers(
        subject.model,
        subject.parts,
        input_batches(subject, samples, batch_size, system, run),
        subject.special_token_ids,
    )
    collected = collect(run, rows, samples, batch_size, "layers")
    table = layers_table(collected)
    finish_run(run, "layers", {"layers": table, "theory": theory_table(collected)}, started)
    console.show(run.path, table, tables.layers_table, verdict.layers_verdict(table), mode)
