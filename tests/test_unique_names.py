"""No class, constant, module file or public function of the package means two things."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import normprobe

pytestmark = pytest.mark.slow  # no behaviour of the package

PACKAGE = Path(normprobe.__file__).parent

#: What each folder of a kind has, by contract: the same name, because it is the same thing.
CONTRACTS = {
    "measurements": {
        # a measurement folder
        *("MEASUREMENT", "measure.py", "table.py", "words.py", "page.py", "terminal.py"),
        *("watcher.py", "compared.py", "observe", "rows", "tables", "show", "verdict", "section"),
        *("headline", "lead", "watcher", "drawings", "shown.py", "figures.py", "also.py"),
        # what `compare` reads of a measurement, in its compared.py
        *("COLUMNS", "ROW_COLUMNS", "NOTES", "figures", "measures"),
        # a figure
        *("figure", "TABLES"),
    },
    "report": {"figure", "TABLES"},  # a figure of more than one measurement
    # how a family builds its inputs, as in an inputs file of a user
    "inputs": {"build", "parts", "prepare", "load_processor", "setup"},
    # a command bears the name of what it calls
    "cli": {
        *("align", "attention", "compare", "embeddings", "survey", "verify"),
        *("align.py", "attention.py", "embeddings.py", "survey.py", "verify.py"),
    },
}

#: Names that still mean two things, each with what tells them apart.
DOUBLE = {
    "Call": "of a module: one kept for its states, one recorded for a trace",
    "MeasuredModel": "the model that is measured; a row of a printed survey",
    "Measurement": "what can be measured; one that is under way",
    "Panel": "of massive activations, of the theory, of the paper's figures",
    "Scale": "of a bootstrap; of a histogram",
    "Seen": "what each measurement keeps of a batch",
    "Source": "of a question; of a traced value",
    "COLUMNS": "of POPE's files; of the paper's numbers",
    "IMAGES": "file endings; numbers of images that a figure shows",
    "KEYS": "of overrides; of rows of a run",
    "KINDS": "of massive tokens; of checkpoints",
    "MERGED": "a projector's form in the paper; a file of a run folder",
    "MODALITIES": "pairs for draws; groups for metrics",
    "PANELS": "of three figures",
    "PARTS": "of what is accounted for; of samples in a run folder",
    "SPREAD": "columns of a chart; a bound of an assumption",
    "TEMPLATE": "of a prompt, by benchmark",
    "VISION_ENCODER": "a part of a checkpoint; a stage",
    "attention_of": "a measured table; a layer's attention module",
    "differences": "of recomputed tables, by measurement",
    "draw": "samples; a figure",
    "main": "of the program; of its application",
    "models": "the command; rows of the page",
    "modules": "of figures, by measurement",
    "norm_map": "of each measurement",
    "over_picture": "drawn in a figure; on a page",
    "panels": "of a figure; of a page",
    "quoted": "a cell; text of others",
    "read_image": "from anywhere; from a run folder",
    "show": "what a command prints",
    "table": "on a terminal; on a page",
    "tokens_of": "the paper's; of statistics",
    "charts.py": "of each measurement; of a page",
    "dots.py": "of a measurement; of a figure; of a page",
    "figures_of.py": "of comparing; of surveys",
    "files.py": "of an alignment; of pages; of runs",
    "grids.py": "of a measurement; of a page",
    "intervals.py": "of each measurement",
    "norm_map.py": "of each measurement; of a figure",
    "panels.py": "of each quantity; of a figure",
    "printed.py": "a survey; tables of a page",
    "recomputed.py": "of each measurement",
    "shift.py": "numbers; figure",
    "tables.py": "of the paper; of a page",
    "visual_table.py": "numbers; figure",
    "weights.py": "of a checkpoint; of samples",
}


def defined(tree: ast.Module) -> Iterator[str]:
    """What a module defines for others."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and target.id.isupper():
                    yield target.id


def places() -> dict[str, list[str]]:
    """Where each name is defined, without the definitions that a contract asks for."""
    found = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        place = file.relative_to(PACKAGE)
        names = {file.name, *defined(ast.parse(file.read_text(encoding="utf-8")))}
        for name in names - {"__init__.py"} - CONTRACTS.get(place.parts[0], set()):
            if not name.startswith("_"):
                found[name].append(str(place))
    return found


def test_no_name_means_two_things() -> None:
    double = {name: where for name, where in places().items() if len(where) > 1}
    assert {name: where for name, where in double.items() if name not in DOUBLE} == {}
    assert {name for name in DOUBLE if name not in double} == set(), "no longer double: strike them"
