"""``probe.attention()``: one question about one picture, or several."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normprobe.data.media import Audio, Video
from normprobe.data.sample import Picture, Sample, as_sample
from normprobe.extensions.pictures.attention.measure import attention_of, check_request
from normprobe.options import Output, takes
from normprobe.probe import Probe
from normprobe.run import Run
from normprobe.runs.begin import warn
from normprobe.runs.run_folder import image_name


@takes(Output, without=("resume",))
def attention(
    probe: Probe,
    image: Picture | Sequence[Picture] | Sample,
    prompt: str = "",
    *,
    words: Sequence[str] = (),
    layers: Sequence[int] = (),
    box: tuple[float, float, float, float] | None = None,
    video: Sequence[Path | str | Video] = (),
    audio: Sequence[Path | str | Audio] = (),
    **to: Any,
) -> Run:
    """How much the text of one prompt attends to its image, or images, and where.

    Args:
        probe: the model.
        image: a picture or its file, several of them, or a sample of a data set.
        prompt: the question about it; empty: that of the sample. Several images stand before
            it, or where it holds a mark ``<image>`` for each.
        words: words or phrases of the prompt to follow.
        layers: whose heat maps to keep, from 1; none: a few of all depths.
        box: target region: left, top, right, bottom in pixels of the image.
        video: clips that the prompt is about as well, behind the images or at ``<video>``.
        audio: sounds, likewise, behind these or at ``<audio>``.
        **to: ``output`` and ``overwrite``, as in ``measure``.

    Raises:
        NormprobeError: the model is no vision-language model, or as ``measure_attention``.
    """
    sample = as_sample(image, prompt, video, audio)
    options = {
        "image": sample.id,
        "prompt": sample.prompt,
        "word": list(words),
        "layer": list(layers),
        "box": box,
    }
    for kind, media in (("video", video), ("audio", audio)):
        if media:
            options[kind] = [str(m) if isinstance(m, Path | str) else kind for m in media]
    pipeline = probe.pipeline("attention", options, to, [sample])
    builder = probe.source.builder
    count = probe.source.decoder_layer_count() if layers else None
    check_request(builder, sample, words, layers, box, decoder_layers=count)
    with pipeline.begin():
        model, run = pipeline.ready(), pipeline.run
        found = attention_of(
            model, probe.source.builder, sample, words=words, layers=layers, box=box
        )
        run.note(
            data=sample.id,
            image_hashes={sample.id: sample.image_hash},
            places=found.places if found.images is not None else found.places[0],
        )
        tables = {"attention": found.table, "heads": found.heads}
        if found.images is not None:
            tables["images"] = found.images
        if found.heatmaps is not None:
            tables["heatmaps"] = found.heatmaps
            for number, picture in enumerate(sample.images, start=1):
                run.write_image(image_name(number), picture)
        for number, place in enumerate(found.places, start=1):
            if isinstance(place, str):
                of_image = f" of image {number}" if found.images is not None else ""
                without_box = "; no signal-to-noise of --box either" if box is not None else ""
                warn(run, f"no heat maps{of_image}: {place}{without_box}")
        return pipeline.finish(lambda: tables)
