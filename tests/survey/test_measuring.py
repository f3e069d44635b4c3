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

from normprobe import NormprobeError
from normprobe.survey import measuring
from normprobe.survey.measuring import survey
from normprobe.survey.model_list import ListedModel

ONE = {"limit": 1}
HOW = measuring.How(("interface",), "sample", ONE, {}, {}, range_reads=True, timeout=None)


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

    monkeypatch.setattr("normprobe.survey.measuring.measured_apart", fake)
    return seen


def models(*names: str) -> list[ListedModel]:
    return [ListedModel(name) for name in names]


@pytest.mark.usefixtures("unrendered")
def test_finished_models_are_skipped_longer_lists_and_retries_are_taken(
    measured: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    survey(models("org/a", "org/b"), limit=1, output=out)
    assert measured == ["org/a", "org/b"]
    before = (out / "survey.csv").read_bytes()
    fewer = {"batch_size": 2, "workers": 0}  # how, not what
    survey(models("org/a", "org/b"), limit=1, batching=fewer, output=out, resume=True)
    assert measured == ["org/a", "org/b"]
    assert (out / "survey.csv").read_bytes() == before
    run = survey(models("org/a", "org/b", "org/c"), limit=1, output=out, resume=True)
    assert measured[2:] == ["org/c"]
    assert run.table["reason"].tolist() == ["it is gated"] * 3
    survey(models("org/a"), limit=1, output=out, resume=True, retry=True)
    assert measured[3:] == ["org/a"]
    survey(models("org/a"), limit=1, output=out, overwrite=True)
    assert measured[4:] == ["org/a"]
    assert [folder.name for folder in (out / "models").iterdir()] == ["org--a"]


@pytest.mark.usefixtures("measured", "unrendered")
def test_another_survey_is_not_gone_on_with(tmp_path: Path) -> None:
    survey(models("org/a"), limit=1, output=tmp_path / "out")
    with pytest.raises(
        NormprobeError, match="measured with --limit 1; this command comes with --limit 2"
    ):
        survey(models("org/a"), limit=2, output=tmp_path / "out", resume=True)
    with pytest.raises(NormprobeError, match="without --dtype; this command comes with --dtype"):
        survey(
            models("org/a"),
            limit=1,
            loading={"dtype": "float16"},
            output=tmp_path / "out",
            resume=True,
        )
    with pytest.raises(NormprobeError, match="without --layers; this command comes with --layers"):
        survey(models("org/a"), limit=1, layers=True, output=tmp_path / "out", resume=True)
    with pytest.raises(NormprobeError, match="no model to survey"):
        survey([], output=tmp_path / "none")


@pytest.mark.usefixtures("unrendered")
def test_models_whose_names_look_the_same_have_folders_of_their_own(
    measured: list[str], tmp_path: Path
) -> None:
    run = survey(models("org/a", "org--a"), limit=1, output=tmp_path / "out")
    assert sorted(f.name for f in (tmp_path / "out/models").iterdir()) == ["org--a", "org--a~2"]
    assert run.table["model"].tolist() == measured == ["org/a", "org--a"]


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
