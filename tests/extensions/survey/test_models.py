"""The models of a survey: which they are, and what stays of what it fetches."""

from pathlib import Path

import pytest

from normprobe import NormprobeError
from normprobe.extensions.survey.models import HubCache, ListedModel, listed_models, shipped_list


def test_models_and_files_are_taken_in_order(tmp_path: Path) -> None:
    lines, table = tmp_path / "some.txt", tmp_path / "more.csv"
    lines.write_text("# a comment\norg/one\n\n  org/two  \n")
    table.write_text("# none was run\nfamily,model,revision\nx,org/three,v2\ny,org/three,\n")
    found = listed_models(["specimen", str(lines), str(table)])
    assert found == [
        ListedModel("specimen"),
        ListedModel("org/one"),
        ListedModel("org/two"),
        ListedModel("org/three", "v2"),
        ListedModel("org/three"),
    ]
    assert [str(model) for model in found[-2:]] == ["org/three@v2", "org/three"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.txt", "# nothing\n", "lists no model"),
        ("a.csv", "name\norg/one\n", "row 1 of .*a.csv has no column model"),
        ("a.txt", "org/one\norg/one\n", "org/one is listed twice"),
        ("a.txt", "\xff\xfe", "cannot read .*a.txt"),
    ],
)
def test_what_is_no_list_is_refused(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    with pytest.raises(NormprobeError, match=said):
        listed_models([str(tmp_path / name)])


def test_a_list_that_is_not_there_is_no_model() -> None:
    with pytest.raises(NormprobeError, match=r"cannot read mine\.txt: "):
        listed_models(["mine.txt"])


def test_the_shipped_list_is_one_and_says_that_nobody_ran_it(tmp_path: Path) -> None:
    text = shipped_list()
    assert "None was run by us" in text.splitlines()[0]
    (tmp_path / "hub.csv").write_text(text)
    models = listed_models([str(tmp_path / "hub.csv")])
    assert 55 <= len(models) <= 70
    assert all(model.model.count("/") == 1 for model in models)


FILES = {"model.safetensors": "blobs/1", "config.json": "blobs/2"}


def fetched(repository: Path) -> Path:
    """A repository as the hub's library keeps it: links of a snapshot to blobs."""
    snapshot = repository / "snapshots/main"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for name, blob in FILES.items():
        (repository / blob).write_text(f"{repository.name}: {name}")
        (snapshot / name).symlink_to(Path("../..", blob))
    return repository


def contents(folder: Path) -> dict[str, str]:
    return {str(f.relative_to(folder)): f.read_text() for f in folder.rglob("*") if f.is_file()}


@pytest.mark.parametrize("keep", ["none", "config", "all"])
def test_the_hub_cache_stays_as_it_was_and_of_new_models_what_is_kept(
    keep: str, tmp_path: Path
) -> None:
    before = fetched(tmp_path / "shared/models--org--before")
    data = fetched(tmp_path / "shared/datasets--org--data")
    held = contents(before)
    cache = HubCache(tmp_path / "survey", tmp_path / "shared", keep)
    cache.open()
    own = tmp_path / "survey/cache/hub"
    linked = own / before.name / "snapshots/main/model.safetensors"
    assert linked.exists() == (keep != "all")
    assert (own / data.name).is_symlink() == (keep != "all")
    new = fetched(own / "models--org--new")
    cache.close()
    assert contents(before) == held
    assert contents(data)
    assert linked.exists() == (keep == "config")
    left = {Path(name).name for name in contents(new)} if new.exists() else set()
    assert (
        left
        == {
            "none": set(),
            "config": {"config.json", "2"},
            "all": {"model.safetensors", "config.json", "1", "2"},
        }[keep]
    )
