"""Processes that end early, and models that are gone on with: no model stops another."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import made_tables
from support.commands import invoke
from support.flat import tidied
from support.made_runs import run_folder

from normprobe import NormprobeError, Run, load_run
from normprobe.extensions.survey import measuring
from normprobe.extensions.survey.models import ListedModel
from normprobe.options import Loading, Output, Sampling
from normprobe.runs.processes import Ended, Send

ONE = Sampling(limit=1)
HOW = measuring.How(("interface",), ONE, Loading(), timeout=None)


def survey(
    listed: list[ListedModel],
    out: Path,
    sampling: Sampling = ONE,
    loading: Loading = HOW.loading,
    *,
    layers: bool = False,
    **output: bool,
) -> Run:
    return measuring.survey(listed, sampling, loading, Output(out, **output), layers=layers)


def outcome(**facts: Any) -> dict[str, Any]:
    common = {"revision": "", "failures": {}, "fetched_bytes": 0, "peak_memory": 1, "seconds": 1.0}
    return common | facts


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were measured: each fails, and leaves its outcome."""
    seen: list[str] = []

    def fake(model: ListedModel, how: measuring.How, folder: Path) -> dict[str, Any]:
        seen.append(str(model))
        found = outcome(model=model.model, failures={"model": "it is gated"})
        folder.mkdir(parents=True, exist_ok=True)
        (folder / measuring.OUTCOME).write_text(json.dumps(found))
        return found

    monkeypatch.setattr("normprobe.extensions.survey.measuring.measured_apart", fake)
    return seen


def models(*names: str) -> list[ListedModel]:
    return [ListedModel(name) for name in names]


@pytest.mark.usefixtures("unrendered", "measured")
def test_the_cache_of_a_survey_is_used_by_its_own_processes_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "mine")
    monkeypatch.delenv("HF_XET_CACHE", raising=False)
    before, seen = dict(os.environ), []
    real = measuring.measured_apart

    def looked(*arguments: Any) -> dict[str, Any]:
        seen.append(os.environ["HF_HUB_CACHE"])
        return real(*arguments)

    monkeypatch.setattr("normprobe.extensions.survey.measuring.measured_apart", looked)
    survey(models("org/a"), tmp_path / "out")
    assert seen == [str(tmp_path / "out/cache/hub")]
    assert dict(os.environ) == before


@pytest.mark.usefixtures("unrendered")
def test_finished_models_are_skipped_longer_lists_and_retries_are_taken(
    measured: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    survey(models("org/a", "org/b"), out)
    assert measured == ["org/a", "org/b"]
    before = (out / "models.csv").read_bytes()
    done = outcome(model="org/b", failures={})
    (out / "models/org--b" / measuring.OUTCOME).write_text(json.dumps(done))
    fewer = replace(ONE, batch_size=2, workers=0)  # how, not what
    survey(models("org/a", "org/b"), out, fewer, resume=True)
    assert measured[2:] == ["org/a"]  # what failed is measured again
    (out / "models/org--b" / measuring.OUTCOME).write_text(
        (out / "models/org--a" / measuring.OUTCOME).read_text().replace("org/a", "org/b")
    )
    run = survey(models("org/a", "org/b", "org/c"), out, resume=True)
    assert measured[3:] == ["org/a", "org/b", "org/c"]
    assert run.tables["models"]["reason"].tolist() == ["it is gated"] * 3
    assert (out / "models.csv").read_bytes().startswith(before)
    assert run.table.empty
    survey(models("org/a"), out, overwrite=True)
    assert measured[6:] == ["org/a"]
    assert [folder.name for folder in (out / "models").iterdir()] == ["org--a"]


@pytest.mark.usefixtures("measured", "unrendered")
def test_another_survey_is_not_gone_on_with(tmp_path: Path) -> None:
    out = tmp_path / "out"
    survey(models("org/a"), out)
    for other, words in (
        ({"sampling": Sampling(limit=2)}, "--limit 1; this command comes with --limit 2"),
        ({"loading": Loading(dtype="float16")}, "--dtype auto; this command comes with --dtype"),
        ({"layers": True}, "without --measure; this command comes with --measure layers"),
    ):
        with pytest.raises(NormprobeError, match=words):
            survey(models("org/a"), out, **other, resume=True)
    with pytest.raises(NormprobeError, match="no model to survey"):
        survey([], tmp_path / "none")


@pytest.mark.usefixtures("unrendered")
def test_models_whose_names_look_the_same_have_folders_of_their_own(
    measured: list[str], tmp_path: Path
) -> None:
    run = survey(models("org/a", "org--a"), tmp_path / "out")
    assert sorted(f.name for f in (tmp_path / "out/models").iterdir()) == ["org--a", "org--a~2"]
    assert run.tables["models"]["model"].tolist() == measured == ["org/a", "org--a"]


def in_this_process(work: Callable[[Send], None], log: Path, *, timeout: float | None) -> Ended:
    sent: list[Any] = []
    work(sent.append)
    return Ended(sent, "")


@pytest.mark.usefixtures("unrendered")
def test_what_fails_of_a_model_is_told_and_the_rest_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(measuring, "done_apart", in_this_process)
    how = replace(HOW, measurements=("interface", "grounding", "embeddings"))
    told = measuring.measured_apart(ListedModel("specimen"), how, tmp_path / "specimen")
    assert list(told["failures"]) == ["grounding"]
    assert (told["model"], told["revision"], told["fetched_bytes"]) == ("specimen", "", 0)
    assert 2**27 < told["peak_memory"] < 2**36
    assert measuring.outcome_in(tmp_path / "specimen") == told
    interface = load_run(tmp_path / "specimen/interface")
    assert interface.record["options"]["limit"] == 1
    for run in (interface, load_run(tmp_path / "specimen/embeddings")):
        assert run.record["status"] == "complete"

    told = measuring.measured_apart(ListedModel(str(tmp_path / "none")), how, tmp_path / "other")
    assert list(told["failures"]) == ["model"]
    assert (told["fetched_bytes"], told["peak_memory"]) == (0, None)


def late() -> None:
    time.sleep(60)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("act", "limit", "reason"),
    [
        (late, 0.6, "it took longer than 0.01 minutes"),
        (killed, None, "its process was ended by SIGKILL, as the system does when memory runs out"),
    ],
)
def test_a_process_that_ends_early_says_why(
    act: Callable[[], None],
    limit: float | None,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fork = multiprocessing.get_context("fork")  # in place of a process that imports torch anew
    monkeypatch.setattr("normprobe.probe.Probe", lambda *_, **__: act())
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: fork)
    found = measuring.measured_apart(
        ListedModel("org/a"), replace(HOW, timeout=limit), tmp_path / "a"
    )
    assert found["failures"] == {"process": reason}
    assert measuring.outcome_in(tmp_path / "a") == found


