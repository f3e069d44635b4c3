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
_OF_A_MEASUREMENT = {
    *("measure.py", "table.py", "words.py", "norm_map.py", "recomputed.py", "compared.py"),
    *("shown.py", "figures.py", "also.py"),
    *("observe", "observer", "rows", "tables", "differences", "norm_map"),
    *("show", "verdict", "section", "lead", "readable", "drawings"),
    # what `compare` reads of a measurement, in its compared.py
    *("COLUMNS", "RANKED", "ROW_COLUMNS", "NOTES", "measures", "draw_runs"),
}
#: A command bears the name of what it calls.
_OF_COMMANDS = {
    *("align", "attention", "check", "compare", "embeddings", "survey", "verify", "watch"),
    *("align.py", "attention.py", "embeddings.py", "survey.py", "verify.py", "watch.py"),
}
CONTRACTS = {
    "measurements": _OF_A_MEASUREMENT,
    "extensions": {
        *_OF_A_MEASUREMENT,
        *_OF_COMMANDS,
        *("EXTENSION", "command.py"),
        # how a family builds its inputs, as in an inputs file of a user
        *("build", "parts", "prepare", "load_processor", "setup"),
    },
    "inputs": {"build", "parts", "prepare", "load_processor", "setup"},
    "cli": _OF_COMMANDS,
}

#: Names that still mean two things, each with what tells them apart.
DOUBLE = {
    "main": "of the program; of its application",
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
