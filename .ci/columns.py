"""Write every column of every CSV file into the reference: docs/reference/columns.md.

Its source is docs/reference/columns.toml. Run by `make columns`; tests/docs/test_columns.py holds
both to the files that the commands write.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normprobe.schema import QUANTILES

REFERENCE = Path(__file__).resolve().parents[1] / "docs/reference"
ENDS = {"interval": ("_ci_low", "_ci_high"), "band": ("_band_low", "_band_high")}
#: The columns that a form of a quantity stands for; those of them with an interval; with a band.
SUFFIXES = {
    "value": ([""], [""], [""]),
    "mean": (["_mean"], ["_mean"], ["_mean"]),
    "std": (["_std"], [], []),
    "samples": (["_sample_mean", "_sample_std"], ["_sample_mean"], []),
    "geometric": (["_geometric_mean"], ["_geometric_mean"], []),
    "quantiles": ([f"_{name}" for name in QUANTILES], [], []),
    "modalities": (["_visual", "_text"], ["_visual", "_text"], ["_visual", "_text"]),
}
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
| `_band_low`, `_band_high` | ends of the 95 % band over images: it holds all layers at once |
"""


def tables() -> list[dict[str, Any]]:
    """The tables of columns.toml, in order."""
    text = (REFERENCE / "columns.toml").read_text(encoding="utf-8")
    return list(tomllib.loads(text)["table"])


def columns_of(name: str, forms: str) -> Iterator[str]:
    """The columns of a quantity, those with an interval or a band before their ends."""
    given = forms.split()
    for form in given:
        if form in ENDS:
            continue
        suffixes, *with_ends = SUFFIXES[form]
        for suffix in suffixes:
            yield name + suffix
            for (kind, ends), those in zip(ENDS.items(), with_ends, strict=True):
                if kind in given and suffix in those:
                    yield from (name + suffix + end for end in ends)


def title(table: dict[str, Any]) -> str:
    """The file, and of which command where several write one of its name."""
    command = f" of {', '.join(table['of'])}" if "of" in table else ""
    return f"{table['name']}.csv{command}"


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for table in tables():
        parts.append(f"## {title(table)}\n\n{table['rows'][:1].upper()}{table['rows'][1:]}\n")
        rows = ["| column | meaning | equation | unit |", "|---|---|---|---|"]
        for name, forms, meaning, equation, unit in table["columns"]:
            names = ", ".join(f"`{column}`" for column in columns_of(name, forms))
            rows.append(f"| {names} | {meaning} | {equation} | {unit} |")
        parts.append("\n".join(rows) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    (REFERENCE / "columns.md").write_text(page(), encoding="utf-8")
