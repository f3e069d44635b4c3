"""What runs of made tables show, in all forms. `make golden` writes anew what tests compare with.

A case is a run: its tables, and what is odd about them. Its file holds what a terminal shows, the
sentence, the main table in Markdown and LaTeX, and what the page says and draws.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from normprobe.measurements import measurement
from normprobe.report.ranking import measures_table, ranking
from normprobe.report.ratio_words import Estimate
from normprobe.report.sentences import correlation_table
from normprobe.run import Run
from normprobe.runs.run_folder import RunStore
from normprobe.schema import SCHEMA_VERSION, TOKEN_METRICS
from support import made_cause, made_massive, made_tables
from support.figure_cases import TABLES
from support.flat import loudest_of, tidied
from support.made_bands import with_bands
from support.printed import printed
from support.read_page import Reader, drawn

GOLDEN = Path(__file__).parent.parent / "measurements" / "golden"
Tables = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class Case:
    """A run of made tables.

    Attributes:
        command: what would have made it.
        tables: its tables by name.
        record: facts of run.json.
        forms: which of ``FORMS`` are compared.
    """

    command: str
    tables: Tables
    record: dict[str, Any] = field(default_factory=dict)
    forms: tuple[str, ...] = ("terminal", "sentence", "markdown", "latex", "page")

    @property
    def run(self) -> Run:
        facts = {"command": self.command, "model": "org/model", "schema_version": SCHEMA_VERSION}
        store = RunStore({**facts, **self.record})
        for name, table in self.tables.items():
            store.write_table(name, tidied(name, table))
            if "loudest_position" in table:
                store.write_table("loudest", loudest_of(table))
        store.write_image("image", Image.new("RGB", (12, 8)))
        store.write_image("image_2", Image.new("RGB", (12, 8)))
        return Run(store)


def changed(table: pd.DataFrame, where: str, **columns: Any) -> pd.DataFrame:
    """A table with other numbers in the rows of a query."""
    table = table.copy()
    table.loc[table.eval(where), list(columns)] = list(columns.values())
    return table


def ranks(
    name: str, *numbers: float | tuple[float, float, float], steps: list[int] | None = None
) -> Tables:
    """ranking.csv of runs a, b, ... with these numbers, and their intervals."""
    measures = [{name: estimate(number)} for number in numbers]
    common = {"disparity_middle": 1.0, "disparity_last": 1.0, "inertia_gap": 0.1}
    common |= {"visual_ratio": 1.0, "text_norm": 1.0, "text_std": 1.0, "base_norm": 1.0}
    shared = {other: Estimate(value) for other, value in common.items()}
    labels = list("abcdefgh")[: len(numbers)]
    return {"ranking": ranking([row | shared | row for row in measures], labels, steps)}


def estimate(number: float | tuple[float, float, float]) -> Estimate:
    """A number, or one with its interval."""
    return Estimate(*number) if isinstance(number, tuple) else Estimate(number)


def gaps(*numbers: float | tuple[float, float, float]) -> Tables:
    """ranking.csv of runs of other disparities, whose inertia has these numbers."""
    measures = [
        {"disparity_input": Estimate(2.0 + place), "inertia_gap": estimate(number)}
        for place, number in enumerate(numbers)
    ]
    return {"ranking": ranking(measures, list("abcdefgh")[: len(numbers)])}


def survey(*gaps: float) -> Tables:
    """A model a gap: the n-th has a disparity of 2 ** n; the last failed."""
    disparity = 2.0 ** np.arange(len(gaps))
    names = ("disparity_input", "ratio_to_table", "table_norm", "disparity_last")
    numbers = [
        {**dict.fromkeys(names, size), "inertia_gap": gap}
        for size, gap in zip(disparity.tolist(), gaps, strict=True)
    ]
    measures = [
        {name: Estimate(value, 0.9 * value, 1.1 * value) for name, value in of.items()}
        for of in numbers
    ]
    models = pd.DataFrame({"model": [f"org/model-{n}-instruct-hf" for n in range(len(gaps))]})
    measured = measures_table(models, measures).dropna(subset="mean", ignore_index=True)
    failed = {"model": "org/gated", "status": "failed", "reason": "org/gated is gated"}
    models = models.assign(status="complete", reason=None)
    models = pd.concat([models, pd.DataFrame([failed])], ignore_index=True)
    return {
        "survey": measured,
        "models": models,
        "cost": models[["model"]].assign(fetched_bytes=1, peak_memory=545_500_000, seconds=3.0),
        "correlation": correlation_table(disparity, gaps),
    }


LAYERS = with_bands(made_tables.layers(3), [f"{name}_mean" for name in TOKEN_METRICS])
THEORY = made_tables.theory(3)
NO_THEORY = {"theory": THEORY.iloc[:0], "assumptions": made_tables.assumptions(THEORY).iloc[:0]}
INTERFACE = made_tables.interface()
ATTENTION = made_tables.attention(layers=4)
GROUNDING = made_tables.grounding()
TEXT = made_tables.embeddings()
BASE = TEXT.assign(table="base", norm_mean=TEXT["norm_mean"] / 1.25)
WORDS = ("terminal", "sentence")

CASES = {
    # --- interface ------------------------------------------------------------------------------
    "interface": Case("interface", TABLES["interface"]),
    "interface-intervals": Case(
        "interface",
        {
            "interface": INTERFACE.assign(
                **{
                    f"{column}_ci_{end}": INTERFACE[column] * factor
                    for column in INTERFACE
                    if "ratio" in column or column == "norm_mean"
                    for end, factor in (("low", 0.9), ("high", 1.2))
                }
            )
        },
    ),
    "interface-text-alone": Case(
        "interface", {"interface": INTERFACE[INTERFACE["group"] != "visual"]}, forms=WORDS
    ),
    "interface-map": Case("interface", TABLES["interface_map"], forms=("page",)),
    # --- layers ---------------------------------------------------------------------------------
    "layers": Case(
        "layers",
        {
            "layers": LAYERS,
            "theory": THEORY,
            "assumptions": made_tables.assumptions(THEORY),
            "accounted": made_tables.accounted(3),
            "branches": made_tables.branches(3),
            **made_massive.tables(massive=True),
        },
        {"norm_placement": "pre: the paper's theory applies"},
    ),
    "layers-sandwich": Case(
        "layers",
        {"layers": LAYERS, **NO_THEORY},
        {"norm_placement": "sandwich: the paper's theory is about pre-norm"},
        WORDS,
    ),
    "layers-deep": Case(
        "layers",
        {
            "layers": made_tables.layers(80),
            "theory": made_tables.theory(80),
            "assumptions": made_tables.assumptions(made_tables.theory(80)),
        },
        forms=WORDS,
    ),
    "layers-text-alone": Case(
        "layers",
        {"layers": LAYERS[LAYERS["group"] == "text"], **NO_THEORY},
        {"image_hashes": {"text/1": None}},
        (*WORDS, "page"),
    ),
    "layers-odd": Case(
        "layers",
        {
            "layers": changed(
                changed(LAYERS, "layer == 1 and group == 'visual'", angle_below_resolution=True),
                "layer == 3",
                nonfinite=2,
            ).query("not (layer == 2 and group == 'text')"),
            **NO_THEORY,
        },
        forms=WORDS,
    ),
    "layers-map": Case("layers", TABLES["layers_map"] | NO_THEORY, forms=("page",)),
    # --- grounding ------------------------------------------------------------------------------
    "grounding": Case("grounding", TABLES["grounding"]),
    "grounding-deep": Case("grounding", {"grounding": made_tables.grounding(80)}, forms=WORDS),
    "grounding-one-image": Case(
        "grounding", {"grounding": made_tables.grounding(intervals=False)}, forms=WORDS
    ),
    "grounding-no-scores": Case(
        "grounding",
        {
            "grounding": GROUNDING.assign(score_gap=np.nan),
            "left_out": pd.DataFrame({"sample_id": ["a", "b"], "reason": ["x", "y"]}),
        },
        forms=WORDS,
    ),
    # --- cause ----------------------------------------------------------------------------------
    "cause": Case("cause", TABLES["cause"]),
    "cause-own-answers": Case(
        "cause",
        {"cause": made_cause.cause(right=False, frozen_layers=False)},
        {"norm_placement": "branch-post: the paper's theory is about pre-norm"},
        WORDS,
    ),
    "cause-one-image": Case("cause", {"cause": made_cause.cause(intervals=False)}, forms=WORDS),
    # --- embeddings -----------------------------------------------------------------------------
    "embeddings": Case(
        "embeddings",
        {name: table for name, table in TABLES["embeddings"].items() if name != "shift"},
    ),
    "embeddings-base": Case(
        "embeddings",
        {
            "embeddings": pd.concat([TEXT, BASE]),
            "tokens": made_tables.tokens(),
            "shift": made_tables.shift(),
        },
        forms=(*WORDS, "page"),
    ),
    "embeddings-other-width": Case(
        "embeddings",
        {
            "embeddings": pd.concat([TEXT, BASE]),
            "tokens": made_tables.tokens(),
            "shift": made_tables.shift(distances=False),
        },
        forms=WORDS,
    ),
    # --- attention ------------------------------------------------------------------------------
    "attention": Case("attention", TABLES["attention"], {"options": {"prompt": "Which animal?"}}),
    "attention-no-box": Case(
        "attention", {"attention": made_tables.attention(80, target=False)}, forms=WORDS
    ),
    # --- training -------------------------------------------------------------------------------
    "training": Case("training", TABLES["training"], forms=("terminal", "sentence", "page")),
    "training-no-alarm": Case(
        "training",
        {name: TABLES["training"][name] for name in ("training", "gradients")},
        forms=("sentence",),
    ),
    # --- compare --------------------------------------------------------------------------------
    "compare": Case(
        "compare",
        TABLES["compare_layers"] | ranks("disparity_input", (5, 4, 6), (5.5, 4, 7), (2, 1.9, 2.1)),
        {"compared": "layers"},
    ),
    "compare-checkpoints": Case(
        "compare",
        TABLES["compare_checkpoints"] | ranks("disparity_input", 4.0, 82.0, steps=[0, 900]),
        {"compared": "layers"},
        (*WORDS, "page"),
    ),
    "compare-equal": Case(
        "compare", ranks("loudest_ratio", 5.0, 5.0), {"compared": "embeddings"}, WORDS
    ),
    "compare-known": Case(
        "compare",
        ranks("disparity_input", (5, 4.5, 6), (2, 1.9, 2.1), (np.nan,) * 3),
        {"compared": "layers"},
        WORDS,
    ),
    # --- survey ---------------------------------------------------------------------------------
    "survey": Case("survey", survey(0.1, 0.2, 0.3, 0.4, 0.5, 0.6)),
    "survey-no-inertia": Case("survey", survey(*[np.nan] * 6), forms=WORDS),
}
for _kind, _number in {
    "interface": "disparity_input",
    "training": "disparity_last_step",
    "grounding": "weight_ratio",
    "cause": "freeze_ratio",
    "embeddings": "loudest_ratio",
    "attention": "share",
}.items():
    _tables = TABLES[f"compare_{_kind}"] | ranks(_number, 3.0, 2.0, 1.5)
    CASES[f"compare-{_kind}"] = Case("compare", _tables, {"compared": _kind}, forms=("page",))


NO_PROJECTOR = INTERFACE[~INTERFACE["stage"].str.startswith("projector")]
RISING = changed(made_tables.shift(), "index == 7", norm=9.0, rank=0, base_rank=3000, emerging=True)


def interface(ends: Sequence[float] = (), where: str = "index >= 0", **columns: Any) -> Tables:
    """interface.csv with other numbers, or these ends of all intervals of ratios."""
    table = changed(INTERFACE, where, **columns)
    for column in [name for name in INTERFACE if "ratio" in name and ends]:
        table = table.assign(**{f"{column}_ci_low": ends[0], f"{column}_ci_high": ends[1]})
    return {"interface": table}


def attention(where: str = "index >= 0", **columns: Any) -> Tables:
    """attention.csv with other numbers in some rows."""
    return {"attention": changed(ATTENTION, where, **columns)}


#: What is said of runs that differ in a number or two: cases of which the sentence alone tells.
SENTENCES: dict[str, tuple[str, Tables]] = {
    "intervals that hold 1": ("interface", interface((0.3, 3000))),
    "one sample": ("interface", interface(where="samples > 0", samples=1)),
    "cross-attention": (
        "interface",
        {"interface": INTERFACE.query("stage != 'decoder_input' or group != 'visual'")},
    ),
    "cross-attention without a projector": (
        "interface",
        {"interface": NO_PROJECTOR.query("stage != 'decoder_input' or group != 'visual'")},
    ),
    "no projector": ("interface", {"interface": NO_PROJECTOR}),
    "no projector input": (
        "interface",
        {"interface": INTERFACE.query("stage != 'projector_input'")},
    ),
    "an encoder alone": ("interface", {"interface": INTERFACE[:2]}),
    "mixtures of a visual table": (
        "interface",
        interface(
            where="stage == 'text_embedding_table' and group == 'nonzero_rows'",
            stage="visual_embedding_table",
            norm_mean=64.0,
        ),
    ),
    "a gap at zero": (
        "grounding",
        {"grounding": GROUNDING.assign(cosine_gap_band_low=-0.1, score_gap_band_low=-0.1)},
    ),
    "no gap": ("grounding", {"grounding": GROUNDING.assign(cosine_gap=np.nan)}),
    "a visual table": ("embeddings", {"embeddings": made_tables.embeddings("text", "visual")}),
    "a text table": ("embeddings", {"embeddings": TEXT}),
    "an empty table": ("embeddings", {"embeddings": TEXT.iloc[:0]}),
    "tables about as loud": (
        "embeddings",
        {"embeddings": pd.concat([TEXT, TEXT.assign(table="visual", norm_mean=1.0)])},
    ),
    "a base of other width": (
        "embeddings",
        {
            "embeddings": pd.concat([TEXT, BASE]),
            "shift": made_tables.shift(distances=False),
        },
    ),
    "a token that was zero": (
        "embeddings",
        {
            "embeddings": pd.concat([TEXT, BASE]),
            "shift": changed(RISING, "index == 7", base_norm=0.0),
        },
    ),
    "an empty base": (
        "embeddings",
        {
            "embeddings": pd.concat([TEXT, BASE.assign(norm_mean=np.nan)]),
            "shift": made_tables.shift(),
        },
    ),
    "attention that ties": ("attention", attention(share_mean=0.9, entropy_mean=0.8)),
    "attention on both sides of even": (
        "attention",
        attention("layer == 1", share_mean=0.9, even_share_mean=0.3),
    ),
    "attention of cross-attention": ("attention", attention(even_share_mean=1.0, share_mean=1.0)),
    "no scores": ("attention", attention("layer == 1", score_gap=np.nan, signal_to_noise=1.1)),
    "no heads": ("attention", attention(heads=0)),
    "no attention": (
        "attention",
        attention(**dict.fromkeys(["share_mean", "entropy_mean", "signal_to_noise"], np.nan)),
    ),
    "ranks with intervals": ("compare", ranks("disparity_input", (0.87, 0.8, 1.1), (82, 68, 102))),
    "far below 1": ("compare", ranks("disparity_input", 1.41, 0.066)),
    "ranks that overlap": (
        "compare",
        ranks("disparity_input", (10, 8, 12), (11, 9, 13), (2, 1.5, 3)),
    ),
    "ranks not told apart": ("compare", ranks("disparity_input", (2, 1.5, 2.5), (3, 1.1, 5))),
    "a rank beside its inverse": ("compare", ranks("disparity_input", 2.0, 0.5)),
    "ties at the top": ("compare", ranks("disparity_input", 3.0, 3.0, 2.0)),
    "many ties": (
        "compare",
        ranks("disparity_input", *((2.0 + n / 100, 1.5, 2.5) for n in range(7))),
    ),
    "a run without a number": ("compare", ranks("disparity_input", 2.0, 4.0, np.nan)),
    "one number": ("compare", ranks("disparity_input", 2.0, np.nan)),
    "other ranks": ("compare", ranks("loudest_ratio", 4.0, 4.0)),
    "a training": (
        "compare",
        ranks("disparity_input", (82, 68, 102), (90, 85, 95), (4, 3, 5), steps=[0, 50, 100]),
    ),
    "a training that changes nothing": (
        "compare",
        ranks("disparity_input", (4, 3, 5), (5, 4, 6), steps=[0, 100]),
    ),
    "inertia of one run": ("compare", gaps((0.36, 0.3, 0.4), (0.02, -0.01, 0.05))),
    "inertia both ways": ("compare", gaps((0.36, 0.3, 0.4), (0.32, 0.29, 0.35), -0.1)),
    "inertia of none": ("compare", gaps((0.02, -0.01, 0.05), (-0.02, -0.05, 0.01))),
}


def page(run: Run) -> str:
    """The words of its section, and what is drawn in its places."""
    section = "\n".join(map(str, measurement(run.command).section(run.store)))
    lines = [line for line in map(str.strip, Reader(section).text.splitlines()) if line]
    places = {
        kind: data
        for kind in ("panels", "curves", "dots", "grid")
        if (data := drawn(section, kind))
    }
    data = json.dumps(places, indent=1, ensure_ascii=False)
    in_a_line = re.sub(r"\[[^\[\]{}]*\]", lambda found: " ".join(found[0].split()), data)
    return "\n".join([*lines, in_a_line])


FORMS: dict[str, Callable[[Run], str]] = {
    "terminal": lambda run: printed(partial(run.show, theory=run.has_theory)),
    "sentence": lambda run: run.verdict,
    "markdown": Run.to_markdown,
    "latex": Run.to_latex,
    "page": page,
}


def shown(case: Case) -> str:
    """What its file holds."""
    parts = [f"=== {form} ===\n{FORMS[form](case.run)}\n" for form in case.forms]
    return "\n".join(line.rstrip() for line in "\n".join(parts).splitlines()) + "\n"


def sentences() -> str:
    """What is said of each of ``SENTENCES``, below its name."""
    said = {name: Case(*of).run.verdict for name, of in SENTENCES.items()}
    return "".join(f"{name}\n    {text}".rstrip() + "\n" for name, text in said.items())


def write() -> None:
    """Make what is shown now what is expected."""
    GOLDEN.mkdir(exist_ok=True)
    for file in GOLDEN.iterdir():
        file.unlink()
    for name, case in CASES.items():
        (GOLDEN / f"{name}.txt").write_text(shown(case), encoding="utf-8")
    (GOLDEN / "sentences.txt").write_text(sentences(), encoding="utf-8")


if __name__ == "__main__":
    write()
