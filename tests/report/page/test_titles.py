"""What runs are called on the page: as little as tells them apart."""

import pytest

from normprobe.report.page.document import run_title, short_titles
from normprobe.runs.run_folder import RunStore


def run(**record: object) -> RunStore:
    return RunStore({"command": "layers", "model": "org/one", "data": "mmbench"} | record)


@pytest.mark.parametrize(
    ("others", "titles"),
    [
        ([], ["layers"]),
        ([run(command="interface")], ["layers", "interface"]),
        ([run(alignment={"target": "table"})], ["layers", "layers, aligned"]),
        ([run(step=100)], ["layers", "layers, step 100"]),
        ([run(model="org/two")], ["layers, org/one", "layers, org/two"]),
        ([run(data="pope")], ["layers: org/one, mmbench", "layers: org/one, pope"]),
        ([run()], ["layers: org/one, mmbench (1)", "layers: org/one, mmbench (2)"]),
    ],
)
def test_runs_are_told_apart_in_few_words(others: list[RunStore], titles: list[str]) -> None:
    assert short_titles([run(), *others]) == titles


def test_a_local_model_has_the_name_of_its_folder() -> None:
    assert run_title(run(model="/home/me/out/checkpoint")) == "layers: checkpoint, mmbench"
