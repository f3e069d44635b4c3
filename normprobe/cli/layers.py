"""``normprobe layers``."""

import time
from typing import TYPE_CHECKING, Literal

from normprobe.cli import console
from normprobe.cli import options as opt

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from normprobe.cli.subject import Subject
    from normprobe.data.datasets import DataSet
    from normprobe.report.run_dir import RunDir


def layers(
    model: opt.Model = "specimen",
    data: opt.Data = "sample",
    batch_size: opt.BatchSize = 1,
    limit: opt.Limit = None,
    seed: opt.Seed = 42,
    skip_bad: opt.SkipBad = False,
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
    resume: opt.Resume = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Norms, cosines and angles of every decoder layer, by token group (Figures 2-5).

    MODEL may be a vision-language model or, with --data text, a bare language model.
    Several GPUs share the samples: torchrun --nproc-per-node 8 -m normprobe layers MODEL
    """
    chosen = dict(locals())
    with console.reported(verbose):
        from normprobe.cli.run import begin
        from normprobe.model.checkpoint import LANGUAGE_MODEL, VISION_LANGUAGE

        subject, samples, run = begin("layers", chosen, kinds=[VISION_LANGUAGE, LANGUAGE_MODEL])
        measure(subject, samples, run, batch_size, system, console.mode_of(json, quiet))


def measure(
    subject: "Subject",
    samples: "DataSet",
    run: "RunDir",
    batch_size: 'int | Literal["auto"]',
    system: str | None,
    mode: console.Mode,
) -> None:
    """Run the model over the samples, fill the run folder, print."""
    from normprobe.analyses.assumptions import assumptions_table
    from normprobe.analyses.confidence import layer_intervals
    from normprobe.analyses.layers import layers_table, measure_layers
    from normprobe.analyses.theory import theory_table
    from normprobe.cli.collecting import collect, note_confidence
    from normprobe.cli.run import finish_run, note_subject
    from normprobe.report import tables, verdict
    from normprobe.report.theory import print_assumptions, theory_verdict

    started = time.perf_counter()
    note_subject(run, subject)
    collected = collect(run, subject, samples, measure_layers, batch_size, system, "layers")
    note_confidence(run, collected)
    table, theory = layer_intervals(layers_table(collected), collected), theory_table(collected)
    assumptions = assumptions_table(theory)
    finish_run(
        run, "layers", {"layers": table, "theory": theory, "assumptions": assumptions}, started
    )

    def show_layers(table: "pd.DataFrame", target: "Console") -> None:
        tables.layers_table(table, target, aligned="alignment" in run.record)

    def show_theory(target: "Console") -> None:
        print_assumptions(assumptions, target)
        console.say(theory_verdict(theory, assumptions), target)

    console.show(
        run.path,
        table,
        show_layers,
        verdict.layers_verdict(table),
        mode,
        then=show_theory,
    )
