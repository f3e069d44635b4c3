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
    output: opt.Output = None,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Norms, cosines and angles of every decoder layer, by token group (Figures 2-5)."""
    chosen = dict(locals())
    with console.reported(verbose):
        from normprobe.cli.subject import load_subject, start_run, verify_parts
        from normprobe.data.datasets import open_data
        from normprobe.errors import NormprobeError
        from normprobe.model.checkpoint import VISION_LANGUAGE, open_checkpoint

        checkpoint = open_checkpoint(model, revision=revision, trust_remote_code=trust_remote_code)
        if checkpoint.kind != VISION_LANGUAGE:
            raise NormprobeError(
                f"{model} is a {checkpoint.kind}; layers needs a vision-language model, because "
                f"the samples of --data {data} hold images",
                f"measure the side that exists: normprobe interface {model}",
            )
        samples = open_data(data, limit=limit, seed=seed)
        run = start_run("layers", checkpoint, samples, output, overwrite, chosen)
        subject = load_subject(
            checkpoint,
            device=device,
            dtype=dtype,
            device_map=device_map,
            attn_implementation=attn_implementation,
            named=opt.named_parts(
                vision_encoder, projector, decoder_layers, text_embedding, image_token_id
            ),
            samples=samples,
            system=system,
        )
        if verify:
            verify_parts(run, subject, samples, system)
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
