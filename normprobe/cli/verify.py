"""``normprobe verify``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normprobe.cli import console
from normprobe.cli.lasting import lasting_imports
from normprobe.cli.options import Display, Inputs, TrustRemoteCode, Without, grouped

if TYPE_CHECKING:
    from normprobe.verify import Verified


@grouped
def verify(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Run folder of interface, layers or grounding.", show_default=False
        ),
    ],
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Draw this many samples.", metavar="N")
    ] = 3,
    seed: Annotated[int, typer.Option(help="Seed of that draw.")] = 42,
    trust_remote_code: TrustRemoteCode = False,
    inputs: Inputs = None,
    *,
    display: Annotated[Display, Without("quiet")],
) -> None:
    """Measure a few samples of a finished run again: are its numbers the same to the last digit?

    Where they are not, it says what changed since: model, data, library versions or device.
    """
    with console.reported(display):
        with lasting_imports():
            from normprobe.verify import verify_run

        found = verify_run(
            run, samples=limit, seed=seed, trust_remote_code=trust_remote_code, inputs=inputs
        )
        if display.json:
            console.json_object(
                equal=found.equal,
                sentence=found.sentence,
                changed=found.changed,
                table=found.table,
            )
        elif not console.table(found.table, display):
            _print(found)
        if not found.equal:
            raise typer.Exit(console.FAILED)


def _print(found: "Verified") -> None:
    """A row a sample; then the quantities that differ, a row each; then what changed."""
    from rich.text import Text

    from normprobe.report.readable import significant
    from normprobe.report.terminal import add_column, new_table, print_sentence, print_table

    columns = ("numbers", "different", "largest relative difference")
    with console.stdout_console() as target:
        table = new_table("Measured again")
        for header in ("sample", "quantity", *columns):
            add_column(table, header, left=header in ("sample", "quantity"))
        for sample_id, rows in found.table.groupby("sample_id"):
            differing = rows[rows["different"] > 0]
            if differing.empty:
                numbers = (str(rows["numbers"].sum()), "0", "0")
                table.add_row(Text(str(sample_id)), f"all {len(rows)}", *numbers)
            for _, row in differing.iterrows():
                far = significant(row["largest_relative_difference"], 2)
                numbers = (str(row["numbers"]), str(row["different"]), far)
                table.add_row(Text(str(sample_id)), Text(str(row["quantity"])), *numbers)
        print_table(table, target, keys=2)
        print_sentence(found.sentence, target)
        for line in found.changed:
            print_sentence(f"Changed since: {line}", target)
