"""Write the quantities of every CSV file into the reference: docs/reference/columns.md.

Run by `make columns`; tests/docs/test_columns.py holds it to the files that the commands write.
"""

from pathlib import Path

from normprobe.measurements import measurements
from normprobe.tidy import Quantity, Table, declared

PAGE = Path(__file__).resolve().parents[1] / "docs/reference/columns.md"
INTRODUCTION = """\
# Tables and quantities

**Tables of numbers are tidy: one row a number.** First come the keys of the table, such as `layer`
and `group`, then the name of a `quantity`, then its estimates, which are the same in every table. A
table leaves out the estimates that none of its quantities has.

| column | what it holds |
|---|---|
| `quantity` | which number it is: the lists below say what each one is |
| `mean` | mean over tokens, or over samples where it says so; a number that is no mean itself |
| `low`, `high` | ends of its 95 % interval: of this row by itself, over images |
| `band_low`, `band_high` | ends of its 95 % band over images: it holds all of its cells at once |
| `geometric_mean`, `geometric_low`, `geometric_high` | over tokens whose number is above 0 |
| `std` | population deviation, over what the mean is over |
| `sample_mean`, `sample_low`, `sample_high`, `sample_std` | of per-sample means |
| `q05`, `q25`, `q50`, `q75`, `q95` | quantiles over tokens |
| `tokens`, `samples` | over how many the number is |

Equations are those of [The Unseen Bias](https://arxiv.org/abs/2512.08374). A norm has the unit of
the model's states, which have none. Symbols are those of
[what is measured](../explanation/quantities.md): $x$ enters a layer, $h$ leaves it, $D = h - x$.

<!-- parsed only: stands for a run folder of yours -->
```python
import pandas as pd

table = pd.read_csv("RUN/layers.csv")
norms = table[table.quantity == "norm"]
norms.pivot(index="layer", columns="group", values="mean").plot(logy=True)
```

**Degrees of freedom.** An interval is widened by Student's $t$ at $n - 1$, where $n$ images hold
something of the number. Questions about one picture are one image; a sample without a picture is
one by itself. A band reaches from each number as many errors (a jackknife over images) as the
largest $|t|$ of its cells does in draws of these; of fewer than 5 as Bonferroni's $t$ at $n - 1$,
times $\\sqrt{n/(n-1)}$, does. [How sure is it?](../explanation/statistics.md#bands) has it step by
step. No band is inside its interval.

**Cells that share a band.** All layers are those from 0, the decoder input, on.

| table | one band each |
|---|---|
| `layers.csv` | geometric ratios of one quantity and group, over layers from 1 |
| `layers.csv` | means of one quantity, over all layers of visual and text tokens |
| `theory.csv` | all numbers that have a band, over all layers |
| `branches.csv` | ratios of one quantity and branch, over all layers |
| `massive.csv` | geometric ratios of norms, with massive tokens and without, over all layers |
| `massive.csv` | shares of one kind, over all layers of visual and text tokens |
| `turns.csv` | ratios of one turn, over layers from 1 |
| `grounding.csv` | gaps of one kind, over all layers |
| `shares.csv` | one quantity, over all layers |
| `follow.csv` | ratios of one quantity, over all classes and layers |
| `cause.csv` | effects of one intervention and dose on one quantity, over layers from 1 |

Where different images hold them, as prompts without a picture hold text tokens, cells are drawn
from the images of their own, and share the 5 % by their numbers (Bonferroni).
"""


def tables() -> list[Table]:
    """All tables, measurement by measurement; once those that two of them write alike."""
    of_each = [offered.quantities() for offered in measurements().values()]
    rooms = [*of_each, declared("normprobe.paper"), declared("normprobe.data")]
    return [*{title(table): table for room in rooms for table in room.values()}.values()]


def title(table: Table) -> str:
    """The file, and of which command where several write one of its name."""
    return f"{table.name}.csv{' of ' * bool(table.commands)}{', '.join(table.commands)}"


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for table in tables():
        parts.append(f"## {title(table)}\n\n{table.rows[:1].upper()}{table.rows[1:]}\n")
        known = {each.name: each for each in table.quantities}
        for what, names in (("key", table.keys), ("column", table.columns)):
            rows = [_row(known[name]) for name in names]
            parts += _listed([what, "meaning", "equation", "unit"], rows)
        rows = [[*_row(number), _beside(number.forms)] for number in table.numbers.values()]
        parts += _listed(["quantity", "meaning", "equation", "unit", "beside `mean`"], rows)
    return "\n".join(parts)


def _row(of: Quantity) -> list[str]:
    return [f"`{of.name}`", of.words, of.equation, of.unit]


def _listed(headers: list[str], rows: list[list[str]]) -> list[str]:
    """A table of Markdown; none without rows."""
    lines = [f"| {' | '.join(row)} |" for row in (headers, *rows)]
    return ["\n".join([lines[0], "|---" * len(headers) + "|", *lines[1:]]) + "\n"] if rows else []


_TOLD = {
    "interval": "interval",
    "band": "band",
    "geometric": "geometric mean",
    "std": "deviation",
    "samples": "means of samples",
    "quantiles": "quantiles",
}


def _beside(forms: str) -> str:
    """Which other estimates a quantity has."""
    return ", ".join(words for form, words in _TOLD.items() if form in forms.split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
