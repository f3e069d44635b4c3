"""``normprobe embeddings``."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from normprobe.cli import console
from normprobe.cli import options as opt

if TYPE_CHECKING:
    from normprobe.cli.subject import Subject
    from normprobe.report.run_dir import RunDir


def embeddings(
    model: opt.Model = "specimen",
    top: Annotated[
        int, typer.Option("--top", "-k", min=1, help="Loudest and quietest tokens to name.")
    ] = 10,
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
        from normprobe.cli.subject import load_subject, start_run
        from normprobe.model.checkpoint import open_checkpoint

        checkpoint = open_checkpoint(model, revision=revision, trust_remote_code=trust_remote_code)
        run = start_run("embeddings", checkpoint, None, output, overwrite, chosen)
        with run.discarded_on_failure():  # nothing is kept of a table that cannot be read
            subject = load_subject(
                "embeddings",
                checkpoint,
                device=device,
                dtype=dtype,
                range_reads=range_reads,
                quiet=quiet,
            )
            measure(subject, run, top, console.mode_of(json, quiet))


def measure(subject: "Subject", run: "RunDir", top: int, mode: console.Mode) -> None:
    """Read the tables of the loaded model, fill the run folder, print."""
    from normprobe.analyses.embeddings import measure_embeddings
    from normprobe.cli.subject import finish_run, note_subject
    from normprobe.data.vocabulary import token_text
    from normprobe.report import tables, verdict

    started = time.perf_counter()
    note_subject(run, subject)
    measured = measure_embeddings(
        subject.parts, subject.vocabulary_ids, subject.special_token_ids, top
    )
    tokens = measured["tokens"]
    tokens["token"] = [token_text(subject.tokenizer, id_) for id_ in tokens["token_id"]]
    finish_run(run, "embeddings", measured, started)
    table = measured["embeddings"]
    console.show(
        run.path,
        table,
        lambda table, target: tables.embeddings_table(table, tokens, target),
        verdict.embeddings_verdict(table),
        mode,
    )
