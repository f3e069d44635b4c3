"""``normprobe paper``."""

import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from normprobe.cli import console
from normprobe.cli import options as opt
from normprobe.errors import NormprobeError


def paper(
    run: Annotated[
        str | None, typer.Option("--run", help="Run these commands, e.g. table2.", metavar="NAME")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Take VALUE where the commands say NAME, e.g. a local copy of a hub id.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Instead of the paper's samples.")] = None,
    limit: opt.Limit = None,
    trust_remote_code: opt.TrustRemoteCode = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder of the runs.", metavar="DIR")
    ] = Path("runs/paper"),
    overwrite: opt.Overwrite = False,
    verbose: opt.Verbose = False,
) -> None:
    """Which commands make each table and figure of the paper; --run runs them.

    Left out: Table 4, which scores trained models, and the drawing in Figure 1 (a).
    """
    with console.reported(verbose):
        artefacts = _artefacts()
        if run is None:
            for name, artefact in artefacts.items():
                console.data(_described(name, artefact, output))
            return
        if run not in artefacts:
            raise NormprobeError(
                f"--run {run}: expected one of {', '.join(artefacts)}",
                "`normprobe paper` tells what each is",
            )
        substitutes = _substitutes(model or [], artefacts[run], run)
        changes = _Changes(substitutes, data, limit, trust_remote_code, overwrite)
        for command in artefacts[run].commands(output / run):
            _run(command, changes)


@dataclass(frozen=True)
class _Command:
    """One command line."""

    words: tuple[str, ...]  # without `normprobe`
    model: str  # as the paper's table names it; of `compare` empty
    folder: Path  # what it writes

    @property
    def line(self) -> str:
        """To be pasted into a shell, an option and its value never torn apart."""
        text = re.sub(r"(?<= )(--?[a-z]+) (?!-)", r"\1\0", shlex.join(("normprobe", *self.words)))
        lines = textwrap.wrap(
            text, 78, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        return " \\\n".join(lines).replace("\0", " ")


@dataclass(frozen=True)
class _Artefact:
    """A table or a figure of the paper."""

    shows: str
    steps: Sequence[Mapping[str, Any]]
    note: str = ""
    compare: bool = False

    def commands(self, folder: Path) -> Iterator[_Command]:
        """The commands that make it, in order; their runs lie in ``folder``."""
        from normprobe.report.reference import needs_remote_code

        runs = []
        for step in self.steps:
            command, *options = shlex.split(step["command"])
            for model in step["models"]:
                run = folder / model.split("/")[-1]
                trust = ["--trust-remote-code"] if needs_remote_code(model) else []
                written = [] if "--stats" in options else ["-o", str(run)]  # that only prints
                words = (command, model, *options, *trust, *written)
                runs.append(run)
                yield _Command(words, model, run)
        if self.compare:
            both = folder / "compare"
            yield _Command(("compare", *map(str, runs), "-o", str(both)), "", both)

    @property
    def names(self) -> list[str]:
        """Every word of the commands that something else can take the place of."""
        words = (
            word
            for step in self.steps
            for word in (*step["models"], *shlex.split(step["command"])[1:])
        )
        return list(dict.fromkeys(words))

    @property
    def own(self) -> list[str]:
        """Names in capitals: what the paper did not publish, and a user gives."""
        return [name for name in self.names if name.isupper()]


@dataclass(frozen=True)
class _Changes:
    """What ``--run`` runs differently from what is listed."""

    substitutes: Mapping[str, str]
    data: str | None
    limit: int | None
    trust_remote_code: bool
    overwrite: bool

    def apply(self, words: Sequence[str]) -> list[str]:
        """The words of a command with the changes."""
        changed = [self.substitutes.get(word, word) for word in words]
        if "--trust-remote-code" in changed and not self.trust_remote_code:
            changed.remove("--trust-remote-code")  # the command then says that it is needed
        if "--data" in changed:
            if self.data is not None:
                changed[changed.index("--data") + 1] = self.data
            if self.limit is not None:
                changed += ["--limit", str(self.limit)]
        return changed + (["--overwrite"] if self.overwrite else [])


def _run(command: _Command, changes: _Changes) -> None:
    from normprobe.cli.app import app
    from normprobe.report.beside_paper import write_published
    from normprobe.report.run_dir import RunDir, read_record

    words = changes.apply(command.words)
    console.talk(f"normprobe {shlex.join(words)}")
    code = typer.main.get_command(app).main(words, prog_name="normprobe", standalone_mode=False)
    if code:
        raise typer.Exit(code)
    if changes.substitutes.keys() & set(command.words) and read_record(command.folder) is not None:
        base = command.words[command.words.index("--base") + 1] if "--base" in words else None
        write_published(RunDir.open(command.folder), command.model, base)
        console.show_published(command.folder)


def _substitutes(given: Sequence[str], artefact: _Artefact, name: str) -> dict[str, str]:
    """``--model`` as a mapping.

    Raises:
        NormprobeError: not NAME=VALUE, a name that the commands do not have, or one missing.
    """
    substitutes = dict[str, str]()
    for text in given:
        word, _, value = text.partition("=")
        if not value or word not in artefact.names:
            models = [model for step in artefact.steps for model in step["models"]]
            raise NormprobeError(
                f"--model {text}: expected NAME=VALUE with a NAME of {name}: {', '.join(models)}",
                f"--model {models[0]}=path/to/checkpoint",
            )
        substitutes[word] = value
    missing = [word for word in artefact.own if word not in substitutes]
    if missing:
        raise NormprobeError(
            f"{name} needs what the paper did not publish: {', '.join(missing)}",
            " ".join(f"--model {word}=..." for word in missing),
        )
    return substitutes


def _described(name: str, artefact: _Artefact, output: Path) -> str:
    notes = [f"# {artefact.note}"] if artefact.note else []
    lines = [command.line for command in artefact.commands(output / name)]
    return "\n".join([f"# {name}: {artefact.shows}", *notes, *lines, ""])


@cache
def _artefacts() -> dict[str, _Artefact]:
    text = (files("normprobe.report") / "paper" / "commands.toml").read_text(encoding="utf-8")
    return {name: _Artefact(**entry) for name, entry in tomllib.loads(text).items()}
