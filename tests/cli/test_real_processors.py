"""The commands on folders as users have them: a tiny model of each type and a real processor."""

import json
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli.conftest import assert_two_lines
from matplotlib.figure import Figure
from PIL import Image
from support.flat import flat
from support.processors import RECIPES, SYSTEM_PROMPT, make_checkpoint
from support.tiny_models import IMAGE, INDICATORS, TILE, VOCABULARY
from transformers import AutoProcessor
from typer.testing import Result

from normprobe import Probe
from normprobe.data.data_set import open_data
from normprobe.schema import (
    DECODER_INPUT,
    EFFECTIVE_EMBEDDING,
    MERGED_INPUT,
    NON_VISUAL,
    PROJECTOR_INPUT,
    PROJECTOR_OUTPUT,
    SPECIAL,
    STAGES,
    STRUCTURAL,
    TEXT,
    VISION_ENCODER,
    VISUAL,
    VISUAL_EMBEDDING_TABLE,
)

Run = Callable[..., Result]
Checkpoint = Callable[[str], Path]

#: Placeholders of one sample image that do not depend on pixels: newlines, separators, borders.
STRUCTURAL_ROWS = {
    "granite4_vision": 3,
    "hunyuan_vl": 5,
    "llava_next": 6,
    "llava_onevision": 6,
    "ovis2": 6,
}
#: The decoder attends to the image, or the codes of the image are rows of the text table.
WITHOUT_PROJECTOR = ("blip", "chameleon", "pix2struct")
#: The decoder starts from one token. The processor makes no text of the prompt.
PROMPTLESS = ("vision-encoder-decoder",)
#: Positions count the images of the whole batch.
UNBATCHABLE = ("hunyuan_vl",)
#: Cut an image into tiles and show the model a small copy of all of it too.
TILED = (
    "aya_vision",
    "granite4_vision",
    "granite_docling",
    "idefics3",
    "llava_next",
    "ovis2",
    "qianfan_ocr",
)

every_type = pytest.mark.parametrize("model_type", RECIPES)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    root = tmp_path_factory.mktemp("checkpoints")
    return cache(lambda model_type: make_checkpoint(model_type, root / model_type))


@every_type
def test_interface(model_type: str, checkpoint: Checkpoint, run: Run, tmp_path: Path) -> None:
    folder = checkpoint(model_type)
    result = run("interface", folder, "--limit", "2", "-o", "out")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out/plots/interface.png").is_file()
    table = flat(pd.read_csv(tmp_path / "out/interface.csv"))
    assert set(table["stage"]) == expected_stages(model_type)
    assert (table["norm_mean"] > 0).all()
    assert (table["nonfinite"] == 0).all()
    tokens = table[table["stage"] == DECODER_INPUT].set_index("group")["tokens"]
    structural = 2 * STRUCTURAL_ROWS.get(model_type, 0)
    assert tokens.get(STRUCTURAL, 0) == structural
    assert tokens.get(VISUAL, 0) + structural == image_rows(model_type, folder)
    assert (TEXT in tokens) == (model_type not in PROMPTLESS)
    assert tokens[NON_VISUAL] == tokens[SPECIAL] + tokens.get(TEXT, 0)


@every_type
def test_layers(
    model_type: str,
    checkpoint: Checkpoint,
    run: Run,
    tmp_path: Path,
) -> None:
    folder = checkpoint(model_type)
    result = run("layers", folder, "--limit", "3", "-b", "2", "-o", "two")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "two/plots/layers.png").is_file()
    table = without_quantiles(pd.read_csv(tmp_path / "two/layers.csv"))
    assert np.isfinite(table["norm_mean"]).all()
    assert (table["nonfinite"] == 0).all()
    groups = set(table.index.get_level_values("group"))
    assert {VISUAL, SPECIAL, NON_VISUAL} <= groups
    assert (STRUCTURAL in groups) == (model_type in STRUCTURAL_ROWS)
    if model_type in UNBATCHABLE:
        return
    alone = without_quantiles(Probe(folder).layers(limit=3, batch_size=1).table)
    pd.testing.assert_frame_equal(alone, table, rtol=1e-3, atol=1e-3)


@every_type
def test_embeddings_and_inspect(
    model_type: str, checkpoint: Checkpoint, run: Run, tmp_path: Path
) -> None:
    folder = checkpoint(model_type)
    result = run("embeddings", folder, "-o", "out")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out/plots/embeddings.png").is_file()
    table = flat(pd.read_csv(tmp_path / "out/embeddings.csv")).set_index(["table", "rows"])
    assert np.isfinite(table["norm_mean"]).all()
    assert table.loc[("text", "all_rows"), "tokens"] >= VOCABULARY
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert ("projector" in record["parts"]) == (model_type not in WITHOUT_PROJECTOR)

    result = run("inspect", folder, "--format", "json")  # reads no weights, and finds the same
    assert result.exit_code == 0, result.output
    names = {row["part"]: row["name"] for row in json.loads(result.stdout)["parts"]}
    assert record["parts"].items() <= names.items()


