"""Write every column of every CSV file into the reference: docs/reference/columns.md.

Run by `make columns`; tests/docs/test_columns.py holds it to the files that the commands write.
"""

from pathlib import Path

from normprobe.measurements import NAMES
from normprobe.quantities import Table, declared

PAGE = Path(__file__).resolve().parents[1] / "docs/reference/columns.md"
ROOMS = (*(f"measurements.{name}" for name in NAMES), "paper", "data")
INTRODUCTION = """\
# Columns

Every column of every CSV file that normprobe writes, with its definition or its equation in
[The Unseen Bias](https://arxiv.org/abs/2512.08374), and its unit. A norm has the unit of the
model's states, which have none. Symbols are those of
[what is measured](../explanation/quantities.md): $x$ enters a layer, $h$ leaves it, $D = h - x$.

What follows a name:

| ending | meaning |
|---|---|
| `_mean`, `_std` | mean and population deviation, over tokens unless it says over samples |
| `_sample_mean`, `_sample_std` | of per-sample means |
| `_geometric_mean` | geometric mean, over tokens whose number is above 0 |
| `_q05`, `_q25`, `_q50`, `_q75`, `_q95` | quantiles over tokens |
| `_visual`, `_text` | of visual, of text tokens |
| `_ci_low`, `_ci_high` | ends of the 95 % interval of a row by itself, over images |
| `_band_low`, `_band_high` | ends of the 95 % band over images: it holds all of its cells at once |

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
| `cause.csv` | effects of one intervention and dose on one quantity, over layers from 1 |

Where different images hold them, as prompts without a picture hold text tokens, cells are drawn
from the images of their own, and share the 5 % by their numbers (Bonferroni).
"""


def tables() -> list[Table]:
    """All tables, measurement by measurement."""
    return [table for room in ROOMS for table in declared(room).values()]


def title(table: Table) -> str:
    """The file, and of which command where several write one of its name."""
    return f"{table.name}.csv{' of ' * bool(table.commands)}{', '.join(table.commands)}"


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for table in tables():
        parts.append(f"## {title(table)}\n\n{table.rows[:1].upper()}{table.rows[1:]}\n")
        rows = ["| column | meaning | equation | unit |", "|---|---|---|---|"]
        for number in table.quantities:
            names = ", ".join(f"`{column}`" for column in number.columns)
            rows.append(f"| {names} | {number.words} | {number.equation} | {number.unit} |")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
