"""``normprobe inputs MODEL --write FILE``: begin an inputs file, and try it on one sample."""

import ast
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from inspect import signature
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any

from torch import nn

from normprobe.data.data_set import open_data
from normprobe.errors import NormprobeError, first_line, visible
from normprobe.extensions.families.drafted_constants import (
    CONSTANTS,
    LOADER,
    LOOK,
    OF_SQUARES,
    USUAL_IMAGES,
    USUAL_TURN,
)
from normprobe.extensions.families.drafted_text import file_text
from normprobe.failures import PREPARED
from normprobe.inputs.inputs_file import GUESS, read_inputs_file
from normprobe.inputs.processor import decoded
from normprobe.model.config import NoForward, UnknownCode
from normprobe.model.load.partial_load import build_on_meta
from normprobe.model.provenance import text_ids
from normprobe.options import Loading
from normprobe.probe import Probe
from normprobe.schema import NON_VISUAL, VISUAL
from normprobe.tidy import wide

#: What a file that is begun anew has of its own; the rest of the file before it is kept.
_CONSTANTS = {name for line in (*CONSTANTS, *OF_SQUARES) for name in line.split(", ")}
_BEGUN = {"TAKES", "build", "parts", *_CONSTANTS}
#: Of these what a user edited: it is another than is begun where no code is known.
_EDITED = _CONSTANTS - {"TURN", "IMAGE"}
#: What stands in a file whose ``setup`` imports a class that was found.
_FOUND = re.compile(rf"^    import .*# {GUESS}: ", re.MULTILINE)
_SETUP = re.compile(r"^def setup\(\):\n", re.MULTILINE)
#: Of a class that computes in methods of its own.
_FORWARD = """
def forward(model, {takes}):
    {runs}  # a guess; what runs its layers

"""
_RUNS = "# a guess; what runs its layers"
_STUB = _FORWARD.format(
    takes="input_ids, attention_mask=None, pixel_values=None", runs="raise NotImplementedError"
)
#: What generate takes of a picture, and what it takes that is no input.
_SEES = "image|img|pixel|picture"
_OF_ANSWERS = re.compile(
    r"^(max|min|num|top|do|use|return|output|no|length|repetition)_|temperature|config|stopping"
)
#: What is told where a file works, and where it shows no picture.
_MEASURED, _UNSEEN = "one sample is measured with it", "has no visual tokens"
#: Packages that code imports and nobody installed; and a file that is begun for their sake.
_LACKS = re.compile(r"No module named '(\w+)|needs ([\w, ]+), not installed here")
_SET_UP = "def setup():\n    pass\n"
_NOTHING_PREPARED = "def prepare(model, processor):\n    pass"

#: Of a forward that takes places of rows by this name.
_PLACED = re.compile(r"^    cache_position\b", re.MULTILINE)

#: Ids that stand for a picture, and how many.
_AS_MANY = re.compile(r"^(IMAGE_IDS = \[\d+\]) \* (\d+)", re.MULTILINE)

#: What code of InternVL's kin is given beside pixels: that each square is one.
_FLAGS = '    "image_flags": "image_flags",\n'

_REPEATED = 3  # more of one token in a row are written once


def begin_inputs_file(model: str, path: Path, loading: Loading) -> str:
    """Write an inputs file and measure one sample with it.

    What an inputs file holds that is passed, such as its ``setup``, is kept.

    Returns:
        What came of the sample, in words: it is measured, or why not; and which lines are guesses.

    Raises:
        NormprobeError: the file exists or cannot be written, or the model cannot be opened.
    """
    if path.exists():
        raise NormprobeError(f"{path} exists", "write to another file, or remove it")
    try:
        told, text = _begun(model, path, loading)
    except NormprobeError as failure:
        if loading.inputs or not loading.trust_remote_code or not _LACKS.search(failure.problem):
            raise
        told, text = failure.problem, _written(path, _SET_UP)  # code of a checkpoint (ZAYA1-VL)
    first = "" if loading.inputs else text  # of a file that is passed, `_begun` knows better
    again = loading.trust_remote_code and bool(_FOUND.search(text) or _RUNS in text)
    if text == _SET_UP:
        text = _written(path, _without(text, told))
        again = text != _SET_UP
    while again:
        printed = StringIO()  # packages tell there what they did not import (StreamForest)
        try:
            with redirect_stdout(printed):
                told, text = _begun(model, path, replace(loading, inputs=path), first=first)
        except NormprobeError as failure:  # what it imports may need another transformers
            told = f"not measured with it yet: {failure.problem}\n{failure.remedy}"
        sys.stderr.write(printed.getvalue())
        said = told + printed.getvalue() * (not _is_measured(told))
        standing = _without(text, said + text)  # also for its processor, which `text` tells
        again = standing != text
        text = _written(path, standing) if again else text
        first = "" if loading.inputs else text  # what is written here is nobody's edit
    guesses = [str(n) for n, line in enumerate(text.splitlines(), 1) if GUESS in line]
    return told + f"\nguessed, so look at lines {', '.join(guesses)}" * bool(guesses)


