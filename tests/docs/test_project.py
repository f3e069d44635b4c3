"""What is said twice of the project is said alike."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from support.documents import DOCS, ROOT, loaded, pages

import normprobe

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_one_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## (\d\S*) - (\d{4}-\d\d-\d\d)$", changelog, re.MULTILINE)
    assert normprobe.__version__ == PROJECT["version"] == citation["version"]
    assert released[0] == (PROJECT["version"], citation["date-released"])


def test_the_citation_and_the_readme_name_the_authors_of_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    (paper,) = citation["references"]
    authors = [f"{author['family-names']}, {author['given-names']}" for author in paper["authors"]]
    assert " and ".join(authors) in readme


def test_the_conda_recipe_asks_for_what_the_package_asks_for() -> None:
    text = (ROOT / ".github/conda-forge/recipe.yaml").read_text(encoding="utf-8")
    asked = [line for line in yaml.safe_load(text)["requirements"]["run"] if "python" not in line]
    theirs = {"pytorch": "torch", "matplotlib-base": "matplotlib"}
    recipe = {theirs.get(name, name): bound.lstrip(">=") for name, bound in map(str.split, asked)}
    package = dict(
        re.match(r"([\w.-]+)>=([\d.]+)", line).groups()  # type: ignore[union-attr, misc]
        for line in PROJECT["dependencies"]
    )
    assert recipe.keys() == package.keys()
    assert {name: bound for name, bound in recipe.items() if name != "transformers"} == {
        name: bound for name, bound in package.items() if name != "transformers"
    }  # of transformers, conda-forge keeps no line of its own for 4.57


def test_every_job_runs_a_make_target_that_is_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for workflow in (ROOT / ".github/workflows").glob("*.yml"):
        for target in re.findall(r"make (?:--silent )?([a-z][\w-]*)", workflow.read_text("utf-8")):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), (workflow.name, target)


@pytest.mark.parametrize(
    ("there", "target", "installed"),
    [
        ([], "demo", ["torch", "--editable ."]),
        ([], "test", ["torch", "--editable .", "--editable '.[dev]'"]),
        ([".venv/runs"], "demo", []),
        ([".venv/runs"], "test", ["--editable '.[dev]'"]),
        ([".venv/runs", ".venv/ready"], "demo", []),
        ([".venv/runs", ".venv/ready"], "check", []),
    ],
)
def test_a_target_installs_what_it_needs_and_once(
    there: list[str], target: str, installed: list[str], tmp_path: Path
) -> None:
    for name in ("Makefile", "pyproject.toml", ".ci/constraints.txt", *there):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch() if name in there else shutil.copy(ROOT / name, path)
    make = ["make", "--dry-run", "-C", str(tmp_path), target]
    printed = subprocess.run(make, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"pip install .*constraints\.txt (.+)", printed) == installed


def test_what_only_an_owner_can_give_is_listed() -> None:
    guide = (ROOT / ".github/CONTRIBUTING.md").read_text(encoding="utf-8")
    tracked = ("pyproject.toml", "README.md", "docs/how-to/smoke-test.md")
    tracked += (".github/conda-forge/recipe.yaml",)
    for file in tracked:
        assert "OWNER" in (ROOT / file).read_text(encoding="utf-8")
        assert f"`{file}`" in guide


RARE_WORDS = r"inconclusive|placebo|\bnats\b|representational inertia|outside the usual range"


@pytest.mark.parametrize("page", pages(), ids=str)
def test_a_page_with_words_of_our_own_links_the_glossary(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page.is_relative_to(DOCS) and page.name not in ("glossary.md", "columns.md", "cost.md"):
        assert "glossary.md" in text or not re.search(RARE_WORDS, text)


def test_the_glossary_says_what_each_of_them_is() -> None:
    text = (DOCS / "explanation/glossary.md").read_text(encoding="utf-8")
    defined = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    for word in RARE_WORDS.replace(r"\b", "").split("|"):
        assert any(word in each for each in defined), word


def test_the_notebook_for_colab_is_that_of_the_page() -> None:
    program = loaded(ROOT / ".ci/colab.py")
    made = program.made(program.PAGE.read_text("utf-8"))
    assert program.NOTEBOOK.read_text("utf-8") == made, "run `python .ci/colab.py`"
    code = "".join(
        "".join(cell["source"]) for cell in json.loads(made)["cells"] if "outputs" in cell
    )
    assert "OWNER/normprobe" in code and "mystnb" not in code


def test_each_promise_of_security_is_a_test() -> None:
    table = (ROOT / "SECURITY.md").read_text(encoding="utf-8").partition("## Reporting")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 10
    for row in rows:
        *_, test, _ = (cell.strip() for cell in row.split("|"))
        file, name = re.fullmatch(r"`(tests/\S+\.py)::(test_\w+)`", test).groups()  # type: ignore[union-attr]
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), row
