"""The ranking of compared runs: what is printed, and the sentence that says it."""

import pandas as pd
from rich.console import Console
from rich.text import Text

from normprobe.report.significant import MISSING, significant
from normprobe.report.terminal import add_column, new_table, print_notes, print_table

#: Command -> header and column of each number, and what they mean.
_COLUMNS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "layers": (
        {
            "input": "disparity_input",
            "middle": "disparity_middle",
            "last": "disparity_last",
            "inertia gap": "inertia_gap",
        },
        (
            "input, middle, last: visual / text mean norm at the decoder input, after",
            "layer ceil(N / 2) and after the last. inertia gap: text - visual angle,",
            "mean over layers (radians per layer). Ranked by disparity at the input.",
        ),
    ),
    "interface": (
        {
            "x prompt": "disparity_input",
            "x table": "ratio_to_table",
            "visual": "visual_norm",
            "text": "text_norm",
        },
        (
            "Mean norms at the decoder input, visual / text: of the prompts' text tokens",
            "and of the non-zero effective text embeddings. Ranked by x prompt.",
        ),
    ),
    "embeddings": (
        {
            "loudest": "loudest_ratio",
            "visual": "visual_ratio",
            "mean": "text_norm",
            "std": "text_std",
            "base mean": "base_norm",
        },
        (
            "Non-zero rows. loudest: largest / mean norm of the text table; visual: mean",
            "norm of the visual table / that of the text table. Ranked by loudest.",
        ),
    ),
}


def print_ranking(command: str, ranking: pd.DataFrame, console: Console) -> None:
    """Print ``ranking.csv``.

    Args:
        command: whose runs are compared.
        ranking: the table.
        console: where to print.
    """
    columns, notes = _COLUMNS[command]
    table = new_table(f"{len(ranking)} runs of {command}")
    for header in ("rank", "run", *columns):
        add_column(table, header, left=header == "run")
    for _, row in ranking.iterrows():
        table.add_row(
            Text(MISSING if pd.isna(row["rank"]) else str(row["rank"])),
            Text(str(row["run"])),
            *(Text(significant(float(row[column]))) for column in columns.values()),
        )
    print_table(table, console)
    print_notes(console, *notes)


def comparison_verdict(command: str, ranking: pd.DataFrame) -> str:
    """Who has the largest and the smallest disparity, and whether inertia goes with it.

    Args:
        command: whose runs are compared.
        ranking: ``ranking.csv``.
    """
    ranked = ranking.dropna(subset="rank")
    if command == "embeddings" or len(ranked) < 2:
        return ""
    first, last = ranked.iloc[0], ranked.iloc[-1]
    sentence = (
        f"The norm disparity at the decoder input is largest in {first['run']} "
        f"({significant(float(first['disparity_input']), 3)} x) and smallest in {last['run']} "
        f"({significant(float(last['disparity_input']), 3)} x)"
    )
    if command == "layers" and ranked["inertia_gap"].notna().all():
        widest = ranked.sort_values("inertia_gap")["run"].iloc[-1]
        sentence += f". Text tokens turn ahead of visual ones by most in {widest}"
    return f"{sentence}."
