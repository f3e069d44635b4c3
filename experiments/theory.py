"""How often each test of the paper's theory is right, in worlds that follow it and that do not.

A world is a stack of residual layers that do what Section 3.1 assumes: each update has one size, at
one angle to its token, in a random direction. Each of the others breaks one assumption in one way.
All are measured as a model is. ``python -m experiments.theory`` prints how often each test holds,
and how often it finds a break of a given size; ``--write`` puts both into the documentation.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import pandas as pd
import torch
import typer
from torch import Tensor, nn
from torch.nn.functional import normalize

from experiments.tables import EXPLANATION, insert, markdown
from normprobe.measurements.layers import Layers
from normprobe.measurements.layers.assumptions import (
    ASSUMED,
    EXEMPT,
    FAILS,
    HOLDS,
    OPEN,
    STATES,
    assumptions_table,
    states_by_layer,
)
from normprobe.measurements.layers.theory import theory_table
from normprobe.model.find.parts import Part, Parts
from normprobe.model.measured_model import MeasuredModel

WIDTH, TOKENS, SAMPLES, LAYERS = 256, 32, 24, 3  # tokens of each modality, visual first
INITIAL = 0.5  # cross-modal cosine at the decoder input
IMAGE, WORD = 1, 2  # token ids


@dataclass(frozen=True)
class World:
    """What the layers do. Pairs are of visual and text tokens.

    Attributes:
        norm: geometric means at the decoder input.
        norm_spread: deviation of the logarithm of the norms within a modality.
        size: means of ||D||.
        size_spread: deviation of ||D|| within a modality, over its mean.
        coupling: power of the norm, over its mean, to which ||D|| grows.
        angle: mean angles between D and the token, radians.
        angle_spread: deviation of the angle within a modality.
        lean: how far each token turns towards the states of the other modality.
        shared: how far all tokens turn in one direction.
    """

    norm: tuple[float, float] = (20.0, 4.0)
    norm_spread: float = 0.3
    size: tuple[float, float] = (3.0, 3.0)
    size_spread: float = 0.05
    coupling: float = 0.0
    angle: tuple[float, float] = (1.4, 1.4)
    angle_spread: float = 0.03
    lean: float = 0.0
    shared: float = 0.0


FAITHFUL = World()

#: What is broken, by the test that has to fail; None where none has to.
WORLDS: dict[str, tuple[World, str | None]] = {
    "nothing": (FAITHFUL, None),
    "equal norms": (replace(FAITHFUL, norm=(8.0, 8.0)), None),
    "larger visual updates": (replace(FAITHFUL, size=(6.0, 3.0)), "Uniform Update Magnitude"),
    "scattered update sizes": (replace(FAITHFUL, size_spread=0.5), "Uniform Update Magnitude"),
    "updates as large as norms": (replace(FAITHFUL, coupling=1.0), "Uniform Update Magnitude"),
    "smaller text angles": (replace(FAITHFUL, angle=(1.4, 1.0)), "Consistent Update Geometry"),
    "scattered angles": (replace(FAITHFUL, angle_spread=0.3), "Consistent Update Geometry"),
    "turns to the other modality": (replace(FAITHFUL, lean=0.4), "Random Rotational Direction"),
    "turns in one direction": (replace(FAITHFUL, shared=0.7), "Random Rotational Direction"),
}

#: Tests that follow from an assumption, and so may fail with it.
DEPENDENT = {
    "Uniform Update Magnitude": {"Eq. 13"},
    "Consistent Update Geometry": {"Eq. 13"},
    "Random Rotational Direction": {"Eq. 15"},
}

#: Breaks from none to plain, by the number that they change: which test has to find them, how
#: large they are (the second is the end of the range in which the test holds), and their world.
BREAKS: dict[str, tuple[str, Sequence[float], Callable[[float], World]]] = {
    "visual / text mean of $\\lVert D \\rVert$": (
        "Uniform Update Magnitude",
        (1.2, 1.25, 1.26, 1.27, 1.3),
        lambda size: replace(FAITHFUL, size=(3.0 * size, 3.0)),
    ),
    "spread of $\\lVert D \\rVert$": (
        "Uniform Update Magnitude",
        (0.2, 0.25, 0.26, 0.27, 0.3),
        lambda size: replace(FAITHFUL, size_spread=size),
    ),
    "correlation of $\\lVert D \\rVert$ and $\\lVert x \\rVert$": (
        "Uniform Update Magnitude",
        (0.4, 0.5, 0.54, 0.58, 0.65),
        lambda size: replace(FAITHFUL, coupling=_coupling(size)),
    ),
    "mean $\\varphi$, visual - text": (
        "Consistent Update Geometry",
        (0.09, 0.1, 0.103, 0.106, 0.11),
        lambda size: replace(FAITHFUL, angle=(1.4, 1.4 - size)),
    ),
    "spread of $\\varphi$": (
        "Consistent Update Geometry",
        (0.08, 0.1, 0.104, 0.108, 0.12),
        lambda size: replace(FAITHFUL, angle_spread=size),
    ),
    "cosine of one's turn and the other's $x$": (
        "Random Rotational Direction",
        (0.04, 0.05, 0.053, 0.056, 0.06),
        lambda size: replace(FAITHFUL, lean=3.0 * size),  # as measured, in the last layer
    ),
}


def _coupling(correlation: float) -> float:
    """The power of the norm at which log ||D|| has this correlation with log ||x||."""
    odds = correlation / math.sqrt(1 - correlation**2)
    return odds * FAITHFUL.size_spread / FAITHFUL.norm_spread


class Layer(nn.Module):
    """One residual update of every token."""

    def __init__(self, world: World, random: torch.Generator) -> None:
        super().__init__()
        self.world, self.random = world, random

    def forward(self, hidden_states: Tensor) -> Tensor:
        """``[samples, 2 TOKENS, WIDTH]`` to the same, updated."""
        world = self.world
        along = normalize(hidden_states, dim=-1)
        turn = normalize(self._noise(*hidden_states.shape), dim=-1)
        # Against the assumption: towards the mean state of the other modality, or all one way.
        other = along.roll(TOKENS, dims=1).reshape(SAMPLES, 2, TOKENS, WIDTH).mean(2)
        turn = turn + world.lean * other.repeat_interleave(TOKENS, dim=1)
        turn = turn + world.shared * normalize(self._noise(hidden_states.shape[-1]), dim=-1)
        turn = normalize(turn - (turn * along).sum(-1, keepdim=True) * along, dim=-1)

        norms = hidden_states.norm(dim=-1)
        usual = norms.log().reshape(SAMPLES, 2, TOKENS).mean(dim=(0, 2)).exp()
        size = by_token(world.size) * (1 + world.size_spread * self._noise(*norms.shape))
        size = size.abs() * (norms / usual.repeat_interleave(TOKENS)) ** world.coupling
        angle = by_token(world.angle) + world.angle_spread * self._noise(*norms.shape)
        direction = angle.cos().unsqueeze(-1) * along + angle.sin().unsqueeze(-1) * turn
        updated: Tensor = hidden_states + size.unsqueeze(-1) * direction
        return updated

    def _noise(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.random)


class Simulation(nn.Module):
    """A decoder whose layers are given, and which takes states rather than ids."""

    def __init__(self, layers: list[Layer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, input_ids: Tensor, states: Tensor) -> Tensor:
        """The ids only tell which tokens are visual."""
        for layer in self.layers:
            states = layer(states)
        return states


def by_token(pair: tuple[float, float]) -> Tensor:
    """``[2 TOKENS]``."""
    return torch.tensor(pair).repeat_interleave(TOKENS)


def states_of(world: World, random: torch.Generator) -> Tensor:
    """The decoder input. A shared direction gives all pairs a cosine of about ``INITIAL``."""
    shared = torch.randn(WIDTH, generator=random)
    own = torch.randn(SAMPLES, 2 * TOKENS, WIDTH, generator=random)
    unit = normalize(INITIAL**0.5 * shared + (1 - INITIAL) ** 0.5 * own, dim=-1)
    spread = world.norm_spread * torch.randn(SAMPLES, 2 * TOKENS, generator=random)
    return unit * (by_token(world.norm) * spread.exp()).unsqueeze(-1)


def simulated(world: World, seed: int) -> pd.DataFrame:
    """Sample rows of a world, each sample an image of its own."""
    random = torch.Generator().manual_seed(seed)
    model = Simulation([Layer(world, random) for _ in range(LAYERS)])
    parts = Parts(None, None, None, Part("layers", model.layers), None, image_token_ids=(IMAGE,))
    ids = torch.tensor([[IMAGE] * TOKENS + [WORD] * TOKENS] * SAMPLES)
    inputs = {"input_ids": ids, "states": states_of(world, random)}
    names = [f"{sample:02}" for sample in range(SAMPLES)]
    measured = MeasuredModel(model, parts)
    measured.forward_seen = True  # each layer runs once, in order: nothing is to be found out
    rows = Layers().sample_rows(measured, inputs, names)
    return rows.assign(image_hash=None)


def outcomes(rows: pd.DataFrame) -> dict[str, str]:
    """What each test says of all layers: it holds in all, fails in one, or neither.

    Args:
        rows: of ``simulated``.

    Returns:
        ``holds``, ``fails``, ``open`` or ``does not apply`` by assumption or equation.
    """
    table = assumptions_table(theory_table(rows))
    found = {}
    for (name, source), judged in table.groupby(["assumption", "source"], sort=False):
        states = set(states_by_layer(judged).values()) - {EXEMPT}
        worst = next((state for state in (FAILS, OPEN, HOLDS) if state in states), EXEMPT)
        found[str(name) if source == ASSUMED else str(source)] = worst
    return found


def rates(world: World, seeds: range) -> pd.DataFrame:
    """Share of seeds with each outcome: index the test, a column each outcome."""
    found = pd.DataFrame([outcomes(simulated(world, seed)) for seed in seeds])
    outcomes_of_tests = {test: found[test].value_counts(normalize=True) for test in found}
    return pd.DataFrame(outcomes_of_tests).reindex(STATES).fillna(0.0).T


def share(outcome: str, of_seeds: float) -> str:
    """``holds 99.5 %``."""
    return f"{outcome} {f'{of_seeds:.1%}'.replace('.0%', '%').replace('%', ' %')}".strip()


def rates_table(seeds: int) -> str:
    """How often each test holds, or fails, in each world."""
    rows, tests = [], ["broken"]
    for broken, (world, _) in WORLDS.items():
        found = rates(world, range(seeds))
        tests[1:] = map(str, found.index)
        cells = []
        for test in found.index:
            outcome = str(found.loc[test].idxmax())
            cells.append(outcome if outcome == EXEMPT else share(outcome, found.loc[test, outcome]))
        rows.append([broken, *cells])
    return markdown(tests, rows)


def power_table(seeds: int) -> str:
    """How often its test finds a break, by its size."""
    rows = []
    for number, (test, sizes, world) in BREAKS.items():
        found = [rates(world(size), range(seeds))[FAILS][test] for size in sizes]
        cells = [share(f"{size:g}:", rate) for size, rate in zip(sizes, found, strict=True)]
        rows.append([number, *cells])
    return markdown(["number", "inside", "at the end", "outside", "", ""], rows)


def main(
    seeds: Annotated[int, typer.Option(help="Seeds of each world.")] = 50,
    write: Annotated[bool, typer.Option(help="Put the tables into the documentation.")] = False,
) -> None:
    """Print tables in Markdown: how often each test holds (or fails), and what breaks it finds."""
    torch.set_num_threads(1)
    for name, table in (("rates", rates_table), ("power", power_table)):
        made = table(seeds if name == "rates" else 2 * seeds // 5)
        typer.echo(made)
        if write:
            insert(EXPLANATION / "theory.md", {name: made})


if __name__ == "__main__":
    typer.run(main)
