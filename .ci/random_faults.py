"""Plant faults that nobody chose: what share of them does the fast set kill?

`make random-faults NUMBER=20 SEED=1` draws places of the package by seed, changes one thing at each
(a comparison, a sign, a number, a condition, a statement that is left out), and runs the fast tests
until one fails: those that mirror the file, then all. tests/faults.toml holds the faults that are
known to be killed; this says how many of the others are. Text, annotations and looks of figures are
not touched. A change that no user can notice counts as living, until somebody looks at it.
"""

import ast
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import faults
from scipy.stats import binomtest

TESTS = "tests"
#: Files whose numbers are looks.
LOOKS = ("figures.py", "charts.py", "dots.py", "paper/panels.py", "report/figures/")
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


class Place(NamedTuple):
    """A node of a file, and what stands there instead."""

    file: str  # below the package
    node: ast.expr | ast.stmt
    other: ast.expr | ast.stmt


def main(number: int, seed: int) -> int:
    """Plant so many faults; 1 where less than 90 % of them are killed."""
    package = faults.ROOT / "normprobe"
    places = [
        place
        for file in sorted(package.rglob("*.py"))
        for place in places_of(file.relative_to(package).as_posix(), file.read_text("utf-8"))
    ]
    drawn = random.Random(seed).sample(places, number)
    faults.prepare()
    faults.SECONDS = 1800
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background, else
    left = [fault_of(place) for place in drawn]
    for which in (near, everything):
        if not left:
            break
        # What fails without a fault kills none.
        sound = {"name": "nothing", "killed_by": sorted({t for f in left for t in which(f)})}
        tried = [sound, *({**fault, "killed_by": which(fault)} for fault in left if which(fault))]
        for fault, state, failed, seconds in faults.all_tried(tried):
            told = failed[0] if failed else state
            sys.stdout.write(f"{fault['name']}\n  {told} ({seconds:.0f} s)\n")
            sys.stdout.flush()
            if "file" not in fault and state != "LIVES":
                sys.exit("tests fail without a fault: mend these first")
            if state != "LIVES":  # what hangs is noticed, too
                left = [other for other in left if other["name"] != fault["name"]]
    killed = number - len(left)
    low, high = binomtest(killed, number).proportion_ci(method="wilson")
    share = f"{killed} of {number} killed, of {len(places)} places (95 %: {low:.0%} to {high:.0%})"
    sys.stdout.write(f"{share}\n")
    return int(killed < 0.9 * number)


def fault_of(place: Place) -> dict[str, Any]:
    """As those of tests/faults.toml."""
    sound = (faults.ROOT / "normprobe" / place.file).read_text("utf-8")
    was = ast.get_source_segment(sound, place.node) or ""
    now = ast.unparse(place.other)
    now = f"({now})" if isinstance(place.node, ast.expr) else now
    lines = sound.splitlines(keepends=True)
    before = "".join(lines[: place.node.lineno - 1]).encode()
    start = len(before) + place.node.col_offset
    whole = sound.encode()
    faulty = (whole[:start] + now.encode() + whole[start + len(was.encode()) :]).decode()
    name = f"{place.file}:{place.node.lineno}\n  {first_line(was)}  ->  {first_line(now)}"
    return {"name": name, "file": place.file, "from": sound, "to": faulty}


def near(fault: dict[str, Any]) -> list[str]:
    """The tests that mirror its file, or its folder; none where there are none."""
    mirrored = Path(TESTS, fault["file"]).with_name(f"test_{Path(fault['file']).name}")
    found = (path for path in (mirrored, mirrored.parent) if (faults.ROOT / path).exists())
    return [str(path) for path in found if str(path) != TESTS][:1]


def everything(_: dict[str, Any]) -> list[str]:
    """All fast tests."""
    return [TESTS]


def first_line(code: str) -> str:
    """Enough to know it by."""
    line, *more = code.splitlines()
    return line[:70] + " ..." * (bool(more) or len(line) > 70)


def places_of(file: str, text: str) -> Iterator[Place]:
    """Every change that can be made to a file, one at a time."""
    for node in changeable(ast.parse(text)):
        for other in others(node, looks=file.endswith(LOOKS) or LOOKS[-1] in file):
            if ast.dump(other) != ast.dump(node):
                yield Place(file, node, other)


def changeable(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Its expressions and statements, but for annotations, decorators and what strings hold."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr):
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.keyword) and child.arg == "strict":
                continue  # said for whoever reads it: what is zipped has one length
            if isinstance(child, ast.expr | ast.stmt):
                yield child
            yield from changeable(child)


def others(node: ast.expr | ast.stmt, *, looks: bool) -> Iterator[ast.expr | ast.stmt]:
    """What may stand in the place of a node."""
    match node:
        case ast.Compare(ops=[operator]) | ast.BoolOp(op=operator) | ast.BinOp(op=operator):
            if type(operator) in SWAPPED:
                swapped: Any = SWAPPED[type(operator)]()
                changed = {"ops": [swapped]} if isinstance(node, ast.Compare) else {"op": swapped}
                yield type(node)(**vars(node) | changed)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)) if not looks:
            yield ast.Constant(value + 1)
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.Call(keywords=[*_, ast.keyword(arg=str(name))]) if name != "strict":
            yield ast.Call(node.func, node.args, node.keywords[:-1])
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            yield ast.Pass()
        case ast.Continue():
            yield ast.Break()
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            yield ast.Return(ast.Constant(None))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
