"""The panels of the paper's figures, and which runs they show."""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from normprobe.paper.numbers import names_of

#: How the names of what the paper did not publish begin: without and with the alignment norm.
BASELINE, ALIGNED = "BASELINE", "ALIGNED"


@dataclass(frozen=True)
class Panel:
    """One panel; see ``figures.toml``."""

    title: str
    metric: str = ""
    runs: Sequence[str] = ()


@dataclass(frozen=True)
class FigureLayout:
    """How the paper draws a figure; see ``figures.toml``."""

    title: str
    panels: Sequence[Panel]
    command: str = "layers"
    several: bool = False
    roles: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The figure's name in the paper, such as ``Figure 3``."""
        return self.title.split(":")[0]

    @property
    def names(self) -> list[str]:
        """What its runs can be of: names of its commands, in the order of the panels."""
        return list(dict.fromkeys(name for panel in self.panels for name in panel.runs))

    def name_of(self, record: Mapping[str, Any]) -> str | None:
        """Which of ``names`` a run is of, as it says itself.

        Returns:
            The name of its model in the commands; or that of a baseline or an aligned model, by
            whether it holds an alignment norm. Empty where the panels take any run; None where
            none takes this one.
        """
        if not self.names:
            return ""
        own = names_of(str(record.get("model")))
        role = ALIGNED if record.get("alignment") else BASELINE
        fitting = (name for name in self.names if names_of(name) & own or name.startswith(role))
        return next(fitting, None)

    def without_run(self, given: Collection[str]) -> list[str]:
        """What is missing of the figure: panels by their titles, or one of a pair by its role."""
        if self.roles:
            return [role for name, role in self.roles.items() if name not in given]
        return [p.title for p in self.panels if p.runs and not set(p.runs) & set(given)]


@cache
def figure_layouts() -> dict[str, FigureLayout]:
    """Every figure that can be drawn, by its name in ``commands.toml``."""
    text = (files("normprobe.paper") / "figures.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)
    return {
        name: FigureLayout(**{**entry, "panels": [Panel(**panel) for panel in entry["panels"]]})
        for name, entry in entries.items()
    }
