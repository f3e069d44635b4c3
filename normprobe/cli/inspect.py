"""``normprobe inspect``."""

from typing import Annotated

import typer

from normprobe.cli import console
from normprobe.cli.lasting import lasting_imports
from normprobe.cli.options import Display, Loading, Model, NamedParts, Without, grouped, only


@grouped
def inspect(
    model: Model = "specimen",
    *,
    loading: Annotated[Loading, only(Loading, "revision", "trust_remote_code", "inputs", "kind")],
    named: Annotated[NamedParts, Without("verify")],
    weights: Annotated[
        bool,
        typer.Option(
            "--weights", help="Bytes, types and files of each part, from the files' headers."
        ),
    ] = False,
    display: Annotated[Display, Without("quiet")],
) -> None:
    """What normprobe sees: parts, sizes and token ids, from the config alone, no weights.

    With --weights also what the weight files hold of each part, and what each command would read.
    """
    with console.reported(display):
        with lasting_imports():
            from normprobe.inputs.inputs_file import NO_INPUTS_FILE, read_inputs_file
            from normprobe.measurements.inspect.measure import inspected, print_parts, print_weights
            from normprobe.model.checkpoint import open_checkpoint

        inputs_file = NO_INPUTS_FILE if loading.inputs is None else read_inputs_file(loading.inputs)
        checkpoint = open_checkpoint(
            model,
            revision=loading.revision,
            trust_remote_code=loading.trust_remote_code,
            inputs_file=inputs_file,
            kind=loading.kind,
        )
        seen = inspected(checkpoint, {**inputs_file.parts, **named.named()}, weights=weights)
        if display.json:
            held = {"parts": seen.parts, "weights": seen.weights}
            facts = {name.replace(" ", "_"): fact for name, fact in seen.facts.items()}
            console.json_object(**facts, **{name: t for name, t in held.items() if t is not None})
            return
        if console.table(seen.parts if seen.weights is None else seen.weights, display):
            return
        with console.stdout_console() as target:
            print_parts(seen.parts, seen.facts, target)
            if seen.weights is not None:
                print_weights(seen.weights, target)
