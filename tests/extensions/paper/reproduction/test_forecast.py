"""What commands will take, against the headers of the files themselves."""

from pathlib import Path

import pytest
from safetensors import safe_open

from normprobe import NormprobeError
from normprobe.extensions.paper.artefacts import Changes, artefacts
from normprobe.extensions.paper.reproduction import (
    Forecast,
    Job,
    any_fetched,
    bytes_fetched,
    forecast,
    forecast_apart,
    jobs_of,
    plan_by_model,
    plan_sentence,
)
from normprobe.specimen import SPECIMEN_DIR


def job(name: str, model: str, base: str = "") -> Job:
    """The first command of an artefact, of another model."""
    listed = next(artefacts()[name].commands(Path("out")))
    taken = {listed.model: model} | ({str(listed.base): base} if base else {})
    changes = Changes(taken, None, None, trust_remote_code=False)
    return jobs_of([artefacts()[name]], changes, Path("out"))[0]


def table_bytes() -> int:
    with safe_open(SPECIMEN_DIR / "model.safetensors", framework="np") as file:
        shape = file.get_slice("language_model.model.embed_tokens.weight").get_shape()
    return 2 * shape[0] * shape[1]  # bfloat16


def test_memory_is_that_of_the_tensors_which_are_read() -> None:
    alone = forecast(job("table3", "specimen"))
    assert alone == Forecast({}, whole=True, cached=0, memory=table_bytes())
    both = forecast(job("table7", "specimen", base="specimen"))
    assert both.memory == 2 * table_bytes()
    assert forecast(job("figure1b", "specimen")).memory > 10 * table_bytes()


def test_a_model_that_cannot_be_read_says_why() -> None:
    found = forecast_apart(job("table3", "./nothing"))
    assert isinstance(found, NormprobeError)
    assert found.problem == "no such folder: ./nothing"


def test_a_file_that_was_fetched_whole_is_not_fetched_again() -> None:
    ranges = Forecast({"org/a/1": 10, "org/b/1": 5}, whole=False, cached=0, memory=1)
    files = Forecast({"org/a/1": 100, "org/a/2": 200}, whole=True, cached=0, memory=1)
    unknown = Forecast({"org/c/1": None}, whole=True, cached=0, memory=1)
    assert bytes_fetched([ranges, files, ranges, files, unknown]) == [15, 300, 5, 0, None]


def test_the_plan_is_told_in_all_and_by_model() -> None:
    layers, table = job("figure1b", "org/a"), job("table3", "org/b")
    forecasts = {
        layers: Forecast({"org/a/1": 14_000_000_000}, whole=True, cached=0, memory=13_500_000_000),
        table: Forecast(
            {"org/b/1": 1_100_000_000}, whole=False, cached=2_000, memory=1_100_000_000
        ),
    }
    assert plan_sentence("the paper", forecasts, 1) == (
        "fetches 15.1 GB of weights for 2 commands of the paper, each in a process of its own; "
        "2.0 kB are cached; the largest, layers of org/a, holds 13.5 GB in memory; "
        "1 command of the paper is finished already"
    )
    assert plan_by_model(forecasts) == [
        "  org/a: layers; fetches 14.0 GB, holds 13.5 GB in memory",
        "  org/b: embeddings; fetches 1.1 GB, holds 1.1 GB in memory",
    ]
    assert any_fetched(forecasts)


@pytest.mark.parametrize(("size", "fetches", "said"), [(None, True, "at least 0"), (0, False, "")])
def test_a_size_that_nobody_knows_is_asked_about(
    size: int | None, fetches: bool, said: str
) -> None:
    forecasts = {job("table3", "org/b"): Forecast({"f": size}, whole=True, cached=0, memory=7)}
    assert any_fetched(forecasts) == fetches
    assert said in plan_sentence("table3", forecasts, 0)
    assert plan_sentence("table3", {}, 3) == "3 commands of table3 are finished already"