@pytest.mark.parametrize(("words", "code"), [((), 0), (("--strict",), 1)])
@pytest.mark.usefixtures("measured", "unrendered")
def test_with_strict_a_model_that_failed_ends_with_1(
    words: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    done = invoke("survey", "org/a", "-n", "1", "-o", str(tmp_path / "out"), *words)
    assert done.exit_code == code, done.output


@pytest.mark.parametrize(("words", "code"), [((), 0), (("--strict",), 1)])
@pytest.mark.usefixtures("unrendered")
def test_with_strict_a_run_in_doubt_ends_with_1(
    words: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fake(model: ListedModel, how: measuring.How, folder: Path) -> dict[str, Any]:
        record = {"model": model.model, "sizes": {}}
        tables = {"interface": made_tables.interface(), "embeddings": made_tables.embeddings()}
        for name, table in tables.items():
            doubts = ["3 states are zero"] if name == "interface" else []
            own = {name: tidied(name, table)}
            run_folder(folder / name, name, record=record | {"doubts": doubts}, **own)
        return outcome(model=model.model)

    monkeypatch.setattr("normprobe.extensions.survey.measuring.measured_apart", fake)
    done = invoke("survey", "org/a", "-n", "1", "-o", str(tmp_path / "out"), *words)
    assert done.exit_code == code, done.output
    run = load_run(tmp_path / "out")
    assert run.tables["models"]["status"].tolist() == ["complete"]
    assert run.record["doubts"] == ["org/a, interface: 3 states are zero"]


@pytest.mark.usefixtures("unrendered")
def test_every_model_is_told_how_it_takes_its_inputs_and_how_long_it_may_take(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told: list[measuring.How] = []

    def fake(model: ListedModel, how: measuring.How, folder: Path) -> dict[str, Any]:
        told.append(how)
        return outcome(model=model.model)

    monkeypatch.setattr("normprobe.extensions.survey.measuring.measured_apart", fake)
    (tmp_path / "inputs.py").write_text("")
    how = ["--inputs", str(tmp_path / "inputs.py"), "--part", "kind=language", "--timeout", "2"]
    done = invoke("survey", "org/a", "org/b", "-n", "1", "-o", str(tmp_path / "out"), *how)
    assert done.exit_code == 0, done.output
    loadings = [(one.loading.inputs, one.loading.kind) for one in told]
    assert loadings == [(tmp_path / "inputs.py", "language")] * 2
    assert [one.timeout for one in told] == [120] * 2  # seconds
