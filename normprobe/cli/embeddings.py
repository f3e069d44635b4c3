"""``normprobe embeddings``."""

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normprobe.cli import console
from normprobe.cli import options as opt

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from normprobe.analyses.embedding_shift import TextTable
    from normprobe.cli.subject import Subject
    from normprobe.model.checkpoint import Checkpoint
    from normprobe.report.run_dir import RunDir


def embeddings(
    model: opt.Model = "specimen",
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
    revision: opt.Revision = None,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    range_reads: opt.RangeReads = False,
    trust_remote_code: opt.TrustRemoteCode = False,
    output: opt.Output = None,
    overwrite: opt.Overwrite = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    verbose: opt.Verbose = False,
) -> None:
    """Norms of the embedding tables, and the tokens that stand out (Tables 3, 6-8)."""
    chosen = dict(locals())
    with console.reported(verbose):
        from normprobe.cli.run import start_run
        from normprobe.cli.subject import load_subject
        from normprobe.model.checkpoint import open_checkpoint

        checkpoint = open_checkpoint(model, revision=revision, trust_remote_code=trust_remote_code)
        base_checkpoint = (
            None if base is None else open_checkpoint(base, trust_remote_code=trust_remote_code)
        )
        run = start_run("embeddings", checkpoint, None, output, overwrite, chosen)
        with run.discarded_on_failure():  # nothing is kept of a table that cannot be read
            load = partial(
                load_subject,
                "embeddings",
                device=device,
                dtype=dtype,
                range_reads=range_reads,
                quiet=quiet,
            )
            older = None if base_checkpoint is None else Base.of(load(base_checkpoint))
            measure(load(checkpoint), run, top, console.mode_of(json, quiet), older)


@dataclass(frozen=True)
class Base:
    """What is kept of the base model: its text table, not the rest of its weights."""

    checkpoint: "Checkpoint"
    table: "TextTable"
    tokenizer: Any

    @classmethod
    def of(cls, subject: "Subject") -> "Base":
        """Free the model around the table."""
        return cls(subject.checkpoint, table_of(subject), subject.tokenizer)


def table_of(subject: "Subject") -> "TextTable":
    """The text table of a loaded model."""
    from normprobe.analyses.embedding_shift import text_table

    vocabulary = {} if subject.tokenizer is None else subject.tokenizer.get_vocab()
    config = subject.checkpoint.config.to_dict()
    return text_table(subject.parts, vocabulary, subject.special_token_ids, config)


def measure(
    subject: "Subject", run: "RunDir", top: int, mode: console.Mode, base: Base | None = None
) -> None:
    """Read the tables of the loaded model, fill the run folder, print."""
    from normprobe.analyses.embeddings import measure_embeddings
    from normprobe.cli.run import finish_run, note_subject
    from normprobe.data.vocabulary import token_text
    from normprobe.model.discrete import image_token_rows
    from normprobe.report import tables, verdict
    from normprobe.report.shift import print_shift, shift_verdict

    started = time.perf_counter()
    note_subject(run, subject)
    measured = measure_embeddings(
        subject.parts,
        subject.vocabulary_ids,
        subject.special_token_ids,
        top,
        image_token_rows(subject.model),
    )
    tokens = measured["tokens"]
    tokens["token"] = [token_text(subject.tokenizer, id_) for id_ in tokens["token_id"]]
    if base is not None:
        add_shift(measured, subject, base, top)
        run.note(base=base.checkpoint.name, base_revision=base.checkpoint.revision)
    finish_run(run, "embeddings", measured, started)
    table = measured["embeddings"]
    sentence = verdict.embeddings_verdict(table)

    def show_tables(table: "pd.DataFrame", target: "Console") -> None:
        # Beside a base, its loudest rows stand in the place of the quietest of the model.
        tables.embeddings_table(table, tokens if base is None else tokens.iloc[:0], target)

    def show_shift(target: "Console") -> None:
        print_shift(measured["shift"], target)
        console.say(shift_verdict(table, measured["shift"]), target)

    console.show(
        run.path, table, show_tables, sentence, mode, then=None if base is None else show_shift
    )


def add_shift(
    measured: "dict[str, pd.DataFrame]", subject: "Subject", base: Base, top: int
) -> None:
    """Add the base table to ``embeddings``, and ``shift`` with the text of each token."""
    import pandas as pd

    from normprobe.analyses.embedding_shift import measure_shift
    from normprobe.data.vocabulary import token_text

    compared = measure_shift(table_of(subject), base.table, top)
    shift = compared["shift"]
    measured["embeddings"] = pd.concat(
        [measured["embeddings"], compared["base"]], ignore_index=True
    )
    text = [
        token_text(subject.tokenizer, int(own))
        if pd.notna(own)
        else token_text(base.tokenizer, int(other))
        for own, other in zip(shift["token_id"], shift["base_id"], strict=True)
    ]
    shift.insert(0, "token", text)
    measured["shift"] = shift
