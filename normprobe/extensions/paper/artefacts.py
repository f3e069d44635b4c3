"""The paper's tables and figures, and the commands that make each."""

import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from normprobe.errors import NormprobeError
from normprobe.paper.numbers import needs_remote_code

#: In the place of a name: every hub id.
_EVERY = "*"


@dataclass(frozen=True)
class PaperCommand:
    """One command line."""

    words: tuple[str, ...]  # without `normprobe`
    model: str  # as the paper's table names it; of `compare` empty
    folder: Path  # what it writes

    @property
    def base(self) -> str | None:
        """The language model that it compares with, as the paper's tables name it."""
        return self.words[self.words.index("--base") + 1] if "--base" in self.words else None

    @property
    def line(self) -> str:
        """To be pasted into a shell, an option and its value never torn apart."""
        text = re.sub(r"(?<= )(--?[a-z]+) (?!-)", r"\1\0", shlex.join(("normprobe", *self.words)))
        lines = textwrap.wrap(
            text, 78, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
        return " \\\n".join(lines).replace("\0", " ")


@dataclass(frozen=True)
class Artefact:
    """A table or a figure of the paper."""

    name: str  # such as ``table2``
    shows: str
    steps: Sequence[Mapping[str, Any]]
    note: str = ""
    compare: bool = False

    def commands(self, folder: Path) -> Iterator[PaperCommand]:
        """The commands that make it, in order."""
        runs = []
        for step in self.steps:
            command, *options = shlex.split(step["command"])
            for model in step["models"]:
                run = folder / command / model.split("/")[-1]
                trust = ["--trust-remote-code"] if needs_remote_code(model) else []
                written = [] if "--weights" in options else ["-o", str(run)]  # that only prints
                words = (command, model, *options, *trust, *written)
                runs.append(run)
                yield PaperCommand(words, model, run)
        if self.compare:
            both = folder / "compare" / self.name
            yield PaperCommand(("compare", *map(str, runs), "-o", str(both)), "", both)

    @property
    def models(self) -> list[str]:
        """What its commands are run for."""
        return [model for step in self.steps for model in step["models"]]

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
class Changes:
    """What ``--run`` runs differently from what is listed."""

    substitutes: Mapping[str, str]
    data: str | None
    limit: int | None
    trust_remote_code: bool
    published: bool = True  # beside what is measured

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
        return changed


def substitutes(given: Sequence[str], wanted: Sequence[Artefact], name: str) -> dict[str, str]:
    """``--model`` as a mapping."""
    models = list(dict.fromkeys(model for artefact in wanted for model in artefact.models))
    taken = dict[str, str]()
    for text in given:
        word, _, value = text.partition("=")
        known = word == _EVERY or any(word in artefact.names for artefact in wanted)
        if not (value and known):
            raise NormprobeError(
                f"--model {text}: expected NAME=VALUE with a NAME of {name}: {', '.join(models)}",
                f"--model {models[0]}=path/to/checkpoint",
            )
        taken[word] = value
    if (every := taken.pop(_EVERY, None)) is not None:
        names = (name for artefact in wanted for name in artefact.names)
        taken = dict.fromkeys((name for name in names if "/" in name), every) | taken
    missing = [word for word in wanted[0].own if word not in taken]
    if missing and len(wanted) == 1:
        raise NormprobeError(
            f"{name} needs what the paper did not publish: {', '.join(missing)}",
            " ".join(f"--model {word}=..." for word in missing),
        )
    return taken


@cache
def artefacts() -> dict[str, Artefact]:
    """Every table and figure of the paper that commands make, by name, such as ``table2``."""
    text = (files(__package__) / "commands.toml").read_text(encoding="utf-8")
    return {name: Artefact(name, **entry) for name, entry in tomllib.loads(text).items()}
