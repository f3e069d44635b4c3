"""How often what ``cause`` says of answers is right, by simulation.

Sample rows are drawn from populations whose effects are known, and go through the extension's own
table and sentences. ``python -m experiments.effects`` prints the tables of
docs/explanation/statistics.md; ``--write`` puts them there.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray

from experiments.tables import EXPLANATION, markdown, publish
from normprobe.extensions.cause.measure import ANGLES, OUTCOMES
from normprobe.extensions.cause.table import tables
from normprobe.extensions.cause.words import verdict
from normprobe.model.intervention_plan import DOSES, UNTOUCHED
from normprobe.runs.run_folder import RunStore

Array = NDArray[np.float64]
IMAGES = (10, 25, 50, 100, 150)
SETS = 200

#: Logarithms of the text / visual angle by layer: untouched, and as loud as text.
BEFORE, AFTER = np.array([2.2, 1.0, 0.5, 0.7]), np.array([0.1, 0.3, -0.2, 0.15])
LOST, WON, RARE = 0.12, 0.05, 0.04
COST = 0.1  # nats, the mean of each world


def normal(random: np.random.Generator, images: int) -> Array:
    """Of every image about the same."""
    return random.normal(COST, 0.2, images)


def skewed(random: np.random.Generator, images: int) -> Array:
    """Lognormal: skewness 6."""
    return COST * random.lognormal(-0.5, 1.0, images)


def rare(random: np.random.Generator, images: int) -> Array:
    """Of 4 % of images; of the others next to nothing."""
    costly = np.where(random.random(images) < RARE, random.gamma(4.0, COST / RARE / 4, images), 0)
    return costly + random.normal(0.0, 0.01, images)


def clustered(random: np.random.Generator, images: int) -> Array:
    """Skewed, and of 1 to 5 questions an image."""
    return random.gamma(1.0, COST, images)


WORLDS: Mapping[str, Callable[[np.random.Generator, int], Array]] = {
    "normal": normal,
    "skewed": skewed,
    "4 % of images": rare,
    "1 to 5 questions an image": clustered,
}
#: The truth of each number; in the world of rare images answers are lost there alone.
TRUE = {
    "nll": COST,
    "kl": COST,
    "accuracy": WON - LOST,
    "changed": WON + LOST,
    "share_removed": 1 - np.abs(AFTER).sum() / np.abs(BEFORE).sum(),
}
_TRUE_OF_RARE = {"accuracy": -RARE, "changed": RARE}


def true(world: str) -> Mapping[str, float]:
    """What each number would be of all images that there are."""
    return TRUE | (_TRUE_OF_RARE if world == "4 % of images" else {})


def simulated(
    world: str, images: int, seed: int, after: Array = AFTER, before: Array = BEFORE
) -> pd.DataFrame:
    """Sample rows of one intervention."""
    random = np.random.default_rng(seed)
    of_images, chances = WORLDS[world](random, images), random.random(images)
    asked = random.integers(1, 6, images) if world.startswith("1 to 5") else np.ones(images, int)
    image = np.repeat(np.arange(images), asked)
    samples, more = len(image), (asked > 1).any()
    cost = of_images[image] + more * random.normal(0.0, 0.1, samples)
    # Questions about one picture are lost together more often than others.
    chance = np.where(more & (random.random(samples) < 0.5), random.random(samples), chances[image])
    lost, won = chance < LOST, (chance >= LOST) & (chance < LOST + WON)
    if world == "4 % of images":
        lost, won = of_images > 5 * 0.01, np.zeros(images, bool)
    right = random.random(samples) < 0.6
    was, now = np.where(won, False, right | lost), np.where(lost, False, right | won)
    kl = of_images[image] if world != "normal" else COST * random.gamma(4.0, 0.25, samples)
    nll = random.gamma(0.5, 0.5, samples)
    known = {"sample_id": np.arange(samples).astype(str), "image_hash": image.astype(str)}
    nothing = np.zeros(samples)
    rows = []
    for name, ratios, told in (
        (UNTOUCHED, before, (nll, was, *[nothing] * 5, np.nan)),
        (
            "scale-to-text",
            after,
            (nll + cost, now, kl, lost | won, 0.1 * kl, 64 + nothing, nothing, np.nan),
        ),
    ):
        key = {"intervention": name, "dose": np.nan, **known}
        rows.append(pd.DataFrame(key | {"layer": 0} | dict(zip(OUTCOMES, told, strict=True))))
        for layer, ratio in enumerate(ratios, start=1):
            visual = random.normal(-3.0, 0.2, samples)
            text = visual + ratio + random.normal(0.0, 0.3, images)[image]
            angles = (visual, 16.0, text, 9.0)
            rows.append(
                pd.DataFrame(key | {"layer": layer} | dict(zip(ANGLES, angles, strict=True)))
            )
    return pd.concat(rows, ignore_index=True).astype(dict.fromkeys(OUTCOMES, float))


def coverage(world: str, images: int, sets: int) -> pd.DataFrame:
    """Of each number: how many have an interval, and how many of these miss the truth.

    Columns ``printed``, ``below`` and ``above`` (the truth), shares of data sets; the last two of
    those that have one.
    """
    found: dict[str, list[tuple[bool, bool, bool]]] = {name: [] for name in true(world)}
    for seed in range(sets):
        table = tables(simulated(world, images, seed))["cause"].set_index("quantity")
        for name, value in true(world).items():
            if name in table.index:
                low, high = map(float, table.loc[name, ["low", "high"]].to_numpy())
                found[name].append((not np.isnan(low), value < low, value > high))
    told = {}
    for name, of_one in found.items():
        printed, below, above = np.array(of_one or [(False, False, False)]).T
        told[name] = {
            "printed": printed.sum() / sets,
            "below": below[printed].mean() if printed.any() else np.nan,
            "above": above[printed].mean() if printed.any() else np.nan,
        }
    return pd.DataFrame(told).T


def null_run(images: int, seed: int, skewness: str = "normal") -> str:
    """What is said of a run in which nothing does anything, and text turns as visual tokens do."""
    random = np.random.default_rng(seed)
    names = [
        (name, dose)
        for name in ("scale", "scale-to-text", "freeze", "blank", "placebo")
        for dose in DOSES[name]
    ]
    nll, own = random.gamma(0.5, 0.5, images), random.normal(0.0, 1.0, images)
    right = random.random(images) < 0.6
    known = {
        "sample_id": np.arange(images).astype(str),
        "image_hash": np.arange(images).astype(str),
    }
    rows = []
    for name, dose in [(UNTOUCHED, np.nan), *names, ("norm-at-layer", np.nan)]:
        noise = own + random.normal(0.0, 1.0, images)
        if skewness == "skewed":
            noise = np.exp(0.6 * noise / np.sqrt(2)) - np.exp(0.18)
        moved = 0.0 if name == UNTOUCHED else 0.1 * noise
        flipped = (random.random(images) < 0.08) & (name != UNTOUCHED)
        now = np.where(flipped, random.random(images) < 0.5, right)
        # As many are won as are lost.
        kl = np.square(np.broadcast_to(moved, images)) + 0.001
        told = (nll + moved, now, kl, flipped, kl, np.full(images, 64.0), np.zeros(images), np.nan)
        key = {"intervention": name, "dose": dose, **known}
        if name != "norm-at-layer":
            rows.append(pd.DataFrame(key | {"layer": 0} | dict(zip(OUTCOMES, told, strict=True))))
        for layer in range(1, 5):
            visual = random.normal(-3.0 - np.log(dose if dose > 0 else 0.5), 0.2, images)
            angles = (visual, 16.0, visual + random.normal(0.0, 0.3, images), 9.0)
            told_angles = dict(zip(ANGLES, angles, strict=True))
            rows.append(pd.DataFrame(key | {"layer": layer} | told_angles))
    run = RunStore({"command": "cause"})
    run.write_table(
        "cause",
        tables(pd.concat(rows, ignore_index=True).astype(dict.fromkeys(OUTCOMES, float)))["cause"],
    )
    return str(verdict(run))


def claims(sentence: str) -> list[str]:
    """What a verdict claims of cost, gain or share."""
    return re.findall(r"(?:costs|gains|removes) [\d.]+[^(;]*", sentence)


def percent(share: float) -> str:
    """Without a sign."""
    return "-" if np.isnan(share) else f"{100 * share:.0f}"


def coverage_table(sets: int) -> str:
    """Of 100 printed intervals how many hold the truth, and how many data sets have too few."""
    rows = []
    for world in WORLDS:
        by_images = {images: coverage(world, images, sets) for images in IMAGES}
        for name in TRUE:
            cells = []
            for found in by_images.values():
                printed, below, above = map(float, found.loc[name].to_numpy())
                covered = 1 - below - above
                few = f"; {percent(1 - printed)} too few" if printed < 1 else ""
                cells.append(f"{percent(covered)} ({percent(below)}, {percent(above)}){few}")
            rows.append([world, name.replace("_", " "), *cells])
    return markdown(["effects", "", *map(str, IMAGES)], rows)


def null_table(runs: int) -> str:
    """How many of 100 runs without an effect claim a cost, a gain or a share."""
    rows = []
    for kind in ("normal", "skewed"):
        said = {
            images: sum(bool(claims(null_run(images, seed, kind))) for seed in range(runs))
            for images in IMAGES
        }
        rows.append([kind, *(f"{100 * count / runs:.1f}" for count in said.values())])
    return markdown(["effects", *map(str, IMAGES)], rows)


def main(
    quick: Annotated[bool, typer.Option(help="Few data sets: a look, not a result.")] = False,
    write: Annotated[bool, typer.Option(help="Put the tables into the documentation.")] = False,
) -> None:
    """Print the tables of effects of docs/explanation/statistics.md in Markdown."""
    sets = 40 if quick else SETS
    made = {"effects": coverage_table(sets), "nulls": null_table(20 if quick else 200)}
    publish(made, EXPLANATION / "statistics.md" if write else None)


if __name__ == "__main__":
    typer.run(main)