def _class_of(source: Any) -> type:
    with suppress(NormprobeError):
        return type(build_on_meta(source.checkpoint))
    return nn.Module


def _forward_of(model_class: type, sees: str = "") -> str:
    """A ``forward`` that is its class's own ``generate``, as far as one token; "" if it has none.

    ``sees``: a pattern of what it has to take.
    """
    makes = getattr(model_class, "generate", nn.Module.forward)
    own = not makes.__module__.startswith(("torch.", "transformers."))
    of_it = list(signature(makes).parameters.values())[1:] if own else []
    named = [p for p in of_it if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes = [p for p in named if not _OF_ANSWERS.search(p.name)]
    if not takes or not any(re.search(sees, p.name) for p in takes):
        return ""
    others = any(p.kind is p.VAR_KEYWORD for p in of_it)
    lengths = [p.name for p in named if re.match("max_|min_", p.name) and p.default is p.empty]
    if others or "max_new_tokens" in {p.name for p in named}:
        lengths = lengths or ["max_new_tokens"]
    ours = {p.name: "input_ids" if p.name == "inputs" else p.name for p in takes}  # LLaVA's kin
    asked = [ours[p.name] + "=None" * (p.default is not p.empty) for p in takes]
    if others and "attention_mask" not in ours:
        ours["attention_mask"] = "attention_mask"
        asked.append("attention_mask=None")
    given = [*(f"{theirs}={each}" for theirs, each in ours.items()), *(f"{n}=1" for n in lengths)]
    return _FORWARD.format(
        takes=", ".join(asked), runs=f"return model.generate({', '.join(given)})"
    )


def _without(text: str, said: str) -> str:
    """The text with stand-ins for all packages that a message says to be missing."""
    for lacking in _LACKS.finditer(said):
        for package in re.findall(r"\w+", lacking[1] or lacking[2]):
            text = _standing_in(text, package)
    return re.sub(r"(    stand_in\(.*\n)    pass\n", r"\1", text)


def _standing_in(text: str, package: str) -> str:
    """The text with a stand-in for a package that is not installed, in its ``setup``.

    None for that which holds the model's code: its folder is not where it is looked for.
    """
    imports = _FOUND.search(text)
    if imports and package in re.findall(r"\w+", imports[0].partition("#")[0]):
        return text
    runs = "" if package == "flash_attn" else f"  # {GUESS}: nothing of it runs"
    stands = f"    stand_in({package!r}){runs}\n"
    if not _SETUP.search(text) or stands in text:
        return text
    imported = "    from normprobe.inputs.inputs_file import stand_in\n\n"
    text = text if imported in text else _SETUP.sub(lambda m: m[0] + imported, text, count=1)
    return text.replace(imported, imported + stands, 1)


def _begun(model: str, path: Path, loading: Loading, first: str = "") -> tuple[str, str]:
    """Write the file; what came of a sample, and the text that is written.

    ``first``: what is begun where no code is known, if that is known.
    """
    source: Any = None
    stub = kept = edited = ""
    try:
        source = Probe(model, **vars(loading)).source
    except (UnknownCode, NoForward) as failure:
        own = failure.model_class if isinstance(failure, NoForward) else nn.Module
        stub = (_forward_of(own) or _STUB) if isinstance(failure, NoForward) else ""
        again = f"normprobe inputs {model} --inputs {path} --write OTHER.py"
        told = (
            f"not measured with it yet: {failure.problem}\n{failure.remedy}\n"
            f"then begin again with what it tells: {again}"
        )
    said = dict[str, str]()
    if loading.inputs:
        first = first or file_text(model, path.name, replace(loading, inputs=None), None, "", {})
        kept, said = _kept(loading.inputs, first) + stub, _said(loading.inputs)
        named = read_inputs_file(loading.inputs).parts
        edited = loading.inputs.read_text(encoding="utf-8")  # it may be the file that is written
        loading = replace(loading, named=[*named.items(), *(loading.named or ())])
    else:
        kept = stub
    first_try: tuple[str, str] | None = None
    with_flags: tuple[str, str] | None = None
    asked, by_hand, asking, inserts = list[str](), False, True, False
    while True:
        made = file_text(model, path.name, loading, source, kept, said, asked, by_hand, asking)
        made = made.replace(_FLAGS, "") if with_flags else made
        made = _AS_MANY.sub(r"\1 * 1", made) if inserts else made
        if loading.inputs:
            made = _with_edits(made, first, edited)
        text = _written(path, made)
        if source is None:
            return told, text
        told = _tried(model, path, loading, re.findall(rf'# "(\w+)": NAME,  # {GUESS}', text))
        if not asked and re.search(r"where [\w ]*\blabels\b[\w ]* (is|are) None", told):
            asked = ["labels"]
        elif not asked and _PLACED.search(text) and "fails on these inputs" in told:
            asked = ["cache_position"]  # code may go by it, as generate() passes it (MolmoPoint)
        elif not by_hand and "process_images" in text and f"build() of {path} fails" in told:
            by_hand = True  # its package's pixels may be of use to others alone (PAVE)
        elif not inserts and _is_squared(text, told):
            inserts = True  # each of as many ids as rows gets as many rows (GMAI-VL, MinerU2.0)
        elif not with_flags and _FLAGS in text and not _is_measured(told):
            with_flags = told, text  # a copy may do without them (HoVLE)
        elif asking and _is_by_asking(text, kept) and not _is_measured(told):
            asking, first_try = False, (told, text)
        else:
            break
    if _is_measured(told):
        return told, text
    if with_flags:
        told, text = with_flags[0], _written(path, with_flags[1])
    if "def forward(" not in kept and (runs := _forward_of(_class_of(source), _SEES)):
        # A forward may be one of training (UReader), and no answer reaches it (EarthMind).
        for begun in [first_try[1], text] if first_try else [text]:
            _written(path, begun + runs)
            of_answers = _begun(model, path, replace(loading, inputs=path), first=first or text)
            if _is_measured(of_answers[0]):
                return of_answers
        _written(path, text)
    if first_try:  # fewer lines are wrong in it
        return first_try[0], _written(path, first_try[1])
    return told, text


def _is_squared(text: str, told: str) -> bool:
    """Whether a picture has as many times the rows that its ids are, or code runs out of rows."""
    ids, rows = _AS_MANY.search(text), re.search(r"(\d+) visual", told)
    count = int(ids[2]) if ids else 0
    if rows is None:
        return count > 1 and "is out of bounds" in told
    return count > 1 and int(rows[1]) == count * count


def _is_by_asking(text: str, kept: str) -> bool:
    """Whether a file has the model's own code make the inputs, and no user said how."""
    by_processor = "    made = processor(  # " in text
    return by_processor or ("inputs_as_asked" in text and "def ask(" not in kept)


def _is_measured(told: str) -> bool:
    return told.startswith(_MEASURED) and _UNSEEN not in told


def _written(path: Path, text: str) -> str:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NormprobeError(
            f"{path} cannot be written: {first_line(error)}", "choose another file"
        ) from error
    return text


def _tried(model: str, path: Path, loading: Loading, left_out: Sequence[str]) -> str:
    """What comes of one sample, in words; ``left_out``: what forward takes beside."""
    try:
        probe = Probe(model, **{**vars(loading), "inputs": path})
        table = wide(probe.layers("sample", limit=1, intervals=False, workers=0).table)
    except NormprobeError as failure:
        if lacks := re.search(r"where ([\w ]+) (is|are) None", failure.problem):
            left_out = [each for each in left_out if each in lacks[1].split(" and ")]
        may = f"forward may ask for {', '.join(left_out)}, which TAKES leaves out"
        asks = "inputs" in failure.problem or "ends without a call" in failure.problem
        ways = [may] * bool(left_out and asks) + [failure.remedy]
        if PREPARED in failure.remedy:  # that comes first
            ways.reverse()
        return f"not measured with it yet: {failure.problem}\n{'; else '.join(ways)}"
    held = table[(table["layer"] == 0) & (table["group"] != NON_VISUAL)]
    told = ", ".join(f"{n} {group}" for group, n in zip(held["group"], held["tokens"], strict=True))
    if VISUAL not in set(held["group"]):
        return f"{_MEASURED}, and {_UNSEEN} ({told}): add its pixels"
    return f"{_MEASURED}: {told} tokens{_as_read(probe)}"


def _as_read(probe: Probe) -> str:
    """The prompt of that sample as its ids say it, with what stands for pictures in brackets."""
    builder, parts = probe.source.builder, probe.parts
    ids, mask = text_ids(builder.build([*open_data("sample", limit=1)]), parts)
    if ids is None or builder.tokenizer is None:
        return ""
    told, held = "", ids[0] if mask is None else ids[0][mask[0].bool()]
    for stands, run in groupby(held.tolist(), lambda n: n < 0 or n in parts.image_token_ids):
        numbers = [*run]
        words = f"[{len(numbers)} x {numbers[0]}]"
        told += words if stands else _in_words(builder.tokenizer, numbers)
    return f"\nits prompt: {visible(repr(told))}"


def _in_words(tokenizer: Any, numbers: Sequence[int]) -> str:
    """Ids as text; many of one in a row, as of a placeholder that no field names, once."""
    told, plain = "", list[int]()
    for number, again in groupby(numbers):
        if len(run := [*again]) <= _REPEATED:
            plain += run
            continue
        told += _decoded(tokenizer, plain) + f"[{len(run)} x {_decoded(tokenizer, [number])}]"
        plain = []
    return told + _decoded(tokenizer, plain)


def _decoded(tokenizer: Any, numbers: Sequence[int]) -> str:
    """Own code may have no word for an id (Emu3.5)."""
    return decoded(tokenizer, numbers, f"[ids {', '.join(map(str, numbers))}]")


def _kept(path: Path, first: str) -> str:
    """The text of an inputs file without what is begun anew.

    ``first``: the text of one that is begun where no code is known.
    """
    nodes = [node for node in ast.parse(first).body if isinstance(node, ast.Assign)]
    as_first = {ast.unparse(node) for node in nodes}
    text, kept, last = path.read_text(encoding="utf-8"), "", 0
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        named = {getattr(node, "name", None)}  # of a function
        for target in node.targets if isinstance(node, ast.Assign) else ():
            named |= {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
        of_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        unedited = isinstance(node, ast.FunctionDef) and _is_begun(node)
        marked = any(GUESS in line for line in lines[node.lineno - 1 : node.end_lineno])
        as_begun = marked and _value(node) in (USUAL_TURN, *USUAL_IMAGES, None)
        own = named & {"TURN", "IMAGE"} and not as_begun
        own = own or (named & _EDITED and ast.unparse(node) not in as_first)
        # No docstring; a call such as sys.path.insert stays.
        if own or not (named & _BEGUN or of_text or unedited):
            kept += "".join(lines[last : node.end_lineno])  # with the comments before it
        last = node.end_lineno or last
    return kept and kept.rstrip() + "\n"


def _with_edits(made: str, first: str, edited: str) -> str:
    """The text with ``TAKES`` and ``build`` of a file where they are neither as begun now nor then.

    ``first``: as in ``_kept``.
    """
    for name in ("TAKES", "build"):
        begun, before, own = (_named(name, text) for text in (made, first, edited))
        if own and begun and own[1] not in (begun[1], before and before[1]):
            made = made.replace(begun[0], own[0])
    return made


def _named(name: str, text: str) -> tuple[str, str] | None:
    """The source of what a text calls so, and it without comments."""
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if name in (*map(ast.unparse, targets), getattr(node, "name", None)):
            return ast.get_source_segment(text, node) or "", ast.unparse(node)
    return None


def _is_begun(node: ast.FunctionDef) -> bool:
    """Whether a function is as it was begun, so that what is known by now may take its place."""
    begun = {_NOTHING_PREPARED}
    for trust in (False, True):
        looks = ("", LOOK.format(place="path", trust=trust))  # a tower's place may be its user's
        begun |= {ast.unparse(ast.parse(LOADER.format(trust=trust, look=look))) for look in looks}
    return ast.unparse(node) in begun


def _value(node: ast.stmt) -> Any:
    """What an assignment says, where that is written out."""
    with suppress(ValueError):
        return ast.literal_eval(node.value) if isinstance(node, ast.Assign) else None
    return None


def _said(path: Path) -> dict[str, str]:
    """``TAKES`` of an inputs file, where it is written out."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TAKES":
            said = _value(node)
            return {str(k): str(v) for k, v in said.items()} if isinstance(said, dict) else {}
    return {}