@pytest.mark.slow
@pytest.mark.usefixtures("rendered")
@pytest.mark.parametrize("model_type", ["llava_next", min(WITHOUT_PROJECTOR), min(PROMPTLESS)])
def test_figures_are_rendered(
    model_type: str,
    checkpoint: Checkpoint,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save = Figure.savefig

    def coarse(figure: Figure, file: BytesIO, *, format: str, **_: object) -> None:
        if format == "png":
            save(figure, file, format="png", dpi=20)

    monkeypatch.setattr(Figure, "savefig", coarse)
    folder = checkpoint(model_type)
    for command in ("interface", "layers", "embeddings"):
        limit = [] if command == "embeddings" else ["--limit", "2"]
        result = run(command, folder, *limit, "-o", command)
        assert result.exit_code == 0, result.output
        assert (tmp_path / command / f"plots/{command}.png").stat().st_size > 1000


@pytest.mark.parametrize("model_type", TILED)
def test_tiles(model_type: str, checkpoint: Checkpoint, run: Run, tmp_path: Path) -> None:
    """Two tiles and a small copy, four tiles and a small copy."""
    rows = {}
    for tiles, size in {3: (4 * TILE, 2 * TILE), 5: (4 * TILE, 4 * TILE)}.items():
        data = one_image(tmp_path / f"data-{tiles}", size)
        out = tmp_path / f"run-{tiles}"
        result = run("interface", checkpoint(model_type), "--data", data, "-o", out)
        assert result.exit_code == 0, result.output
        table = flat(pd.read_csv(out / "interface.csv")).set_index(["stage", "group"])
        rows[tiles] = table.loc[(VISION_ENCODER, VISUAL), "tokens"]
    assert rows[3] > 0
    assert rows[3] / 3 == rows[5] / 5


def test_the_system_prompt(checkpoint: Checkpoint, run: Run, tmp_path: Path) -> None:
    """A token a character: the number of text tokens tells which one the model read."""
    folder = checkpoint("llava")
    other = "Answer in French, please."
    characters = {}
    for name, options in {"own": [], other: ["--system", other], "": ["--system", "none"]}.items():
        out = tmp_path / f"run-{len(characters)}"
        result = run("interface", folder, "--limit", "1", "-o", out, *options)
        assert result.exit_code == 0, result.output
        table = flat(pd.read_csv(out / "interface.csv")).set_index(["stage", "group"])
        characters[name] = table.loc[(DECODER_INPUT, TEXT), "tokens"]
    assert characters[other] - characters[""] == len(other)
    assert characters["own"] - characters[""] == len(SYSTEM_PROMPT)


def test_no_chat_template_no_system_prompt(checkpoint: Checkpoint, run: Run) -> None:
    folder = checkpoint("blip-2")
    assert_two_lines(run("interface", folder, "--system", "Be kind."), "--system", "Blip2Processor")
    result = run("interface", folder, "--limit", "1", "--system", "none", "-o", "out")
    assert result.exit_code == 0, result.output


#: Their projectors take several patches side by side for each token.
MERGES = {"granite_docling"}


def expected_stages(model_type: str) -> set[str]:
    stages = {stage for stage in STAGES if not stage.startswith("audio")}
    if model_type not in MERGES:
        stages -= {MERGED_INPUT}
    if model_type != "ovis2":
        stages -= {VISUAL_EMBEDDING_TABLE}
    if model_type in WITHOUT_PROJECTOR:
        stages -= {PROJECTOR_INPUT, PROJECTOR_OUTPUT}
    if model_type in PROMPTLESS:
        stages -= {EFFECTIVE_EMBEDDING}
    return stages


def image_rows(model_type: str, folder: Path) -> int:
    """Rows for the images of the first two samples, as transformers makes inputs of them."""
    rows = RECIPES[model_type].rows
    if rows is not None:
        return 2 * rows
    processor = AutoProcessor.from_pretrained(folder)
    count = 0
    for sample in open_data("sample", limit=2, seed=42):
        content = [
            {"type": "image", "image": sample.image},
            {"type": "text", "text": sample.prompt},
        ]
        inputs = processor.apply_chat_template(
            [{"role": "user", "content": content}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
        )
        count += sum(token in (IMAGE, *INDICATORS) for token in inputs["input_ids"][0].tolist())
    return count


def without_quantiles(layers: pd.DataFrame) -> pd.DataFrame:
    """By layer and group; quantiles come from bins."""
    table = flat(layers).set_index(["layer", "group"])
    return table.loc[:, ~table.columns.str.contains("_q")]


def one_image(folder: Path, size: tuple[int, int]) -> Path:
    """A data set of one question about one image."""
    (folder / "images").mkdir(parents=True)
    Image.linear_gradient("L").resize(size).convert("RGB").save(folder / "images/a.png")
    line = {"question_id": 1, "image": "a.png", "text": "Is it?", "label": "yes"}
    (folder / "data.jsonl").write_text(json.dumps(line) + "\n")
    return folder / "data.jsonl"
