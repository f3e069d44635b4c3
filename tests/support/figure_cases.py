"""Run folders for every figure: made tables, and no record."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from PIL import Image

from normprobe.measurements import measurement
from normprobe.measurements.compare.measure import joined
from normprobe.report.figures.draw import Drawing
from normprobe.runs.run_folder import RunFolder
from normprobe.schema import TOKEN_METRICS
from support import made_cause, made_massive, made_tables, made_training
from support.flat import tidied
from support.made_bands import with_bands

#: Case -> the tables of its run, flat where ``flat.tidied`` knows them. ``compare_*`` compares runs
#: of the measurement in its name, ``*_map`` is a run with maps.
TABLES: dict[str, dict[str, pd.DataFrame]] = {
    "layers": {
        "layers": with_bands(made_tables.layers(), [f"{name}_mean" for name in TOKEN_METRICS]),
        "theory": made_tables.theory(),
        "assumptions": made_tables.assumptions(made_tables.theory()),
        "accounted": made_tables.accounted(),
        "branches": made_tables.branches(),
        **made_massive.tables(massive=True),
        "turns": made_tables.turns(),
    },
    "tower": {"tower": made_tables.tower()},
    "interface": {
        "interface": made_tables.interface(),
        "histogram": made_tables.visual_histogram(),
    },
    "embeddings": {
        "embeddings": made_tables.embeddings("text", "visual"),
        "tokens": made_tables.tokens("text", "visual"),
        "histogram": made_tables.histogram("text", "visual"),
        "shift": made_tables.shift(),
    },
    "grounding": {
        "grounding": with_bands(made_tables.grounding(), ["cosine_gap", "score_gap"], 0.4, 0.8)
    },
    "cause": {"cause": made_cause.cause()},
    "shares": {"shares": made_tables.shares()},
    "nearest": {"nearest": made_tables.nearest()},
    "follow": {"follow": made_tables.follow()},
    "attention": {
        "attention": made_tables.attention(),
        "heads": made_tables.heads(),
        "heatmaps": made_tables.heatmaps(),
    },
}
TABLES["training"] = made_training.tables(louder=5.0)
for compared in ("layers", "interface", "grounding", "cause", "embeddings", "attention"):
    names = ("llava-1.5-7b-hf", "qwen2.5-vl-7b-in…", "m #2")
    first = tidied(compared, TABLES[compared][compared])
    TABLES[f"compare_{compared}"] = {"compare": joined([first] * len(names), names)}
TABLES["layers_map"] = {
    "layers": TABLES["layers"]["layers"],
    "map": made_tables.norm_map(),
}
TABLES["interface_map"] = {
    "interface": TABLES["interface"]["interface"],
    "map": made_tables.norm_map("stage", ("vision_encoder", "projector_output")),
}
TABLES["compare_checkpoints"] = {
    "compare": joined([tidied("layers", TABLES["layers"]["layers"])] * 2, ("0", "900"), (0, 900))
}
trainings = [tidied("training", made_training.tables(louder=x)["training"]) for x in (5, 1)]
TABLES["compare_training"] = {"compare": joined(trainings, ("a", "b"))}

#: Case -> the names of its figures, in order.
FIGURES = {
    "interface": ("interface", "visual_table"),
    "layers": (
        "layers",
        "turning",
        "accounted",
        "directions",
        "branches",
        "massive",
        "turns",
        "theory",
    ),
    "tower": ("tower", "tower_turning", "headroom"),
    "shares": ("shares",),
    "nearest": ("nearest",),
    "follow": ("follow",),
    "layers_map": ("layers", "turning", "norm_map", "loudest"),
    "interface_map": ("interface", "norm_map", "loudest"),
    "embeddings": ("embeddings", "shift"),
    "attention": ("attention", "heads", "heatmaps"),
    "grounding": ("grounding",),
    "cause": ("cause", "doses", "effects", "by_layer"),
    "compare_layers": ("small_multiples", "overlay"),
    "compare_checkpoints": ("training", "small_multiples"),
    "training": ("training",),
    "compare_training": ("compare_training",),
    "compare_interface": ("compare_interface",),
    "compare_grounding": ("compare_grounding",),
    "compare_cause": ("compare_cause",),
    "compare_embeddings": ("compare_embeddings",),
    "compare_attention": ("compare_attention",),
}


def write(folder: Path, tables: Mapping[str, pd.DataFrame]) -> RunFolder:
    """A folder of CSV files, tidy as a run has them, and the images that maps lie on."""
    for name, table in tables.items():
        tidied(name, table).to_csv(folder / f"{name}.csv", index=False, quoting=2)
    if {"heatmaps", "map"} & set(tables):
        write_images(folder)
    return RunFolder(folder, {})


def write_images(folder: Path) -> None:
    """The pictures of a run."""
    for name in ("image", "image_2"):
        Image.linear_gradient("L").convert("RGB").save(folder / f"{name}.png")


def drawings(case: str, run: RunFolder) -> list[Drawing]:
    """What draws a case."""
    command, _, compared = case.partition("_")
    if compared:
        run = RunFolder(run.path, {"compared": compared.replace("checkpoints", "layers")})
    return measurement(command).drawings(run)
