"""A run as a block for a model card, and what becomes of a card that it is put into."""

import json
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest
from huggingface_hub import ModelCard
from support.commands import invoke
from support.unrendered import save_placeholders

from normprobe import NormprobeError, Probe, load_run
from normprobe.errors import visible
from normprobe.extensions.sharing.card import in_short, repeating_command, with_card
from normprobe.report.ratio_words import Estimate, Ratio, digits

BEGIN, END = (f"<!-- normprobe layers: {word} -->" for word in ("begin", "end"))
CARD = (
    "---\r\nlicense: mit\r\nmodel-index:\r\n- name: theirs\r\n  results:\r\n  - task:\r\n"
    "      type: other\r\n      extra: kept\r\n    dataset:\r\n      name: d\r\n      type: d\r\n"
    "    metrics:\r\n    - type: m\r\n      value: 1\r\n---\r\n# Mine\r\n\r\n  words \ttail  \r\n"
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    with pytest.MonkeyPatch.context() as patch:
        save_placeholders(patch)
        for command in ("layers", "interface"):
            ended = invoke(command, "-n", "6", "--dtype", "float32", "-o", folder / command)
            assert ended.exit_code == 0, ended.output
    return folder


def test_the_numbers_of_a_card_are_those_of_the_run(runs: Path) -> None:
    made = with_card("", load_run(runs / "layers"))
    keys = ["quantity", "layer", "group"]
    rows = pd.read_csv(runs / "layers/layers.csv").set_index(keys).sort_index()
    row = rows.loc[("norm_geometric_ratio_to_text", 0, "visual")]
    value, low, high = row[["mean", "low", "high"]]
    found = {result.metric_type: result for result in ModelCard(made).data.eval_results}
    assert list(found) == ["disparity_input", "disparity_last", "inertia_gap"]
    assert found["disparity_input"].metric_value == pytest.approx(value, rel=1e-3)
    assert found["disparity_input"].metric_args["low"] == pytest.approx(low, rel=1e-3)
    assert found["disparity_input"].dataset_type == "sample"
    assert f"{value:.1f} \\[{low:.1f}, {high:.1f}\\] | ratio |" in made
    assert "```bash\nnormprobe layers specimen --dtype float32 --limit 6\n```" in made
    for told in (
        f"image tokens have {digits(value)} \\[{digits(low)}, ",
        "| samples | 6 |",
        "| weights | bcbac5e439b9d051",
    ):
        assert told in made


RATIO, GAP = Ratio(71.2, 58.4, 95.97), Estimate(0.347, 0.308, 0.4)
LOUD = "Entering the language model, image tokens have 71 [58, 96] times the norm of text tokens"


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        (
            {"disparity_input": RATIO, "disparity_last": RATIO, "inertia_gap": GAP},
            f"{LOUD}; a layer turns them 0.35 [0.31, 0.40] radians less.",
        ),
        (
            {"disparity_input": RATIO, "inertia_gap": Estimate(-0.02, -0.05, 0.01)},
            f"{LOUD}; a layer turns them 0.020 [-0.010, 0.050] radians more.",
        ),
        (
            {"disparity_input": RATIO, "ratio_to_table": Ratio(88.3, 67.6, 128.6)},
            f"{LOUD} and 88 [68, 129] times that of the vocabulary.",
        ),
        (
            {"disparity_input": Ratio(2.0)},
            "image tokens have 2.0 times the",
        ),
        (
            {"attended_ratio": RATIO},
            "Text attends to image states of 71 [58, 96] times the norm of text tokens.",
        ),
        (
            {"disparity_video": Ratio(2.0, 1.5, 3.0)},
            "[1.50, 3.00].",
        ),
    ],
)
def test_the_sentence_of_a_card_is_short(numbers: dict[str, Estimate], told: str) -> None:
    said = in_short(numbers)
    assert told in said and said.endswith(".")
    assert len(said.split()) <= 25


def test_a_run_of_interface_has_numbers_of_its_own(runs: Path) -> None:
    made = ModelCard(with_card("", load_run(runs / "interface")))
    found = [result.metric_type for result in made.data.eval_results]
    assert found == ["disparity_input", "ratio_to_table", "visual_norm"]


