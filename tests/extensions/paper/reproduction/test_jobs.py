"""Which commands are run, in which order, and what is left of those that were begun."""

from pathlib import Path

import pytest

from normprobe import NormprobeError
from normprobe.extensions.paper.artefacts import Changes, artefacts
from normprobe.extensions.paper.reproduction import Job, jobs_of, still_to_type
from normprobe.runs.run_folder import RunFolder

AS_LISTED = Changes({}, None, None, trust_remote_code=True)
LLAVA = "llava-hf/llava-1.5-7b-hf"


def jobs(*names: str, changes: Changes = AS_LISTED) -> list[Job]:
    return jobs_of([artefacts()[name] for name in names], changes, Path("out"))


def test_a_run_that_several_artefacts_need_is_made_once() -> None:
    assert len(jobs("table6")) == 2
    assert {job.command.folder for job in jobs("table6", "table7", "table8")} == {
        job.command.folder for job in jobs("table6")
    }
    assert next(job.words[:2] for job in jobs("figure1b", "figure3")) == ("layers", LLAVA)
    assert len(jobs("figure1b", "figure3")) == 4


def test_commands_of_one_model_lie_together_and_whole_files_come_first() -> None:
    found = jobs("table1", "table2", "figure3", "table8")
    models = [job.model for job in found]
    assert models == sorted(models, key=models.index)
    of_qwen = [job.words[0] for job in found if job.model == "Qwen/Qwen2.5-VL-7B-Instruct"]
    assert of_qwen == ["layers", "interface", "embeddings"]


def test_a_local_copy_takes_the_place_of_a_hub_id(tmp_path: Path) -> None:
    here = Changes({LLAVA: str(tmp_path)}, "sample", 2, trust_remote_code=False)
    job = next(job for job in jobs("table2", changes=here) if job.command.model == LLAVA)
    assert job.words[:2] == ("interface", str(tmp_path))
    assert job.words[-2:] == ("--limit", "2")


def test_the_base_is_read_too() -> None:
    assert [job.models for job in jobs("table7")] == [
        ["Qwen/Qwen2-VL-7B-Instruct", "Qwen/Qwen2-7B-Instruct"]
    ]


def begun(folder: Path, *words: str, complete: bool) -> Job:
    """A job whose folder holds a run that these words made."""
    listed = artefacts()["table2" if words[0] == "interface" else "table3"]
    job = jobs_of([listed], AS_LISTED, folder)[0]
    record = {"command": words[0], "argv": ["/usr/bin/normprobe", *words]}
    run = RunFolder.create(job.command.folder, overwrite=False, record=record)
    if complete:
        run.finish()
    run.unlock()
    return job


def listed_words(folder: Path, name: str) -> tuple[str, ...]:
    return next(artefacts()[name].commands(folder)).words


def test_a_run_that_its_listed_command_made_is_taken(tmp_path: Path) -> None:
    """``--trust-remote-code`` changes nothing of what was measured."""
    job = begun(tmp_path, *listed_words(tmp_path, "table2"), complete=True)
    assert still_to_type(job) == ()
    assert still_to_type(job, overwrite=True) == (*job.words, "--overwrite")


def test_a_folder_that_was_moved_is_taken(tmp_path: Path) -> None:
    job = begun(tmp_path, *listed_words(Path("elsewhere"), "table2"), complete=True)
    assert still_to_type(job) == ()


@pytest.mark.parametrize(("name", "word"), [("table2", "--resume"), ("table3", "--overwrite")])
def test_a_run_that_was_begun_is_gone_on_with(name: str, word: str, tmp_path: Path) -> None:
    """``embeddings`` writes nothing before its end: it begins again."""
    job = begun(tmp_path, *listed_words(tmp_path, name), complete=False)
    assert still_to_type(job) == (*job.words, word)


def test_a_run_of_another_command_is_refused(tmp_path: Path) -> None:
    words = (*listed_words(tmp_path, "table2"), "--limit", "3")
    job = begun(tmp_path, *words, complete=True)
    with pytest.raises(NormprobeError, match=r"another command: .* --limit 3"):
        still_to_type(job)
    assert still_to_type(job, overwrite=True)[-1] == "--overwrite"


def test_nothing_is_there_at_first(tmp_path: Path) -> None:
    job = jobs_of([artefacts()["table3"]], AS_LISTED, tmp_path)[0]
    assert still_to_type(job) == still_to_type(job, overwrite=True) == job.words
