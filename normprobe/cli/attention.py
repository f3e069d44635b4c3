"""``normprobe attention``."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normprobe.cli import console
from normprobe.cli import options as opt
from normprobe.errors import NormprobeError

if TYPE_CHECKING:
    from normprobe.analyses.attention import Box
    from normprobe.cli.subject import Subject
    from normprobe.data.sample import Sample
    from normprobe.report.run_dir import RunDir

_SHOWN = 4  # heat maps a query, where no --layer is given


def attention(
    model: opt.Model = "specimen",
    *,
    image: Annotated[Path, typer.Option(help="The picture.", metavar="FILE")],
    prompt: Annotated[str, typer.Option(help="The question about it.", metavar="TEXT")],
    word: Annotated[
        list[str] | None,
        typer.Option(help="Word or phrase of the prompt to follow; repeatable.", metavar="TEXT"),
    ] = None,
    layer: Annotated[
        list[int] | None,
        typer.Option(help="Layer to draw over the image; repeatable. Default: four.", metavar="N"),
    ] = None,
    box: Annotated[
        str | None,
        typer.Option(
            help="Target region: left,top,right,bottom in pixels of the image.", metavar="BOX"
        ),
    ] = None,
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
    output: opt.Output = None,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """How much text attends to the image in each decoder layer, and where (Appendix G)."""
    chosen = dict(locals())
    with console.reported(verbose):
        from normprobe.cli.run import start_run
        from normprobe.cli.subject import load_subject
        from normprobe.model.checkpoint import VISION_LANGUAGE, open_checkpoint

        region = _parsed_box(box)
        sample = _read_sample(image, prompt)
        checkpoint = open_checkpoint(model, revision=revision, trust_remote_code=trust_remote_code)
        if checkpoint.kind != VISION_LANGUAGE:
            raise NormprobeError(
                f"{checkpoint.name} is a {checkpoint.kind}; attention needs a {VISION_LANGUAGE}",
                f"measure the side that exists: normprobe interface {model}",
            )
        run = start_run("attention", checkpoint, None, output, overwrite, chosen)
        with run.discarded_on_failure():  # a single forward: nothing is kept of a failure
            loading = ("device", "dtype", "device_map", "attn_implementation", "quiet")
            subject = load_subject(
                "attention",
                checkpoint,
                **{name: chosen[name] for name in loading},
                named=opt.named_parts(chosen),
                samples=[sample],
                system=system,
            )
            measure(
                subject,
                sample,
                run,
                words=word or [],
                layers=layer or [],
                box=region,
                system=system,
                mode=console.mode_of(json, quiet),
            )


def measure(
    subject: "Subject",
    sample: "Sample",
    run: "RunDir",
    *,
    words: list[str],
    layers: list[int],
    box: "Box | None",
    system: str | None,
    mode: console.Mode,
) -> None:
    """Run the model once, look where visual tokens lie, fill the run folder, print."""
    from dataclasses import replace

    from normprobe.analyses.attention import measure_attention
    from normprobe.cli.run import finish_run, note_subject
    from normprobe.data.batches import build_inputs
    from normprobe.report import tables, verdict

    started = time.perf_counter()
    note_subject(run, subject)
    assert sample.image is not None
    measured = measure_attention(
        subject.model,
        subject.parts,
        lambda picture: build_inputs(
            subject.processor,
            [replace(sample, image=picture)],
            system=system,
            model_type=subject.checkpoint.config.model_type,
        ),
        sample.image,
        decode=subject.tokenizer.decode,
        special_token_ids=subject.special_token_ids,
        words=words,
        layers=layers or _spread(subject),
        box=box,
    )
    run.note(data=sample.id, image_hashes={sample.id: sample.image_hash}, places=measured.places)
    written = {"attention": measured.table}
    if measured.heatmaps is not None:
        written["heatmaps"] = measured.heatmaps
        run.write_image("image", sample.image)
    else:
        warning = f"no heat maps: {measured.places}"
        if box is not None:
            warning += "; no signal-to-noise of --box either"
        run.add_warning(warning)
        console.talk(f"warning: {warning}")
    finish_run(run, "attention", written, started)
    sentence = verdict.attention_verdict(measured.table)
    console.show(run.path, measured.table, tables.attention_table, sentence, mode)


def _parsed_box(text: str | None) -> "Box | None":
    if text is None:
        return None
    try:
        left, top, right, bottom = map(float, text.split(","))
    except ValueError:
        raise NormprobeError(
            f"--box: expected four numbers left,top,right,bottom, received {text!r}",
            "give pixels of the image, e.g. --box 40,60,200,180",
        ) from None
    return left, top, right, bottom


def _read_sample(image: Path, prompt: str) -> "Sample":
    from normprobe.data.images import decode_image, image_hash
    from normprobe.data.sample import Sample

    try:
        data = image.read_bytes()
    except OSError as error:
        raise NormprobeError(
            f"--image: {image} cannot be read ({error.strerror or error})",
            "give the path of a picture",
        ) from error
    picture = decode_image(data, f"--image {image}")
    return Sample(image.name, prompt, picture, image_hash(picture))


def _spread(subject: "Subject") -> list[int]:
    """A few layers from all depths, the last among them."""
    layers = subject.parts.decoder_layers
    count = len(list(layers.module.children())) if layers else 0
    shown = min(_SHOWN, count)
    return [round(count * step / shown) for step in range(1, shown + 1)]
