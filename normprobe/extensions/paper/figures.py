"""The paper's figures: their panels, which runs they show, and their lines as a table."""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from normprobe.errors import NormprobeError
from normprobe.paper import AFTER
from normprobe.paper.numbers import names_of
from normprobe.runs.run_folder import RunStore, image_name
from normprobe.schema import IMAGE, TEXT, VISUAL
from normprobe.tidy import INTERVAL, select

#: How the names of what the paper did not publish begin: without and with the alignment norm.
BASELINE, ALIGNED = "BASELINE", "ALIGNED"


@dataclass(frozen=True)
class PaperPanel:
    """One panel; see ``figures.toml``."""

    title: str
    metric: str = ""
    runs: Sequence[str] = ()


@dataclass(frozen=True)
class FigureLayout:
    """How the paper draws a figure; see ``figures.toml``."""

    title: str
    panels: Sequence[PaperPanel]
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
    text = (files(__package__) / "figures.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)
    return {
        name: FigureLayout(
            **{**entry, "panels": [PaperPanel(**panel) for panel in entry["panels"]]}
        )
        for name, entry in entries.items()
    }


def curves_of_run(
    layout: FigureLayout, name: str, run: RunStore, label: str, published: pd.DataFrame | None
) -> pd.DataFrame:
    """The lines that a run has in a figure."""
    layers = run.table(run.command)
    panels = [panel for panel in layout.panels if not panel.runs or name in panel.runs]
    curves = []
    for panel in panels:
        drawn = select(layers, panel.metric)
        drawn = drawn.reindex(columns=["layer", "group", "mean", *INTERVAL])
        drawn = drawn.dropna(subset=["layer", "mean"])
        drawn = drawn[drawn["group"].isin([VISUAL, TEXT])]
        if set(drawn["group"]) != {VISUAL, TEXT}:
            raise NormprobeError(
                f"{label}: layers.csv has no {panel.metric} of both visual and text tokens, which "
                f"{layout.source} shows",
                "measure the model with `normprobe layers`, on samples with images",
            )
        at_input = (drawn["layer"] == 0) & (drawn["group"] == VISUAL)
        norm = _published_norm(published) if panel.metric == "norm" else None
        drawn["published"] = pd.Series(norm, drawn.index[at_input], dtype=float)
        drawn.insert(0, "panel", panel.title)
        drawn.insert(1, "metric", panel.metric)
        drawn.insert(2, "run", str(run.path or run.name))
        drawn.insert(3, "label", label)
        curves.append(drawn.sort_values(["group", "layer"], ascending=[False, True]))
    return pd.concat(curves, ignore_index=True)


def _published_norm(published: pd.DataFrame | None) -> float | None:
    """The paper's mean norm of visual tokens behind the projector."""
    if published is None:
        return None
    rows = published[(published["quantity"] == AFTER) & (published["statistic"] == "mean")]
    return float(rows["published"].iloc[0]) if len(rows) else None


class AttentionPairs(NamedTuple):
    """Maps of one or more models over pictures."""

    # ``heatmaps.csv`` of all runs, with ``run`` (what the model is called) and ``image``
    maps: pd.DataFrame
    images: list[NDArray[np.uint8]]  # ``[height, width, 3]`` each; ``image`` counts them from 1
    captions: list[str]  # of each picture, its name and the text that is asked
    warnings: list[str]  # which runs stand alone


def attention_pairs(runs: Sequence[tuple[str, RunStore]]) -> AttentionPairs:
    """Bring the maps of runs together that were asked the same of the same pictures."""
    asked: dict[tuple[str, ...], dict[str, RunStore]] = {}
    for name, run in runs:
        pictures = (run.record.get("image_hashes") or {}).values()
        asked.setdefault((_prompt(run), *map(str, pictures)), {}).setdefault(name, run)
    names = list(dict.fromkeys(name for name, _ in runs))
    maps: list[pd.DataFrame] = []
    images: list[NDArray[np.uint8]] = []
    captions: list[str] = []
    warnings: list[str] = []
    for (prompt, *pictures), of_question in asked.items():
        first = next(iter(of_question.values()))
        before = len(images)
        images += [first.image(image_name(n)) for n in range(1, len(pictures) + 1)]
        number = f"picture {before + 1}: " if len(asked) > 1 else ""
        caption = f"{number}{first.record.get('data')}, \N{LEFT DOUBLE QUOTATION MARK}{prompt}"
        captions.append(f"{caption}\N{RIGHT DOUBLE QUOTATION MARK}")
        for name, run in of_question.items():
            table = run.table("heatmaps")
            maps.append(table.assign(run=name, **{IMAGE: table.get(IMAGE, 1) + before}))
        if alone := [name for name in names if name not in of_question]:
            warnings.append(f"{captions[-1]}: no run of {', '.join(alone)}")
    return AttentionPairs(pd.concat(maps, ignore_index=True), images, captions, warnings)


def _prompt(run: RunStore) -> str:
    return str((run.record.get("options") or {}).get("prompt"))
