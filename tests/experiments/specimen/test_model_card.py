"""The model card quotes the stored evaluation, word for word."""

import json
import re
from pathlib import Path

import pytest

from experiments.specimen.evaluate import EVALUATION_FILE, ITEMS_PER_KIND, Evaluation
from experiments.specimen.train import LOG_FILE, STEPS
from normprobe import specimen
from normprobe.specimen import SPECIMEN_DIR

pytestmark = pytest.mark.slow  # no behaviour of the package

CARD = (Path(specimen.__file__).parent / "README.md").read_text(encoding="utf-8")
EVALUATION = Evaluation.from_json((SPECIMEN_DIR / EVALUATION_FILE).read_text(encoding="utf-8"))
LOG = [json.loads(line) for line in (SPECIMEN_DIR / LOG_FILE).read_text().splitlines()]


def test_card_quotes_the_evaluation() -> None:
    begin, end = "<!-- evaluation: begin -->\n", "<!-- evaluation: end -->"
    quoted = CARD.split(begin)[1].split(end)[0]
    assert quoted.strip() == EVALUATION.to_markdown().strip()


def test_card_states_the_items_and_the_size() -> None:
    assert all(score.n == ITEMS_PER_KIND for score in EVALUATION.scores.values())
    assert f"{EVALUATION.parameters:,} weights" in CARD


def test_log_is_of_the_whole_run() -> None:
    assert LOG[0]["stage"] == "start"
    assert LOG[0]["scale"] == 1.0
    assert LOG[0]["steps"] == STEPS
    assert LOG[-1]["stage"] == "done"
    assert LOG[-1]["step"] == sum(STEPS.values())


def test_card_states_the_time_of_the_run() -> None:
    stated = re.search(r"\*\*(\d+) minutes\*\*", CARD)
    assert stated is not None
    assert int(stated[1]) == round(LOG[-1]["seconds"] / 60)
