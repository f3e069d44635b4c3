"""Draw every figure of ten models and put them on sheets to look at. Run by `make figures`.

The bundled specimen, and random miniatures of other families: tiles, pictures of any size, a visual
table, cross-attention, a Q-Former, a vision encoder alone.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.console import Console

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.processors import RECIPES, make_processor  # noqa: E402
from support.tiny_inputs import SPECIAL_IDS, tiny_inputs  # noqa: E402
from support.tiny_models import tiny_model  # noqa: E402

from normprobe import NormprobeError, Probe, Run, compare  # noqa: E402
from normprobe.data.data_set import open_data  # noqa: E402
from normprobe.report.figures.style import image_bytes, look  # noqa: E402

TYPES = (
    *("llava", "llava_next", "idefics3", "ovis2", "gemma3", "idefics", "mllama"),
    *("blip-2", "qwen2_vl", "clip_vision_model"),
)
_DPI = 200
_COLUMN = 3.3  # inches: a column of a paper
_ACROSS = 3  # figures in a row of a sheet
_CUP = 8  # the sample that attention is drawn of


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/figures")
    torch.set_num_threads(1)  # the models are too small to share
    console = Console()
    measured: list[list[Run]] = []
    for name, runs in chain(_models(console), [("compared", _compared(measured))]):
        measured.append([])
        files: list[Path] = []
        (folder / name).mkdir(parents=True, exist_ok=True)
        for place, run in enumerate(runs):
            measured[-1].append(run)
            files += _draw(run, folder / name / f"{place}")
        _sheet(files, folder / f"{name}.png")
        console.print(f"{folder / name}.png")


def _models(console: Console) -> Iterator[tuple[str, Iterator[Run]]]:
    yield "specimen", _runs("specimen", Probe(), console)
    for name in TYPES:
        processor = make_processor(name) if name in RECIPES else None
        probe = Probe(tiny_model(name), processor, special_token_ids=SPECIAL_IDS)
        yield name, _runs(name, probe, console)


def _runs(name: str, probe: Probe, console: Console) -> Iterator[Run]:
    """Every measurement that makes sense of a model; why the others do not."""
    data: Mapping[str, Any] = {"limit": 4, "map": 2}
    if name in TYPES and name not in RECIPES:
        data = {"data": tiny_inputs(tiny_model(name), 3)}
    pictured = list(open_data("boxes"))[_CUP]
    target = pictured.referent
    assert target is not None
    base = partial(Probe, tiny_model("llama"), make_processor("llava"))
    asked: list[Callable[[], Run]] = [
        lambda: probe.interface(**data),
        lambda: probe.layers(**data, also=("branches", "massive")),
        lambda: probe.grounding(limit=6),
        lambda: probe.embeddings(base=base()),
        lambda: probe.attention(pictured, words=[target.word], box=target.box),
    ]
    for measure in asked:
        try:
            yield measure()
        except NormprobeError as error:
            console.print(f"{name}: {error.problem}")


def _compared(models: list[list[Run]]) -> Iterator[Run]:
    """All runs of one measurement side by side."""
    for command in ("interface", "layers", "grounding", "embeddings", "attention"):
        runs = [next((run for run in of_one if run.command == command), None) for of_one in models]
        yield compare([run for run in runs if run is not None])


def _draw(run: Run, stem: Path) -> Iterator[Path]:
    for name, figure in run.figures().items():
        file = stem.with_name(f"{stem.name}-{run.command}-{name}.png")
        with look():
            file.write_bytes(image_bytes(figure, "png", dpi=_DPI))
        yield file


def _sheet(files: list[Path], path: Path) -> None:
    """All of them at the width of a column, row below row."""
    width = round(_COLUMN * _DPI)
    shown = [Image.open(file).convert("RGB") for file in files]
    shown = [image.resize((width, round(image.height * width / image.width))) for image in shown]
    rows = [shown[start : start + _ACROSS] for start in range(0, len(shown), _ACROSS)]
    heights = [max(image.height for image in row) for row in rows]
    sheet = Image.new("RGB", (width * _ACROSS, sum(heights)), "white")
    for place, row in enumerate(rows):
        for column, image in enumerate(row):
            sheet.paste(image, (column * width, sum(heights[:place])))
    sheet.save(path)


if __name__ == "__main__":
    main()
