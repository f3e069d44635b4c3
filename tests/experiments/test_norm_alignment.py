"""The alignment experiment: its stored results are whole, and its README quotes them."""

import re
from pathlib import Path

import pandas as pd
import pytest

import experiments
from experiments.norm_alignment import (
    ALIGNED,
    COMPENSATED,
    DEFAULT,
    NO_NORM,
    RESULTS_FILE,
    VARIANTS,
    main,
    missing_runs,
    report,
)

pytestmark = pytest.mark.slow  # no behaviour of the package

FOLDER = Path(experiments.__file__).parent
CARD = (FOLDER / "README.md").read_text(encoding="utf-8")
RESULTS = pd.read_csv(FOLDER / RESULTS_FILE, dtype={"layer": "Int64"})


def value(variant: str, quantity: str) -> "pd.Series[float]":
    chosen = RESULTS[(RESULTS["variant"] == variant) & (RESULTS["quantity"] == quantity)]
    return chosen.set_index("seed")["value"]


def test_the_readme_quotes_the_results() -> None:
    quoted = CARD.split("<!-- results: begin -->\n")[1].split("<!-- results: end -->")[0]
    assert quoted.strip() == report(RESULTS).strip()


def test_every_seed_has_every_variant() -> None:
    seeds = RESULTS["seed"].nunique()
    assert seeds >= 3
    assert list(missing_runs(RESULTS, seeds)) == []
    assert f"{seeds} seeds" in CARD
    sizes = RESULTS.groupby(["seed", "variant"]).size().unstack()
    assert sizes.nunique().eq(1).all()
    assert not RESULTS.duplicated(["variant", "seed", "quantity", "layer"]).any()
    assert RESULTS["value"].notna().all()


@pytest.mark.parametrize("part", ["vision_encoder", "projector"])
def test_compensation_multiplied_the_first_gradient_by_one_over_the_gain(part: str) -> None:
    """Both variants start from the same weights and see the same scenes."""
    ratio = value(COMPENSATED, f"gradient_{part}") / value(ALIGNED, f"gradient_{part}")
    assert (ratio * value(COMPENSATED, "gain_start")).to_list() == pytest.approx(
        [1.0] * len(ratio), rel=1e-3
    )


def made(values: dict[str, list[float]]) -> pd.DataFrame:
    rows = [
        (variant, seed, quantity, layer, number)
        for variant, numbers in values.items()
        for seed, number in enumerate(numbers)
        for quantity, layer in (
            ("accuracy", None),
            ("visual_norm", 0),
            ("text_norm", 0),
            ("visual_cosine", 1),
            ("text_cosine", 1),
        )
    ]
    columns = ["variant", "seed", "quantity", "layer", "value"]
    return pd.DataFrame(rows, columns=columns).astype({"layer": "Int64"})


def test_intervals_are_those_of_student_and_differences_are_paired() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = {
        NO_NORM: [0.4, 0.5, 0.7, 0.5],
        DEFAULT: [0.5, 0.6, 0.8, 0.6],  # always 0.1 more: no spread when paired
        ALIGNED: [0.3, 0.5, 0.6, 0.5],
        COMPENSATED: [0.5, 0.5, 0.5, 0.5],
    }
    text = report(made(values))
    low, high = stats.t.interval(0.95, 3, loc=0.525, scale=pd.Series(values[NO_NORM]).std() / 2)
    row = next(line for line in text.splitlines() if line.startswith("| held-out accuracy"))
    mean, half = map(float, re.search(r"([\d.]+) ± ([\d.]+)", row).groups())  # type: ignore[union-attr]
    assert mean == pytest.approx(0.525)
    assert half == pytest.approx((high - low) / 2, rel=0.05)
    assert "| default init | +0.1 ± " in text
    paired = next(line for line in text.splitlines() if line.startswith("| default init |"))
    assert float(paired.split("±")[1].strip(" |")) < 1e-9


def test_a_run_of_a_few_steps_goes_on_where_it_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = ("--language-steps", "--projector-steps", "--finetune-steps", "--items")
    few = ["--output", str(tmp_path), *(word for name in steps for word in (name, "2"))]
    main([*few, "--seeds", "1"])
    first = pd.read_csv(tmp_path / RESULTS_FILE)
    assert set(first["variant"]) == set(VARIANTS)
    main([*few, "--seeds", "2"])
    both = pd.read_csv(tmp_path / RESULTS_FILE)
    pd.testing.assert_frame_equal(both[both["seed"] == 0].reset_index(drop=True), first)
    assert both["seed"].nunique() == 2
    assert "mean over 2 seeds" in capsys.readouterr().out
