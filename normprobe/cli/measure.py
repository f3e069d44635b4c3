"""The commands that look at a model: over samples, its tables, its parts; align and demo."""

import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from normprobe.cli import console
from normprobe.cli.grouping import (
    Asked,
    Display,
    Model,
    Starting,
    Strict,
    Without,
    grouped,
    only,
)
from normprobe.measurements.measurement import SampleMeasurement
from normprobe.options import Loading, NeededByAll, Output, Sampling
from normprobe.registry import opener

_BATCH = 8  # of the demo, like the number of tokens it names
_TOP, _SCENES = 5, 40


def command_of(offered: SampleMeasurement) -> Callable[..., None]:
    """The command that runs a measurement over samples."""
    not_sampled = [] if offered.batches else ["batch_size"]
    if offered.reads_samples:  # they say more than a prompt that all have in common
        not_sampled.append("prompt")
    not_taken = {"map", "also", "do", "answer", "by", "theory", "tower"} - offered.options

    def command(
        model: Model = "specimen",
        *,
        sampling: Annotated[Sampling, Without(*not_sampled), Starting(data=offered.data)],
        loading: Loading,
        asked: Annotated[Asked, Without(*not_taken)],
        output: Output,
        strict: Strict = False,
        display: Annotated[Display, Without(*not_taken)],
    ) -> None:
        with console.reported(display, resumes=True):
            probe = probe_of(model, loading, sampling.data)
            everything = {**vars(sampling), **vars(asked), **output.on_disk}
            run = probe.measure(offered.name, **everything)
            console.show_run(run, display, run.record.get("doubts", []) if strict else [])

    command.__doc__ = offered.summary
    return grouped(command)


def probe_of(model: str, loading: Loading, data: str | None = None) -> Any:
    """The probe that a command measures with; wrong paths are told before torch is loaded."""
    from normprobe.data.data_set import require_data
    from normprobe.model.checkpoint_place import require_path

    if opener(model) is None:
        require_path(model)
    if data is not None:
        require_data(data)
    with console.lasting_imports():
        from normprobe.probe import Probe

    return Probe(model, **vars(loading))


@grouped
def embeddings(
    model: Model = "specimen",
    top: Annotated[
        int, typer.Option("--top", "-k", min=1, help="Loudest and quietest tokens to name.")
    ] = 10,
    base: Annotated[
        str | None,
        typer.Option(
            help="The language model it was trained from: how far has the table moved?",
            metavar="MODEL",
        ),
    ] = None,
    *,
    loading: Annotated[Loading, Without("attn_implementation", "system", "allow_long_prompts")],
    output: Annotated[Output, Without("resume")],
    display: Annotated[Display, Without("theory")],
) -> None:
    """Norms of the embedding tables, and the tokens that stand out (Tables 3, 6-8)."""
    with console.reported(display):
        if base is not None:
            from normprobe.model.checkpoint_place import require_path

            require_path(base)
        probe = probe_of(model, loading)
        console.show_run(probe.embeddings(top=top, base=base, **output.on_disk), display)


@grouped
def align(
    model: Model = "specimen",
    target: Annotated[
        str,
        typer.Option(
            help="What visual tokens are aligned to: table (text embedding), prompt, or a norm.",
            metavar="table|prompt|FLOAT",
        ),
    ] = "table",
    *,
    sampling: Annotated[Sampling, only(Sampling, "data", "limit", "seed")],
    loading: Annotated[Loading, Without("attn_implementation")],
    output: Annotated[Output, Without("resume")],
    display: Annotated[Display, Without("theory")],
) -> None:
    """Save a norm that makes visual tokens as loud as text, to train with (Section 5).

    The folder is an adapter: pass it as MODEL to the other commands, or to
    `normprobe.load_aligned` in Python. The model itself is left as it is. To see what such a norm
    would do, without saving it: --align of `layers` and others.
    """
    with console.reported(display):
        probe = probe_of(model, loading, sampling.data)
        drawn = {"limit": sampling.limit, "seed": sampling.seed}
        run = probe.align(target, sampling.data, **drawn, **output.on_disk)
        console.show_run(run, display)
        if display.format is None:
            console.message(f"measure it: normprobe layers {shlex.quote(str(run.path))}")


