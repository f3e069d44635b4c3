"""The table of branches on a terminal: what fits, and which number stands where."""

from io import StringIO

import pandas as pd
import pytest
from rich.console import Console

from normprobe.measurements.layers.branches import print_branches

VALUES = {"angle": 0.1, "relative_update": 0.2, "update_norm": 3.0}


def made(*branches: str) -> pd.DataFrame:
    """Numbers that tell branch, group and layer; the last layer has the first branch alone."""
    rows = []
    for place, branch in enumerate(branches):
        for layer in (1, 2) if place == 0 else (1,):
            for shift, group in enumerate(("visual", "text")):
                row = {"layer": layer, "branch": branch, "group": group}
                for metric, value in VALUES.items():
                    row[f"{metric}_mean"] = value + layer + 10 * place + 100 * shift
                    for end in ("", "_ci_low", "_ci_high"):
                        row[f"{metric}_ratio_to_text{end}"] = float("nan")
                rows.append(row)
    return pd.DataFrame(rows)


def printed(branches: pd.DataFrame) -> list[list[str]]:
    file = StringIO()
    print_branches(branches, Console(file=file, width=80))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    return [line.split() for line in lines]


def test_visual_beside_text_and_attention_beside_the_mlp() -> None:
    lines = printed(made("attention", "mlp"))
    assert lines[1:3] == [["attention", "MLP"], ["angle", "rel.update"] * 2]
    assert lines[3] == ["layer", *["visual", "text"] * 4]
    first = next(line for line in lines if line[:1] == ["1"])
    assert first == ["1", "1.100", "101.1", "1.200", "101.2", "11.10", "111.1", "11.20", "111.2"]
    second = next(line for line in lines if line[:1] == ["2"])
    assert second[5:] == ["-"] * 4


def test_of_three_branches_the_angles_alone() -> None:
    lines = printed(made("attention", "cross_attention", "mlp"))
    assert lines[1] == ["attention", "cross-attention", "MLP"]
    assert lines[2] == ["angle"] * 3


@pytest.mark.parametrize("group", ["visual", "text"])
def test_one_group_alone(group: str) -> None:
    table = made("attention", "mlp")
    lines = printed(table[table["group"] == group])
    assert lines[3] == ["layer", *[group] * 4]
