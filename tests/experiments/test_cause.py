"""The experiment on causes: its stored results are whole, and its README quotes them."""

from pathlib import Path

import pandas as pd
import pytest

import experiments
from experiments.cause import RESULTS_FILE, VARIANTS, main, report

pytestmark = pytest.mark.slow  # no behaviour of the package

FOLDER = Path(experiments.__file__).parent
RESULTS = pd.read_csv(FOLDER / RESULTS_FILE)


def test_the_readme_quotes_the_results() -> None:
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    quoted = card.split("<!-- cause: begin -->\n")[1].split("<!-- cause: end -->")[0]
    assert quoted == report(RESULTS)


def test_each_variant_has_each_seed() -> None:
    # Of angles that hardly differ, as with the aligned norm, there is no share.
    rows = RESULTS[RESULTS["quantity"] != "share_removed"].groupby(["variant", "seed"]).size()
    assert sorted(rows.index) == sorted((v, s) for v in VARIANTS for s in range(3))
    assert rows.nunique() == 1


def test_a_short_run(tmp_path, capsys) -> None:
    main(["--output", str(tmp_path), "--seeds", "1", "--steps", "2", "1", "1"])
    table = capsys.readouterr().out
    assert "| freeze: accuracy |" in table
    assert (tmp_path / "aligned-0/model.safetensors").exists()
    main(["--output", str(tmp_path), "--seeds", "1", "--steps", "2", "1", "1"])  # nothing is left
    assert capsys.readouterr().out == table