def test_a_card_keeps_all_that_is_not_of_the_run(runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "README.md"
    file.write_bytes(CARD.encode())
    for command in ("layers", "interface", "layers", "interface"):
        ended = invoke("card", runs / command, "--write", file)
        assert ended.stdout == f"{file}\n", ended.output
    text = file.read_bytes().decode()
    body = text.split("\r\n---\r\n", 1)[1]
    assert body.startswith(
        "# Mine\r\n\r\n  words \ttail  \r\n\r\n<!-- normprobe layers: begin -->\r\n"
    )
    assert text.count("\n") == text.count("\r\n")
    assert [body.count(f"normprobe {name}: begin") for name in ("layers", "interface")] == [1, 1]
    data = ModelCard.load(file).data.to_dict()
    assert data["license"] == "mit"
    first, *ours = data["model-index"][0]["results"]
    assert data["model-index"][0]["name"] == "theirs"
    assert [of["dataset"]["config"] for of in ours] == ["normprobe layers", "normprobe interface"]
    assert "extra: kept" in text
    assert first["metrics"] == [{"type": "m", "value": 1}]


def test_a_later_run_replaces_its_block_alone(runs: Path) -> None:
    old = f"---\nlicense: mit\n---\nbefore\n{BEGIN}\nold\n{END}\nbehind\n"
    made = with_card(old, load_run(runs / "layers"))
    assert "\nold\n" not in made
    assert f"\n---\nbefore\n{BEGIN}\n## Norms" in made
    assert made.endswith(f"{END}\nbehind\n")
    assert with_card(made, load_run(runs / "layers")) == made


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("---\n- a list\n---\n", "metadata of the card cannot be read"),
        ("---\na: [\n---\n", "metadata of the card cannot be read"),
        ("---\nmodel-index: words\n---\n", "metadata of the card cannot be read"),
        ("---\nmodel-index:\n- name: a\n  results:\n  - 3\n---\n", "metadata of the card"),
        ("---\n1: a\n---\n", "metadata of the card cannot be read"),
        (f"{BEGIN}\n", "does not hold one block"),
        (f"{END}\n{BEGIN}\n", "does not hold one block"),
        (f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n", "does not hold one block"),
    ],
)
def test_a_card_that_cannot_be_read_is_left_alone(text: str, why: str, runs: Path) -> None:
    with pytest.raises(NormprobeError, match=why):
        with_card(text, load_run(runs / "layers"))


def test_a_card_that_is_no_file_of_its_folder_is_left_alone(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/README.md").write_bytes(b"# \xff")
    (tmp_path / "cards").mkdir()
    link = tmp_path / "cards/README.md"
    link.symlink_to(tmp_path / "elsewhere/README.md")
    for file in (link, link.resolve()):
        ended = invoke("card", runs / "layers", "--write", file)
        assert (ended.exit_code, ended.stdout) == (1, "")
        assert "give a README.md in UTF-8" in ended.stderr
    assert link.is_symlink()
    assert link.read_bytes() == b"# \xff"


def changed(runs: Path, folder: Path, **facts: object) -> Path:
    shutil.copytree(runs / "layers", folder)
    record = json.loads((folder / "run.json").read_text()) | facts
    (folder / "run.json").write_text(json.dumps(record))
    return folder


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"status": "partial"}, "is not complete"),
        ({"doubts": ["other parts"]}, "in doubt: other parts"),
        ({"command": "compare"}, "which measures no samples"),
        ({"options": {"model": None}}, "a model in memory"),
    ],
)
def test_a_run_that_others_cannot_build_on_is_refused(
    facts: dict[str, object], why: str, runs: Path, tmp_path: Path
) -> None:
    ended = invoke("card", changed(runs, tmp_path / "run", **facts))
    assert ended.exit_code == 1
    assert why in ended.stderr


def test_names_from_elsewhere_stay_text(runs: Path, tmp_path: Path) -> None:
    evil = f"a\ud800\n```\n{END}\n<script>x</script> | [b](javascript:1)\n- c: !!python/object {{}}"
    options = json.loads((runs / "layers/run.json").read_text())["options"]
    told = {"model": evil, "data": evil, "options": options | {"model": evil, "system": evil}}
    made = with_card("", load_run(changed(runs, tmp_path / "run", **told)))
    card = ModelCard(made)
    assert card.data.eval_results[0].dataset_name == visible(evil)
    assert made.encode()
    assert [line for line in card.text.splitlines() if line[:3] == "```"] == ["```bash", "```"]
    outside = card.text.split("```bash")[0]
    assert not any(told in outside for told in (END, "<script>", "[b]("))


def test_the_command_is_what_was_asked(runs: Path) -> None:
    record = json.loads((runs / "layers/run.json").read_text())
    asked = {"system": "be short", "trust_remote_code": True, "also": ["branches", "massive"]}
    asked |= {"projector": "model.p", "image_token_ids": [3, 4], "batch_size": 4, "seed": 0}
    record |= {"model_revision": "c" * 40, "options": record["options"] | asked}
    assert shlex.split(repeating_command(record, "org/model")) == [
        *("normprobe", "layers", "org/model", "--revision", "c" * 40, "--dtype", "float32"),
        *("--trust-remote-code", "--system", "be short", "--also", "branches,massive"),
        *("--batch-size", "4", "--limit", "6", "--seed", "0", "--part", "projector=model.p"),
        *("--part", "image_token_ids=3,4"),
    ]


def test_what_has_no_card_is_said(tmp_path: Path) -> None:
    """Runs of nearest are not even compared."""
    run = Probe("specimen").measure("nearest", limit=2, output=str(tmp_path / "run"))
    with pytest.raises(NormprobeError, match="a run of nearest, and a card is of layers or inter"):
        with_card("", run)
