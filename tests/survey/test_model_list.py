"""Which models a survey is of."""

from pathlib import Path

import pytest

from normprobe import NormprobeError
from normprobe.survey.model_list import ListedModel, listed_models, shipped_list


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