@grouped
def demo(
    output: Annotated[Output, Without("resume")],
    display: Annotated[Display, only(Display, "quiet", "verbose")],
) -> None:
    """Every measurement on the bundled specimen and photographs. No download.

    Norms at the interface, through the decoder and in the embedding table; the attention of one
    question to its photograph; the decoder again with visual tokens of the norm of text; and what
    changed norms cost in answers.
    """
    with console.reported(display):
        with console.lasting_imports():
            from normprobe.data.data_set import SAMPLE, open_data
            from normprobe.model.checkpoint_place import SPECIMEN
            from normprobe.probe import Probe
            from normprobe.run import Run, compare, page_of
            from normprobe.runs.files import write_by_rename

        now = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        place = output.output or Path("runs") / SPECIMEN / f"demo-{now}"
        runs: list[Run] = []

        def to(name: str) -> dict[str, Any]:
            return {"output": place / name, "overwrite": output.overwrite}

        def done(run: Run) -> Run:
            console.message(f"{run.command}: {run.path}")
            runs.append(run)
            return run

        probe = Probe(SPECIMEN).load("layers")  # all that the others read, too
        done(probe.interface(**to("interface")))
        layers = done(probe.layers(batch_size=_BATCH, **to("layers")))
        done(probe.embeddings(top=_TOP, **to("embeddings")))
        pictured = next(sample for sample in open_data(SAMPLE) if sample.image is not None)
        done(probe.attention(pictured, **to("attention")))
        aligned = done(probe.layers(batch_size=_BATCH, align="table", **to("layers-aligned")))
        cause = done(probe.measure("cause", data="scenes", limit=_SCENES, **to("cause")))
        done(compare([layers, aligned], **to("compare")))
        page = place / "report.html"
        write_by_rename(page, page_of(runs).encode())
        if display.quiet:
            console.data(str(place))
            return
        console.data(layers.verdict.headline)
        console.data(f"Aligned to the norm of text: {aligned.verdict.headline}")
        console.data(f"By intervention: {cause.verdict.headline}")
        console.data(f"All tables and figures on one page: {page}")
        console.data("Your own model: normprobe layers org/model")


@grouped
def inspect(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="Hub id, local folder, or `specimen`. None: the model types that were checked.",
            show_default=False,
        ),
        NeededByAll("a MODEL", "format", "verbose"),
    ] = None,
    *,
    loading: Annotated[Loading, only(Loading, "revision", "trust_remote_code", "inputs", "named")],
    weights: Annotated[
        bool,
        typer.Option(
            "--weights",
            help="Bytes, types and files of each part, from the files' headers; gain and bias of "
            "an alignment norm (Table 5).",
        ),
    ] = False,
    display: Annotated[Display, Without("theory")],
) -> None:
    """What normprobe sees: parts, sizes and token ids, from the config alone, no weights.

    With --weights also what the weight files hold of each part, and what each command would read.
    Without MODEL the model types of transformers that were checked: family, norm placement, notes.
    """
    with console.reported(display):
        if model is None:
            _show_types(display)
            return
        from normprobe.model.checkpoint_place import require_path

        require_path(model)
        with console.lasting_imports():
            from normprobe.inputs.inputs_file import NO_INPUTS_FILE, read_inputs_file
            from normprobe.measurements.inspect import (
                inspected,
                print_norm_statistics,
                print_parts,
                print_weights,
            )
            from normprobe.model.checkpoint import open_checkpoint
            from normprobe.model.load.alignment import saved_norm
            from normprobe.statistics.weights import norm_statistics

        inputs_file = NO_INPUTS_FILE if loading.inputs is None else read_inputs_file(loading.inputs)
        checkpoint = open_checkpoint(
            model,
            revision=loading.revision,
            trust_remote_code=loading.trust_remote_code,
            inputs_file=inputs_file,
            kind=loading.kind,
        )
        seen = inspected(checkpoint, {**inputs_file.parts, **loading.parts}, weights=weights)
        norm = None
        if weights and checkpoint.alignment is not None:
            trusted = loading.trust_remote_code
            held = saved_norm(model, revision=loading.revision, trust_remote_code=trusted)
            norm = norm_statistics(held["weight"], held["bias"])
        if display.format == "json":
            tables = {"parts": seen.parts, "weights": seen.weights, "norm": norm}
            facts = {name.replace(" ", "_"): fact for name, fact in seen.facts.items()}
            console.json_object(**facts, **{n: t for n, t in tables.items() if t is not None})
            return
        if console.table(seen.parts if seen.weights is None else seen.weights, display):
            return
        with console.stdout_console() as target:
            print_parts(seen.parts, seen.facts, target)
            if seen.weights is not None:
                print_weights(seen.weights, target)
            if norm is not None:
                print_norm_statistics(norm, target)


def _show_types(display: Display) -> None:
    """The model types that were checked."""
    from normprobe.measurements.inspect import print_models, supported_models
    from normprobe.model.find.overrides import FUSIONS

    table = supported_models()
    if not console.table(table, display):
        with console.stdout_console() as target:
            print_models(table, FUSIONS, target)
