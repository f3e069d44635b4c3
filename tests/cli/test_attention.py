"""``normprobe attention`` on the specimen, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from cli.conftest import assert_two_lines
from PIL import Image
from support.flat import flat
from support.processors import make_checkpoint
from typer.testing import Result

from normprobe.data.data_set import bundled_data_dir
from normprobe.specimen import SPECIMEN_DIR

Run = Callable[..., Result]

PHOTOGRAPH = bundled_data_dir() / "images" / "coffee.jpg"
QUESTION = ("--image", PHOTOGRAPH, "--prompt", "Is there a spoon on the plate?")


def test_files_and_words(run: Run, tmp_path: Path) -> None:
    result = run("attention", *QUESTION, "--word", "spoon", "--box", "90,150,330,290", "-o", "out")
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    for word in (
        "Attention to the image from spoon",
        "Text gives",
        "inside and outside the box",
    ):
        assert word in " ".join(result.stdout.split())
    assert "run folder: out" in result.stderr
    files = {str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").rglob("*.*")}
    assert files == {
        *("attention.csv", "heads.csv", "heatmaps.csv", "image.png", "run.json"),
        *(
            f"plots/{name}.{kind}"
            for name in ("attention", "heads", "heatmaps")
            for kind in ("pdf", "png")
        ),
    }
    table = flat(pd.read_csv(tmp_path / "out/attention.csv"))
    assert table["layer"].tolist() == [n for n in range(1, 7) for _ in range(2)]
    assert table["query"].unique().tolist() == ["all text", "spoon"]
    assert table.notna().all(axis=None)
    heatmaps = pd.read_csv(tmp_path / "out/heatmaps.csv")
    assert heatmaps.groupby(["query", "layer"]).size().tolist() == 8 * [64]
    assert heatmaps["layer"].unique().tolist() == [2, 3, 4, 6]
    shares = table.set_index(["layer", "query"])["share"]
    for key, attention in heatmaps.groupby(["layer", "query"])["attention"].sum().items():
        assert attention == pytest.approx(shares[key])
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["status"] == "complete"
    assert record["places"] > 0.5
    assert record["options"]["prompt"] == QUESTION[-1]
    assert list(record["image_hashes"]) == [PHOTOGRAPH.name]


def test_chosen_layers_and_json(run: Run, tmp_path: Path) -> None:
    result = run(
        "attention", *QUESTION, "--layer", "5", "--layer", "1", "--format", "json", "-o", "out"
    )
    rows = json.loads(result.stdout)["table"]
    assert [row["layer"] for row in rows if row["quantity"] == "share"] == [1, 2, 3, 4, 5, 6]
    assert set(pd.read_csv(tmp_path / "out/heatmaps.csv")["layer"]) == {1, 5}


def test_without_places_the_numbers_remain(run: Run, tmp_path: Path) -> None:
    """The queries of a Q-Former stand for no place."""
    folder = make_checkpoint("blip-2", tmp_path / "model")
    result = run("attention", folder, *QUESTION, "--box", "0,0,40,40", "-o", "out")
    assert result.exit_code == 0, result.output
    assert "warning: no heat maps: visual tokens do not react" in result.stderr
    assert "no signal-to-noise of --box either" in result.stderr
    assert not (tmp_path / "out/heatmaps.csv").exists()
    assert not (tmp_path / "out/plots/heatmaps.png").exists()
    table = pd.read_csv(tmp_path / "out/attention.csv")
    assert flat(table)["share"].between(0, 1).all()
    assert "signal_to_noise" not in set(table["quantity"])
    assert "no heat maps" in json.loads((tmp_path / "out/run.json").read_text())["warnings"][0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--box", "0,0,900,10"), ["900", "448 x 299 pixels", "--box 0,0,224,149"]),
        (
            ("--box", "0,0,60,299"),
            ["lies where no visual token looks", "show 71,0,373,299"],
        ),  # 95 wide, cut at 15
        (("--box", "0,0,448,299"), ["lies around all visual tokens"]),
        (("--word", "dog"), ["'dog'", "Is there a spoon on the plate?"]),
        (("--layer", "7"), ["expected 1 to 6, received 7"]),
        (("--image", "missing.jpg"), ["missing.jpg cannot be read"]),
    ],
)
def test_refusals(arguments: tuple[str, ...], words: list[str], run: Run, tmp_path: Path) -> None:
    assert_two_lines(run("attention", *QUESTION, *arguments, "-o", "out"), *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments", [("--box", "0,0,900,10"), ("--word", "dog"), ("--layer", "7")]
)
def test_what_is_not_there_is_refused_before_a_weight_is_read(
    arguments: tuple[str, ...], run: Run, tmp_path: Path
) -> None:
    for name in SPECIMEN_DIR.iterdir():
        if name.suffix != ".safetensors":
            (tmp_path / name.name).write_bytes(name.read_bytes())
    assert_two_lines(run("attention", tmp_path, *QUESTION, *arguments), arguments[0])


def test_what_is_no_picture_and_what_reads_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("no picture")
    question = ("--prompt", "What?", "-o", "out")
    assert_two_lines(run("attention", "--image", "text.jpg", *question), "expected an image")
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"model_type": "qwen2"}')
    Image.new("RGB", (8, 8)).save("picture.png")
    refused = run("attention", "model", "--image", "picture.png", *question)
    assert_two_lines(refused, "is a language model; attention needs a vision-language model")


def test_many_samples(run: Run, tmp_path: Path) -> None:
    result = run("attention", "--data", "sample", "--limit", "3", "-o", "out")
    assert result.exit_code == 0, result.output
    assert all(len(line.rstrip()) <= 80 for line in result.stdout.splitlines())
    assert "Attention of text to pictures (3 samples)" in result.stdout
    table = pd.read_csv(tmp_path / "out/shares.csv")
    shares = table[table["quantity"] == "share_to_even"]
    assert shares["layer"].tolist() == [1, 2, 3, 4, 5, 6]
    assert (shares["samples"] == 3).all()
    assert shares[["band_low", "band_high"]].notna().all(axis=None)
    before = (tmp_path / "out/shares.csv").read_bytes()
    assert run("attention", "--data", "sample", "-n", 3, "-o", "out", "--resume").exit_code == 0
    assert (tmp_path / "out/shares.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "expected --image and --prompt, or --data"),
        ((*QUESTION, "--limit", "3"), "changes nothing without --data"),
        ((*QUESTION, "--resume"), "changes nothing without --data"),
        ((*QUESTION, "--data", "sample"), "cannot go with --data"),
        (("--data", "sample", "--word", "cup"), "cannot go with --data"),
        (("--data", "text"), "hold no images"),
    ],
)
def test_one_picture_or_many_samples(arguments: tuple[str, ...], words: str, run: Run) -> None:
    result = run("attention", *arguments)
    assert result.exit_code
    assert words in " ".join(result.stderr.replace("│", " ").split())


def test_several_images(run: Run, tmp_path: Path) -> None:
    other = PHOTOGRAPH.with_name("chelsea.jpg")
    images = ("--image", PHOTOGRAPH, "--image", other)
    prompt = ("--prompt", "Is the cat in <image> or in <image>?")
    result = run("attention", *images, *prompt, "-o", "out")
    assert result.exit_code == 0, result.output
    assert "Share of each image" in result.stdout
    table = flat(pd.read_csv(tmp_path / "out/attention.csv")).set_index("layer")
    shares = flat(pd.read_csv(tmp_path / "out/images.csv"))
    assert shares.groupby("layer")["image"].apply(list).tolist() == 6 * [[1, 2]]
    assert set(shares["visual_tokens"]) == {64}
    by_layer = shares.groupby("layer")["share"].sum()
    pd.testing.assert_series_equal(by_layer, table["share"])
    heatmaps = pd.read_csv(tmp_path / "out/heatmaps.csv")
    found = heatmaps.groupby(["layer", "image"])["attention"].sum()
    expected = shares.set_index(["layer", "image"])["share"]
    pd.testing.assert_series_equal(found, expected[found.index], check_names=False)
    assert (tmp_path / "out/image.png").is_file()
    assert (tmp_path / "out/image_2.png").is_file()
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert [place > 0.5 for place in record["places"]] == [True, True]
    assert_two_lines(run("attention", *images, *prompt, "--box", "0,0,9,9"), "a region of one")
    one_mark = ("--prompt", "What is <image>?")
    assert_two_lines(run("attention", *images, *one_mark), "as many marks <image> as images (2)")


def test_before_and_after_alignment_side_by_side(run: Run, tmp_path: Path) -> None:
    assert run("align", "-n", "1", "-o", "aligned").exit_code == 0
    for model, out in (("specimen", "before"), ("./aligned", "after")):
        assert run("attention", model, *QUESTION, "--layer", "6", "-o", out).exit_code == 0
    result = run("compare", "before", "after", "-o", "both")
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    maps = pd.read_csv(tmp_path / "both/heatmaps.csv")
    for name in ("before", "after"):
        alone = pd.read_csv(tmp_path / name / "heatmaps.csv")["attention"]
        label = list(maps["run"].unique())[int(name == "after")]
        assert maps.loc[maps["run"] == label, "attention"].tolist() == alone.tolist()
    assert (tmp_path / "both/plots/heatmaps.png").is_file()
    assert (tmp_path / "both/image.png").is_file()
